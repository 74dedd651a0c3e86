"""The parts of a source that threads copy: adjacent rows, or whole images, each of which is copied about once.

Threads that share a loop over rows copy the rows that each iteration reads, and taps read most rows again. A cache tile
of rows for each thread leaves out these copies, but those at its borders.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import NamedTuple

from convsmith.arith.evaluate import evaluate
from convsmith.ir.index import Var
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.winograd import scheduled_statement
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.features import Section
from convsmith.tune.features import cycles as cycles_of

IMAGES_A_THREAD = 4
"""Images for each thread from which threads have images of their own, even if some have one more."""


class _CopiedPart(NamedTuple):
    """A division among threads: the ``tiles`` of caches that make it, the fraction of the largest part, and how many
    times rows are copied.
    """

    tiles: tuple[tuple[str, int], ...]
    largest: float
    copies: float


def split_copies_by_thread(problem: Problem, config: Config, machine: Machine, cycles: float) -> Config:
    """Return ``config``, which takes ``cycles`` on one thread, with a cache tile of rows or images for each thread, if
    its threads are then expected to end sooner: they copy rows of the source again for fewer taps and channels.
    """
    if config.threads == 1 or config.realise != "pad_copy" or config.tiles_at("cache") or config.tiles_at("split"):
        return config
    st = scheduled_statement(problem, config, machine)
    loops = loops_after_fusing(st, config)
    rows = next((n for n in config.order if loops.axes.get(n)), "")
    is_plain = st.constant and not (config.staged_at("pack_at") or config.phases or st.sizes or st.residues)
    if not rows or loops.kinds[rows] != "m" or not is_plain or _has_groups(loops, config, rows):
        return config
    turned = loops.kinds[config.lane] == "n" and view_steps(st.a).get(Var(st.reduce[-1])) != 1
    elements = prod(st.a.layout.shape)
    event = ("pack", elements) if turned else ("copy", elements * dtype(st.a.dtype).bytes * 8 / machine.vector_bits)
    moved = cycles_of((Section(1, (("padded copy", (event,)),)),), machine)

    def expected(part: _CopiedPart) -> float:
        return part.largest * cycles + part.copies * moved / config.threads

    now = _of_rows(st, loops, config, rows)
    best = min((now, *_parts(st, loops, config, rows)), key=expected)
    return config.changed(cache=best.tiles) if best.tiles else config


def _parts(st: Statement, loops: Loops, config: Config, rows: str) -> Iterator[_CopiedPart]:
    """Yield divisions with images for each thread, and with adjacent rows."""
    threads, whole, tile = config.threads, loops.extents[rows], config.size(rows)
    images = next((n for n in loops.of("m") if not loops.axes[n]), "")
    count = loops.extents.get(images, 1)
    apart = ((images, 1),) if count > 1 and config.size(images) == 1 else ()
    if apart and (not count % threads or count >= IMAGES_A_THREAD * threads):
        yield _CopiedPart(apart, -(-count // threads) / count, 1.0)
    if count > 1 and not apart:
        return
    size = -(-whole // (threads * tile)) * tile
    if size < whole:
        parts = -(-whole // size)
        largest = min(-(-count * parts // threads) * size / (count * whole), 1.0)
        copies = parts * rows_read(st, rows, size) / rows_read(st, rows, whole)
        yield _CopiedPart((*apart, (rows, size)), largest, copies)


def _of_rows(st: Statement, loops: Loops, config: Config, rows: str) -> _CopiedPart:
    """Return the division of the loops down to the one over rows, in each of whose iterations rows are copied."""
    around = config.order[: config.order.index(rows) + 1]
    tiles = {n: -(-loops.extents[n] // config.size(n)) for n in around}
    tasks = prod(tiles.values())
    channels = prod(count for n, count in tiles.items() if loops.kinds[n] == "n")
    again = tiles[rows] * rows_read(st, rows, config.size(rows)) / rows_read(st, rows, loops.extents[rows])
    return _CopiedPart((), -(-tasks // config.threads) / tasks, again * channels)


def _has_groups(loops: Loops, config: Config, rows: str) -> bool:
    """Return whether loops around the one over ``rows`` step over groups, each of which has a copy of its own."""
    around = config.order[: config.order.index(rows)]
    return any(loops.kinds[n] == "batch" and n != config.lane and loops.extents[n] > 1 for n in around)


def rows_read(st: Statement, rows: str, size: int) -> int:
    """Return the rows of the source, padding included, that ``size`` adjacent iterations of the loop ``rows`` read."""
    coordinate = next(x for x in st.a.coords if Var(rows) in variables_of(x))
    extents = {**st.extents, rows: size}
    names = sorted(variables_of(coordinate), key=lambda v: v.name)
    corners = product(*((0, extents[v.name] - 1) for v in names))
    found = [int(evaluate(coordinate, dict(zip(names, corner)))) for corner in corners]
    return max(found) - min(found) + 1
