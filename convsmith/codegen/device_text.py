"""Kernels of threads as LLVM text, in the dialect of a device.

The code of a thread is scalar code, as for a CPU: accumulators are SSA values, and the IR determines order, addresses
and reuse. Loops over groups and threads have a single iteration here, whose number the device provides.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

from convsmith.arith.divisors import divisor_of
from convsmith.codegen.accesses import Slot
from convsmith.codegen.artifact import AXES
from convsmith.codegen.barriers import GroupBarriers
from convsmith.codegen.bounds import Bounds
from convsmith.codegen.byte_floats import extended, truncated
from convsmith.codegen.byte_packs import elements, joined, packed_bytes
from convsmith.codegen.denormals import flushed_buffers
from convsmith.codegen.divisions import divided
from convsmith.codegen.facts import Facts
from convsmith.codegen.geometry import geometry
from convsmith.codegen.lane_fragments import LaneFragments
from convsmith.codegen.lane_masks import run_on_lanes
from convsmith.codegen.llvm_text import METHODS, FunctionEmitter
from convsmith.codegen.matrix_stores import store_matrices
from convsmith.codegen.scaled_quotients import SCALED
from convsmith.codegen.warp_joins import joins
from convsmith.codegen.written_buffers import written_buffers
from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.dialect import Dialect, DialectCall
from convsmith.ir.index import Cond, Ge0, Index, Var, as_index, conj, make_sum
from convsmith.ir.instruction import BLOCK, PITCH, Instruction
from convsmith.ir.rewrite import substitute
from convsmith.ir.shared import ALIGNMENT, taken_bytes
from convsmith.ir.stmt import (
    GROUP_LOOPS,
    THREAD_LOOPS,
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Commit,
    For,
    If,
    Invoke,
    Kernel,
    Let,
    Stmt,
    Store,
    Wait,
)
from convsmith.ir.types import BF16, F32, S32, DType
from convsmith.ir.value import Cast, Lanes, Load, Select, Value, const, dtype_of, lanes_of
from convsmith.ir.walk import statements_of, variables_of

__all__ = ["KEPT_LOOP", "ThreadEmitter"]


KEPT_LOOP = ('!{!"llvm.loop.unroll.disable"}', "distinct !{!1, !0}")
"""The first metadata nodes of a module whose loops of sums an assembler keeps as they are; loops have the last one."""


class ThreadEmitter(FunctionEmitter):
    """Emits the statements of one thread; `definitions` declare the arrays that a group shares."""

    store_of_lane = "store"  # the driver's compiler would bypass caches for a volatile one
    quotients = SCALED
    may_call = True
    """Whether code that calls functions is as fast as other code."""

    def __init__(self, kernel: Kernel, facts: Facts, dialect: Dialect, symbol: str) -> None:
        written, flushed = written_buffers(kernel.body, kernel.functions), flushed_buffers(kernel, facts.rows)
        super().__init__(kernel, facts, symbol, written, flushed, None)
        self.dialect, self.geometry = dialect, geometry(kernel)
        self.mark_of_sums = f", !llvm.loop !{len(KEPT_LOOP) - 1}" if dialect.keeps_loops else ""
        self.spaces, self.has_fused_steps = dict(dialect.spaces), dialect.reciprocal is not None
        self.packs = {(of, to): call for of, to, call in dialect.saturates}
        self.byte_floats = {calls.dtype: calls for calls in dialect.byte_floats}
        self.divisors: dict[Var, int] = {}
        self.definitions: list[str] = []
        self.taken = 0
        """Bytes of the dynamic array that the kernel's arrays use."""
        self.alignment_of_shared = ALIGNMENT
        self.barriers = GroupBarriers(self, kernel)
        self.lane_fragments, self.joins = LaneFragments(kernel.body, facts.rows), joins(kernel.body)
        self.named: dict[Var, Index] = {}
        self.lane_variables: set[Var] = set()
        self.numbers: dict[int, str] = {}
        """The numbers of the thread along the axes within a warp."""
        self.vector_of |= {
            b: x.layout.elements for b, x in self.lane_fragments.operands.items() if x.layout.elements > 1
        }  # fmt: skip
        self.assembled: set[str] = set()
        """Vectors that were made of registers of one element each."""

    def parameters(self) -> list[str]:
        """Return the parameters of the kernel besides its arrays and sizes."""
        return []

    def whole(self, body: Stmt) -> None:
        """Emit the body of the kernel."""
        self.barriers.begin()
        self.stmt(body)

    def _truncate_bfloat(self, x: str, lanes: int) -> str:
        return self.truncate_normal(x, lanes) if self.dialect.rounds_bfloat else super()._truncate_bfloat(x, lanes)

    def operation(self, op: str, t: DType, lanes: int, *operands: str) -> str:
        if op == "fdiv" and t is F32 and not self.may_call and self.dialect.wide_reciprocal is not None:
            return divided(self, operands, lanes)
        return super().operation(op, t, lanes, *operands)

    def cast(self, x: str, a: DType, b: DType, lanes: int, bounds: Bounds | None = None) -> str:
        pack, rounds = self.packs.get((a.name, b.name)), self.dialect.rounds_word
        if pack is not None:
            return packed_bytes(self, pack, x, a, b, lanes)
        if rounds is None or a is not F32 or b is not S32:
            return super().cast(x, a, b, lanes, bounds)
        words = [self.spell(rounds, x=one) for one in elements(self, x, a, lanes)]
        return joined(self, b.llvm, words) if lanes else words[0]

    def _extend(self, x: str, t: DType, lanes: int) -> str:
        calls = self.byte_floats.get(t.name)
        return super()._extend(x, t, lanes) if calls is None else extended(self, calls, x, t, lanes)

    def _truncate_small(self, x: str, t: DType, lanes: int) -> str:
        calls = self.byte_floats.get(t.name)
        return super()._truncate_small(x, t, lanes) if calls is None else truncated(self, calls, x, t, lanes)

    def _extend_bfloat(self, x: str, lanes: int) -> str:
        """Return bf16 as f32; a word of a register holds two of them, and one operation makes an f32 of each."""
        if not self.dialect.packs_halves or lanes % 2 or not lanes or x in self.assembled:
            return super()._extend_bfloat(x, lanes)
        count = lanes // 2
        pairs = self.put(f"bitcast {self.type(BF16, lanes)} {x} to {self.type(S32, count)}")
        first, second = self._word("shl", pairs, count, 16), self._word("and", pairs, count, -1 << 16)
        places = [n for pair in range(count) for n in (pair, count + pair)]
        return self.convert("bitcast", self.shuffle(S32, count, first, second, places), S32, F32, lanes)

    def _value(self, v: Value, lanes: int) -> str:
        if lanes or not isinstance(v, Cast) or not isinstance(v.a, Load) or not self.dialect.packs_halves:
            return super()._value(v, lanes)
        source, count = v.a, self.vector_of.get(v.a.buffer, 0)
        if dtype_of(source) is not BF16 or count % 2 or not count or source.buffer in self.lane_fragments.operands:
            return super()._value(v, lanes)
        slot, lane = self.slot(source.buffer, source.index)
        assert lane is not None
        held = self.held(slot)
        key = ("extended", held)
        whole = self.known.get(key)
        if whole is None:
            whole = self.cast(held, BF16, F32, count)
            self.known.set(key, whole)
        one = self.put(f"extractelement {self.type(F32, count)} {whole}, {self.it} {self.index(lane)}")
        return self.cast(one, F32, v.dtype, 0)

    # -- fragments
    def is_held(self, buffer: Buffer) -> bool:
        return buffer in self.lane_fragments.operands or super().is_held(buffer)

    def read_slot(self, v: Load) -> str:
        """Return the elements of fragments that the lane holds."""
        if v.buffer not in self.lane_fragments.operands:
            return super().read_slot(v)
        fragment = self.lane_fragments.fragment(v.buffer, v.index)
        places = self.lane_fragments.places(v.buffer, v.index, v.lanes, self.named)
        size, lanes = self.vector_of.get(v.buffer, 0), v.lanes.count if v.lanes else 0
        if lanes == size and places == tuple((places[0][0], e) for e in range(size)):
            return self.held((v.buffer, (*fragment, places[0][0])))
        out = "poison"
        for n, (register, element) in enumerate(places):
            slot: Slot = v.buffer, (*fragment, register)
            x = self.held(slot)
            if size:
                x = self.put(f"extractelement {self.slot_type(slot)} {x}, i64 {element}")
            if not lanes:
                return x
            vector = self.type(v.buffer.dtype, lanes)
            out = self.put(f"insertelement {vector} {out}, {v.buffer.dtype.llvm} {x}, i64 {n}")
        self.assembled.add(out)
        return out

    def write_slot(self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None, x: str) -> None:
        """Write elements of fragments that the lane holds."""
        if buffer not in self.lane_fragments.operands:
            super().write_slot(buffer, index, lanes, x)
            return
        self._write_places(buffer, index, lanes, x, is_scalar=lanes is None)

    def _write_places(
        self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None, x: str, is_scalar: bool
    ) -> None:
        """Write elements of fragments that the lane holds; ``x`` is a number or a vector."""
        fragment = self.lane_fragments.fragment(buffer, index)
        places = self.lane_fragments.places(buffer, index, lanes, self.named)
        size, t = self.vector_of.get(buffer, 0), buffer.dtype
        if not is_scalar and len(places) == size and places == tuple((places[0][0], e) for e in range(size)):
            self.slots[buffer, (*fragment, places[0][0])] = x
            return
        for n, (register, element) in enumerate(places):
            one = x if is_scalar else self.put(f"extractelement {self.type(t, len(places))} {x}, i64 {n}")
            slot: Slot = buffer, (*fragment, register)
            if size:
                one = self.put(f"insertelement {self.slot_type(slot)} {self.held(slot)}, {t.llvm} {one}, i64 {element}")
            self.slots[slot] = one

    def slots_at(self, buffer: Buffer, index: tuple[Index, ...]) -> list[Slot]:
        if buffer not in self.lane_fragments.operands:
            return super().slots_at(buffer, index)
        if any(not i.is_const for i in index[: -len(self.lane_fragments.operands[buffer].shape)]):
            return [(buffer, x) for x in self.lane_fragments.all_registers(buffer)]
        number = self.lane_fragments.fragment(buffer, index)
        return [(buffer, x) for x in self.lane_fragments.registers(buffer, number)]

    def _Invoke(self, s: Invoke) -> None:
        row = self.rows[s.instruction]
        if any(x.file in (BLOCK, PITCH) for x in row.operands):
            self._message(s, row)
            return
        if s.dst.buffer not in self.lane_fragments.operands:
            if row.exchange is None:
                METHODS[Invoke](self, s)
            else:
                store_matrices(self, s, row)
            return
        self.declared |= row.declarations
        if row.exchange is not None:
            self._exchange(s, row)
            return
        operands = [(x, v) for x, v in zip(row.operands, (s.dst, *s.args)) if f"{{{x.name}" in row.llvm]
        registers = {x.name: self._lane_registers(v) for x, v in operands}
        values = row.emit(self.put, registers)
        numbers = self.lane_fragments.registers(s.dst.buffer, self.lane_fragments.fragment(s.dst.buffer, s.dst.index))
        self.slots |= {(s.dst.buffer, number): x for number, x in zip(numbers, values)}

    def _message(self, s: Invoke, row: Instruction) -> None:
        """Emit an instruction by which all lanes access memory at the address of the first lane."""
        self.declared |= row.declarations
        (read,), layout = s.args, row.result.layout
        if row.result.file == BLOCK:
            *lines, effect = row.llvm.splitlines()
            call = DialectCall(tuple(lines), tuple(row.declarations), effect)
            self.spell(call, a=self.value(read, 0), c=self._uniform_address(s.dst))
            return
        present = conj(())
        if isinstance(read, Select):
            present, read = read.cond, read.yes
        assert isinstance(read, Load)
        t, count = s.dst.buffer.dtype, layout.elements
        loaded = self.type(t, count if count > 1 else 0)
        pitch = read.lanes.offsets[count] * t.bytes if read.lanes and layout.registers > 1 else 0
        first, end = run_on_lanes(self, present, layout.registers) if row.operands[1].file == PITCH else ("", "")
        operands = {"pitch": [str(pitch)], "first": [first], "end": [end]}
        values = row.emit(self.put, {"a": [self._uniform_address(read)], **operands})
        for n, x in enumerate(values):
            offsets = s.dst.lanes.offsets[n * count : (n + 1) * count] if s.dst.lanes else (0,)
            register = self.put(f"bitcast i{count * t.bits} {x} to {loaded}")
            self._write_places(s.dst.buffer, s.dst.index, Lanes(offsets, count), register, is_scalar=count == 1)

    def _uniform_address(self, v: Load) -> str:
        """Return the address of the elements of the first lane."""
        index = v.index[0]
        while moving := {x: i for x, i in self.named.items() if x in variables_of(index) and self._is_of_lane(i)}:
            index = substitute(index, moving)
        return self.address(v.buffer, substitute(index, dict.fromkeys(self.lane_variables, as_index(0))))

    def _is_of_lane(self, i: Index) -> bool:
        """Return whether an index depends on the number of the lane."""
        return any(
            v in self.lane_variables or (v in self.named and self._is_of_lane(self.named[v])) for v in variables_of(i)
        )

    def _exchange(self, s: Invoke, row: Instruction) -> None:
        """Emit an instruction by which the lanes load elements for each other."""
        (source,), b = s.args, s.dst.buffer
        assert isinstance(source, Load)
        targets = self.lane_fragments.received(s.dst, row, self.named)
        values = row.emit(self.put, {"a": [self.address(source.buffer, source.index[0])]})
        for number, x in zip(targets, values):
            slot: Slot = b, number
            self.slots[slot] = self.put(f"bitcast i32 {x} to {self.slot_type(slot)}")

    def _lane_registers(self, v: object) -> list[str]:
        """Return the registers of a fragment: as integers if a register holds several elements."""
        assert isinstance(v, Load)
        fragment = self.lane_fragments.fragment(v.buffer, v.index)
        found = []
        for number in self.lane_fragments.registers(v.buffer, fragment):
            slot: Slot = v.buffer, number
            x = self.held(slot)
            if v.buffer in self.vector_of:
                bits = self.vector_of[v.buffer] * v.buffer.dtype.bits
                x = self.put(f"bitcast {self.slot_type(slot)} {x} to i{bits}")
            found.append(x)
        return found

    def pointer(self, buffer: Buffer) -> str:
        space = self.spaces.get(buffer.scope)
        if space is None:
            raise InternalError(f"buffer {buffer.name} of scope {buffer.scope} has no memory on a device")
        return f"ptr addrspace({space})"

    def spell(self, call: DialectCall, **arguments: object) -> str:
        """Emit an operation of the dialect, and return its result, if it has one."""
        self.declared |= dict.fromkeys(call.declare)
        done: list[str] = []
        for line in call.lines:
            done.append(self.put(line.format(*done, **arguments)))
        if call.effect:
            self.lines.append(f"  {call.effect.format(*done, **arguments)}")
        return done[-1] if done else ""

    def stmt(self, s: Stmt) -> None:
        if s in self.joins and self.dialect.join is not None:
            self.spell(self.dialect.join)
        method = _THREAD_METHODS.get(type(s))
        if method is None:
            super().stmt(s)
            return
        self.forget()
        method(self, s)

    def _For(self, s: For) -> None:
        if s.kind not in (*GROUP_LOOPS, *THREAD_LOOPS):
            self.divisors |= {c.var: gcd(divisor_of(c.init, self.divisors), c.step) for c in s.carried}
            METHODS[For](self, s)
            return
        n = self.geometry.axes[s.var]
        if s.kind == "warp" and 0 not in self.geometry.axes.values():
            raise InternalError(f"{self.symbol}: warps have no loop over lanes")
        if s.kind == "warp" and 0 not in self.numbers:
            self.numbers[0] = self._number(s, 0)  # lane numbers are emitted once, before all branches
        number = self.numbers[n] if s.kind in ("lane", "warp") and n in self.numbers else self._number(s, n)
        if not (s.lo.is_const and s.lo.const == 0):
            number = self.put(f"add {self.it} {number}, {self.index(s.lo)}")
        self.vars[s.var] = number
        if s.kind == "lane":
            self.lane_variables.add(s.var)
        self.stmt(s.body)

    def _If(self, s: If) -> None:
        """Emit the numbers that the quotients of several branches share ahead of the first; not ahead of a loop, in
        which they would take registers.
        """
        inside = list(statements_of(s.body))
        if not any(isinstance(x, For) for x in inside):
            for store in (x for x in inside if isinstance(x, Store)):
                lanes = store.lanes.count if store.lanes else 0
                quotient = self.quick_quotient(store.value, lanes)
                if quotient is not None and not any(map(variables_of, quotient.numbers)):
                    self.quotients.numbers(self, quotient, dtype_of(store.value), lanes)
        METHODS[If](self, s)

    def _number(self, s: For, n: int) -> str:
        """Return the number of the group or the thread along the axis ``n``."""
        call = self.dialect.group_number if s.kind in GROUP_LOOPS else self.dialect.thread_number
        number = self.spell(call, axis=AXES[n], n=n)
        bits = self.dialect.number_bits
        if bits != self.bits:
            number = self.put(f"{'trunc' if bits > self.bits else 'zext'} i{bits} {number} to {self.it}")
        return number

    def _Alloc(self, s: Alloc) -> None:
        b = s.buffer
        if b.scope == "shared" and b not in self.bases:
            self.bases[b] = self._shared(b)
        METHODS[Alloc](self, s)

    def _shared(self, b: Buffer) -> str:
        """Return the address of an array that a group shares."""
        space, nbytes = f"addrspace({self.spaces[b.scope]})", taken_bytes(b.nbytes)
        if self.dialect.dynamic:
            start, self.taken = self.taken, self.taken + taken_bytes(nbytes, self.alignment_of_shared)
            return self.shared_at(start)
        name = f"@{self.symbol}.{b.name}.{len(self.definitions)}"
        self.definitions.append(
            f"{name} = internal {space} global [{nbytes // b.dtype.bytes} x {b.dtype.llvm}] undef, "
            f"align {ALIGNMENT}"
        )
        return name

    def shared_at(self, start: int) -> str:
        """Return the address of a byte of the dynamic array in shared memory."""
        return f"getelementptr (i8, ptr addrspace({self.spaces['shared']}) {self.dialect.dynamic}, i64 {start})"

    def repeat_until(self, has_ended: Callable[[], str]) -> None:
        """Emit a loop that ends once the text of ``has_ended`` returns true."""
        again, on = self.label("wait"), self.label("on")
        self.lines.append(f"  br label %{again}")
        self.start(again)
        self.lines.append(f"  br i1 {has_ended()}, label %{on}, label %{again}")
        self.start(on)

    def _Barrier(self, s: Barrier) -> None:
        self.barriers.emit(s)

    def _AsyncCopy(self, s: AsyncCopy) -> None:
        t = s.dst.buffer.dtype
        nbytes = max(lanes_of(s.dst), 1) * t.bytes
        call = dict(self.dialect.copies).get(nbytes)
        if call is None or min(self.alignment(s.dst), self.alignment(s.src)) < nbytes:
            value = s.src if s.cond is None else Select(s.cond, s.src, const(t, 0))
            METHODS[Store](self, Store(s.dst.buffer, s.dst.index, value, s.dst.lanes))
            return
        dst, src = (self.address(x.buffer, x.index[0]) for x in (s.dst, s.src))
        self.spell(call, dst=dst, src=src, cond="true" if s.cond is None else self.cond(s.cond))

    def _Commit(self, s: Commit) -> None:
        if self.dialect.commit is not None:
            self.spell(self.dialect.commit)

    def _Wait(self, s: Wait) -> None:
        if self.dialect.wait is not None:
            self.spell(self.dialect.wait, pending=s.pending)

    def _AtomicAdd(self, s: AtomicAdd) -> None:
        lanes = s.lanes.count if s.lanes else 0
        x, t = self.value(s.value, lanes), s.buffer.dtype
        for lane in range(s.lanes.active if s.lanes else 1):
            one = self.put(f"extractelement {self.type(t, lanes)} {x}, i64 {lane}") if s.lanes else x
            self._add(s.buffer, s.index[0] + (s.lanes.offsets[lane] if s.lanes else 0), one)

    def _add(self, buffer: Buffer, index: Index, x: str) -> None:
        """Add ``x`` to an element, indivisibly."""
        t, where = buffer.dtype, self.place(buffer, (index,))
        if t.name in self.dialect.atomic_types:
            op = "fadd" if t.kind == "float" else "add"
            self.put(f'atomicrmw {op} {where}, {t.llvm} {x} syncscope("device") monotonic')
            return
        if t.bits < 32:
            raise InternalError(f"no atomic addition to elements of {t} in {buffer.name}")
        word = f"i{t.bits}"
        first = self.put(f'load atomic {word}, {where} syncscope("device") monotonic, align {t.bytes}')
        again, end, origin = self.label("again"), self.label("end"), self.current
        self.lines.append(f"  br label %{again}")
        self.start(again)
        seen = self.fresh("seen")
        mark = len(self.lines)
        total = self.put(f"fadd {t.llvm} {self.put(f'bitcast {word} {seen} to {t.llvm}')}, {x}")
        new = self.put(f"bitcast {t.llvm} {total} to {word}")
        pair = self.put(f'cmpxchg {where}, {word} {seen}, {word} {new} syncscope("device") monotonic monotonic')
        found, same = (self.put(f"extractvalue {{ {word}, i1 }} {pair}, {n}") for n in (0, 1))
        self.lines.append(f"  br i1 {same}, label %{end}, label %{again}")
        self.lines.insert(mark, f"  {seen} = phi {word} [ {first}, %{origin} ], [ {found}, %{again} ]")
        self.start(end)

    def _Let(self, s: Let) -> None:
        self.divisors[s.var] = divisor_of(s.value, self.divisors)
        self.named[s.var] = s.value
        METHODS[Let](self, s)

    def cond(self, c: Cond) -> str:
        """Compare the sum of the added terms with the sum of the subtracted ones, which takes fewer registers than a
        comparison of their difference with 0. In a difference, Intel's driver for CPUs mistakes a negated thread number
        for a bound of its loop over threads, and runs too few threads.
        """
        if not isinstance(c, Ge0):
            return super().cond(c)
        added, subtracted = ({x: abs(n) for x, n in c.arg.terms if (n > 0) is is_added} for is_added in (True, False))
        const = c.arg.const
        sides = make_sum(max(const, 0), added), make_sum(max(-const, 0), subtracted)
        return self.put(f"icmp sge {self.it} {self.index(sides[0])}, {self.index(sides[1])}")

    def alignment(self, v: Load) -> int:
        """Return the bytes that divide the address of the first lane, up to the alignment of the buffer and the size of
        the vector: a device accesses aligned vectors at once.
        """
        t, whole = v.buffer.dtype, v.buffer.dtype.bytes * max(lanes_of(v), 1)
        start = ALIGNMENT if v.buffer.scope == "shared" else self.dialect.alignment
        return max(gcd(divisor_of(v.index[0], self.divisors) * t.bytes, start, whole & -whole), t.bytes)

    def _load(self, v: Load) -> str:
        """Load active lanes one by one, because devices have no masked loads."""
        if v.lanes is not None and not v.lanes.is_whole:
            return self._load_lanes(v, v.lanes)
        if v.lanes is not None and v.lanes.rows is None and self._in_rows(v.lanes) is not None:
            return self._load_zipped(v, v.lanes)
        return super()._load(v)

    def _in_rows(self, lanes: Lanes) -> Lanes | None:
        """Return lanes that are rows of adjacent elements in another order in the order of memory; None for others."""
        found = Lanes(tuple(sorted(lanes.offsets)), lanes.count)
        return found if len({*lanes.offsets}) == lanes.count and found.rows is not None and found != lanes else None

    def _load_zipped(self, v: Load, lanes: Lanes) -> str:
        """Load rows of adjacent elements as vectors, and put the elements of all rows in the order of the lanes."""
        t, rows = v.buffer.dtype, self._in_rows(lanes)
        assert rows is not None and rows.rows is not None
        first = v.index[0] + rows.offsets[0]
        whole = self.load_rows(Load(v.buffer, (first,), None), rows, rows.rows[1])
        places = {offset: n for n, offset in enumerate(rows.offsets)}
        return self.shuffle(t, lanes.count, whole, "poison", [places[x] for x in lanes.offsets])

    def store(self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None, x: str) -> None:
        """Store active lanes one by one, because devices have no masked stores."""
        if lanes is None or lanes.active == lanes.count or self.is_held(buffer):
            super().store(buffer, index, lanes, x)
            return
        for lane in range(lanes.active):
            one = self.put(f"extractelement {self.type(buffer.dtype, lanes.count)} {x}, i64 {lane}")
            super().store(buffer, (index[0] + lanes.offsets[lane],), None, one)


_THREAD_METHODS: dict[type[Stmt], Callable[[ThreadEmitter, Any], None]] = {
    kind: getattr(ThreadEmitter, f"_{kind.__name__}")
    for kind in (For, If, Alloc, Let, Invoke, Barrier, AsyncCopy, Commit, Wait, AtomicAdd)
}
