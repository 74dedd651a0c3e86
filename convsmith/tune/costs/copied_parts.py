"""The parts of a source that threads copy: adjacent rows, or whole images, each of which is copied about once.

Threads that share a loop over rows copy the rows that each iteration reads, and taps read most rows again. A cache tile
of rows for each thread leaves out these copies, but those at its borders. Cache lines of the result that hold rows of
two threads move between their cores, while these multiply.
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
from convsmith.tune.costs.features import Section
from convsmith.tune.costs.features import cycles as cycles_of

IMAGES_A_THREAD = 4
"""Images for each thread from which threads have images of their own, even if some have one more."""


class _CopiedPart(NamedTuple):
    """A division among threads: the ``tiles`` of caches that make it, the fraction of the largest part, how many times
    rows are copied, and the number of stores to lines that another thread takes from the core that writes them.
    """

    tiles: tuple[tuple[str, int], ...]
    largest: float
    copies: float
    taken: float = 0.0


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
    is_plain = is_plain and loops.dims.get(rows) == (rows,)
    if not is_plain or loops.kinds[rows] != "m" or _has_groups(loops, config, rows):
        return config
    turned = loops.kinds[config.lane] == "n" and view_steps(st.a).get(Var(st.reduce[-1])) != 1
    elements = prod(st.a.layout.shape)
    event = ("pack", elements) if turned else ("copy", elements * dtype(st.a.dtype).bytes * 8 / machine.vector_bits)
    moved = cycles_of((Section(1, (("padded copy", (event,)),)),), machine)
    there_and_back = 2 * machine.l1.line / machine.costs.between_cores

    def expected(part: _CopiedPart) -> float:
        return max(part.largest * cycles, part.taken * there_and_back) + part.copies * moved / config.threads

    now = _of_rows(st, loops, config, rows)
    best = min((now, *_parts(st, loops, config, rows, machine.l1.line)), key=expected)
    return config.changed(cache=best.tiles) if best.tiles else config


def _parts(st: Statement, loops: Loops, config: Config, rows: str, line: int) -> Iterator[_CopiedPart]:
    """Yield divisions with images for each thread, and with adjacent rows; a cache line has ``line`` bytes."""
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
        yield _CopiedPart((*apart, (rows, size)), largest, copies, stores_taken(st, rows, size, tile, line))


def stores_taken(st: Statement, rows: str, size: int, tile: int, line: int) -> float:
    """Return the number of stores, of ``tile`` rows of the result each, that a thread of ``size`` adjacent rows makes
    to cache lines of ``line`` bytes which another thread writes at the same time: in each plane, rows beside a border
    share its line, in the fraction of the time in which the other thread is at such rows, too.
    """
    if not (step := view_steps(st.c).get(Var(rows), 0)):
        return 0.0
    whole, bytes_of_row = st.extents[rows], step * dtype(st.c.dtype).bytes
    beside = min(-(-line // bytes_of_row), size)
    planes = prod(st.c.layout.shape) * dtype(st.c.dtype).bytes / (whole * bytes_of_row)
    return planes * -(-beside // tile) * beside / size


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
