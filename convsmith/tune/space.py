"""The space of configs of a problem, as data: its dimensions, and the configs that differ in one of them.

A dimension is a name with a function from a config to the changes that replace this one decision. Every
point of the space is reached from the model's candidates by steps along dimensions. A step may lead to an illegal
config: `Space.refusal` returns the code of the ConfigError that planning it raises.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import permutations, product
from math import inf, prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import is_true
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.plan.config import OFFSETS, TABLES, Config
from convsmith.plan.loops import Loops, loops_after_fusing
from convsmith.plan.plan import plan
from convsmith.plan.registers import filled_lanes, register_file, registers
from convsmith.plan.unit import Unit
from convsmith.plan.winograd import scheduled_statement
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.statement.parts import PART, splits
from convsmith.statement.statement import Statement
from convsmith.tune.candidates import candidates
from convsmith.tune.chains import stages_configs
from convsmith.tune.config_space import Changes, ConfigSpace
from convsmith.tune.expected import model_of, with_lanes
from convsmith.tune.model import Model
from convsmith.tune.winograd import winograd_cycles

__all__ = ["DIMENSIONS", "Point", "Space"]

VECTORS = 8
"""Maximum number of vectors of a register tile along the lanes."""
ROWS = 4
"""Maximum number of rows of pixels of a register tile, beside the pixels of a row."""
MOST_TAPS = 25
"""Maximum number of taps that a register tile unrolls."""
PARTS = (2, 4, 8, 16)
"""Numbers of parts into which a loop is cut for the caches."""
TERMS = (2, 3, 4, 6, 8)
"""Iterations of a reduction loop that share their loads."""
PIECES = (1, 4, 8, 16)
"""Numbers of pieces of a partitioned loop."""
FAR = 4
"""Ratio of the bytes of a result to those of the second-level cache from which it may be stored past the caches."""


Tile = tuple[tuple[str, int], ...]
"""Loops of a register tile with their iterations."""


class Point(NamedTuple):
    """A config with the facts of its loops, which all dimensions read.

    ``tiles`` are the register tiles that the registers hold, ``filled`` the lanes in use of a vector, ``a`` and ``b``
    the names of the factors. ``masked`` says that some of A's elements are absent, and ``constant`` that B is packed
    once for all calls. ``splittable`` are the reduction loops that threads may share, with their sizes.
    """

    config: Config
    problem: Problem
    target: Machine
    loops: Loops
    unit: Unit
    tiles: tuple[Tile, ...]
    filled: int
    a: str
    b: str
    masked: bool
    constant: bool
    splittable: tuple[tuple[str, int], ...]

    def tile(self, loop: str) -> int:
        """Return the register tile of a loop in elements; a vector for the lane loop without one."""
        return max(self.config.size(loop), self.filled if loop == self.config.lane else 1)

    def trips(self, loop: str) -> int:
        """Return the number of register tiles along a loop."""
        return -(-self.loops.extents[loop] // self.tile(loop))


def _tiles(at: Point) -> Iterator[Changes]:
    """Yield the register tiles that the registers hold, with the taps that the config unrolls."""
    taps = tuple((n, size) for n, size in at.config.register if at.loops.kinds[n] == "k")
    for tile in at.tiles:
        yield _fitted(at.config, (*tile, *taps))


def _all_tiles(loops: Loops, lane: str, unit: Unit, filled: int, room: int) -> Iterator[Tile]:
    """Yield register tiles of vectors, pixels of a row, and rows; ``room`` registers hold no more than that of each."""
    pixels = [n for n in loops.of("m") if n != lane]
    across = [n for n in loops.of("n") if n != lane]
    sizes: dict[str, Iterable[int]] = {}
    if len(pixels) > 1 and unit.rows == 1:
        sizes[pixels[-2]] = range(1, min(loops.extents[pixels[-2]], ROWS) + 1)
    if pixels and unit.rows > 1:
        most = loops.extents[pixels[-1]]
        heights = {h for n in range(1, room // 2 + 1) for h in _heights(most, n * unit.rows, unit.rows)}
        sizes[pixels[-1]] = sorted(heights)
    elif pixels:
        sizes[pixels[-1]] = range(1, min(loops.extents[pixels[-1]], room) + 1)
    if across and loops.kinds[lane] != "n":
        sizes[across[-1]] = range(1, min(loops.extents[across[-1]], room) + 1)
    if loops.kinds[lane] != "k":
        vectors = -(-loops.extents[lane] // filled)
        sizes[lane] = [v * filled for v in range(1, min(vectors, VECTORS) + 1)]
    for values in product(*sizes.values()):
        yield tuple((n, size) for n, size in zip(sizes, values) if size > 1 or n == lane)


def _heights(pixels: int, most: int, rows: int) -> set[int]:
    """Return the heights of tiles of fragments: full ones, and the largest that divides the pixels."""
    most = min(most, pixels)
    return {most, next((n for n in range(most, max(most - rows, 0), -1) if not pixels % n), most)}


def _fitted(config: Config, register: tuple[tuple[str, int], ...]) -> Changes:
    """Return a change of the register tile, with cache tiles rounded up to it."""
    width = dict(register)
    tiles = tuple((n, -(-size // width.get(n, 1)) * width.get(n, 1)) for n, size in config.cache)
    return dict(register=register, cache=tiles)


def _taps(at: Point) -> Iterator[Changes]:
    """Yield register tiles with none, the innermost, or all of the taps unrolled."""
    c, loops = at.config, at.loops
    taps = [n for n in loops.of("k") if loops.axes[n] and loops.extents[n] > 1 and n not in loops.residues]
    for count in range(len(taps) + 1):
        chosen = taps[len(taps) - count :]
        if prod(loops.extents[n] for n in chosen) <= MOST_TAPS and c.lane not in chosen:
            tile = [(n, s) for n, s in c.register if loops.kinds[n] != "k"]
            reduce = (*(n for n in c.reduce if n not in chosen), *chosen)
            terms = tuple((n, s) for n, s in c.terms if n not in chosen)
            yield dict(register=(*tile, *((n, loops.extents[n]) for n in chosen)), reduce=reduce, terms=terms
            )


def _orders(at: Point) -> Iterator[Changes]:
    """Yield the orders of the loops that run more than once around the register tile."""
    c = at.config
    names = [n for n in at.loops.extents if at.loops.kinds[n] != "k" and n != PART]
    present = [*(n for n in c.order if n in names), *(n for n in names if n not in c.order)]
    still = [n for n in present if at.trips(n) == 1]
    part = (PART,) if c.split else ()
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
    """Yield cache tiles: none, of one loop, and of two loops, one of them a reduction loop."""
    c, loops = at.config, at.loops
    yield dict(cache=())
    sizes: dict[str, list[tuple[str, int]]] = {}
    for n, extent in loops.extents.items():
        unit = max(at.tile(n), dict(c.terms).get(n, 1))
        cut = {-(-extent // (parts * unit)) * unit for parts in PARTS}
        sizes[n] = [(n, size) for size in sorted(cut) if size < extent]
    deep = [s for n in loops.of("k") if n != c.lane for s in sizes[n]]
    wide = [s for n in loops.extents if loops.kinds[n] != "k" for s in sizes[n]]
    for one in (*deep, *wide):
        yield dict(cache=(one,))
    for outer, inner in product(wide, deep):
        yield dict(cache=(outer, inner))


def _packs(at: Point) -> Iterator[Changes]:
    """Yield the sets of operands that are packed."""
    fragments = at.unit.rows > 1
    for names in ((), (at.b,), (at.a,), (at.a, at.b)):
        stream = tuple(n for n in at.config.stream if fragments or (n in names) == (n == at.b))
        yield dict(pack=names, stream=stream)


def _realisations(at: Point) -> Iterator[Changes]:
    """Yield the ways to read elements that may be absent, and the forms of the table of pointers."""
    if at.masked:
        yield dict(realise="peel")
        yield dict(realise="mask")
    if isinstance(at.problem, Conv):
        yield dict(realise="pad_copy")
        for form in TABLES:
            yield dict(realise="indirection", table=form)


def _holds(at: Point) -> Iterator[Changes]:
    """Yield the config with weights loaded for each tile, or held in registers while loops run that do not move them.
    """
    yield dict(hold=())
    if at.constant:
        yield dict(hold=(at.b,))


def _terms(at: Point) -> Iterator[Changes]:
    """Yield the numbers of terms that share their loads; an instruction has its own."""
    c = at.config
    if c.instruction:
        return
    yield dict(terms=())
    for n in at.loops.of("k"):
        if n != c.lane and n not in dict(c.register):
            for q in TERMS:
                if q <= at.loops.extents[n]:
                    yield dict(terms=((n, q),))


def _instructions(at: Point) -> Iterator[Changes]:
    """Yield the config with each instruction that serves the statement's types, and with the plain multiply-add."""
    c = at.config
    st = scheduled_statement(at.problem, replace(c, split=()), at.target)
    last = st.reduce[-1]
    for unit in (*Unit.choices(st, at.target), Unit.plain(st, at.target)):
        terms = ((last, unit.terms),) if unit.dot else ()
        if unit.name != c.instruction:
            width = -(-at.tile(c.lane) // unit.lanes) * unit.lanes
            tile = tuple((n, width if n == c.lane else s) for n, s in c.register)
            yield dict(instruction=unit.name, terms=terms, register=tile, cache=(), stream=())


def _offsets(at: Point) -> Iterator[Changes]:
    """Yield the ways to subtract zero points."""
    for offsets in OFFSETS:
        yield dict(offsets=offsets, flip=() if offsets == "each" else at.config.flip)


def _splits(at: Point) -> Iterator[Changes]:
    """Yield the parts of sums that threads share, for a gradient of weights.

    The sums of other results have the same parts for any number of threads.
    """
    c = at.config
    if at.constant or c.threads == 1:
        return
    order = tuple(n for n in c.order if n != PART)
    yield dict(split=(), order=order)
    for n, size in at.splittable:
        for parts in range(2, c.threads + 1):
            if not size % parts:
                yield dict(split=((n, parts),), order=(PART, *order), cache=())


def _streams(at: Point) -> Iterator[Changes]:
    """Yield the operands on whose fragments the first-level cache spends no room, or those that are prefetched, and a
    result beyond the caches.
    """
    has_fragments = at.unit.rows > 1
    for names in ((), (at.a,), (at.b,)):
        pixels = at.loops.kinds[at.config.lane] == "m"
        legal = at.target.fragments is not None if has_fragments else pixels or names != (at.a,)
        yield dict(stream=names if legal else ())
    result = scheduled_statement(at.problem, at.config, at.target).c
    if at.target.fence and prod(result.layout.shape) * dtype(result.dtype).bytes > FAR * at.target.l2.bytes:
        yield dict(stream=(result.name,))


def _code(at: Point) -> Iterator[Changes]:
    """Yield the forms of the code: pieces of loops, register tiles as functions, epilogues in loops of their own."""
    c = at.config
    for pieces in PIECES:
        yield dict(pieces=pieces)
    yield dict(outline=not c.outline)
    yield dict(drain=not c.drain)


DIMENSIONS: dict[str, Callable[[Point], Iterator[Changes]]] = {
    "tile": _tiles, "order": _orders, "cache": _caches, "taps": _taps, "reduce": _reductions, "hold": _holds,
    "instruction": _instructions, "realise": _realisations, "pack": _packs, "terms": _terms, "split": _splits,
    "stream": _streams, "offsets": _offsets, "code": _code,
}  # fmt: skip
"""The dimensions of the space by name, those that change times most first.

Lanes, fused loops, phases and flipped operands come with the model's candidates, from which all steps start.
"""


class Space(ConfigSpace):
    """The configs of ``problem`` on ``target``, a CPU, for a number of threads."""

    def __init__(self, problem: Problem, target: Machine, threads: int) -> None:
        super().__init__(problem, target)
        self._points: dict[object, Point | None] = {}
        self._models: dict[object, tuple[Model, Loops] | None] = {}
        self._known_tiles: dict[object, tuple[Tile, ...]] = {}
        self.is_fused = stages_of(problem) is not None
        if self.is_fused:
            self._expected = dict.fromkeys(reversed(stages_configs(problem, target, threads)), 0.0)
        else:
            self._expected = {c.config: c.cycles for c in reversed(candidates(problem, target, threads))}
        self.seeds = list(reversed(self._expected))

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(DIMENSIONS)

    def changes(self, config: Config, dimension: str) -> Iterable[Changes]:
        at = self._point(config)
        return () if at is None else DIMENSIONS[dimension](at)

    def check(self, config: Config) -> None:
        plan(self.problem, config, self.target)

    def sample(self, rng: random.Random, steps: int = 3) -> Config:
        """Return a legal config at most ``steps`` random steps from a random seed."""
        config = rng.choice(self.seeds)
        for _ in range(rng.randint(1, steps)):
            near = list(self.neighbours(config, rng.choice(list(DIMENSIONS))))
            rng.shuffle(near)
            config = next((c for c in near if not self.refusal(c)), config)
        return config

    def cycles(self, config: Config) -> float:
        """Return the cycles that the model expects: 0 where it has no estimate, infinite for an illegal instruction or
        transform.
        """
        if self.is_fused:
            return self._expected.get(config, 0.0)
        if config.winograd:
            try:
                return winograd_cycles(self.problem, config, self.target)
            except ConfigError:
                return inf
        key = (config.target, config.lane, config.fuse, config.instruction, config.offsets, config.flip, config.phases,
               config.pack if config.offsets == "sums" else ())  # fmt: skip
        if key not in self._models:
            try:
                self._models[key] = model_of(self.problem, config, self.target)
            except ConfigError:
                self._models[key] = None
        known = self._models[key]
        if known is None:
            return inf
        model, loops = known
        return model.cycles(loops, with_lanes(config, model, loops))

    def fits(self, config: Config) -> bool:
        """Return whether the registers hold the register tile; a quick test before `refusal`."""
        at = self._point(config)
        if at is None:
            return True
        is_fit = registers(at.loops, config, at.target, at.unit, at.filled).fit
        if not is_fit and config not in self._reasons:
            self._reasons[config] = "registers"
            self.refused["registers"] += 1
        return is_fit

    def _point(self, config: Config) -> Point | None:
        """Return the facts of ``config``; None where its loops or its instruction are illegal, or are not those of one
        statement.
        """
        key = (config.target, config.lane, config.fuse, config.instruction, config.terms, config.offsets, config.flip,
               config.phases, config.pack, config.realise, config.split, config.winograd, config.block)  # fmt: skip
        if self.is_fused:  # two statements, whose loops are not those of the problem
            return None
        if key not in self._points:
            self._points[key] = self._facts(config)
        known = self._points[key]
        return None if known is None else known._replace(config=config)

    def _facts(self, config: Config) -> Point | None:
        try:
            st = scheduled_statement(self.problem, config, self.target)
            unit, loops = Unit.of(st, self.target, config), loops_after_fusing(st, config)
        except ConfigError:
            return None
        if config.lane not in loops.extents:
            return None
        filled = filled_lanes(st, loops.dims[config.lane], unit)
        return Point(
            config, self.problem, self.target, loops, unit, self._tiles(config, loops, unit, filled), filled,
            st.a.name, st.b.name, not is_true(st.a.mask), st.constant, _splittable(st.whole),
        )  # fmt: skip


    def _tiles(self, config: Config, loops: Loops, unit: Unit, filled: int) -> tuple[Tile, ...]:
        """Return the register tiles that the registers hold; the others count as refused."""
        key = (config.lane, tuple(loops.extents.items()), unit, config.terms)
        if key not in self._known_tiles:
            room = register_file(self.target, unit).count
            plain = replace(config, register=(), cache=())
            fitting = []
            for tile in _all_tiles(loops, config.lane, unit, filled, room):
                accumulators = prod(size for _, size in tile) // filled
                is_small = unit.rows > 1 or accumulators < room  # a quick test, because most tiles fail it
                if is_small and registers(loops, replace(plain, register=tile), self.target, unit, filled).fit:
                    fitting.append(tile)
                else:
                    self.refused["registers"] += 1
            self._known_tiles[key] = tuple(fitting)
        return self._known_tiles[key]


def _splittable(st: Statement) -> tuple[tuple[str, int], ...]:
    return tuple((d.name, d.size) for d in st.of("k")) if splits(st) else ()
