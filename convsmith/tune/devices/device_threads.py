"""Configs for a device whose threads multiply numbers one by one: tiles of threads and groups, with their cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from math import ceil, gcd, prod
from typing import NamedTuple

from convsmith.ir.index import Var
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.machine.device import Device
from convsmith.schedule.config import Config
from convsmith.schedule.copy_layouts import along_lanes, shared_bytes
from convsmith.schedule.device_tiles import BY_THREADS
from convsmith.schedule.group_limits import aligned_bytes
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.nest import straight_terms
from convsmith.schedule.nest_builders import nest_of
from convsmith.schedule.packed_operands import packed_statement
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.costs.features import DIGITS, cycles
from convsmith.tune.devices.device_features import Loads, arrivals, kernel_features, loads_of, thread_features
from convsmith.tune.devices.device_fragments import DeviceChoice, inner_dims, items

MIN_LANES = 8
"""Iterations of a loop below which adjacent threads run along another loop."""
STEPS = (8, 16, 32)
"""Iterations of the innermost reduction loop between two barriers."""
MAX_COMPLETED = 20
"""Number of candidates, ranked by their tiles alone, whose other decisions are determined."""

_Tile = tuple[tuple[str, int], ...]
_Tiles = tuple[dict[str, int], dict[str, int]]
"""The tiles of a thread and of a group, by loop."""


class _TiledLoops(NamedTuple):
    """The loop ``lane`` along which threads are adjacent, which is contiguous in the result, and up to two ``others``.

    If it has few channels, each thread has all of them, and threads are adjacent along the loop ``beside`` it, whose
    iterations continue it in the result, such as groups of few channels; empty otherwise.
    """

    lane: str
    beside: str
    others: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of these loops."""
        return (self.lane, *([self.beside] if self.beside else []), *self.others)


def thread_choices(st: Statement, machine: Machine, packs: bool = False) -> Iterator[DeviceChoice]:
    """Yield the configs that fit the device. Weights that adjacent threads index are packed if ``packs``."""
    device = machine.device
    assert device is not None
    tiled, sizes = _tiled_loops(st), st.extents
    free = [d.name for d in st.dims if d.kind != "k"]
    order = (*(n for n in free if n not in (tiled.lane, tiled.beside)), tiled.beside) if tiled.beside else ()
    plain = Config(machine.name, tiled.lane, order=order, reduce=st.reduce, pack=(), realise="mask")
    plain = plain.changed(offsets="sums" if st.sums else "each")
    if packs and any(Var(tiled.lane) in variables_of(x) for x in st.b.coords):
        plain = plain.changed(pack=(st.b.name,))
        st = packed_statement(st, plain, machine)
    inner, every = inner_dims(st), list(_tiles(sizes, tiled, device))
    even = [x for x in every if not any(sizes[n] % x[1].get(n, 1) for n in inner)]
    loops = loops_after_fusing(st, plain)
    expected = _TileCycles(st, tiled, machine)
    for register, group in sorted(even or every, key=expected)[:MAX_COMPLETED]:
        for steps, shared in _ways(st, sizes):
            known = plain.changed(register=items(register), group=items({**group, **steps}), shared=shared)
            config = _with_vectors(st, sizes, known, device)
            nest = nest_of(Schedule(), st, loops, config, machine)
            needed = shared_bytes(st, loops, config, nest)
            if nest.size > device.threads or sum(aligned_bytes(needed).values()) > device.shared.bytes:
                continue
            for how in ("wait", "async") if shared and device.copy_sizes else ("wait",):
                way = config.changed(copies=how)
                yield DeviceChoice(cycles(kernel_features(st, loops, way, nest, machine, needed), machine), way)


def _tiled_loops(st: Statement) -> _TiledLoops:
    """Return the loops of the result whose tiles a group has."""
    steps = view_steps(st.c)
    free = [d for d in st.dims if d.kind != "k" and d.size > 1] or [d for d in st.dims if d.kind != "k"]
    adjacent = [d for d in free if steps.get(Var(d.name)) == 1]
    long = [d for d in adjacent if d.size >= MIN_LANES]
    few = [(d, e) for d in adjacent if d.kind == "n" for e in free if steps.get(Var(e.name)) == d.size and not long]
    lane, beside = few[0] if few else (max(long or free, key=lambda d: d.size), None)
    columns = [d for d in free if d.kind == "n" and d is not lane]
    pixels = [d for d in reversed(free) if d.kind == "m" and d is not lane]
    others = [d.name for d in (*columns[-1:], *pixels) if d is not beside][:2]
    return _TiledLoops(lane.name, beside.name if beside else "", tuple(others))


def _tiles(sizes: Mapping[str, int], tiled: _TiledLoops, device: Device) -> Iterator[_Tiles]:
    """Yield tiles of a thread and of a group that are not much larger than the loops, and whose threads have the
    registers that they are expected to need. Tiles of other numbers than powers of two divide their loops.
    """
    loops = tiled.names
    room = {n: 1 << (sizes[n] - 1).bit_length() for n in loops}
    own, across = (dict.fromkeys(loops, every) for every in (BY_THREADS.own, BY_THREADS.across))
    own[tiled.lane] = tuple(n for n in BY_THREADS.own if not n & (n - 1))  # vectors
    if tiled.beside:
        room[tiled.lane] = sizes[tiled.lane]
        own[tiled.lane], across[tiled.lane], own[tiled.beside] = (sizes[tiled.lane],), (1,), (1,)
    whole = prod(room.values())

    def suits(n: str, size: int) -> bool:
        return size <= room[n] and not (size & (size - 1) and sizes[n] % size)

    for parts in product(*([p for p in own[n] if suits(n, p)] for n in loops)):
        if prod(parts) > device.costs.sums:
            continue
        registers = device.costs.registers_of(prod(parts))
        for threads in product(*([t for t in across[n] if suits(n, t * p)] for n, p in zip(loops, parts))):
            count, filled = prod(threads), device.costs.filled
            fits = count <= device.threads and registers <= device.units.registers_of(count)
            if fits and min(filled, whole // prod(parts)) <= count and not count % min(count, filled):
                yield dict(zip(loops, parts)), {n: p * t for n, p, t in zip(loops, parts, threads)}


class _TileCycles:
    """The cycles of all groups by their tiles alone, for one product of each sum.

    A thread loads its factors as vectors from shared memory, for as many terms as straight-line code has; a group
    copies its factors for all taps from global memory.
    """

    def __init__(self, st: Statement, tiled: _TiledLoops, machine: Machine) -> None:
        assert machine.device is not None
        self.st, self.machine, self.device, sizes = st, machine, machine.device, st.extents
        self.sizes = {n: sizes[n] for n in tiled.names}
        self.around = prod(d.size for d in st.dims if d.kind != "k" and d.name not in tiled.names)
        self.taps = {d.name: d.size for d in st.of("k") if d.sort == "taps"}
        self.width = self.device.access // max(dtype(v.dtype).bytes for v in st.factors)
        self.last = {n: sizes[n] for n in st.reduce[-1:] if n not in self.taps}
        self.terms = gcd(*self.last.values(), self.width, self.device.costs.terms)
        self.along = {v.name for v in st.factors if any(Var(tiled.lane) in variables_of(x) for x in v.coords)}
        self.lane = tiled.lane
        self.of_product, self.of_step, self.copied = (
            cache(self._of_product), cache(self._of_step), cache(self._copied)
        )  # fmt: skip

    def __call__(self, tile: _Tiles) -> float:
        own, group = (tuple(x.items()) for x in tile)
        sums, threads = prod(tile[1].values()), prod(tile[1].values()) // prod(tile[0].values())
        groups = self.around * prod(-(-self.sizes[n] // size) for n, size in group)
        copied, depth = self.copied(group)
        times = self.device.units.turns(groups)
        registers = self.device.costs.registers_of(prod(tile[0].values()))
        nbytes = int(copied * self.device.access)
        residing = min(self.device.units.residing(threads, nbytes, registers).values())
        step = self.of_step(group, residing, ceil(copied / threads))
        return round(times * (sums * self.of_product(own) + step / depth), DIGITS)

    def _of_product(self, own: _Tile) -> float:
        """Return the cycles of each product of a thread, with its loads."""
        return cycles(thread_features(1, 1, 0, "shared", self._loaded(own), (), False), self.machine)

    def _of_step(self, group: _Tile, residing: int, rounds: int) -> float:
        """Return the cycles in which a group copies its factors in some ``rounds``, with the wait that ``residing``
        groups share.
        """
        copied, _ = self.copied(group)
        step = thread_features(1, 0, 0, "shared", Loads(0, 0, 0), (("shared_copy", copied),), False)
        return cycles((*step, arrivals(1, residing, int(copied * self.device.access), rounds)), self.machine)

    def _loaded(self, own: _Tile) -> Loads:
        """Return the loads of a thread for each of its products."""
        sums, runs = prod(dict(own).values()), dict[str, int]()
        for n in reversed(self.st.reduce):
            runs[n] = self.taps.get(n) or min(self.last.get(n, 1), max(self.terms, STEPS[0] // self.width))
            if runs[n] < self.st.extents[n]:
                break
        fitting = dict([*runs.items()][: straight_terms(sums, runs.values())])
        products, straight = sums * prod(fitting.values()), {**dict(own), **fitting}
        width = gcd(straight[self.lane], self.width)
        access = self.device.access
        widths = {v.name: width if v.name in self.along else self.terms for v in self.st.factors}
        each = [loads_of(self.st, v, straight, widths[v.name], access) for v in self.st.factors]
        return Loads(*(sum(x) / products for x in zip(*each)))

    def _copied(self, group: _Tile) -> tuple[float, int]:
        """Return the accesses of a group that copies its factors for a step, and the products of each sum in it."""
        steps = {**self.taps, **{n: min(size, STEPS[-1]) for n, size in self.last.items()}}
        reached, accesses = {**dict(group), **steps}, 0.0
        for v in self.st.factors:
            nbytes, nearest = dtype(v.dtype).bytes, v.layout.contiguous
            run = [] if nearest is None else [reached.get(x.name, 1) for x in variables_of(v.coords[nearest.dim])]
            whole = max(self.device.costs.sector / (prod(run) * nbytes), 1)
            accesses += loads_of(self.st, v, reached, 1, nbytes).elements * nbytes / self.device.access * whole
        return accesses, prod(steps.values())


def _ways(st: Statement, sizes: Mapping[str, int]) -> Iterator[tuple[dict[str, int], tuple[str, ...]]]:
    """Yield the steps of the reduction and the operands that a group shares."""
    names = tuple(v.name for v in st.factors)
    yield {}, ()
    *outer, last = st.reduce
    taps = {n: sizes[n] for n in outer if sizes[n] > 1}
    for step in sorted({min(s, sizes[last]) for s in STEPS}):
        for around in ({}, taps) if taps else ({},):
            yield {**around, last: step}, names


def _with_vectors(st: Statement, sizes: Mapping[str, int], config: Config, device: Device) -> Config:
    """Return the config with vectors along the lane loop, and along the innermost terms if they are contiguous, in
    memory or in its copy, in a factor that all lanes read; with the consequences of the operands that it shares: how
    padding is read, and longer rows.
    """
    shared = config.staged("shared")
    width = device.access // max(dtype(v.dtype).bytes for v in st.factors)
    vectors: dict[str, int] = {}
    across = gcd(config.size(config.lane), sizes[config.lane], width)
    if across > 1 and config.lane not in st.residues:
        vectors[config.lane] = across
    last = config.reduce[-1] if config.reduce else ""
    same = [v for v in st.factors if all(Var(config.lane) not in variables_of(x) for x in v.coords)]
    along = gcd(config.group_size(last), sizes.get(last, 1), width, device.costs.terms)
    legal = [v for v in same if v.name in shared or view_steps(v).get(Var(last)) == 1]
    steps = {dict(x.terms).get(Var(last)) for v in legal for x in v.coords}
    if along > 1 and last not in st.residues and 1 in steps:
        vectors[last] = along
    pad = []
    for view in (v for v in st.factors if v.name in shared):
        lanes, nearest = along_lanes(view, config), min(view.layout.blocks, key=lambda b: b.stride).dim
        if lanes is not None and lanes != nearest:
            pad.append((view.name, vectors.get(config.lane, 1)))
    realise = "pad_copy" if st.a.name in shared and not st.shifted else "mask"
    return config.changed(vectors=tuple(vectors.items()), pad=tuple(pad), realise=realise)
