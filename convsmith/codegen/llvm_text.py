"""Statements, functions and kernels as LLVM text.

Accumulators never touch memory: each element of a register buffer is an SSA value, and a loop has one phi per element
that its body writes.  The emitter makes no decisions: the IR determines order, addresses and reuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convsmith.codegen.accesses import SECOND_LEVEL, Slot
from convsmith.codegen.columns import groups_of
from convsmith.codegen.facts import Facts
from convsmith.codegen.fragments import VECTORS, Configurations, Fragments, Shapes, file_of
from convsmith.codegen.gathers import spans_of
from convsmith.codegen.lane_masks import divided_by_lanes, masks_ahead
from convsmith.codegen.parts_of_stores import updated_results
from convsmith.codegen.past_caches import streamed_results
from convsmith.codegen.values import ValueEmitter
from convsmith.codegen.vector_fragments import load_fragment, store_fragment
from convsmith.codegen.written_back import results_written_back
from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import SCALARS, Instruction, Operand
from convsmith.ir.stmt import (
    LANE,
    Alloc,
    Block,
    Call,
    Carried,
    For,
    If,
    Invoke,
    Kernel,
    Let,
    NumberedRows,
    PointerLoad,
    Prefetch,
    Stmt,
    Store,
)
from convsmith.ir.value import Cast, Const, Load, Repeat, Value, dtype_of, lanes_of
from convsmith.ir.walk import accesses_of, bound_in, statements_of, variables_of


class FunctionEmitter(ValueEmitter):
    """Emits the statements of one function."""

    mark_of_sums = ""
    """Metadata of the branch that ends an iteration of a loop of sums."""

    def __init__(
        self, kernel: Kernel, facts: Facts, symbol: str, written: set[Buffer], flushed: frozenset[Buffer],
        configurations: Configurations | None,
    ) -> None:  # fmt: skip
        bits = min(kernel.index_bits or facts.address_bits, facts.address_bits)
        super().__init__(bits, written, facts.half, flushed, facts.head_load, facts.byte_lookup)
        self.facts, self.rows, self.symbol = facts, facts.rows, symbol
        self.has_masked_stores, self.has_fused_steps = facts.has_masked_stores, facts.has_fused_steps
        self.word_rounding, self.word_conversions = facts.word_rounding, facts.word_conversions
        self.narrowing = facts.narrowing
        self.masked_bytes, self.has_vector_lengths = facts.masked_bytes, facts.has_vector_lengths
        self.has_unsigned_offsets, self.reads_scalars = facts.has_unsigned_offsets, facts.reads_scalars
        self.loads_words, self.loads_predicated = facts.loads_words, facts.loads_predicated
        self.word_lookup = facts.word_lookup
        self.loads_constants, self.extremes = facts.loads_constants, facts.extremes
        self.relaxed_fma = facts.relaxed_fma
        self.streamed, self.past_caches = kernel.streamed, frozenset(streamed_results(kernel))
        self.updated = frozenset(updated_results(kernel))
        self.fragments: dict[Buffer, Fragments] = {}
        self.fragment_of: dict[Buffer, Instruction] = {}
        """The row that computes the fragments of a buffer, whose vector registers LLVM allocates."""
        self.configurations, self.configured = configurations, False
        self.is_split = True
        """Whether parallel loops run the tasks of ``task_range`` alone."""
        self.task_range: tuple[str, str] | None = None
        self.written_in: dict[Stmt, dict[Slot, None]] = {}

    def alignment(self, v: Load) -> int:
        """Return the bytes to which the lanes of an access are certainly aligned."""
        return super().alignment(v) if self.facts.places is None else self.facts.places.bytes_of(v)

    def prepare(self, body: Stmt) -> None:
        """Determine which register buffers are kept as vectors, and which of these in scalar registers."""
        for s in statements_of(body):
            if isinstance(s, Invoke) and self.rows[s.instruction].result.file in (VECTORS, SCALARS):
                registers = self.rows[s.instruction].result.layout.registers
                self.vector_of[s.dst.buffer] = lanes_of(s.dst) // registers
                if self.rows[s.instruction].result.file == SCALARS:
                    self.in_scalars.add(s.dst.buffer)
                if s.dst.buffer.scope == "fragment":
                    self.fragment_of[s.dst.buffer] = self.rows[s.instruction]
            elif isinstance(s, Store) and s.lanes is not None and s.buffer.scope == "register":
                self.vector_of[s.buffer] = s.lanes.count

    def stmt(self, s: Stmt) -> None:
        """Emit one statement, with the configuration of fragment registers around it if it needs one."""
        self.forget()
        if self.configurations is not None and not self.configured:
            needed = self.configurations.needed(s)
            if len(needed) == 1:
                self._under(next(iter(needed)), s)
                return
        begin = len(self.lines)
        METHODS[type(s)](self, s)
        if self.facts.debug is not None:
            self.facts.debug.locate(self.lines, begin, s)

    def _under(self, shapes: Shapes, s: Stmt) -> None:
        """Emit a statement under one configuration."""
        assert self.configurations is not None
        file = self.configurations.file
        begin, memory = self.configurations.begin(shapes)
        self.declared |= dict.fromkeys((*file.declare, memory))
        self.lines.append(f"  {begin}")
        self.configured = True
        self.stmt(s)
        self.configured = False
        self.lines.append(f"  {file.end}")

    def _Block(self, s: Block) -> None:
        outer, self.spans, self.column_groups = (self.spans, self.column_groups), spans_of(s.stmts), groups_of(s.stmts)
        ahead = joined = 0  # statements whose quotients are computed, and those whose bytes are stored
        for n, x in enumerate(s.stmts):
            if n >= ahead and len(stores := self.quotients_from(s.stmts, n)) > 1:
                self.forget()
                self.divide_ahead(stores)
                ahead = n + len(stores)
            if n < joined:
                continue
            is_cast = self.narrowing is not None and type(x) is Store and type(x.value) is Cast
            if is_cast and len(stores := self.joined_from(s.stmts, n)) > 1:
                self.forget()
                self.store_joined(stores)
                joined = n + len(stores)
                continue
            self.stmt(x)
        self.divided = {}
        self.spans, self.column_groups = outer

    def _Alloc(self, s: Alloc) -> None:
        if s.buffer.scope == "fragment" and not self.is_held(s.buffer):
            self._fragments(s)
            return
        if not self.is_held(s.buffer) and s.buffer not in self.bases:
            raise InternalError(f"buffer {s.buffer.name} has no memory")
        # Values of an earlier lifetime of the buffer may be defined in a block that does not dominate this one.
        self.slots = {k: x for k, x in self.slots.items() if k[0] is not s.buffer}
        self.stmt(s.body)

    def _fragments(self, s: Alloc) -> None:
        """Emit the statements during the lifetime of a fragment buffer."""
        file = file_of((s.body,), self.rows, self.facts.fragments)
        assert file is not None
        if self.configurations is None:  # otherwise, configuring the registers declares all of their intrinsics
            self.declared |= dict.fromkeys(file.declare)
        shapes = self.configurations.shapes[s.body] if self.configurations is not None else None
        made = Fragments(s.body, self.rows, file, self.streamed, self, shapes)
        self.fragments[s.buffer] = made
        self.stmt(s.body)
        del self.fragments[s.buffer]

    def start(self, label: str) -> None:
        for made in self.fragments.values():
            made.enter()
        super().start(label)

    def _PointerLoad(self, s: PointerLoad) -> None:
        """Emit the loaded pointer, and iteratively the directly nested PointerLoads, of which there may be hundreds."""
        around = [(len(self.lines), s)]
        self._pointer(s)
        while isinstance(s.body, PointerLoad):
            s = s.body
            around.append((len(self.lines), s))
            self._pointer(s)
        self.stmt(s.body)
        if self.facts.debug is not None:
            for begin, each in reversed(around[1:]):
                self.facts.debug.locate(self.lines, begin, each)

    def _pointer(self, s: PointerLoad) -> None:
        """Emit the loaded pointer, with the offset added unless it points to zeros."""
        self.known.drop(s.buffer)
        if s.rows is not None:
            self.bases[s.buffer] = self._row(s, s.rows)
            return
        pointer = self.put(f"load ptr, ptr {self.address(s.table, s.index[0])}, align {self.facts.address_bits // 8}")
        if not (s.offset.is_const and s.offset.const == 0):
            absent = self.put(f"icmp eq ptr {pointer}, {self.address(s.zero, s.zero_at[0])}")
            moved = f"getelementptr {s.buffer.dtype.llvm}, ptr {pointer}, {self.it} {self.index(s.offset)}"
            pointer = self.put(f"select i1 {absent}, ptr {pointer}, ptr {self.put(moved)}")
        self.bases[s.buffer] = pointer

    def _row(self, s: PointerLoad, rows: NumberedRows) -> str:
        """Return the address of the row that an entry of a table numbers, or of the zeros."""
        it = self.it
        entry = self.value(Load(s.table, s.index, None), 0)
        number = self.put(f"sext i32 {entry} to {it}") if self.bits > 32 else entry
        below = self.put(f"icmp slt {it} {number}, 0")
        counted = self.put(f"add {it} {number}, {rows.total}")
        number = self.put(f"select i1 {below}, {it} {counted}, {it} {number}")
        inside = self.put(f"icmp ult {it} {number}, {rows.total}")
        moved = self.put(f"mul {it} {number}, {rows.step}")
        first = self.address(s.source, s.offset)
        row = self.put(f"getelementptr {s.buffer.dtype.llvm}, ptr {first}, {it} {moved}")
        return self.put(f"select i1 {inside}, ptr {row}, ptr {self.address(s.zero, s.zero_at[0])}")

    def _Let(self, s: Let) -> None:
        self.vars[s.var] = self.index(s.value)
        self.known.push()  # a sibling statement may bind the name to another value
        self.stmt(s.body)
        self.known.pop()

    def _Store(self, s: Store) -> None:
        for made in self.fragments.values():
            made.forget()
        if s.buffer in self.fragments and isinstance(s.value, Load):
            self.fragments[s.buffer].fetch(s.buffer, s.index, s.value)
            return
        if s.buffer in self.fragments:
            if not (isinstance(s.value, Const) and s.value.value == 0):
                raise InternalError(f"fragments of {s.buffer.name} are set to {s.value}, not to zero")
            self.fragments[s.buffer].zero(s.buffer, s.index)
            return
        if isinstance(s.value, Load) and s.value.buffer in self.fragments:
            self.fragments[s.value.buffer].store(s)
            return
        if isinstance(s.value, Load) and s.value.buffer in self.fragment_of:
            store_fragment(self, s, self._operand_of(s.value.buffer))
            return
        lanes = s.lanes.count if s.lanes else 0
        if s.buffer in self.fragment_of and isinstance(s.value, Load):
            x = load_fragment(self, s.value, self._operand_of(s.buffer))
        else:
            x = self.value(s.value, lanes)
        if s.lanes and self.is_held(s.buffer) and s.lanes.active < s.lanes.count:
            raise InternalError(f"a part of register array {s.buffer.name} is written")
        self.store(s.buffer, s.index, s.lanes, x)

    def _in_units(self, row: Instruction) -> Instruction:
        """Return the row that does what ``row`` does in every unit of a vector, if vectors are scalable here."""
        return row.scaled if self.scalable and row.scaled is not None else row

    def _operand_of(self, buffer: Buffer) -> Operand:
        """Return the operand whose layout the fragments of ``buffer`` have here."""
        return self._in_units(self.fragment_of[buffer]).result

    def _Invoke(self, s: Invoke) -> None:
        row = self._in_units(self.rows[s.instruction])
        if s.dst.buffer in self.fragments:
            self.declared |= row.declarations
            self.fragments[s.dst.buffer].invoke(s)
            return
        row, args = self._form(row, s.args)
        _, *read = row.operands
        registers = {x.name: self._factor(row, x, a) for x, a in zip(read, args)}
        count = row.result.layout.registers
        if count == 1:
            held = self.is_held(s.dst.buffer)  # lanes that the instruction leaves out keep their values
            registers[row.result.name] = [self.read_slot(s.dst) if held else self.load(s.dst)]
        self.declared |= row.declarations
        if row.predicate and s.dst.lanes is not None:
            registers[row.predicate] = [self.mask(s.dst.lanes).partition("> ")[2]]
        values = row.emit(self.put, registers)
        if count == 1:
            self.store(s.dst.buffer, s.dst.index, s.dst.lanes, values[0])
        for n, x in enumerate(values if count > 1 else ()):
            self.slots[s.dst.buffer, (n,)] = x

    def _form(self, row: Instruction, args: tuple[Value, ...]) -> tuple[Instruction, tuple[Value, ...]]:
        """Return the form of a row that suits its factors, and the factors in that form."""
        if row.repeated_last and isinstance(args[0], Repeat):
            return row, args[::-1]
        if row.repeated is None:
            return row, args
        factors = zip(row.operands[1:], row.repeated.operands[1:])
        place = next(n for n, (whole, once) in enumerate(factors) if once.size < whole.size)
        v = args[place]
        size = row.repeated.operands[1 + place].size
        if isinstance(v, Repeat) and lanes_of(v.a) == size:
            return row.repeated, (*args[:place], v.a, *args[place + 1 :])
        if size == 1 and isinstance(v, Load) and v.lanes is not None and v.lanes.stride == 0 and v.lanes.is_whole:
            return row.repeated, (*args[:place], Load(v.buffer, v.index, None), *args[place + 1 :])
        return row, args

    def _factor(self, row: Instruction, operand: Operand, v: Value) -> list[str]:
        """Return the registers of a factor of a row."""
        if row.loaded and operand.size < row.lanes * row.terms and isinstance(v, Load) and not self.is_held(v.buffer):
            if v.lanes is not None and v.lanes.stride == 1 and v.lanes.is_whole:
                return [self.load_number(v, row.loaded)]
        return self.registers_of(operand, v)

    def registers_of(self, operand: Operand, v: Value) -> list[str]:
        """Return the registers of an operand; several are a whole register array, a row each."""
        if operand.layout.registers == 1 and operand.scope == "fragment" and isinstance(v, Load):
            return [load_fragment(self, v, operand)]
        if operand.layout.registers == 1 and operand.size == 1 and not lanes_of(v):
            t = dtype_of(v)
            return [self.put(f"bitcast {t.llvm} {self.value(v, 0)} to <1 x {t.llvm}>")]
        if operand.layout.registers == 1:
            return [self.value(v, lanes_of(v))]
        assert isinstance(v, Load)
        return [self.held((v.buffer, (n,))) for n in range(operand.layout.registers)]

    def _Prefetch(self, s: Prefetch) -> None:
        pointer, where = self.pointer(s.buffer), self.address(s.buffer, s.index[0])
        if self.facts.prefetches_by_loads:
            self.put(f"load volatile i8, {pointer} {where}")  # otherwise, LLVM removes it
        else:
            self.prefetch(pointer, where, 0, SECOND_LEVEL)

    def _Call(self, s: Call) -> None:
        args = [self.place(b, (i,)) for b, i in s.pointers] + [f"{self.it} {self.index(i)}" for i in s.indices]
        self.lines.append(f"  call void @{self.symbol}_{s.function}({', '.join(args)})")

    def written_slots(self, s: Stmt) -> dict[Slot, None]:
        """Return the accumulators that a statement writes and does not allocate, in order; loops and conditions around
        the statement ask again.
        """
        found = self.written_in.get(s)
        if found is None:
            found = self.written_in[s] = {}
            if type(s) is Block:
                for x in s.stmts:
                    found |= self.written_slots(x)
            elif type(s) is Alloc:
                found |= {k: None for k in self.written_slots(s.body) if k[0] is not s.buffer}
            elif isinstance(s, (For, If, Let, PointerLoad)):
                found |= self.written_slots(s.body)
            elif type(s) is Store and self.is_held(s.buffer):
                found |= dict.fromkeys(self.slots_at(s.buffer, s.index))
            elif type(s) is Invoke and self.is_held(s.dst.buffer):
                found |= dict.fromkeys(self.slots_at(s.dst.buffer, s.dst.index))
        return found

    def _If(self, s: If) -> None:
        if LANE in variables_of(s.cond):
            self._on_lanes(s)
            return
        slots = self.written_slots(s.body)
        before = {k: self.parts_of(k) for k in slots}
        masks_ahead(self, s)
        then, end = self.label("then"), self.label("end")
        self.lines.append(f"  br i1 {self.cond(s.cond)}, label %{then}, label %{end}")
        origin = self.current
        self.start(then)
        self.known.push()
        self.stmt(s.body)
        self.known.pop()
        last, after = self.current, {k: self.parts_of(k) for k in slots}
        self.lines.append(f"  br label %{end}")
        self.start(end)
        self._meet(before, origin, after, last)

    def _on_lanes(self, s: If) -> None:
        """Emit statements on vectors for some lanes, in a block of their own if other conditions must hold, too."""
        on, others = divided_by_lanes(s.cond)
        if on is not s.cond:
            self._If(If(others, If(on, s.body)))
            return
        self.on_lanes = on
        self.stmt(s.body)
        self.on_lanes = None

    def _meet(self, a: Mapping[Slot, list[str]], origin: str, b: Mapping[Slot, list[str]], last: str) -> None:
        """Begin a block with the accumulators ``a`` of the block ``origin``, or ``b`` of the block ``last``."""
        met = {k: [self.put(f"phi {self.part_type(k)} [ {x}, %{origin} ], [ {y}, %{last} ]")
                   for x, y in zip(parts, b[k])] for k, parts in a.items()}  # fmt: skip
        for k, parts in met.items():
            self.slots[k] = self.joined(k, parts)

    def _For(self, s: For) -> None:
        lo, hi = self.index(s.lo), self.index(s.hi)
        is_part = s.kind == "parallel" and self.is_split
        if is_part:
            if self.task_range is None:
                raise InternalError(f"parallel loop {s.var} is not the outermost")
            lo, hi = self.task_range
        starts = [self.address(c.buffer, c.init) for c in s.carried]
        step = self.units() if s.kind == "scalable" else "1"
        slots = self.written_slots(s.body)
        before = {k: self.parts_of(k) for k in slots}
        masks_ahead(self, s)
        body, end = self.label(s.var.name), self.label("end")
        sure = not is_part and s.lo.is_const and s.hi.is_const and s.lo.const < s.hi.const
        # Sums leave few scalar registers: a loop that counts down needs one, and one that counts up often two. LLVM
        # keeps a number of iterations that it can tell in the link register, which may hold a sum, too.
        trips = self._trips(s, lo, hi) if any(k[0] in self.in_scalars for k in slots) else ""
        stores: Sequence[Store] = ()
        if self.facts.dialect is None:
            stores = results_written_back(s, self.fragments.__contains__, self.is_held)
        if stores:
            self.compute_ahead(stores, bound_in(s))
        if sure:
            self.lines.append(f"  br label %{body}")
        else:
            some = self.put(f"icmp slt {self.it} {lo}, {hi}")
            self.lines.append(f"  br i1 {some}, label %{body}, label %{end}")
        origin = self.current
        self.start(body)
        mark = len(self.lines)
        left = self.fresh("left") if trips else ""
        var = self.fresh(s.var.name)
        self.vars[s.var] = var
        moving = []
        for c in s.carried:
            self.pointers[c.var] = self.fresh("p")
            moving.append(self.pointers[c.var])
        phis = {k: [self.fresh("acc") for _ in before[k]] for k in slots}
        for k, parts in phis.items():
            self.slots[k] = self.joined(k, parts)
        self.known.push()
        if s.kind == "scalable":
            self._scalable(s, var, hi)
        else:
            outer, self.has_constant_values = self.has_constant_values, self.has_constant_values or bool(stores)
            self.stmt(s.body)
            self.has_constant_values = outer
        self.known.pop()
        steps = [self.advance(c, p) for c, p in zip(s.carried, moving)]
        after = self.put(f"add nsw {self.it} {var}, {step}")
        fewer = self.put(f"sub nsw {self.it} {self.put(f'freeze {self.it} {left}')}, 1") if left else ""
        again = self.put(f"icmp ne {self.it} {fewer}, 0" if left else f"icmp slt {self.it} {after}, {hi}")
        last, parts_after = self.current, {k: self.parts_of(k) for k in slots}
        metadata = self.mark_of_sums if slots else ""
        self.lines.append(f"  br i1 {again}, label %{body}, label %{end}{metadata}")
        head = [f"  {var} = phi {self.it} [ {lo}, %{origin} ], [ {after}, %{last} ]"]
        if left:
            head.append(f"  {left} = phi {self.it} [ {trips}, %{origin} ], [ {fewer}, %{last} ]")
        head += [
            f"  {p} = phi {self.pointer(c.buffer)} [ {a}, %{origin} ], [ {b}, %{last} ]"
            for c, p, a, b in zip(s.carried, moving, starts, steps)
        ]
        head += [
            f"  {phi} = phi {self.part_type(k)} [ {x}, %{origin} ], [ {y}, %{last} ]"
            for k, parts in phis.items() for phi, x, y in zip(parts, before[k], parts_after[k])
        ]  # fmt: skip
        self.lines[mark:mark] = head
        self.start(end)
        self.is_after_sums = self.is_after_sums or bool(slots)
        if not sure:
            self._meet(before, origin, parts_after, last)
            return
        for k in slots:
            if k[0] in self.in_scalars:
                self.slots[k] = self.joined(k, parts_after[k])

    def _trips(self, s: For, lo: str, hi: str) -> str:
        """Return the number of iterations of a loop from ``lo`` to ``hi``."""
        count = s.hi - s.lo
        return str(count.const) if count.is_const else self.put(f"sub {self.it} {hi}, {lo}")

    def units(self) -> str:
        """Return the machine's ``vscale``, the units of a vector, as an index."""
        found = self.whole_units()
        return found if self.bits == 64 else self.put(f"trunc i64 {found} to {self.it}")

    def whole_units(self) -> str:
        """Return ``vscale`` as LLVM's widest index."""
        self.declared["declare i64 @llvm.vscale.i64()"] = None
        return self.put("call i64 @llvm.vscale.i64()")

    def _scalable(self, s: For, var: str, hi: str) -> None:
        """Emit the iterations of a scalable loop from ``var`` on that run at once, up to the number of remaining
        iterations.
        """
        self.scalable = True
        rest = self.put(f"sub nsw {self.it} {hi}, {var}")
        if self.bits < 64:
            rest = self.put(f"sext {self.it} {rest} to i64")
        if self.has_vector_lengths:
            self.declared["declare i64 @llvm.umin.i64(i64, i64)"] = None
            rest = self.put(f"call i64 @llvm.umin.i64(i64 {rest}, i64 {self.whole_units()})")
        every = {x.lanes for x in accesses_of(s.body) if x.lanes and not self.is_held(x.buffer)}
        for n in sorted({x.rows[1] if x.rows else x.count for x in every}):
            if self.has_vector_lengths:
                lanes = self.put(f"mul nsw nuw i64 {rest}, {n}")
                self.predicates[n] = self.put(f"trunc i64 {lanes} to i32")
                continue
            name = f"@llvm.get.active.lane.mask.nxv{n}i1.i64"
            self.declared[f"declare {self.type_i1(n)} {name}(i64, i64)"] = None
            lanes = self.put(f"mul nsw i64 {rest}, {n}")
            self.predicates[n] = self.put(f"call {self.type_i1(n)} {name}(i64 0, i64 {lanes})")
        self.stmt(s.body)
        self.scalable, self.predicates = False, {}

    def advance(self, c: Carried, pointer: str) -> str:
        """Return the pointer of the next iteration.

        The freeze costs no instruction. It hides the pointer from LLVM's loop strength reduction, which would take a
        third of the compile time without effect.
        """
        type_ = self.pointer(c.buffer)
        step = c.buffer.dtype.bytes_of(c.step) // c.buffer.dtype.bytes_of(1)
        advanced = self.put(f"getelementptr {c.buffer.dtype.llvm}, {type_} {pointer}, i64 {step}")
        return self.put(f"freeze {type_} {advanced}")


METHODS: dict[type[Stmt], Callable[[FunctionEmitter, Any], None]] = {
    kind: getattr(FunctionEmitter, f"_{kind.__name__}")
    for kind in (Block, Alloc, PointerLoad, Let, Store, Invoke, Call, If, For, Prefetch)
}
"""The method that emits a statement, by its class."""
