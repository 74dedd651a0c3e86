"""The space of configs of a problem on a device: tiles by level, steps, copies, and parts of the reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from typing import NamedTuple

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.plan.config import Config
from convsmith.plan.device import device_plan
from convsmith.plan.group_limits import ATOMIC
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.statement.parts import splits
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement
from convsmith.tune.config_space import Changes, ConfigSpace
from convsmith.tune.device import device_candidates, expected_cycles
from convsmith.tune.space import Space
from convsmith.tune.stages_space import StagesSpace

__all__ = ["DeviceSpace", "space_of"]

COPIES = (("wait", 1), ("wait", 2), ("async", 2), ("async", 3), ("async", 4))
"""Kinds of copies to shared memory, each with a number of slots."""
PARTS = (2, 4, 8, 16)
"""Numbers of parts of a reduction that groups share."""
LONGER = 16
"""Bytes of a vector, by which rows of a copy may be longer."""


class _Decided(NamedTuple):
    """A config with the statement and the device that it is for."""

    config: Config
    statement: Statement
    machine: Machine
    problem: Problem

    @property
    def reduce(self) -> frozenset[str]:
        """The loops of the reduction."""
        return frozenset(d.name for d in self.statement.of("k"))


def _registers(at: _Decided) -> Iterator[Changes]:
    """Yield twice and half the tile of a thread or a warp along a loop; the tile of a group keeps its threads."""
    c = at.config
    for d in at.statement.dims:
        own, whole = c.size(d.name), c.group_size(d.name)
        if d.name in at.reduce:
            continue
        if own * 2 <= whole:  # fewer threads
            yield dict(register=_with(c.register, d.name, own * 2))
        yield dict(register=_with(c.register, d.name, own * 2), group=_with(c.group, d.name, whole * 2))
        if not own % 2:
            yield dict(register=_with(c.register, d.name, own // 2))
            if not whole % 2:
                yield dict(register=_with(c.register, d.name, own // 2), group=_with(c.group, d.name, whole // 2))


def _groups(at: _Decided) -> Iterator[Changes]:
    """Yield twice and half the tile of a group along a loop of the result."""
    c = at.config
    for d in at.statement.dims:
        whole = c.group_size(d.name)
        if d.name not in at.reduce:
            yield dict(group=_with(c.group, d.name, whole * 2))
            if not whole % (2 * c.size(d.name)):
                yield dict(group=_with(c.group, d.name, whole // 2))


def _steps(at: _Decided) -> Iterator[Changes]:
    """Yield twice and half a step of the reduction, and steps with and without all taps."""
    c = at.config
    for d in at.statement.of("k"):
        whole = c.group_size(d.name)
        yield dict(group=_with(c.group, d.name, min(whole * 2, d.size)))
        yield dict(group=_with(c.group, d.name, d.size if whole == 1 else 1))
        if not whole % 2:
            yield dict(group=_with(c.group, d.name, whole // 2))


def _shared(at: _Decided) -> Iterator[Changes]:
    """Yield the operands that a group copies to shared memory, with the way in which padding is read then."""
    a, *others = (v.name for v in at.statement.factors)
    alone = dict(buffers=1, copies="wait", pad=(), swizzle=())
    for names in ((), (a,), (*others,), (a, *others)):
        realise = at.config.realise if a in names else "mask"
        yield dict(shared=names, realise=realise, **({} if names else alone))


def _copies(at: _Decided) -> Iterator[Changes]:
    """Yield the ways to copy, and the numbers of slots."""
    for how, slots in COPIES:
        yield dict(copies=how, buffers=slots)
    for barriers in ("whole", "split"):
        yield dict(barriers=barriers)


def _rows(at: _Decided) -> Iterator[Changes]:
    """Yield rows of a copy that are as they are, longer, or swizzled, against conflicts of banks."""
    c = at.config
    for view in (v for v in at.statement.factors if v.name in c.shared):
        for more in (0, 1, LONGER // dtype(view.dtype).bytes):
            yield dict(pad=_with(c.pad, view.name, more, least=1), swizzle=_with(c.swizzle, view.name, 0, least=1))
        more = LONGER // dtype(view.dtype).bytes
        yield dict(pad=_with(c.pad, view.name, 0, least=1), swizzle=_with(c.swizzle, view.name, more, least=1))


def _vectors(at: _Decided) -> Iterator[Changes]:
    """Yield vectors along the lane loop and along the innermost terms, and none."""
    c = at.config
    if c.instruction:
        return
    widths = [n for n in (2, 4, 8) if n * max(dtype(v.dtype).bytes for v in at.statement.factors) <= LONGER]
    for name in (c.lane, *c.reduce[-1:]):
        for width in (0, *widths):
            yield dict(vectors=_with(c.vectors, name, width))


def _epilogues(at: _Decided) -> Iterator[Changes]:
    """Yield the bias and the summand of a ``sum`` as operands that a thread loads before the products, and none."""
    legal = [t.name for t in at.problem.tensors if t.role == "inout" or (t.role == "in" and t.holds == "bia")]
    for count in range(len(legal) + 1):
        yield dict(preload=tuple(legal[:count]))


def _orders(at: _Decided) -> Iterator[Changes]:
    """Yield the orders of groups, and of the steps of the reduction."""
    outer = [d.name for d in at.statement.dims if d.name not in at.reduce and d.size > 1]
    for order in permutations(outer):
        yield dict(order=order)
    for reduce in permutations(at.statement.reduce):
        yield dict(reduce=reduce)


def _parts(at: _Decided) -> Iterator[Changes]:
    """Yield the parts of the reduction of a gradient of weights, and how groups join them."""
    st = at.statement
    if st.constant or not splits(st):
        return
    yield dict(split=(), join="ordered")
    for d in st.of("k"):
        for parts in (n for n in PARTS if not d.size % n):
            yield dict(split=((d.name, parts),), join="ordered")
            if st.acc in ATOMIC and st.c.dtype == st.acc:
                yield dict(split=((d.name, parts),), join="atomic")


_DIMENSIONS: dict[str, Callable[[_Decided], Iterator[Changes]]] = {
    "register": _registers, "group": _groups, "step": _steps, "copies": _copies, "rows": _rows, "shared": _shared,
    "vectors": _vectors, "epilogue": _epilogues,
    "order": _orders, "parts": _parts,
}  # fmt: skip
"""The dimensions of the space by name. Lanes and instructions come with the model's candidates."""


class DeviceSpace(ConfigSpace):
    """The configs of ``problem`` on a device."""

    def __init__(self, problem: Problem, target: Machine) -> None:
        super().__init__(problem, target)
        self._statement = None if stages_of(problem) is not None else statement(problem, target)
        self._expected = device_candidates(problem, target)
        self.seeds = list(self._expected)

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(_DIMENSIONS)

    def changes(self, config: Config, dimension: str) -> Iterable[Changes]:
        if config.fuse or self._statement is None:
            return ()
        return _DIMENSIONS[dimension](
            _Decided(config, self._statement, self.target, self.problem)
        )  # fmt: skip

    def check(self, config: Config) -> None:
        device_plan(self.problem, config, self.target)

    def cycles(self, config: Config) -> float:
        if config not in self._expected:
            self._expected[config] = expected_cycles(self.problem, config, self.target)
        return self._expected[config]


def space_of(problem: Problem, target: Machine, threads: int) -> ConfigSpace:
    """Return the space of configs of ``problem`` on ``target``, for a number of threads of a CPU."""
    if target.device is not None:
        return DeviceSpace(problem, target)
    return (Space if stages_of(problem) is None else StagesSpace)(problem, target, threads)


def _with(
    sizes: tuple[tuple[str, int], ...], name: str, size: int, least: int = 2
) -> tuple[tuple[str, int], ...]:  # fmt: skip
    """Return ``sizes`` with another one for ``name``; none where it is below ``least``."""
    changed = {**dict(sizes), name: size}
    return tuple((n, s) for n, s in changed.items() if n != name or s >= least)
