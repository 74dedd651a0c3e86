"""The dimensions of the space of configs of one statement: functions from a config to the changes of one decision.

A step may lead to an illegal config, which a space rejects when it plans it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import permutations, product
from math import prod
from typing import NamedTuple

from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import CONFIG_ROWS, Sizes
from convsmith.schedule.copies import restrictable
from convsmith.schedule.loops import Loops
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.winograd import scheduled_statement
from convsmith.statement.parts import PART
from convsmith.tune.search.config_space import Changes
from convsmith.tune.search.fusions import with_fused_pair, with_split_pair
from convsmith.tune.winograd import transform_steps

__all__ = ["DIMENSIONS", "Point", "all_tiles"]

VECTORS = 8
"""Maximum number of vectors of a register tile along the lanes."""
MAX_ROWS = 4
"""Maximum number of rows of pixels of a register tile."""
MAX_TAPS = 25
"""Maximum number of taps that a register tile unrolls."""
PARTS = (2, 4, 8, 16)
"""Numbers of parts into which a loop is cut for the caches."""
TERMS = (2, 3, 4, 6, 8)
"""Iterations of a reduction loop that share their loads."""
PIECES = (1, 4, 8, 16)
"""Numbers of pieces of a partitioned loop."""
FAR_RATIO = 4
"""Minimum ratio of a result to the second-level cache at which non-temporal stores are tried."""


class Point(NamedTuple):
    """A config with the facts of its loops, which all dimensions read.

    ``tiles`` are the register tiles that fit the registers, ``filled`` the lanes in use of a vector, ``a`` and ``b``
    the names of the factors. ``masked`` states that some elements of A are absent, ``constant`` that B is packed once
    for all calls. ``sizes`` are the sizes of the statement's dims. ``splittable`` are the reduction loops that threads
    may share, with their sizes, and ``even`` the pairs of adjacent loops with constant strides in memory, which may be
    fused.
    """

    config: Config
    problem: Problem
    target: Machine
    loops: Loops
    unit: ProductShape
    tiles: tuple[Sizes, ...]
    filled: int
    a: str
    b: str
    masked: bool
    constant: bool
    sizes: dict[str, int]
    splittable: tuple[tuple[str, int], ...]
    even: tuple[tuple[str, str], ...]

    def tile(self, loop: str) -> int:
        """Return the register tile of a loop in elements; one vector for a lane loop without a tile."""
        return max(self.config.size(loop), self.filled if loop == self.config.lane else 1)

    def trips(self, loop: str) -> int:
        """Return the number of register tiles along a loop."""
        return -(-self.loops.extents[loop] // self.tile(loop))


def _tiles(at: Point) -> Iterator[Changes]:
    """Yield the register tiles that fit the registers, with the taps that the config unrolls."""
    taps = tuple((n, size) for n, size in at.config.tiles_at("register") if at.loops.kinds[n] == "k")
    for tile in at.tiles:
        yield _fitted(at.config, (*tile, *taps))


def all_tiles(loops: Loops, lane: str, unit: ProductShape, filled: int, room: int) -> Iterator[Sizes]:
    """Yield register tiles of vectors, pixels of a row, and rows; ``room`` bounds the registers of each."""
    pixels = [n for n in loops.of("m") if n != lane]
    across = [n for n in loops.of("n") if n != lane]
    sizes: dict[str, Iterable[int]] = {}
    if len(pixels) > 1 and unit.rows == 1:
        sizes[pixels[-2]] = range(1, min(loops.extents[pixels[-2]], MAX_ROWS) + 1)
    if pixels and unit.rows > 1:
        rows = across[-1] if across and loops.kinds[lane] == "m" else pixels[-1]
        most = loops.extents[rows]
        heights = {h for n in range(1, room // 2 + 1) for h in _heights(most, n * unit.rows, unit.rows)}
        sizes[rows] = sorted(heights)
    elif pixels:
        sizes[pixels[-1]] = range(1, min(loops.extents[pixels[-1]], room) + 1)
    if across and loops.kinds[lane] != "n" and unit.rows == 1:
        sizes[across[-1]] = range(1, min(loops.extents[across[-1]], room) + 1)
    if loops.kinds[lane] != "k":
        vectors = -(-loops.extents[lane] // filled)
        sizes[lane] = [v * filled for v in range(1, min(vectors, VECTORS) + 1)]
    for values in product(*sizes.values()):
        yield tuple((n, size) for n, size in zip(sizes, values) if size > 1 or n == lane)


def _heights(count: int, most: int, rows: int) -> set[int]:
    """Return the heights of tiles of fragments: full tiles, and the largest height that divides the rows."""
    most = min(most, count)
    return {most, next((n for n in range(most, max(most - rows, 0), -1) if not count % n), most)}


def _fitted(config: Config, register: Sizes) -> Changes:
    """Return a change of the register tile, with cache tiles rounded up to it."""
    width = dict(register)
    tiles = tuple((n, -(-size // width.get(n, 1)) * width.get(n, 1)) for n, size in config.tiles_at("cache"))
    return dict(register=register, cache=tiles)


def _taps(at: Point) -> Iterator[Changes]:
    """Yield register tiles with no tap, the innermost tap loop, or all taps unrolled; an instruction determines the
    terms of its own.
    """
    c, loops = at.config, at.loops
    fixed = {n for n, _ in c.tiles_at("k_step") if c.instruction} | {*loops.residues}
    taps = [n for n in loops.of("k") if loops.axes[n] and loops.extents[n] > 1 and n not in fixed]
    for count in range(len(taps) + 1):
        chosen = taps[len(taps) - count :]
        if prod(loops.extents[n] for n in chosen) <= MAX_TAPS and c.lane not in chosen:
            tile = [(n, s) for n, s in c.tiles_at("register") if loops.kinds[n] != "k"]
            reduce = (*(n for n in c.reduce if n not in chosen), *chosen)
            terms = tuple((n, s) for n, s in c.tiles_at("k_step") if n not in chosen)
            yield dict(register=(*tile, *((n, loops.extents[n]) for n in chosen)), reduce=reduce, k_step=terms
            )


def _orders(at: Point) -> Iterator[Changes]:
    """Yield the orders of the loops that run more than once around the register tile."""
    c = at.config
    names = [n for n in at.loops.extents if at.loops.kinds[n] != "k" and n != PART]
    present = [*(n for n in c.order if n in names), *(n for n in names if n not in c.order)]
    still = [n for n in present if at.trips(n) == 1]
    part = (PART,) if c.tiles_at("split") else ()
    for moved in permutations([n for n in present if n not in still]):
        yield dict(order=(*part, *still, *moved))


def _reductions(at: Point) -> Iterator[Changes]:
    """Yield the orders of the reduction loops that run more than once."""
    c = at.config
    names = [*c.reduce, *(n for n in at.loops.of("k") if n not in c.reduce)]
    names = [n for n in names if n in at.loops.extents]
    still = [n for n in names if at.loops.extents[n] == 1]
    for moved in permutations([n for n in names if n not in still]):
        yield dict(reduce=(*still, *moved))


def _caches(at: Point) -> Iterator[Changes]:
    """Yield cache tiles: none, of one loop, and of two loops including a reduction loop, or the outermost two of these.
    """
    c, loops = at.config, at.loops
    yield dict(cache=())
    sizes: dict[str, list[tuple[str, int]]] = {}
    for n, extent in loops.extents.items():
        unit = max(at.tile(n), dict(c.tiles_at("k_step")).get(n, 1))
        cut = {-(-extent // (parts * unit)) * unit for parts in PARTS}
        sizes[n] = [(n, size) for size in sorted(cut) if size < extent]
    deep = [s for n in loops.of("k") if n != c.lane for s in sizes[n]]
    wide = [s for n in loops.extents if loops.kinds[n] != "k" for s in sizes[n]]
    for one in (*deep, *wide):
        yield dict(cache=(one,))
    for outer, inner in product(wide, deep):
        yield dict(cache=(outer, inner))
    first, second = ([s for s in deep if s[0] == n] for n in [*(n for n in c.reduce if sizes.get(n)), "", ""][:2])
    for outer, inner in product(first[:1], second):
        yield dict(cache=(outer, inner))


def _packs(at: Point) -> Iterator[Changes]:
    """Yield the sets of operands that are packed."""
    fragments = at.unit.rows > 1
    for names in ((), (at.b,), (at.a,), (at.a, at.b)):
        stream = tuple(n for n in at.config.staged("stream") if fragments or (n in names) == (n == at.b))
        unfold = tuple(n for n in at.config.staged("unfold") if n in names)
        fetch = tuple(n for n in at.config.staged("fetch") if at.constant or n not in names)
        yield dict(pack=names, unfold=unfold, stream=stream, fetch=fetch)


def _realisations(at: Point) -> Iterator[Changes]:
    """Yield the ways to read elements that may be absent, the taps that a padded copy leaves out, and the forms of the
    table of pointers.
    """
    if at.masked:
        yield dict(realise="peel")
        yield dict(realise="mask")
    if isinstance(at.problem, Conv):
        yield dict(realise="pad_copy", restrict=())
        st = scheduled_statement(at.problem, at.config.changed(split=()), at.target)
        if taps := restrictable(st, at.loops, at.config):
            yield dict(realise="pad_copy", restrict=tuple(n for n in at.config.reduce if n in taps))
        for form in CONFIG_ROWS["table"].legal:
            yield dict(realise="indirection", table=form)


def _transforms(at: Point) -> Iterator[Changes]:
    """Yield a transform with other tiles of pixels, and other blocks of them."""
    if at.config.tiles_at("winograd"):
        yield from transform_steps(at.problem, at.config, at.target)


def _holds(at: Point) -> Iterator[Changes]:
    """Yield the config with weights loaded for each tile, or held in registers during loops that do not index them."""
    yield dict(resident=())
    if at.constant:
        yield dict(resident=(at.b,))


def _terms(at: Point) -> Iterator[Changes]:
    """Yield the numbers of terms that share their loads; an instruction determines its own."""
    c = at.config
    if c.instruction:
        return
    yield dict(k_step=())
    for n in at.loops.of("k"):
        if n != c.lane and n not in dict(c.tiles_at("register")):
            for q in TERMS:
                if q <= at.loops.extents[n]:
                    yield dict(k_step=((n, q),))


def _instructions(at: Point) -> Iterator[Changes]:
    """Yield the config with each instruction that suits the statement's types, and with the plain multiply-add."""
    c = at.config
    st = scheduled_statement(at.problem, c.changed(split=()), at.target)
    last = next(n for n in at.loops.of("k") if at.loops.dims[n][-1] == st.reduce[-1])
    for unit in (*ProductShape.choices(st, at.target), ProductShape.plain(st, at.target)):
        terms = ((last, unit.terms),) if unit.dot else ()
        if unit.name != c.instruction and (unit.dot or c.realise != "window_copy"):
            width = -(-at.tile(c.lane) // unit.lanes) * unit.lanes
            tile = tuple((n, width if n == c.lane else s) for n, s in c.tiles_at("register"))
            yield dict(instruction=unit.name, k_step=terms, register=tile, cache=(), stream=())


def _offsets(at: Point) -> Iterator[Changes]:
    """Yield the ways to subtract zero points."""
    for offsets in CONFIG_ROWS["offsets"].legal:
        yield dict(offsets=offsets, flip=() if offsets == "each" else at.config.flip)


def _splits(at: Point) -> Iterator[Changes]:
    """Yield the parts of sums that threads share, for a gradient of weights.

    The sums of other results have the same parts for any number of threads.
    """
    c = at.config
    if at.constant or c.threads == 1:
        return
    order = tuple(n for n in c.order if n != PART)
    yield dict(split=(), order=order, cache=tuple(tile for tile in c.tiles_at("cache") if tile[0] != PART))
    for n, size in at.splittable:
        for parts in range(2, c.threads + 1):
            if not size % parts:
                yield dict(split=((n, parts),), order=(PART, *order), cache=())


def _streams(at: Point) -> Iterator[Changes]:
    """Yield the operands whose fragments bypass the first-level cache, or that are prefetched, and a result that
    bypasses the caches.
    """
    has_fragments = at.unit.rows > 1
    for names in ((), (at.a,), (at.b,)):
        pixels = at.loops.kinds[at.config.lane] == "m"
        legal = bool(at.target.fragments) if has_fragments else pixels or names != (at.a,)
        yield dict(stream=names if legal else ())
    if near := tuple(name for name, _ in at.config.staged_at("pack_at")):
        yield dict(stream=near)
    result = scheduled_statement(at.problem, at.config, at.target).c
    if at.target.fence and result.bytes > FAR_RATIO * at.target.l2.bytes:
        yield dict(stream=(result.name,))


def _fusions(at: Point) -> Iterator[Changes]:
    """Yield the config with one pair of fused loops split, and with one more pair of adjacent loops fused."""
    for pair in at.config.fuse:
        if (changes := with_split_pair(at.config, pair, at.sizes, at.filled)) is not None:
            yield changes
    for pair in at.even:
        yield from with_fused_pair(at.config, pair, at.loops)


def _code(at: Point) -> Iterator[Changes]:
    """Yield the forms of the code: pieces of loops, outlined register tiles, epilogues in separate loops."""
    c = at.config
    for pieces in PIECES:
        yield dict(pieces=pieces)
    yield dict(outline=not c.outline)
    yield dict(spill_sums=not c.spill_sums)


DIMENSIONS: dict[str, Callable[[Point], Iterator[Changes]]] = {
    "transform": _transforms, "tile": _tiles, "order": _orders, "k_step": _terms, "reduce": _reductions,
    "stream": _streams, "cache": _caches, "realise": _realisations, "taps": _taps, "code": _code, "resident": _holds,
    "pack": _packs, "instruction": _instructions, "split": _splits, "offsets": _offsets, "fuse": _fusions,
}  # fmt: skip
"""The dimensions of the space by name, ordered by the gain of a step from the model's choice.

Lanes, phases and flipped operands come with the model's candidates, from which all steps start.
"""
