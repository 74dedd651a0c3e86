"""Loads and stores of lanes as LLVM text; accumulators are kept in SSA form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convsmith.codegen.casts import literal
from convsmith.codegen.columns import Groups, columns_of, interleaved
from convsmith.codegen.gathers import Spans, extent_of, gathered_from
from convsmith.codegen.head_load import load_head
from convsmith.codegen.lane_masks import load_on_lanes, mask_on_lanes, store_on_lanes
from convsmith.codegen.masked_stores import is_spread, store_spread
from convsmith.codegen.parts_of_bytes import load_part, starts_at_byte, store_part, store_parts, unpacked
from convsmith.codegen.parts_of_stores import parts_of_store
from convsmith.codegen.past_caches import STORE
from convsmith.codegen.runs import has_long_runs, load_runs, store_runs
from convsmith.codegen.strided_units import load_strided, store_strided
from convsmith.codegen.sums_of_lanes import SumEmitter
from convsmith.codegen.word_loads import fills_word, is_word, load_leading, load_word
from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index
from convsmith.ir.instruction import ByteLookup, HeadLoad
from convsmith.ir.types import U8, DType, Half
from convsmith.ir.value import (
    Lanes,
    Load,
    strided,
)

Slot = tuple[Buffer, tuple[int, ...]]
"""An accumulator: a register buffer and the constant index of its vector (or scalar)."""

LEAST_ROW = 32
"""Minimum bits of adjacent lanes that are accessed as one vector instead of lane by lane."""


def row_width(t: DType, lanes: Lanes) -> int:
    """Return the adjacent lanes per access if ``lanes`` form a power of two of rows; otherwise 0."""
    rows, width, _ = lanes.rows or (0, 0, 0)
    return width if rows & (rows - 1) == 0 and width * t.bits >= LEAST_ROW else 0


WORD = 32
"""Bits of a word."""
LINE = 64
"""Bytes of a cache line."""
NEAREST, SECOND_LEVEL = 3, 2
"""LLVM's numbers of the caches to which a line is prefetched."""


def starts_line(first: int, nbytes: int) -> bool:
    """Return whether ``nbytes`` that begin ``first`` bytes after the beginning of a cache line begin a line."""
    return -first % LINE < nbytes


class AccessEmitter(SumEmitter):
    """Emits accesses; ``vector_of`` gives the lanes of register buffers that are kept as vectors."""

    store_of_lane = "store volatile"
    """The instruction that stores one of several lanes that are not adjacent.

    LLVM compares each plain store with all others, to merge or to reorder them, which takes most of the time to compile
    many such lanes and gains nothing. It does not compare volatile ones.
    """

    def __init__(
        self, bits: int, written: set[Buffer], half: Half, head: HeadLoad | None = None,
        lookup: ByteLookup | None = None,
    ) -> None:  # fmt: skip
        super().__init__(bits, half, lookup)
        self.written, self.head = written, head
        self.has_masked_stores = False
        self.masked_bytes = 1
        self.loads_words = False
        self.loads_predicated = False
        self.streamed: Mapping[str, int] = {}
        self.vector_of: dict[Buffer, int] = {}
        self.in_scalars: set[Buffer] = set()
        """Buffers that are kept as vectors, each lane of which lies in a scalar register between two blocks of code."""
        self.slots: dict[Slot, str] = {}
        self.places: dict[tuple[Buffer, tuple[Index, ...]], tuple[Slot, Index | None]] = {}
        self.past_caches: frozenset[Buffer] = frozenset()
        """The buffers whose full vectors are stored non-temporally, at multiples of a vector's bytes."""
        self.updated: frozenset[Buffer] = frozenset()
        """The buffers whose elements are computed from their previous contents."""
        self.has_vector_lengths = False
        self.predicates: dict[int, str] = {}
        """Within a scalable loop, the predicates of vectors, or the numbers of their lanes where the machine
        ``has_vector_lengths``, by the lanes per unit.
        """
        self.spans: Spans = {}
        self.column_groups: Groups = {}
        self.on_lanes: Cond | None = None
        """The condition on the lanes for which statements are executed, if any."""

    def splat(self, t: DType, x: str, lanes: int) -> str:
        """Return a vector with ``x`` in every lane."""
        key = ("splat", t.llvm, x, self.letters(lanes))
        vector = self.known.get(key)
        if vector is None:
            ty = self.type(t, lanes)
            one = self.put(f"insertelement {ty} poison, {t.llvm} {x}, i64 0")
            vector = self.put(f"shufflevector {ty} {one}, {ty} poison, {self.vector('i32', lanes)} zeroinitializer")
            self.known.set(key, vector)
        return vector

    def mask(self, lanes: Lanes) -> str:
        """Return the type and the operand of the mask of active lanes."""
        if self.scalable:
            return f"{self.type_i1(lanes.count)} {self.predicates[lanes.count]}"
        bits = ", ".join(f"i1 {'true' if lanes.first <= n < lanes.active else 'false'}" for n in range(lanes.count))
        return f"<{lanes.count} x i1> <{bits}>"

    def number_of(self, count: int) -> str:
        """Return the operands that end a scalable vector of ``count`` lanes in a unit: a mask without effect, and the
        number of lanes.
        """
        return f"{self.type_i1(count)} splat (i1 true), i32 {self.predicates[count]}"

    # -- registers
    def is_held(self, buffer: Buffer) -> bool:
        """Return whether LLVM allocates the registers of a buffer."""
        return buffer.scope == "register" or buffer in self.vector_of

    def slot(self, buffer: Buffer, index: tuple[Index, ...]) -> tuple[Slot, Index | None]:
        """Return the accumulator of an access, and the lane within it if the access is one lane of a vector."""
        slot_and_lane = self.places.get((buffer, index))
        if slot_and_lane is None:
            slot_and_lane = self.places[buffer, index] = self._slot(buffer, index)
        return slot_and_lane

    def _slot(self, buffer: Buffer, index: tuple[Index, ...]) -> tuple[Slot, Index | None]:
        lanes = self.vector_of.get(buffer)
        lead, lane = index, None
        if lanes:
            innermost = buffer.blocks[-1].dim
            lead, lane = (*index[:innermost], *index[innermost + 1 :]), index[innermost]
        if any(not i.is_const for i in lead):
            raise InternalError(f"register array {buffer.name}[{', '.join(map(str, index))}] has no constant index")
        return (buffer, tuple(i.const for i in lead)), lane

    def slots_at(self, buffer: Buffer, index: tuple[Index, ...]) -> list[Slot]:
        """Return the accumulators that a write at ``index`` may change."""
        return [self.slot(buffer, index)[0]]

    def slot_type(self, slot: Slot) -> str:
        return self.type(slot[0].dtype, self.vector_of.get(slot[0], 0))

    def held(self, slot: Slot) -> str:
        """Return the content of an accumulator; zero before its first write."""
        zero = "zeroinitializer" if self.vector_of.get(slot[0]) else literal(slot[0].dtype, 0)
        return self.slots.get(slot, zero)

    def parts_of(self, slot: Slot) -> list[str]:
        """Return what an accumulator is between two blocks of code: a value, or each lane of a vector in scalars."""
        held = self.held(slot)
        if slot[0] not in self.in_scalars:
            return [held]
        if held == "zeroinitializer":
            return [literal(slot[0].dtype, 0)] * self.vector_of[slot[0]]
        of = f"{self.slot_type(slot)} {held}"
        return [self.put(f"extractelement {of}, i64 {n}") for n in range(self.vector_of[slot[0]])]

    def part_type(self, slot: Slot) -> str:
        """Return LLVM's type of each of the parts of an accumulator."""
        return slot[0].dtype.llvm if slot[0] in self.in_scalars else self.slot_type(slot)

    def joined(self, slot: Slot, parts: list[str]) -> str:
        """Return an accumulator of its parts."""
        if slot[0] not in self.in_scalars:
            return parts[0]
        whole, type_ = "poison", self.slot_type(slot)
        for n, x in enumerate(parts):
            whole = self.put(f"insertelement {type_} {whole}, {slot[0].dtype.llvm} {x}, i64 {n}")
        return whole

    def read_slot(self, v: Load) -> str:
        slot, lane = self.slot(v.buffer, v.index)
        held = self.held(slot)
        if lane is None:
            return held
        if v.lanes is not None:
            size, count = self.vector_of[v.buffer], v.lanes.count
            if count == size:
                return held
            places = [min(lane.const + i, size - 1) for i in range(count)]
            return self.shuffle(v.buffer.dtype, size, held, "poison", places)
        return self.put(f"extractelement {self.slot_type(slot)} {held}, {self.it} {self.index(lane)}")

    def write_slot(self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None, x: str) -> None:
        slot, lane = self.slot(buffer, index)
        if lane is not None and lanes is None:
            held = self.held(slot)
            place = self.index(lane)
            x = self.put(f"insertelement {self.slot_type(slot)} {held}, {buffer.dtype.llvm} {x}, {self.it} {place}")
        if self.on_lanes is not None:
            n, ty = self.vector_of[buffer], self.slot_type(slot)
            mask = mask_on_lanes(self, self.on_lanes, range(n), buffer.dtype.bits)
            x = self.put(f"select {mask}, {ty} {x}, {ty} {self.held(slot)}")
        self.slots[slot] = x

    # -- memory
    def place(self, buffer: Buffer, index: tuple[Index, ...]) -> str:
        """Return the pointer to an element, with its type."""
        return f"{self.pointer(buffer)} {self.address(buffer, index[0])}"

    def alignment(self, v: Load) -> int:
        """Return the bytes to which the lanes of an access are certainly aligned: the bytes of an element."""
        return v.buffer.dtype.bytes

    def load(self, v: Load) -> str:
        """Load from memory; memory that the kernel never writes is loaded once."""
        if self.is_held(v.buffer):
            x = self.read_slot(v)
            return x if v.lanes is None or v.lanes.is_whole else self._only(v.buffer.dtype, x, v.lanes)
        if v.buffer in self.written:
            return self._load(v)
        key = (v.buffer, v, self.scalable, self.on_lanes)
        loaded = self.known.get(key)
        if loaded is None:
            loaded = self._load(v)
            self.known.set(key, loaded)
        return loaded

    def load_number(self, v: Load, number: str) -> str:
        """Load whole adjacent lanes as one number of that LLVM type."""
        assert v.lanes is not None
        ty = self.type(v.buffer.dtype, v.lanes.count)
        key = (number, v.buffer, v)
        loaded = None if v.buffer in self.written else self.known.get(key)
        if loaded is None:
            where = f"{self.pointer(v.buffer)} {self.address(v.buffer, v.index[0])}"
            held = self.put(f"load {number}, {where}, align {self.alignment(v)}")
            loaded = self.put(f"bitcast {number} {held} to {ty}")
            self.known.set(key, loaded)
        return loaded

    def _load(self, v: Load) -> str:
        t, lanes = v.buffer.dtype, v.lanes
        if t.per_byte > 1:
            return self._load_parts(v)
        if lanes is None:
            return self.put(f"load {t.llvm}, {self.place(v.buffer, v.index)}, align {t.bytes}")
        n, ty = lanes.count, self.type(t, lanes.count)
        if not lanes.touched:
            return "zeroinitializer"
        if self.on_lanes is not None and lanes.stride:
            return load_on_lanes(self, v, lanes, self.on_lanes)
        whole = lanes.is_whole and not (self.scalable and lanes.stride)
        if lanes.stride == 0:
            x = self.splat(t, self.load(Load(v.buffer, v.index, None)), n)
            return x if whole else self._only(t, x, lanes)
        if lanes.stride == 1:
            where = self.address(v.buffer, v.index[0])
            ahead = self.streamed.get(v.buffer.name, 0)
            if ahead and not self.scalable and starts_line(v.index[0].const * t.bytes, n * t.bytes):
                self.prefetch(self.pointer(v.buffer), where, ahead)
            if whole:
                if self.loads_words and t.bits < WORD and n * t.bits > WORD and n * t.bits % WORD == 0:
                    words = f"<{n * t.bits // WORD} x i{WORD}>"
                    held = self.put(f"load {words}, {self.pointer(v.buffer)} {where}, align {self.alignment(v)}")
                    return self.put(f"bitcast {words} {held} to {ty}")
                return self.put(f"load {ty}, {self.pointer(v.buffer)} {where}, align {self.alignment(v)}")
            if self.head is not None and lanes.first:
                return self._load_lanes(v, lanes)
            if self.head is not None and not self.scalable:
                return load_head(self, self.head, t, where, n, lanes.active)
            if not self.scalable and not self.loads_predicated and fills_word(t, lanes):
                return load_leading(self, t, where, n, lanes.active)
            if not self.scalable and is_word(t, lanes, self.masked_bytes):
                return load_word(self, t, where, n, lanes.active)
            if self.scalable and self.has_vector_lengths:
                name = f"@llvm.vp.load.{self.suffix(t, n)}.p0"
                self.declared[f"declare {ty} {name}(ptr, {self.type_i1(n)}, i32)"] = None
                return self.put(f"call {ty} {name}(ptr align {t.bytes} {where}, {self.number_of(n)})")
            name = f"@llvm.masked.load.{self.suffix(t, n)}.p0"
            self.declared[f"declare {ty} {name}(ptr, {self.type_i1(n)}, {ty})"] = None
            return self.put(f"call {ty} {name}(ptr align {t.bytes} {where}, {self.mask(lanes)}, {ty} zeroinitializer)")
        if self.scalable:
            return load_strided(self, v, lanes)
        if whole and columns_of(lanes.offsets) is not None:
            return self._load_columns(v, lanes)
        lo, hi = self.spans.get((gathered_from(v), extent_of(v)), extent_of(v))
        if whole and hi - lo < n:
            span = strided(hi - lo + 1, 1)
            away = lo - v.index[0].const
            block = self.load(Load(v.buffer, (v.index[0] + away,), span))
            return self.pick(t, block, span.count, [o - away for o in lanes.offsets])
        if hi - lo < 2 * n and (whole or hi - lo + 1 < 2 * n):
            return self._gather(v, lanes, lo - v.index[0].const, hi - lo + 1)
        if self.has_masked_stores and has_long_runs(t, lanes):
            return load_runs(self, v, lanes)
        if (width := row_width(t, lanes)) and not lanes.first:
            return self.load_rows(v, lanes, width)
        return self._load_lanes(v, lanes)

    def _load_parts(self, v: Load) -> str:
        """Load elements that share bytes: a whole vector from whole bytes, otherwise element by element."""
        t, lanes = v.buffer.dtype, v.lanes
        if lanes is None:
            return load_part(self, v.buffer, v.index[0])
        if lanes.stride == 0:
            x = self.splat(t, self.load(Load(v.buffer, v.index, None)), lanes.count)
            return x if lanes.is_whole else self._only(t, x, lanes)
        pairs = lanes.stride == 1 and lanes.is_whole and lanes.count % t.per_byte == 0
        if pairs and starts_at_byte(self, v.buffer, v.index[0]):
            where, half = self.address(v.buffer, v.index[0]), lanes.count // t.per_byte
            if self.head is not None:
                return unpacked(self, t, load_head(self, self.head, U8, where, half, half), lanes.count)
            held = self.put(f"load {self.type(U8, half)}, {self.pointer(v.buffer)} {where}, align 1")
            return unpacked(self, t, held, lanes.count)
        return self._load_lanes(v, lanes)

    def _store_parts(self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None, x: str) -> None:
        """Store elements that share bytes."""
        t = buffer.dtype
        if lanes is None:
            store_part(self, buffer, index[0], x)
            return
        pairs = lanes.stride == 1 and lanes.is_whole and lanes.count % t.per_byte == 0
        if pairs and starts_at_byte(self, buffer, index[0]):
            store_parts(self, self.address(buffer, index[0]), lanes.count, x)
            return
        for lane in range(lanes.first, lanes.active):
            one = self.put(f"extractelement {self.type(t, lanes.count)} {x}, i64 {lane}")
            store_part(self, buffer, index[0] + lanes.offsets[lane], one)

    def prefetch(self, pointer: str, where: str, away: int, locality: int = NEAREST) -> None:
        """Prefetch the line ``away`` bytes after an address to the cache that LLVM's ``locality`` stands for;
        prefetching outside of mapped memory has no effect.
        """
        self.declared["declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"] = None
        ahead = self.put(f"getelementptr i8, {pointer} {where}, i64 {away}")
        self.lines.append(f"  call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 {locality}, i32 1)")

    def _load_lanes(self, v: Load, lanes: Lanes) -> str:
        """Return a vector of lanes that are loaded one by one; inactive lanes are zero."""
        t, ty, out = v.buffer.dtype, self.type(v.buffer.dtype, lanes.count), "zeroinitializer"
        for lane in range(lanes.first, lanes.active):
            x = self.load(Load(v.buffer, (v.index[0] + lanes.offsets[lane],), None))
            out = self.put(f"insertelement {ty} {out}, {t.llvm} {x}, i64 {lane}")
        return out

    def load_rows(self, v: Load, lanes: Lanes, width: int) -> str:
        """Return a vector of a power of two of rows of ``width`` adjacent lanes; inactive lanes are zero."""
        t, parts = v.buffer.dtype, []
        for start in range(0, lanes.count, width):
            active = min(width, lanes.active - start)
            row = Load(v.buffer, (v.index[0] + lanes.offsets[start],), strided(width, 1))
            if active <= 0:
                parts.append("zeroinitializer")
            else:
                parts.append(self.load(row) if active == width else self._load_lanes(row, strided(width, 1, active)))
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.shuffle(t, width, a, b, range(2 * width)) for a, b in pairs]
            width *= 2
        return parts[0]

    def _load_columns(self, v: Load, lanes: Lanes) -> str:
        """Return the columns of rows that vectors hold, which neighbouring columns share."""
        columns, at = columns_of(lanes.offsets), v.index[0].const
        assert columns is not None
        start, width = self.column_groups.get((gathered_from(v), columns, at), (at, columns.number))
        rows = [
            self.load(Load(v.buffer, (v.index[0] + (start - at + n * columns.distance),), strided(width, 1)))
            for n in range(columns.rows)
        ]
        t, part, whole = v.buffer.dtype, (at - start) // columns.number, width * columns.rows
        if whole != 2 * lanes.count:
            return interleaved(self, t, rows, width, part, lanes.count)
        # An engine knows the shuffle of a whole register as an instruction, and widens either half of it by another.
        both = interleaved(self, t, rows, width, 0, whole)
        return self.shuffle(t, whole, both, "poison", [part * lanes.count + n for n in range(lanes.count)])

    def _gather(self, v: Load, lanes: Lanes, away: int, span: int) -> str:
        """Return lanes from the one or two vectors that hold the ``span`` elements from ``away`` on; zero if no lane is
        active.

        Elements beyond the span are zero.
        """
        t, n = v.buffer.dtype, lanes.count
        first = self.load(Load(v.buffer, (v.index[0] + away,), strided(n, 1, min(span, n))))
        absent = n - 1 if span < n else 2 * n - 1
        places = [o - away if lanes.first <= lane < lanes.active else absent for lane, o in enumerate(lanes.offsets)]
        if span < n:
            return self.pick(t, first, n, places)
        second = "zeroinitializer"
        if span > n and lanes.is_whole and not (self.masked_bytes and t.bytes >= self.masked_bytes):
            # Without masked loads, a part of a vector takes several: the second vector ends with the span.
            second = self.load(Load(v.buffer, (v.index[0] + away + span - n,), strided(n, 1)))
            places = [o if o < n else o + 2 * n - span for o in places]
        elif span > n:
            second = self.load(Load(v.buffer, (v.index[0] + away + n,), strided(n, 1, span - n)))
        return self.shuffle(t, n, first, second, places)

    def _only(self, t: DType, x: str, lanes: Lanes) -> str:
        ty = self.type(t, lanes.count)
        return self.put(f"select {self.mask(lanes)}, {ty} {x}, {ty} zeroinitializer")

    def _narrow(self, t: DType, lanes: Lanes, x: str) -> tuple[Lanes, str]:
        """Return the half of the vector that contains all active lanes, repeatedly, because narrow accesses cross fewer
        cache lines.
        """
        n = lanes.count
        while n % 2 == 0 and n // 2 >= lanes.active and n // 2 * t.bits >= 128:
            n //= 2
        if n == lanes.count:
            return lanes, x
        part = self.shuffle(t, lanes.count, x, "poison", list(range(n)))
        return strided(n, 1, lanes.active), part

    def _store_leading(
        self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes, x: str, parts: Sequence[int]
    ) -> None:
        """Store the leading lanes of ``x`` in ``parts``, each of which has that many lanes."""
        start = 0
        for n in parts:
            part = self.shuffle(buffer.dtype, lanes.count, x, "poison", range(start, start + n))
            self.store(buffer, (index[0] + start, *index[1:]), strided(n, 1), part)
            start += n

    def store(self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None, x: str) -> None:
        """Store to memory or to a register; ``x`` has as many lanes as ``lanes``."""
        if self.is_held(buffer):
            self.write_slot(buffer, index, lanes, x)
            return
        t = buffer.dtype
        if t.per_byte > 1:
            self._store_parts(buffer, index, lanes, x)
            return
        if lanes is None:
            self.lines.append(f"  store {t.llvm} {x}, {self.place(buffer, index)}, align {t.bytes}")
            return
        if self.on_lanes is not None:
            store_on_lanes(self, buffer, index[0], lanes, x, self.on_lanes)
            return
        if lanes.stride == 1 and not self.scalable:
            if parts := parts_of_store(t, lanes, buffer in self.updated):
                self._store_leading(buffer, index, lanes, x, parts)
                return
            lanes, x = self._narrow(t, lanes, x)
        n, ty = lanes.count, self.type(t, lanes.count)
        if lanes.stride == 1:
            where = self.address(buffer, index[0])
            if lanes.active == n and not self.scalable:
                aligned = self.alignment(Load(buffer, index, lanes))
                how = f"align {n * t.bytes}, {STORE}" if buffer in self.past_caches else f"align {aligned}"
                self.lines.append(f"  store {ty} {x}, {self.pointer(buffer)} {where}, {how}")
            elif self.scalable and self.has_vector_lengths:
                name = f"@llvm.vp.store.{self.suffix(t, n)}.p0"
                self.declared[f"declare void {name}({ty}, ptr, {self.type_i1(n)}, i32)"] = None
                self.lines.append(f"  call void {name}({ty} {x}, ptr align {t.bytes} {where}, {self.number_of(n)})")
            else:
                name = f"@llvm.masked.store.{self.suffix(t, n)}.p0"
                self.declared[f"declare void {name}({ty}, ptr, {self.type_i1(n)})"] = None
                self.lines.append(f"  call void {name}({ty} {x}, ptr align {t.bytes} {where}, {self.mask(lanes)})")
            return
        if self.scalable:
            store_strided(self, buffer, index[0], lanes, x)
            return
        if self.has_masked_stores and is_spread(t, lanes):
            store_spread(self, buffer, index[0], lanes, x)
            return
        if has_long_runs(t, lanes):
            store_runs(self, buffer, index[0], lanes, x)
            return
        width = row_width(t, lanes)
        whole = lanes.active // width * width if width else 0
        for start in range(0, whole, width or 1):
            row = self.shuffle(t, n, x, "poison", range(start, start + width))
            self.store(buffer, (index[0] + lanes.offsets[start],), strided(width, 1), row)
        for lane in range(whole, lanes.active):
            one = self.put(f"extractelement {ty} {x}, i64 {lane}")
            where = self.place(buffer, (index[0] + lanes.offsets[lane],))
            self.lines.append(f"  {self.store_of_lane} {t.llvm} {one}, {where}, align {t.bytes}")
