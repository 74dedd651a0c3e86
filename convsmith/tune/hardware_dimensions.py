"""The dimensions of the space of configs under which a copy engine brings the operands to shared memory.

Their tiles are whole instructions of groups of warps, and their loops of rows and of terms are fused, so that few of
the steps of other device configs are legal for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.instruction import Instruction
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.hardware import HardwareNest, hardware_nest, hardware_row, hardware_rows, is_mn_major
from convsmith.schedule.kernel import scheduled
from convsmith.schedule.loops import Loops, fused_chain, loops_after_fusing
from convsmith.schedule.packed_operands import packed_statement
from convsmith.statement.statement import Statement
from convsmith.tune.config_space import Changes
from convsmith.tune.fusions import Sizes

__all__ = ["HARDWARE_DIMENSIONS", "HardwarePoint", "hardware_point"]

SLOTS = (1, 2, 3, 4, 6, 8)
"""Numbers of steps whose copies are in shared memory at a time."""


class HardwarePoint(NamedTuple):
    """A config whose operands a copy engine brings, with its loops by role and the instructions for its factors.

    The instruction ``row`` is one of ``rows``, which all read factors in the same layout.
    """

    config: Config
    loops: Loops
    nest: HardwareNest
    row: Instruction
    rows: tuple[Instruction, ...]

    def sized(self, row: Instruction, height: int, width: int, terms: int) -> Changes:
        """Return the change to ``row`` with a tile of a group of approximately the same rows, columns and terms."""
        (tall, wide), nest = row.result.shape, self.nest
        columns = _multiple(width, wide)
        group = {nest.rows: _multiple(height, tall), nest.columns: columns, nest.terms: _multiple(terms, row.terms)}
        register: Sizes = ((nest.rows, tall), (nest.columns, columns))
        return dict(instruction=row.name, register=register, group=tuple(group.items()))

    @property
    def tile(self) -> tuple[int, int, int]:
        """The rows, columns and terms of a group's tile."""
        rows, columns, terms = (self.config.group_size(n) for n in (self.nest.rows, self.nest.columns, self.nest.terms))
        return rows, columns, terms


def hardware_point(problem: Problem, config: Config, machine: Machine) -> HardwarePoint:
    """Return the facts of ``config``; ConfigError if its loops or its instruction are illegal."""
    st: Statement = packed_statement(scheduled(problem, config.changed(split=()), machine), config, machine)
    loops, row = loops_after_fusing(st, config), hardware_row(st, config, machine)
    turned = [is_mn_major(row, n) for n in (1, 2)]
    rows = tuple(x for x in hardware_rows(st, machine) if [is_mn_major(x, n) for n in (1, 2)] == turned)
    nest = hardware_nest(st, loops, config, row, machine)
    if isinstance(nest, ConfigError):
        raise nest
    return HardwarePoint(config, loops, nest, row, rows)


def _instructions(at: HardwarePoint) -> Iterator[Changes]:
    """Yield the instructions for the factors, with the group's tile rounded to whole instructions."""
    for row in at.rows:
        yield at.sized(row, *at.tile)


def _groups(at: HardwarePoint) -> Iterator[Changes]:
    """Yield twice and half the rows and the columns of a group's tile, and one instruction more or fewer of columns."""
    (rows, columns, terms), width = at.tile, at.row.result.shape[1]
    for height in (rows * 2, rows // 2):
        yield at.sized(at.row, height, columns, terms)
    for wide in (columns * 2, columns // 2, columns + width, columns - width):
        yield at.sized(at.row, rows, wide, terms)


def _steps(at: HardwarePoint) -> Iterator[Changes]:
    """Yield twice and half the terms of a step."""
    rows, columns, terms = at.tile
    for deep in (terms * 2, terms // 2):
        yield at.sized(at.row, rows, columns, deep)


def _copies(at: HardwarePoint) -> Iterator[Changes]:
    """Yield the numbers of steps whose copies are in shared memory at a time."""
    for slots in SLOTS:
        yield dict(buffers=slots)


def _orders(at: HardwarePoint) -> Iterator[Changes]:
    """Yield the orders of groups, and of the steps of the reduction around the terms of one tap."""
    for order in permutations(n for n in at.nest.grid if at.loops.extents[n] > 1):
        yield dict(order=order)
    for taps in permutations(at.nest.outer_terms):
        yield dict(reduce=(*taps, at.nest.terms))


def _fusions(at: HardwarePoint) -> Iterator[Changes]:
    """Yield loops of rows, and of terms, along a single dim, and along all dims of their kind fused."""
    for name in (at.nest.rows, at.nest.terms):
        dims, kind = at.loops.dims[name], at.loops.kinds[name]
        if len(dims) > 1:
            for own in dims:
                yield _with_loops(at, (name,), {n: (n,) for n in dims}, name, own)
            continue
        around = [n for n in at.loops.of(kind) if n != at.config.lane]
        if len(around) > 1:
            every = [d for n in around for d in at.loops.dims[n]]
            whole, _ = fused_chain(every)
            yield _with_loops(at, around, {whole: every}, name, whole)


def _with_loops(
    at: HardwarePoint, replaced: Sequence[str], loops: Mapping[str, Sequence[str]], name: str, tiled: str
) -> Changes:  # fmt: skip
    """Return the change to ``loops``, each with its dims, in place of the ``replaced`` loops. The loop ``tiled`` gets
    the tile of ``name``, and is the innermost of them.
    """
    c = at.config
    kept = [at.loops.dims[n] for n in at.loops.extents if n not in replaced]
    fuse = tuple(pair for dims in (*kept, *loops.values()) for pair in fused_chain(dims)[1])
    register, group = (
        tuple((tiled if n == name else n, s) for n, s in sizes)
        for sizes in (c.tiles_at("register"), c.tiles_at("group"))
    )
    order, reduce = (_in_place(names, replaced, [*(n for n in loops if n != tiled), tiled], name)
                     for names in (c.order, c.reduce))  # fmt: skip
    return dict(fuse=fuse, register=register, group=group, order=order, reduce=reduce)


def _in_place(names: Sequence[str], replaced: Sequence[str], loops: Sequence[str], name: str) -> tuple[str, ...]:
    """Return an order of loops with ``loops`` in place of ``name``, without the other ``replaced`` loops."""
    return tuple(x for n in names if n == name or n not in replaced for x in (loops if n == name else (n,)))


def _multiple(size: int, of: int) -> int:
    """Return the largest multiple ``of`` a number that is not above ``size``, and at least one."""
    return max(size // of, 1) * of


HARDWARE_DIMENSIONS: dict[str, Callable[[HardwarePoint], Iterator[Changes]]] = {
    "register": _instructions, "group": _groups, "step": _steps, "copies": _copies, "order": _orders, "fuse": _fusions,
}  # fmt: skip
"""The dimensions of these configs, among those of a device, by name. Parts of a reduction are as for other configs."""
