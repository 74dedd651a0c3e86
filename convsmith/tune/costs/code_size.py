"""The code of a kernel's register tiles: its multiply-adds, its bytes, and how often a kernel passes through it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import is_true
from convsmith.ir.types import dtype
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import walk
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.statement.epilogue import Buffers, Epilogue
from convsmith.statement.statement import Statement

if TYPE_CHECKING:
    from convsmith.tune.costs.shared_facts import SharedFacts

__all__ = ["BORDERS", "bytes_of_code", "emitted", "operations", "passes", "splits"]

BORDERS = 3
"""Maximum number of kinds of tiles along an axis: the first, the last, and all others."""


def emitted(facts: SharedFacts, loops: Loops, config: Config) -> int:
    """Return the number of multiply-adds of all register tiles, remainders included, and of stores of scattered
    vectors, by which configs are compared.

    If taps are part of a tile, the first and the last tile along their axis have different code, however few tiles
    there are.
    """
    products = _products(facts, loops, config, _taps_in(loops, config), lambda tiles, kinds: BORDERS - 1)
    scattered = loops.kinds[config.lane] != "k" and facts.stride_of(config.lane) > 1
    is_transposed = facts.transposed(config.lane, dict(config.tiles_at("register")), facts.lanes)
    stores = facts.lanes.bit_length() - 1 if is_transposed else facts.lanes
    return products * (stores if scattered else 1)


def bytes_of_code(facts: SharedFacts, loops: Loops, config: Config) -> int:
    """Return the bytes of the code of all register tiles: of a multiply-add that loads an operand, or the instructions
    that convert or extend it, multiply and add, and one that gathers lanes of a stride; and of the epilogue.

    The first and the last tile along each axis have different code also if sums of weights differ there.
    """
    axes = {loops.axes[n] for n in loops.of("m")} if facts.st.sums else _taps_in(loops, config)
    products = _products(facts, loops, config, axes, lambda tiles, kinds: min(tiles - 1, BORDERS - kinds))
    costs, is_extended = facts.target.costs, facts.bytes == 1 and not facts.unit.dot
    instructions = costs.byte_product if is_extended else 2 if facts.converts else 1
    instructions += loops.kinds[config.lane] == "m" and facts.row_step(facts.dims[config.lane][-1]) > 1
    steps = prod(n for name, n in config.tiles_at("register") if loops.kinds[name] == "k")
    return (products * instructions + products // steps * facts.operations) * costs.instruction


def _taps_in(loops: Loops, config: Config) -> set[str]:
    """Return the axes whose taps are part of a register tile."""
    return {loops.axes[n] for n, _ in config.tiles_at("register") if loops.kinds[n] == "k"}


def _products(
    facts: SharedFacts, loops: Loops, config: Config, axes: set[str], others: Callable[[int, int], int]
) -> int:
    """Return the number of multiply-adds of all register tiles; along ``axes``, tiles at a border have code of their
    own: ``others`` kinds, given the number of full tiles and that of kinds of tiles by their sizes.
    """
    masked, pieces = not is_true(facts.st.a.mask), [1]
    bordered = [n for n in loops.of("m") if masked and loops.axes[n] and loops.axes[n] in axes]
    for name, size in config.tiles_at("register"):
        width = facts.filled(name) if name == config.lane else 1
        found = splits(loops.extents[name], size)
        rests = [-(-n // width) for n, _ in found]
        rests += rests[:1] * (others(found[0][1], len(found)) if name in bordered and size > 1 else 0)
        pieces = [p * n for p in pieces for n in rests]
    copies = prod(facts.classes.values()) * prod(len(p.runs) for p in facts.phases)
    return sum(pieces) * copies // facts.reduction_classes()


def passes(facts: SharedFacts, loops: Loops, config: Config) -> int:
    """Return the number of times that a kernel passes through the code of all tiles: the iterations of the loops around
    those whose first and last tiles have code of their own.
    """
    count = 1
    for name in config.order:
        if loops.kinds.get(name) == "m" and name != facts.images:
            break
        count *= -(-loops.extents.get(name, 1) // config.size(name))
    return count


def operations(p: Problem, st: Statement) -> int:
    """Return the number of operations from a sum to the result's element."""
    sums = Load(make_buffer("acc", dtype(st.acc), (), "register"), (), None)
    element = Epilogue(p, st, Buffers(p, st.a, st.b, st.c, *st.sums)).value(sums)
    return sum(isinstance(v, Value) for v in walk(element))


def splits(total: int, size: int) -> list[tuple[int, int]]:
    """Return (size, count) of the full tiles and of the remainder."""
    full, rest = divmod(total, size)
    whole = [(size, full)] if full else []
    return [*whole, (rest, 1)] if rest else whole
