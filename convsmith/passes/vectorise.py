"""Turn a loop over lanes into statements on vectors.

The lanes' offsets of an access are computed by evaluating its index lane by lane: a broadcast, contiguous lanes, or any
other map.  A reduction over the lanes (``x = x + e(l)``) becomes a horizontal sum, ``x = x + sum(e)``.  In an access
that has lanes already, each new lane is a group of the old lanes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from convsmith.arith.dependence import Distances
from convsmith.arith.simplify import Simplifier
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Var, as_index, conj, from_sorted, is_false, is_true, parts_of
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import LANE, Alloc, Block, For, If, Kernel, PointerLoad, Stmt, Store, block
from convsmith.ir.value import Binary, Cast, Const, Lanes, Load, Lookup, Repeat, Select, Sum, Value, lanes_of, strided
from convsmith.ir.walk import children, loads_of, loops_of, statements_of, variables_of, walk
from convsmith.passes.accesses import sites_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.flatten import offset
from convsmith.passes.order import conflicts, require_order
from convsmith.passes.register_use import Part, RegisterUse, in_rows_of, may_meet, part_of
from convsmith.passes.scope import ScopedRewriter, allocated, each_body, has_loop, require_loops


class NotVector(Exception):
    """The reason why a loop cannot be vectorised."""


class NotOrdered(NotVector):
    """The error that an access of an earlier lane would come after an access of a later lane."""


class LaneMap(Rewriter):
    """Rewrites values so that the lane variable becomes lanes of the accesses."""

    def __init__(
        self, var: Var, start: Index, active: int, count: int, ranges: Any, loads: dict[Load, None] | None = None,
        low: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.loads = {} if loads is None else loads
        """Every load that was rewritten."""
        self.var, self.start, self.low, self.active, self.count = var, start, low, active, count
        self.start_is_zero = start is as_index(0)
        self.simplifier = Simplifier(ranges)

    def access(self, buffer: Buffer, index: tuple[Index, ...]) -> tuple[tuple[Index, ...], Lanes | None]:
        """Return the index of the first lane and the lanes; None if the access is equal for all lanes."""
        moves = [self.var in variables_of(i) for i in index]
        if not any(moves):
            return index, self.first(buffer, index) if self.active == 1 else None
        first = tuple([self.at_start(i) if moved else i for i, moved in zip(index, moves)])
        whole = offset(buffer, index)
        moving = [(a, c) for a, c in whole.terms if self.var in variables_of(a)]
        if len(moving) == 1 and moving[0][0] is self.var:
            step = moving[0][1]
            offsets = tuple([step * n for n in range(self.count)])
        else:
            distances, origin = [], offset(buffer, first)
            for n in range(self.active):
                d = self.simplifier.expr(substitute(whole, {self.var: self.start + n}) - origin)
                if not d.is_const:
                    raise NotVector(f"{buffer.name}: the distance of lane {n} is {d}, no constant")
                distances.append(d.const)
            step = distances[1] - distances[0] if len(distances) > 1 else 0
            even = distances == [distances[0] + step * n for n in range(len(distances))]
            rest = range(1, self.count - self.active + 1)
            offsets = (*distances, *(distances[-1] + step * n * even for n in rest))
        if buffer.scope == "register" and offsets != tuple(range(self.count)):
            raise NotVector(f"register array {buffer.name} is not contiguous along the lanes")
        full = buffer.scope == "register" and not self.beyond(buffer, first)
        return first, Lanes(offsets, self.count) if full else Lanes(offsets, self.active, self.low)

    def at_start(self, i: Index) -> Index:
        """Return the index at the first lane; the variable of a loop from 0 leaves a sum in which it is a term."""
        if not self.start_is_zero or any([a is not self.var and self.var in variables_of(a) for a, _ in i.terms]):
            return substitute(i, {self.var: self.start})  # type: ignore[no-any-return]
        return from_sorted(i.const, tuple([t for t in i.terms if t[0] is not self.var]))

    def first(self, buffer: Buffer, index: tuple[Index, ...]) -> Lanes | None:
        """Return the only lane of an access, if it is the first lane of a vector; None otherwise."""
        if buffer.scope != "register":
            return strided(self.count, 1, 1)
        whole = bool(index) and index[-1].is_const and index[-1].const == 0 and not self.beyond(buffer, index)
        return strided(self.count, 1) if whole else None

    def beyond(self, buffer: Buffer, first: tuple[Index, ...]) -> bool:
        """Return whether a row of an array ends before the lanes do."""
        return bool(first) and first[-1].is_const and first[-1].const + self.count > buffer.shape[-1]

    def visit_Load(self, v: Load) -> Value:
        self.loads[v] = None
        index, lanes = self.access(v.buffer, v.index)
        if v.lanes is not None:
            return _within(v, index, lanes, self.count)
        if lanes is None:
            if v.buffer.scope == "register":
                return v
            return Load(v.buffer, v.index, Lanes((0,) * self.count, self.active, self.low))
        return Load(v.buffer, index, lanes)

    def visit_Lookup(self, v: Lookup) -> Value:
        if self.var in variables_of(v.first):
            raise NotVector(f"the tables of {v} differ between lanes")
        self.loads[v.first] = None
        return Lookup(v.first, self.expr(v.a))

    def visit_Repeat(self, v: Repeat) -> Value:
        if self.var in variables_of(v.a):
            raise NotVector(f"the lanes of {v} repeat what differs between lanes")
        return self._Repeat(v)

    def visit_Select(self, v: Select) -> Value:
        if self.var not in variables_of(v.cond):
            return self._Select(v)
        index, lanes = self.access(v.yes.buffer, v.yes.index) if isinstance(v.yes, Load) else ((), None)
        if lanes is None or not isinstance(v.no, Const) or v.no.value != 0:
            raise NotVector(f"the condition {v.cond} differs between lanes")
        if isinstance(v.yes, Load) and v.yes.lanes is not None:
            raise NotVector(f"the condition {v.cond} differs between groups of lanes")
        same = [part for part in parts_of(v.cond) if self.var not in variables_of(part)]
        low, active = self.holding(conj(part for part in parts_of(v.cond) if part not in same))
        assert isinstance(v.yes, Load)
        self.loads[v.yes] = None
        load = Load(v.yes.buffer, index, Lanes(lanes.offsets, active, low))
        return Select(conj(same), load, v.no) if same else load

    def holding(self, cond: Cond) -> tuple[int, int]:
        """Return the first lane for which a condition holds, and the end of these lanes; zeros if there is none."""
        lanes = range(self.low, self.active)
        holds = [self.simplifier.expr(substitute(cond, {self.var: self.start + n})) for n in lanes]
        low = next((n for n, each in zip(lanes, holds) if is_true(each)), 0)
        active = low + sum(map(is_true, holds))
        if not all(is_true(each) if low <= n < active else is_false(each) for n, each in zip(lanes, holds)):
            raise NotVector(f"the condition {cond} does not hold for a run of adjacent lanes, and no other ones")
        return low, active


class _Broadcasts(Rewriter):
    """Broadcasts a value to all lanes, without a mask, if no statement reads the inactive lanes.

    If a statement reads them, they must keep the value of a masked product, which is zero whatever the factors are.
    """

    def visit_Load(self, v: Load) -> Value:
        if v.lanes is None or not _is_masked(v.lanes):
            return self._Load(v)
        return Load(v.buffer, v.index, Lanes(v.lanes.offsets, v.lanes.count))


def _is_masked(lanes: Lanes) -> bool:
    """Return whether an access broadcasts one element to some lanes."""
    return not lanes.is_whole and not any(lanes.offsets)


def _has_masked(v: Value) -> bool:
    """Return whether a value has a load that broadcasts one element to some lanes."""
    return any(x.lanes is not None and _is_masked(x.lanes) for x in loads_of(v))


def _within(v: Load, index: tuple[Index, ...], lanes: Lanes | None, count: int) -> Value:
    """Return a load that already has lanes, with these lanes as groups of ``count`` new lanes."""
    inner = v.lanes
    assert inner is not None
    if lanes is None:
        return Repeat(v, count)
    if lanes.first or inner.first:
        raise NotVector(f"{v.buffer.name}: the first lanes are missing")
    if lanes.active * inner.active < lanes.count * inner.count and inner.active < inner.count:
        raise NotVector(f"{v.buffer.name}: some lanes of each group are missing")
    offsets = tuple(o + i for o in lanes.offsets for i in inner.offsets)
    return Load(v.buffer, index, Lanes(offsets, lanes.active * inner.count))


def _is_sum(s: Store) -> bool:
    """Return whether a store adds to its own element."""
    v = s.value
    return (
        isinstance(v, Binary) and v.op == "add" and isinstance(v.a, Load)
        and v.a.buffer is s.buffer and v.a.index == s.index
    )  # fmt: skip


def _keeps_to_itself(s: Stmt, var: Var, count: int, loads: Collection[Load]) -> bool:
    """Return whether each of ``count`` lanes reads, among the elements that a body writes, only elements that it has
    written.

    ``loads`` are the loads of the body. False means unknown: the dependence test handles more cases.
    """
    while isinstance(s, If):
        s = s.body
    if isinstance(s, Store) and not any(v.buffer is s.buffer and v.index != s.index for v in loads):
        if any(var in variables_of(i) for i in s.index):
            return True
        term = s.value.b if isinstance(s.value, Binary) else s.value
        return all(not isinstance(v, Load) or v.buffer is not s.buffer for v in walk(term))
    accesses: dict[Buffer, list[tuple[Index, ...]]] = {}
    for t in statements_of(s):
        if isinstance(t, Store):
            accesses.setdefault(t.buffer, []).append(t.index)
        elif not isinstance(t, (Block, Alloc, If)):
            return False
    for v in loads:
        if v.buffer in accesses:
            if v.lanes is not None:
                return False
            accesses[v.buffer].append(v.index)
    return all(any(_are_disjoint(dim, var, count) for dim in zip(*places)) for places in accesses.values())


def _are_disjoint(places: Sequence[Index], var: Var, count: int) -> bool:
    """Return whether different lanes of ``count`` along ``var`` access different places: all places move by the same
    step and have constant distances, none of which is a distance of two lanes.
    """
    terms = places[0].terms
    step = next((c for atom, c in terms if atom is var), 0)
    others = (var in variables_of(atom) for atom, _ in terms if atom is not var)
    if not step or any(x.terms != terms for x in places) or any(others):
        return False
    starts = {x.const for x in places}
    return len(starts) == 1 or not any([a + step * n in starts for a in starts for n in range(1, count)])


class _Vectorise(ScopedRewriter):
    def __init__(self, name: str, lanes: int, strict: bool, masked: bool) -> None:
        super().__init__()
        self.name, self.lanes, self.strict, self.masked = name, lanes, strict, masked
        self.what = f"vectorise: loop {name}"
        self.scopes: dict[Buffer, Stmt] = {}
        """The statement in which each enclosing register array exists; arrays that are allocated together have the same
        one.
        """
        self.moved: dict[Stmt, dict[Buffer, int]] = {}
        """For each statement, the arrays that statements in it copy to other arrays, with the maximum lanes."""
        self.uses: dict[Stmt, RegisterUse] = {}
        """The parts of register arrays that are read and written, by the statement in which the arrays exist."""

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if s.buffer.scope != "register":
            return self._Alloc(s)
        body = allocated(s)[1]
        outer = self.scopes
        self.scopes = outer | {s.buffer: body}
        made = self._Alloc(s)
        self.scopes = outer
        return made

    def most_lanes(self, buffer: Buffer) -> int | None:
        """Return the maximum iterations of a loop over lanes that copies the register array ``buffer`` to another; None
        if no enclosing statement allocates it.
        """
        body = self.scopes.get(buffer)
        if body is None:
            return None
        if body not in self.moved:
            self.moved[body] = self.moved_lanes(body)
        return self.moved[body].get(buffer, self.lanes)

    def use_of(self, buffer: Buffer) -> RegisterUse | None:
        """Return the uses of the register array ``buffer``; None if no enclosing statement allocates it."""
        body = self.scopes.get(buffer)
        if body is not None and body not in self.uses:
            self.uses[body] = RegisterUse(body, self.ranges)
        return self.uses[body] if body is not None else None

    def beyond(self, index: tuple[Index, ...], lanes: LaneMap) -> list[Part]:
        """Return the elements of a register vector at ``index`` that belong to inactive lanes."""
        ends = ((0, lanes.low - 1), (lanes.active, lanes.count - 1))
        return [part_of(index, self.ranges, first, last) for first, last in ends if first <= last]

    def is_needed_beyond(self, buffer: Buffer, index: tuple[Index, ...], lanes: LaneMap) -> bool:
        """Return whether a statement may read elements that another statement writes beyond the active lanes of a
        register vector.
        """
        beyond = self.beyond(index, lanes)
        use = self.use_of(buffer) if beyond else None
        if use is None:
            return False
        read = [(x, y) for y in beyond for x in in_rows_of(y, use.reads[buffer]) if may_meet(x, y)]
        return any(may_meet(x, y, z) for x, y in read for z in in_rows_of(y, use.writes[buffer]))

    def is_filled_beyond(self, buffer: Buffer, index: tuple[Index, ...], lanes: LaneMap) -> bool:
        """Return whether some statement may write values other than zero beyond the active lanes."""
        beyond = self.beyond(index, lanes)
        use = self.use_of(buffer) if beyond else None
        return use is not None and any(may_meet(x, y) for x in use.fills[buffer] for y in beyond)

    def is_zero_beyond(self, v: Value, lanes: LaneMap) -> bool:
        """Return whether inactive lanes of a value add nothing to a sum.

        Inactive lanes of memory read as zero. Registers hold zeros in these lanes, because the statements that fill
        them store zeros, unless other statements write there.
        """
        if isinstance(v, Load):
            filled = v.buffer.scope == "register" and self.is_filled_beyond(v.buffer, v.index, lanes)
            return v.lanes is not None and not filled
        if isinstance(v, Const):
            return v.value == 0
        if isinstance(v, Binary) and v.op == "mul":
            return self.is_zero_beyond(v.a, lanes) or self.is_zero_beyond(v.b, lanes)
        # A repeated vector repeats its active lanes in inactive groups, too.
        linear = isinstance(v, (Cast, Select, Sum)) or (isinstance(v, Binary) and v.op in ("add", "sub"))
        return linear and all(self.is_zero_beyond(x, lanes) for x in children(v) if isinstance(x, Value))

    def moved_lanes(self, body: Stmt) -> dict[Buffer, int]:
        """Return, for each array, the maximum iterations of a loop over lanes in ``body`` that copies it to another
        array.
        """
        most: dict[Buffer, int] = {}
        for loop in loops_of(body):
            if loop.var.name != self.name or not (loop.lo.is_const and loop.hi.is_const):
                continue
            count = loop.hi.const - loop.lo.const
            for t in statements_of(loop):
                if isinstance(t, Store):
                    read = {v.buffer for v in walk(t.value) if isinstance(v, Load)} - {t.buffer}
                    most |= {buffer: max(most.get(buffer, count), count) for buffer in read}
        return most

    def visit_For(self, loop: For) -> Stmt:
        if not has_loop(loop, (self.name,)):
            return loop
        if loop.var.name != self.name or not (loop.lo.is_const and loop.hi.is_const):
            return self._For(loop)
        n = loop.hi.const - loop.lo.const
        if not 0 < n <= self.lanes:
            raise ConfigError("lanes", f"{self.what} runs {n} times, a vector has {self.lanes} lanes")
        try:
            lanes = LaneMap(loop.var, loop.lo, n, self.lanes, self.ranges)
            vectors = self.vector(loop.body, lanes)
            if n > 1 and not _keeps_to_itself(loop.body, loop.var, n, lanes.loads):
                self.require_lanes(loop)
            return vectors
        except NotVector as e:
            if self.strict:
                code = "dependence" if isinstance(e, NotOrdered) else "lanes"
                raise ConfigError(code, f"{self.what}: {e}") from None
            return self._For(loop)

    def require_lanes(self, loop: For) -> None:
        """Raise NotOrdered if a statement on all lanes precedes a statement that an earlier lane depends on."""
        sites = sites_of(loop, self.ranges, allocated=True)
        for a, b in conflicts(sites):
            if a.private and any(Distances(a.access, b.access, self.ranges).may({loop.var: x}) for x in (1, -1)):
                raise NotVector(f"several lanes need {a.access.buffer} at once")
        try:
            require_order(self.what, sites, lambda path: (*path[1:], path[0]), self.ranges, sums=True)
        except ConfigError as error:
            raise NotOrdered(str(error).removeprefix(f"{self.what}: ")) from None

    def on_lanes(self, same: Cond, each: Cond, body: Stmt, lanes: LaneMap) -> Stmt:
        """Return the statements of ``body`` on vectors, for the lanes for which ``each`` holds."""
        vectors = self.vector(body, lanes)
        for x in vectors.stmts if isinstance(vectors, Block) else (vectors,):
            if not isinstance(x, Store) or x.lanes is None or not x.lanes.is_whole:
                raise NotVector(f"the condition {each} differs between lanes of what is no vector")
            accessed = [v.lanes for v in loads_of(x.value) if v.buffer.scope != "register"]
            stored = [x.lanes] if x.buffer.scope != "register" else []
            if any(y is not None and y.stride is None for y in accessed) or any(y.stride != 1 for y in stored):
                raise NotVector(f"the condition {each} differs between lanes that are no constant step apart")
        return If(conj((*parts_of(same), *parts_of(each))), vectors)

    def vector(self, s: Stmt, lanes: LaneMap) -> Stmt:
        if isinstance(s, Block):
            return block(*(self.vector(x, lanes) for x in s.stmts))
        if isinstance(s, Alloc):
            return Alloc(s.buffer, self.vector(s.body, lanes))
        if isinstance(s, PointerLoad):
            if any(lanes.var in variables_of(i) for i in (*s.index, s.offset)):
                raise NotVector(f"the entries of {s.table} differ between lanes")
            body = self.vector(s.body, lanes)
            return PointerLoad(s.buffer, s.table, s.index, s.offset, s.source, s.zero, s.zero_at, body, s.rows)
        if isinstance(s, If):
            if lanes.var not in variables_of(s.cond):
                return If(s.cond, self.vector(s.body, lanes))
            same = conj(part for part in parts_of(s.cond) if lanes.var not in variables_of(part))
            each = conj(part for part in parts_of(s.cond) if lanes.var in variables_of(part))
            try:
                low, active = lanes.holding(each)
            except NotVector:
                if not self.masked or lanes.active - lanes.low < lanes.count:
                    raise
                return self.on_lanes(same, substitute(each, {lanes.var: lanes.start + LANE}), s.body, lanes)
            if not active:
                return Block(())
            within = LaneMap(lanes.var, lanes.start, active, lanes.count, self.ranges, lanes.loads, low)
            body = self.vector(s.body, within)
            return body if is_true(same) else If(same, body)
        if isinstance(s, For):
            if lanes.var in variables_of(s.lo) | variables_of(s.hi):
                raise NotVector(f"the bounds of loop {s.var} differ between lanes")
            return For(s.var, s.lo, s.hi, self.vector(s.body, lanes), s.kind, s.carried)
        if not isinstance(s, Store):
            raise NotVector(f"{type(s).__name__} cannot be done on vectors")
        alone = lanes.active == 1 and lanes.var not in variables_of(s)
        if alone and (s.buffer.scope != "register" or lanes.first(s.buffer, s.index) is None):
            return s
        index, where = lanes.access(s.buffer, s.index)
        value = lanes.expr(s.value)
        if s.lanes is not None:
            raise NotVector(f"{s.buffer} is stored in vectors already")
        if where is not None:
            if where.first:
                raise NotVector(f"the first lanes of {s.buffer.name} are not written")
            if s.buffer.scope != "register" and len(set(where.offsets[: where.active])) < where.active:
                raise NotVector(f"lanes of {s.buffer.name} write the same element")
            whole = s.buffer.scope == "register" and where.is_whole
            if whole and self.is_needed_beyond(s.buffer, index, lanes):
                if not (_is_sum(s) and isinstance(value, Binary) and self.is_zero_beyond(value.b, lanes)):
                    raise NotVector(f"lanes of {s.buffer.name} that the loop does not write are read")
            elif s.buffer.scope == "register" and _has_masked(value) and lanes.active == self.most_lanes(s.buffer):
                value = _Broadcasts().expr(value)
            return Store(s.buffer, index, value, where)
        if not _is_sum(s):
            raise NotVector(f"every lane writes the same element of {s.buffer.name}")
        assert isinstance(s.value, Binary) and isinstance(value, Binary)
        if not lanes_of(value.b):
            raise NotVector(f"every lane adds the same to {s.buffer.name}")
        if (lanes.low or lanes.active < lanes.count) and not self.is_zero_beyond(value.b, lanes):
            raise NotVector(f"lanes beyond the last would add to {s.buffer.name}")
        return Store(s.buffer, s.index, Binary("add", s.value.a, Sum(value.b, lanes_of(value.b))))


@stages(*FLATTENED, ensures=TENSORISED)
def vectorise(kernel: Kernel, loop: str, lanes: int, strict: bool = True, masked: bool = False) -> Kernel:
    """Replace the loops named ``loop`` (at most ``lanes`` iterations each) by vector statements.

    If ``strict``, ConfigError for a loop that cannot be vectorised or does not exist; otherwise such a loop is
    unchanged. If ``masked``, a condition that is known only when the kernel runs becomes one on lanes.

    Before::

        kernel k(a: f32[64], b: f32[16], dst: f32[16])
          for i in 0 .. 4:
            alloc acc: f32[4] @register:
              for l in 0 .. 4:
                acc[l] = a[i * 16 + l * 4] * b[i]
              for l in 0 .. 3:
                dst[i * 4 + l] = acc[l]

    After ``vectorise("l", 4)``::

        kernel k(a: f32[64], b: f32[16], dst: f32[16])
          for i in 0 .. 4:
            alloc acc: f32[4] @register:
              acc[0]{4} = a[i * 16]{4:4} * b[i]{4:0}
              dst[i * 4]{4/3} = acc[0]{4}
    """
    if strict:
        require_loops(kernel, (loop,), "vectorise")
    return each_body(kernel, lambda s: _Vectorise(loop, lanes, strict, masked).stmt(s))
