"""Unify the specification of an instruction with a nest of loops, or with a statement on vectors.

Both are trees of values over loads. A load of an operand in the specification matches a load of the nest; it remains to
find the loop of the nest that matches each loop of the specification, and the elements of memory that form the operand.
A statement on vectors has no loops left: the specification is vectorised as well, and an operand matches any value with
the same number of lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import NamedTuple

from convsmith.diag.errors import ConfigError, InternalError
from convsmith.diag.forking import cached_property
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.instruction import Instruction, Operand
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, If, Invoke, Kernel, Store
from convsmith.ir.types import dtype
from convsmith.ir.value import (
    Binary,
    Bits,
    Cast,
    Const,
    Fma,
    Lanes,
    Load,
    Repeat,
    Select,
    Sum,
    Unary,
    Value,
    Where,
    const,
    dtype_of,
    lanes_of,
    strided,
)
from convsmith.ir.walk import children, statements_of, variables_of, walk
from convsmith.passes.flatten import offset
from convsmith.passes.scope import wrap
from convsmith.passes.split_nests import StoreNest, split_nest
from convsmith.passes.vectorise import vectorise

Binding = Mapping[Load, Value]
"""The values that match the loads of a specification."""

COMMUTATIVE = frozenset({"add", "mul", "and", "or", "xor"})
UPDATES = frozenset({"add", "sub", "mul", "and", "or", "xor", "max", "min"})
"""Operations of ``c = c op x`` for which the order of the values ``x`` does not matter."""


def contract(v: Value) -> Value:
    """Return ``x + a * b`` as ``fma(a, b, x)``, which rounds once; other values unchanged."""
    if isinstance(v, Binary) and v.op == "add":
        if isinstance(v.b, Binary) and v.b.op == "mul":
            return Fma(v.b.a, v.b.b, v.a)
        if isinstance(v.a, Binary) and v.a.op == "mul":
            return Fma(v.a.a, v.a.b, v.b)
    return v


def unify_values(p: Value, v: Value, bound: Binding) -> Iterator[Binding]:
    """Yield every extension of `bound` under which the pattern `p` equals the value `v`."""
    if isinstance(p, Load):
        known = bound.get(p)
        if known is v or (known is None and lanes_of(v) == lanes_of(p) and dtype_of(v) is dtype_of(p)):
            yield {**bound, p: v}
        return
    if type(p) is not type(v) or any(getattr(p, x) != getattr(v, x) for x in _ATTRIBUTES.get(type(p), ())):
        return
    ps, vs = children(p), children(v)
    yield from _unify_all(ps, vs, bound)
    if isinstance(p, Fma):
        yield from _unify_all((ps[1], ps[0], ps[2]), vs, bound)
    elif isinstance(p, Binary) and p.op in COMMUTATIVE:
        yield from _unify_all((ps[1], ps[0]), vs, bound)
    elif isinstance(p, Sum) and isinstance(v, Sum) and isinstance(p.a, Binary) and p.a.op == "mul":
        # A sum without factors matches a sum of products by one.
        for factor, rest in ((p.a.a, p.a.b), (p.a.b, p.a.a)):
            if isinstance(factor, Cast) and isinstance(factor.a, Load):
                ones = Repeat(const(factor.a.buffer.dtype, 1), lanes_of(factor.a))
                yield from unify_values(rest, v.a, {**bound, factor.a: ones})


_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    Const: ("dtype", "bits"), Binary: ("op",), Unary: ("op",), Where: ("op",), Cast: ("dtype",), Bits: ("dtype",),
    Select: ("cond",), Repeat: ("times",), Sum: ("group",),
}  # fmt: skip
"""Fields of a value besides its operands; the condition of a mask exists only in the nest, so it matches no pattern."""


def _unify_all(ps: Sequence[object], vs: Sequence[object], bound: Binding) -> Iterator[Binding]:
    """Yield every extension of `bound` under which the patterns equal the values, one by one."""
    if len(ps) != len(vs):
        return
    if not ps:
        yield bound
        return
    p, v = ps[0], vs[0]
    assert isinstance(p, Value) and isinstance(v, Value)
    for one in unify_values(p, v, bound):
        yield from _unify_all(ps[1:], vs[1:], one)


class OperandAccess(NamedTuple):
    """The element of an operand that a load of the specification reads: `first`, and `steps` for each loop."""

    operand: int
    first: int
    steps: tuple[int, ...]


class Specification:
    """A row's specification as a pattern; each form is made once, when the first statement is compared with it.

    The pattern and the kernel belong to different intern tables, so only the structure of nodes is compared. A loop of
    as many iterations as the first number of ``panels`` is two loops, the inner one of the second number.
    """

    def __init__(self, row: Instruction, panels: tuple[int, int] | None = None) -> None:
        self.row, self.panels = row, panels
        self._of_panels: dict[tuple[int, int], Specification] = {}

    def in_panels(self, whole: int, size: int) -> Specification:
        """Return the form in which a loop of ``whole`` iterations is one over panels and one over a panel of ``size``;
        the same form without such a loop.
        """
        if self.panels is not None or whole not in self.extents:
            return self
        return self._of_panels.setdefault((whole, size), Specification(self.row, (whole, size)))

    @cached_property
    def reads_shared(self) -> bool:
        """Whether an operand lies in shared memory, where its rows or columns may be in panels."""
        return any(x.scope == "shared" for x in self.row.operands)

    @cached_property
    def nest(self) -> StoreNest:
        """The loops and the store of the specification, in which all lanes are active."""
        whole = self._whole_nest
        if self.panels is None:
            return whole
        count, size = self.panels
        return split_nest(whole, next(n for n, x in enumerate(whole.loops) if x.hi.const == count), size)

    @cached_property
    def _whole_nest(self) -> StoreNest:
        """The nest with a loop for each loop of the row's specification."""
        *around, store = statements_of(self.row.kernel.body)
        loops = tuple(x for x in around if isinstance(x, For))
        conditions = [x for x in around if isinstance(x, If)]
        known = all(any(_is_below(x, loop.var, self.row.predicate) for loop in loops) for x in conditions)
        if not isinstance(store, Store) or len(loops) + len(conditions) < len(around) or not known:
            raise InternalError(f"the specification of {self.row.name} is no perfect nest around one store")
        return StoreNest(loops, store)

    @cached_property
    def value(self) -> Value:
        """The value of the store, contracted."""
        return contract(self.nest.store.value)

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Iterations of each loop."""
        return tuple(x.hi.const for x in self.nest.loops)

    @cached_property
    def partial(self) -> tuple[bool, ...]:
        """Whether each loop may run fewer iterations: the row permits it, or has a predicate for its iterations."""
        masked = [x for x in statements_of(self.row.kernel.body) if isinstance(x, If)]
        return tuple(
            x.var.name in self.row.partial or any(_is_below(y, x.var, self.row.predicate) for y in masked)
            for x in self.nest.loops
        )

    @cached_property
    def accesses(self) -> dict[Load, OperandAccess]:
        """The accesses to operands, the stored one first."""
        store, params = self.nest.store, self.row.kernel.params
        reads = [v for v in walk(self.value) if isinstance(v, Load)]
        accesses = {}
        for v in (Load(store.buffer, store.index, None), *reads):
            steps = _steps(v, self.nest.loops)
            if steps is None:
                raise InternalError(f"the specification of {self.row.name} reads {v} at uneven steps")
            accesses[v] = OperandAccess(params.index(v.buffer), _flat(v).const, steps)
        return accesses

    @cached_property
    def result(self) -> tuple[Load, ...]:
        """The loads of the elements that are written: the stored element, and, if any, the one that is read."""
        stored, *reads = self.accesses
        return (stored, *(v for v in reads if self.accesses[v] == self.accesses[stored]))

    @cached_property
    def is_update(self) -> bool:
        """Whether the order of the terms of an element of the result does not matter."""
        v = self.value
        first = v.c if isinstance(v, Fma) else v.a if isinstance(v, Binary) and v.op in UPDATES else None
        return first in self.result and sum(x in self.result for x in walk(v)) == 1

    @cached_property
    def vector(self) -> tuple[Value, tuple[Load, ...]] | None:
        """The value on vectors and the result it reads; None unless every operand is a single vector in element order.
        """
        if any(x.layout.registers > 1 or x.scope != "register" for x in self.row.operands):
            return None
        kernel = Kernel(self.row.name, self.row.kernel.params, wrap(*self.nest))
        try:
            for x in reversed(self.nest.loops):
                kernel = vectorise(kernel, x.var.name, self.row.loops[x.var])
        except ConfigError:
            return None
        store = kernel.body
        if not isinstance(store, Store):
            return None
        loads = [v for v in walk(store.value) if isinstance(v, Load)]
        if not all(_is_whole(v) for v in (Load(store.buffer, store.index, store.lanes), *loads)):
            return None
        return contract(store.value), tuple(v for v in loads if v.buffer is store.buffer)

    def invoke_on_vectors(self, s: Store) -> Invoke | None:
        """Return the instruction that computes a statement on vectors, or None."""
        if self.vector is None:
            return None
        pattern, result = self.vector
        here = Load(s.buffer, s.index, s.lanes)
        for bound in unify_values(pattern, contract(s.value), dict.fromkeys(result, here)):
            values = {v.buffer: x for v, x in bound.items()}
            return Invoke(self.row.name, here, tuple([values[b] for b in self.row.kernel.params[1:]]))
        return None

    def invoke_on_nest(self, nest: StoreNest) -> Invoke | None:
        """Return the instruction that computes a nest whose result is in registers, or None."""
        for c, *read in self.operands_of(nest):
            if isinstance(c, Load) and c.buffer.in_registers and all(isinstance(v, Load) for v in read):
                return Invoke(self.row.name, c, tuple(read))
        return None

    def operands_of(self, nest: StoreNest) -> Iterator[list[Value]]:
        """Yield the operands for each way to match the nest with the specification: lanes of buffers, or constants."""
        s = nest.store
        if not self._may_run(nest):
            return
        here = Load(s.buffer, s.index, None)
        start: Binding = {v: here for v in self.result}
        for bound in unify_values(self.value, contract(s.value), start):
            loads = {p: v for p, v in bound.items() if isinstance(v, Load)}
            if not all(isinstance(v, (Load, Const)) for v in bound.values()):
                continue
            if any(v.buffer is s.buffer and p not in self.result for p, v in loads.items()):
                continue
            accesses = {(self.accesses[p], v): _steps(v, nest.loops) for p, v in loads.items()}
            reads = [_OperandRead(*read, steps) for read, steps in accesses.items() if steps is not None]
            if len(reads) < len(accesses):
                continue
            constants = {self.accesses[p].operand: v for p, v in bound.items() if isinstance(v, Const)}
            for order in self._orders(nest, reads):
                by_number: dict[int, Value | None] = dict(constants)
                for n, x in enumerate(self.row.operands):
                    if n not in constants:
                        by_number[n] = self._operand(x, order, nest, [r for r in reads if r.access.operand == n])
                operands = [x for _, x in sorted(by_number.items()) if x is not None]
                if len(operands) == len(by_number):
                    yield operands

    def _may_run(self, nest: StoreNest) -> bool:
        """Return whether each loop runs as often as in the specification, or fewer times if it may."""
        if len(nest.loops) != len(self.extents):
            return False
        if any(x.lo.terms or x.lo.const or x.hi.terms for x in nest.loops):
            return False
        sizes = [x.hi.const for x in nest.loops]
        for extent, partial in zip(self.extents, self.partial):
            if not partial:
                if extent not in sizes:
                    return False
                sizes.remove(extent)
        return True

    def _orders(self, nest: StoreNest, reads: list[_OperandRead]) -> Iterator[tuple[int, ...]]:
        """Yield, as permutations, the matches of the specification's loops with loops of the nest."""
        sizes = [x.hi.const for x in nest.loops]

        def fits(i: int, j: int) -> bool:
            if sizes[j] != self.extents[i] and not (self.partial[i] and sizes[j] < self.extents[i]):
                return False
            return sizes[j] == 1 or all(r.allows(i, j) for r in reads)

        def extend(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(order) == len(sizes):
                yield order
                return
            for j in range(len(sizes)):
                if j not in order and fits(len(order), j):
                    yield from extend((*order, j))

        stored = next(iter(self.accesses.values()))
        reduced = [i for i, step in enumerate(stored.steps) if not step]
        for order in extend(()):
            if self.is_update or sorted(reduced, key=lambda i: order[i]) == reduced:
                yield order

    def _operand(
        self, operand: Operand, order: tuple[int, ...], nest: StoreNest, reads: list[_OperandRead]
    ) -> Load | None:
        """Return the elements that an operand consists of; None if registers cannot hold them in this form."""
        if not reads:
            return None
        origin: dict[Var, Index] = {x.var: x.lo for x in nest.loops}
        first = reads[0].load
        start = tuple(substitute(i, origin) for i in first.index)
        used = tuple(nest.loops[j].hi.const for j in order)
        parts = []
        for r in reads:
            apart = 0
            if r is not reads[0]:
                distance = substitute(_flat(r.load), origin) - substitute(_flat(first), origin)
                if r.load.buffer is not first.buffer or not distance.is_const:
                    return None
                apart = distance.const
            steps = (r.steps[j] if size > 1 else step for j, size, step in zip(order, used, r.access.steps))
            parts.append(_OperandPart(r.access.first, r.access.steps, apart, tuple(steps)))
        if not first.buffer.in_registers:
            lanes = None if operand.layout.registers > 1 else _lanes(operand, self.extents, used, tuple(parts))
            return None if lanes is None else Load(first.buffer, start, lanes)
        shape, leading = operand.shape, len(first.buffer.shape) - len(operand.shape)
        if first.buffer.shape[leading:] != shape or any(not i.is_const or i.const for i in start[leading:]):
            return None
        if not self.row.predicate:
            return Load(first.buffer, start, _whole(operand.size)) if len(parts) == 1 else None
        lanes = _lanes(operand, self.extents, used, tuple(parts))
        return None if lanes is None else Load(first.buffer, start, lanes)


@cache
def _whole(count: int) -> Lanes:
    """Return the lanes of `count` adjacent elements."""
    return strided(count, 1)


class _OperandRead(NamedTuple):
    """A load of the nest, the matching access of the specification, and its steps along the nest's loops."""

    access: OperandAccess
    load: Load
    steps: tuple[int, ...]

    def allows(self, i: int, j: int) -> bool:
        """Return whether loop `i` of the specification may match loop `j` of the nest."""
        wanted, actual = self.access.steps[i], self.steps[j]
        return wanted == actual if self.load.buffer.in_registers else wanted != 0 or actual == 0


def _flat(v: Load) -> Index:
    """Return the offset of a load in its buffer."""
    return v.index[0] if v.buffer.flat else offset(v.buffer, v.index)


def _steps(v: Load, loops: Sequence[For]) -> tuple[int, ...] | None:
    """Return the elements that each loop moves a load by; None if a loop moves it by varying distances."""
    if v.lanes is not None:
        return None
    flat = dict(_flat(v).terms)
    steps = tuple(flat.pop(x.var, 0) for x in loops)
    along = {x.var for x in loops}
    return None if any(type(a) is not Var and variables_of(a) & along for a in flat) else steps


class _OperandPart(NamedTuple):
    """Elements of an operand: the number of the first and the steps along the loops, and the same in memory."""

    first: int
    steps: tuple[int, ...]
    place: int
    strides: tuple[int, ...]


@lru_cache(1 << 12)
def _lanes(
    operand: Operand, extents: tuple[int, ...], used: tuple[int, ...], parts: tuple[_OperandPart, ...]
) -> Lanes | None:
    """Return the offsets of an operand's elements in memory; None if its registers cannot be loaded from there.

    Loops run `extents` times in the specification and `used` times in the nest; elements of the missing iterations are
    inactive.
    """
    offsets: dict[int, int] = {}
    active = set()
    for part in parts:
        moving = [x for x in zip(part.steps, part.strides, extents, used) if x[0]]
        for point in product(*(range(extent) for _, _, extent, _ in moving)):
            element = part.first + sum([i * step for i, (step, _, _, _) in zip(point, moving)])
            place = part.place + sum([i * stride for i, (_, stride, _, _) in zip(point, moving)])
            if offsets.setdefault(element, place) != place:
                return None
            if all(i < count for i, (_, _, _, count) in zip(point, moving)):
                active.add(element)
    if len(offsets) != operand.size or max(active) + 1 != len(active):
        return None
    for run in _runs(operand):
        if any(offsets[e] != offsets[run[0]] + n for n, e in enumerate(run)):
            return None
    return Lanes(tuple(offsets[e] for e in range(operand.size)), len(active))


@cache
def _runs(operand: Operand) -> tuple[range, ...]:
    """Return the elements of each lane, for lanes with several elements, which must be contiguous in memory."""
    layout = operand.layout
    if layout.elements == 1:
        return ()
    buffer = make_buffer(operand.name, dtype(operand.dtype), operand.shape)
    starts = (
        [int(offset(buffer, layout.coordinates(register, lane, e))) for e in (0, 1)]
        for register, lane in product(range(layout.registers), range(layout.lanes))
    )
    return tuple(range(a, a + (b - a) * layout.elements, b - a) for a, b in starts)


def _is_below(s: If, loop: Var, size: str) -> bool:
    """Return whether a condition holds for the iterations of a loop below a size."""
    return bool(size) and str(s.cond) == str(loop < Var(size))


def _is_whole(v: Load) -> bool:
    """Return whether the lanes are all elements of a buffer, in order."""
    lanes = v.lanes
    return lanes is not None and lanes == strided(v.buffer.size, 1) and all(i.is_const and not i.const for i in v.index)
