"""Load and store contiguous elements of all lanes by messages of a sub-group, which have a single address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import is_
from typing import NamedTuple

from convsmith.arith.divisors import divisor_of
from convsmith.ir.index import Cond, Ge0, Var, as_index, conj, ge0, is_true, parts_of
from convsmith.ir.instruction import BLOCK, PITCH, Instruction
from convsmith.ir.rewrite import substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import LANE, Block, For, If, Invoke, Kernel, Stmt, Store, block
from convsmith.ir.value import Const, Lanes, Load, Select, Value, const, rows_of_lanes, strided
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.flatten import offset
from convsmith.passes.scope import LoopRewriter, with_body

ALIGNMENT = 16
"""Bytes that divide the address of a message, and the distance of rows of a matrix."""
LEAST_PITCH = 96
"""Least distance of rows of a matrix, in bytes."""


class _Stored(NamedTuple):
    """A store of one element, and the statement that contains it: the store itself, or a loop over adjacent elements.
    """

    store: Store
    whole: Stmt


class _Register(NamedTuple):
    """A register that each lane loads: the places of its elements in a fragment, the place of the first in memory, and
    the condition under which they are not zero.
    """

    held: tuple[Load, ...]
    memory: Load
    present: Cond

    def follows(self, first: _Register, number: int, step: int, distance: int, present: Cond) -> bool:
        """Return whether this register follows the ``first`` by ``number`` registers, both in the fragment and in
        memory, and is ``present`` under that condition on its number.
        """
        return (
            self.present is substitute(present, {LANE: as_index(number)})
            and self.memory.buffer is first.memory.buffer and _distance(first.memory, self.memory) == number * distance
            and len(self.held) == len(first.held)
            and all(x.buffer is y.buffer and _distance(y, x) == number * step for x, y in zip(self.held, first.held))
        )  # fmt: skip


def _distance(x: Load, y: Load) -> int | None:
    """Return the distance from ``x`` to ``y`` in elements; None if it is not constant."""
    distance = offset(y.buffer, y.index) - offset(x.buffer, x.index)
    return distance.const if distance.is_const else None


class _BlockMessages(LoopRewriter):
    def __init__(self, rows: Sequence[Instruction]) -> None:
        super().__init__()
        self.rows: dict[tuple[str, int, str, str, int, int], Instruction] = {}
        for row in rows:
            number = next(n for n, x in enumerate(row.operands) if x.file in (BLOCK, PITCH))
            x = row.operands[number]
            self.rows[x.file, number, x.scope, x.dtype, x.layout.elements, x.layout.registers] = row

    def visit_For(self, loop: For) -> Stmt:
        if loop.kind != "lane":
            return self._For(loop)
        body = self._of_lanes(loop.body, loop.var, int(loop.hi))
        return loop if body is loop.body else replace(loop, body=body)

    def _of_lanes(self, s: Stmt, lane: Var, lanes: int) -> Stmt:
        """Return a statement that all lanes execute, with messages for its accesses."""
        if isinstance(s, If) and lane in variables_of(s.cond):
            return s
        if isinstance(s, (If, For)) and not _single_stores(s):
            body = self._of_lanes(s.body, lane, lanes)
            return s if body is s.body else replace(s, body=body)
        stmts = s.stmts if isinstance(s, Block) else (s,)
        made: list[Stmt] = []
        for is_store, some in groupby(stmts, lambda x: bool(_single_stores(x))):
            if is_store:
                made += self._of_stores([y for x in some for y in _single_stores(x)], lane, lanes)
            else:
                made += [self._of_lanes(x, lane, lanes) if isinstance(x, (If, For)) else x for x in some]
        return s if len(made) == len(stmts) and all(map(is_, made, stmts)) else block(*made)

    def _of_stores(self, elements: Sequence[_Stored], lane: Var, lanes: int) -> list[Stmt]:
        """Return the statements for consecutive stores; a loop whose stores all remain unchanged stays a loop."""
        made: list[Stmt | _Stored] = []
        while elements:
            done, x = self._message(elements, lane, lanes)
            made.append(x or elements[0])
            elements = elements[done:]
        left = Counter(x.whole for x in made if isinstance(x, _Stored))
        kept = {s for s, count in left.items() if count == len(_single_stores(s))}
        out = [
            x if isinstance(x, Stmt) else x.whole if x.whole in kept else x.store for x in made
        ]  # fmt: skip
        return list(dict.fromkeys(out))

    def _message(self, elements: Sequence[_Stored], lane: Var, lanes: int) -> tuple[int, Stmt | None]:
        """Return the number of leading stores that one message executes, and the message; 1 and None if there is no
        message.
        """
        first = elements[0].store
        if first.buffer.scope == "global":
            row = self.rows.get((BLOCK, 0, "global", first.buffer.dtype.name, 1, 1))
            place = Load(first.buffer, first.index, None)
            if row is None or _lane_elements(place, lane) != 1:
                return 1, None
            return 1, Invoke(row.name, place, (first.value,))
        registers = list(_registers([x.store for x in elements], lane))
        if not registers:
            return 1, None
        x, *others = registers
        size = len(x.held)
        step = _distance(x.held[0], others[0].held[0]) or 0 if others else 0
        every, distance = conj(()), lanes * size
        row, present = self._row_of(BLOCK, registers, step, distance, every), every
        pitch = _distance(x.memory, others[0].memory) if others else None
        numbered = _numbered(x.present, others[0].present) if others else None
        if pitch is not None and numbered is not None and _is_pitch(pitch * x.memory.buffer.dtype.bytes):
            rows = self._row_of(PITCH, registers, step, pitch, numbered)
            if rows is not None and (row is None or rows.result.size > row.result.size):
                row, distance, present = rows, pitch, numbered
        if row is None:
            return 1, None
        number = row.result.layout.registers
        own = [_distance(x.held[0], y) or 0 for y in x.held]
        places = tuple(n * step + at for n in range(number) for at in own)
        held = Lanes(places, len(places)) if len(places) > 1 else None
        memory = strided(number, distance) if size == 1 else rows_of_lanes(number, size, distance)
        to = Load(x.held[0].buffer, x.held[0].index, held)
        read: Value = Load(x.memory.buffer, x.memory.index, memory if held else None)
        if not is_true(present):
            read = Select(present, read, const(x.memory.buffer.dtype, 0))
        return number * size, Invoke(row.name, to, (read,))

    def _row_of(
        self, file: str, registers: Sequence[_Register], step: int, distance: int, present: Cond
    ) -> Instruction | None:  # fmt: skip
        """Return the row that loads most of the leading ``registers``, which are ``distance`` apart in memory and
        ``step`` in the fragment, each of them ``present`` under that condition on its number; None if there is none.
        """
        x, b = registers[0], registers[0].memory.buffer
        lost = (n for n, y in enumerate(registers) if not y.follows(x, n, step, distance, present))
        count = next(lost, len(registers))
        keys = ((file, 1, b.scope, b.dtype.name, len(x.held), n) for n in range(count, 0, -1))
        return next((self.rows[key] for key in keys if key in self.rows), None)


def _numbered(first: Cond, second: Cond) -> Cond | None:
    """Return a condition on the number of a register, which is the ``first`` for register 0, the ``second`` for
    register 1; None if they differ in more than constants.
    """
    pairs = [*zip(parts_of(first), parts_of(second))]
    if len(pairs) != len(parts_of(first)) or len(pairs) != len(parts_of(second)):
        return None
    found: list[Cond] = []
    for x, y in pairs:
        if x is y:
            found.append(x)
        elif isinstance(x, Ge0) and isinstance(y, Ge0) and (y.arg - x.arg).is_const:
            found.append(ge0(x.arg + LANE * (y.arg - x.arg).const))
        else:
            return None
    return conj(found)


def _is_pitch(nbytes: int) -> bool:
    """Return whether rows of a matrix may be so many bytes apart."""
    return nbytes >= LEAST_PITCH and not nbytes % ALIGNMENT


def _single_stores(s: Stmt) -> tuple[_Stored, ...]:
    """Return the stores of a single store or of a loop over adjacent elements of a lane; empty for other statements."""
    if isinstance(s, Store):
        return (_Stored(s, s),) if s.lanes is None else ()
    if not isinstance(s, For) or s.kind != "unrolled" or not isinstance(s.body, Store) or s.body.lanes:
        return ()
    sides = (s.body, s.body.value)
    if not any(isinstance(x, (Load, Store)) and x.buffer.scope == "fragment" for x in sides):
        return ()
    return tuple(_Stored(substitute(s.body, {s.var: s.lo + n}), s) for n in range(int(s.hi - s.lo)))


def _registers(stores: Sequence[Store], lane: Var) -> Iterator[_Register]:
    """Yield the registers that the first stores load from contiguous, aligned memory, or set to zero together."""
    while stores:
        v, present = _guarded(stores[0].value)
        if v is None or lane in variables_of(present):
            return
        size = _lane_elements(v, lane)
        some = stores[:size]
        if not size or len(some) < size or any(s.buffer.scope != "fragment" for s in some):
            return
        for n, s in enumerate(some):
            x, cond = _guarded(s.value)
            if x is None or cond is not present or x.buffer is not v.buffer or _distance(v, x) != n:
                return
        yield _Register(tuple(Load(s.buffer, s.index, None) for s in some), v, present)
        stores = stores[size:]


def _guarded(v: Value) -> tuple[Load | None, Cond]:
    """Return the element that a value is, or None, and the condition under which it is no zero."""
    present = conj(())
    if isinstance(v, Select) and isinstance(v.no, Const) and v.no.value == 0:
        present, v = v.cond, v.yes
    return v if isinstance(v, Load) else None, present


def _lane_elements(place: Load, lane: Var) -> int:
    """Return the number of adjacent elements that each lane accesses if lanes are contiguous and the start is aligned
    for a message; otherwise 0.
    """
    if len(place.index) != 1 or place.lanes or place.buffer.scope not in ("global", "shared"):
        return 0
    size = dict((x, n) for x, n in place.index[0].terms).get(lane, 0)
    start = place.index[0] - as_index(lane) * size
    suits = not divisor_of(start, {}) * place.buffer.dtype.bytes % ALIGNMENT
    return size if lane not in variables_of(start) and suits and size > 0 else 0


@stages(*FLATTENED, ensures=TENSORISED)
def block_messages(kernel: Kernel, rows: Sequence[Instruction]) -> Kernel:
    """Load registers of fragments, and store to memory, by ``rows``, where the elements of all lanes are contiguous.

    One message loads several registers if they are contiguous, or, in global memory, rows of a matrix; rows that are
    absent, such as pixels of padding, are zeros, under a condition on their number, ``lane_number``. Other accesses are
    unchanged: each lane has an address, and possibly a mask.

    Before::

        kernel k(a: f32[128], b: f32[64], dst: f32[32])
          for w in 0 .. 2 #warp:
            alloc x: f32[3, 16] @fragment:
              for lane in 0 .. 16 #lane:
                x[0, lane] = a[lane + w * 64]
                x[1, lane] = a[lane + w * 64 + 16]
                x[2, lane] = b[lane * 2 + w * 32]
              for lane in 0 .. 16 #lane:
                dst[lane + w * 16] = x[0, lane] + x[1, lane] + x[2, lane]

    After ``block_messages(MESSAGES)``::

        kernel k(a: f32[128], b: f32[64], dst: f32[32])
          for w in 0 .. 2 #warp:
            alloc x: f32[3, 16] @fragment:
              for lane in 0 .. 16 #lane:
                block_read_global_f32_x2(x[0, lane]{2:16}, a[lane + w * 64]{2:16})
                x[2, lane] = b[lane * 2 + w * 32]
              for lane in 0 .. 16 #lane:
                block_write_global_f32(dst[lane + w * 16], x[0, lane] + x[1, lane] + x[2, lane])
    """
    return with_body(kernel, _BlockMessages(rows).stmt(kernel.body)) if rows else kernel
