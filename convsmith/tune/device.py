"""The default config for a device: tiles that occupy its threads and fit its memories, ranked by a small model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import gcd, inf, prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.intern import one_table
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.machine.device import Device
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.device_tiles import BY_THREADS
from convsmith.schedule.group_limits import aligned_bytes, along_lanes, shared_bytes
from convsmith.schedule.hardware_choice import engine_tiles, legal_tile
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.nest import nest_of
from convsmith.schedule.packed_operands import packable, packed_statement
from convsmith.schedule.plan import decided
from convsmith.schedule.schedule import Schedule
from convsmith.statement.offsets import summed
from convsmith.statement.statement import Statement, view_steps
from convsmith.statement.views import statement
from convsmith.tune.device_features import kernel_features, thread_features
from convsmith.tune.device_fragments import DeviceChoice, fragment_choices, inner_dims, items
from convsmith.tune.device_parts import ranked_tiles, shared_by_groups
from convsmith.tune.features import cycles

MIN_LANES = 8
"""Iterations of a loop below which adjacent threads run along another loop."""
STEPS = (8, 16, 32)
"""Iterations of the innermost reduction loop between two barriers."""
SEEDS = 16
"""Maximum number of configs of the model from which a search starts."""
MAX_COMPLETED = 20
"""Number of candidates, ranked by their tiles alone, whose other decisions are determined."""


_Tiles = tuple[dict[str, int], dict[str, int]]
"""The tiles of a thread and of a group, by loop."""


def device_config(problem: Problem, machine: Machine, packs: bool = True) -> Config:
    """Return the config that the model expects to be fastest on a machine with groups of threads; it packs operands
    only if ``packs``. ConfigError if no config is legal.
    """
    with one_table():
        stages = stages_of(problem)
        if stages is not None:
            return _of_stages(stages, machine)
        st = statement(problem, machine)
        config = _of_hardware(problem, st, machine, packs)
        if config is not None:
            return config
        found = min(_every(problem, st, machine, packs), key=_rank, default=None)
        if found is None:
            raise ConfigError("no-config", f"no config makes a kernel of {problem} for {machine.name}")
        return _in_parts(problem, st, found, machine)


def _of_stages(stages: Stages, machine: Machine) -> Config:
    """Return the configs of ``stages``, each of which becomes a separate kernel, as one config."""
    found: Config | None = None
    for problem in reversed(stages.problems):
        every = (x for x in _every(problem, statement(problem, machine), machine) if x.config.offsets == "each")
        best = min(every, key=_rank, default=None)
        if best is None:
            raise ConfigError("no-config", f"no config makes a kernel of {problem} for {machine.name}")
        found = best.config.changed(consumer=found)
    assert found is not None
    return found


def device_candidates(problem: Problem, machine: Machine) -> dict[Config, float]:
    """Return the configs that a search begins with and their expected cycles, best first: the config of
    :func:`device_config`, then the `SEEDS` best configs of the model. The cycles are 0 without an estimate.
    """
    if stages_of(problem) is not None:
        return {device_config(problem, machine): 0.0}
    with one_table():
        st = statement(problem, machine)
        found = {} if (config := _of_hardware(problem, st, machine)) is None else {config: 0.0}
        ranked = sorted(_every(problem, st, machine, packs=True), key=_rank)[:SEEDS]
        found |= {_in_parts(problem, st, x, machine): x.cycles for x in reversed(ranked)}
    return dict(sorted(found.items(), key=lambda x: x[1]))


def expected_cycles(problem: Problem, config: Config, machine: Machine) -> float:
    """Return the cycles that the model expects of a config; 0 without an estimate, infinite if the config makes no
    kernel.
    """
    if config.realise == "hardware":
        return 0.0
    with one_table():
        found = decided(problem, config.changed(split=(), join="ordered"), machine)
        if isinstance(found, ConfigError):
            return inf
        k = found.main
        st = packed_statement(k.statement, k.config, machine)
        return cycles(kernel_features(st, k.loops, k.config, k.nest, machine, k.shared), machine)


def _of_hardware(problem: Problem, st: Statement, machine: Machine, packs: bool = True) -> Config | None:
    """Return the config under which a copy engine brings the operands, packed operands if ``packs`` and it cannot bring
    the original ones; None if there is no such config.
    """
    sums, rounds = summed(problem, st) if st.shifted else None, problem.accuracy == "any"
    found = _best_by_engine(sums or st, machine, rounds)
    if not isinstance(found, ConfigError):  # `explain` gives the reason
        return found
    if not packs or not st.constant or st.b.name not in packable(st):
        return None
    found = _best_by_engine(st, machine, rounds, (st.b.name,))
    return None if isinstance(found, ConfigError) else found


def _best_by_engine(
    st: Statement, machine: Machine, rounds: bool, pack: tuple[str, ...] = ()
) -> Config | ConfigError | None:  # fmt: skip
    """Return the legal config of a copy engine that the model expects to be fastest, with the operands of ``pack``
    packed, or the reason why there is none; None without an engine.
    """
    plain = Config(machine.name, st.of("m")[-1].name, reduce=st.reduce, pack=pack)
    tiles = engine_tiles(packed_statement(st, plain, machine), machine, rounds)
    if isinstance(tiles, ConfigError):
        return tiles
    if not tiles:
        return None
    ranked = ranked_tiles(tiles, st, machine)
    return legal_tile([x._replace(config=x.config.changed(pack=pack)) for x in ranked], st, machine)


def _every(
    problem: Problem, st: Statement, machine: Machine, packs: bool = False
) -> Iterator[DeviceChoice]:  # fmt: skip
    """Yield all configs of the model; zero points are subtracted from each factor, or from the sums. If ``packs``,
    fragments read packed weights if taps are contiguous in memory.
    """
    yield from _choices(st, machine)
    sums = summed(problem, st) if st.shifted else None
    if sums is not None:
        yield from _choices(sums, machine)
    columns, rounds = _columns(st), problem.accuracy == "any"
    if not packs or sums is not None or not _has_neighbouring_taps(st):
        yield from fragment_choices(sums or st, machine, columns, rounds)
        return
    plain = Config(machine.name, st.of("m")[-1].name, reduce=st.reduce, pack=(st.b.name,))
    for x in fragment_choices(packed_statement(st, plain, machine), machine, columns, rounds):
        yield x._replace(config=x.config.changed(pack=plain.staged("pack")))


def _has_neighbouring_taps(st: Statement) -> bool:
    """Return whether taps of constant weights are contiguous in memory; fragments read one tap at a time."""
    if len(st.factors) < 2 or not st.constant:
        return False
    nearest = st.b.layout.contiguous
    taps = {Var(d.name) for d in st.of("k") if d.sort == "taps"}
    return nearest is not None and bool(taps & set(variables_of(st.b.coords[nearest.dim])))


def _rank(choice: DeviceChoice) -> tuple[float, str]:
    return choice.cycles, str(choice.config)


def _in_parts(problem: Problem, st: Statement, choice: DeviceChoice, machine: Machine) -> Config:
    """Return the config of ``choice``, with parts of the reduction if the model expects a gain."""
    sums = summed(problem, st) if choice.config.offsets == "sums" else None
    return shared_by_groups(packed_statement(sums or st, choice.config, machine), choice, machine)


def _choices(st: Statement, machine: Machine) -> Iterator[DeviceChoice]:
    """Yield the configs that fit the device."""
    device = machine.device
    assert device is not None
    lane, others = _tiled_loops(st)
    sizes = st.extents
    free = {d.name: d.size for d in st.dims if d.kind != "k"}
    inner, every = inner_dims(st), list(_tiles(sizes, lane, others, device))
    even = [x for x in every if not any(sizes[n] % x[1].get(n, 1) for n in inner)]
    plain = Config(
        machine.name, lane, pack=(), realise="mask", reduce=st.reduce, offsets="sums" if st.sums else "each"
    )
    loops = loops_after_fusing(st, plain)
    for register, group in _fastest(even or every, free, machine):
        for steps, shared in _ways(st, sizes):
            tiled = plain.changed(register=items(register), group=items({**group, **steps}), shared=shared)
            config = _loaded(st, sizes, tiled, device)
            nest = nest_of(Schedule(), st, loops, config, machine)
            needed = shared_bytes(st, loops, config, nest)
            if nest.size <= device.threads and sum(aligned_bytes(needed).values()) <= device.shared.bytes:
                yield DeviceChoice(cycles(kernel_features(st, loops, config, nest, machine, needed), machine), config)


def _tiled_loops(st: Statement) -> tuple[str, list[str]]:
    """Return the loop along which threads are adjacent, which is contiguous in the result, and up to two other loops.
    """
    steps = view_steps(st.c)
    free = [d for d in st.dims if d.kind != "k" and d.size > 1] or [d for d in st.dims if d.kind != "k"]
    adjacent = [d for d in free if steps.get(Var(d.name)) == 1]
    lane = max([d for d in adjacent if d.size >= MIN_LANES] or free, key=lambda d: d.size)
    columns = [d for d in free if d.kind == "n" and d is not lane]
    pixels = [d for d in reversed(free) if d.kind == "m" and d is not lane]
    return lane.name, [d.name for d in (*columns[-1:], *pixels)][:2]


def _columns(st: Statement) -> str:
    """Return the loop along which a warp has columns: the contiguous loop of the result, or the largest of its
    channels.
    """
    steps = view_steps(st.c)
    free = [d for d in st.dims if d.kind in ("n", "m")]
    adjacent = [d for d in free if steps.get(Var(d.name)) == 1 and d.size >= MIN_LANES]
    return max(adjacent or st.of("n") or free, key=lambda d: d.size).name


def _tiles(
    sizes: Mapping[str, int], lane: str, others: list[str], device: Device
) -> Iterator[_Tiles]:
    """Yield tiles of a thread and of a group that are not much larger than the loops."""
    loops = [lane, *others]
    room = {n: 1 << (sizes[n] - 1).bit_length() for n in loops}
    whole = prod(room.values())
    for parts in product(*([p for p in BY_THREADS.own if p <= room[n]] for n in loops)):
        if prod(parts) > device.costs.sums:
            continue
        for across in product(*([t for t in BY_THREADS.across if t * p <= room[n]] for n, p in zip(loops, parts))):
            least = min(device.costs.filled, whole // prod(parts))
            if least <= prod(across) <= device.threads:
                yield dict(zip(loops, parts)), {n: p * t for n, p, t in zip(loops, parts, across)}


def _fastest(tiles: list[_Tiles], sizes: Mapping[str, int], machine: Machine) -> list[_Tiles]:
    """Return the first `MAX_COMPLETED` ``tiles`` of a result of ``sizes``, by the cycles of all groups for one product
    of each sum.

    A thread loads its factors as vectors from shared memory, a group copies its factors from global memory.
    """
    device, known = machine.device, dict[tuple[float, ...], float]()
    assert device is not None
    units, vector = device.units.count, device.access // 4
    others = prod(size for n, size in sizes.items() if not tiles or n not in tiles[0][1])

    def expected(tile: _Tiles) -> float:
        own, group = tile[0].values(), tile[1].values()
        groups, sums = others, prod(group)
        for n, size in tile[1].items():
            groups *= -(-sizes[n] // size)
        key = -(-groups // units), sums, sum(own) * sums / prod(own), sum(group)
        if key not in known:
            times, _, loads, copied = key
            features = thread_features(times, sums, 0, "shared", (0, loads / vector), copied, False)
            known[key] = cycles(features, machine)
        return known[key]

    return sorted(tiles, key=expected)[:MAX_COMPLETED]


def _ways(st: Statement, sizes: Mapping[str, int]) -> Iterator[tuple[dict[str, int], tuple[str, ...]]]:
    """Yield the steps of the reduction and the operands that a group shares."""
    names = tuple(v.name for v in st.factors)
    yield {}, ()
    *outer, last = st.reduce
    taps = {n: sizes[n] for n in outer if sizes[n] > 1}
    for step in sorted({min(s, sizes[last]) for s in STEPS}):
        for around in ({}, taps) if taps else ({},):
            yield {**around, last: step}, names


def _loaded(st: Statement, sizes: Mapping[str, int], config: Config, device: Device) -> Config:
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
