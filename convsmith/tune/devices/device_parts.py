"""Parts of a reduction that groups of threads share: whether they pay by the model, and what `explain` says of them.

Parts give work to units that have no tile of the result. Each part stores its sums, and a second kernel adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.hardware import engine_of
from convsmith.schedule.hardware_choice import MAX_PARTS, EngineTile, engine_tiles
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.nest_builders import nest_of
from convsmith.schedule.packed_operands import packed_statement
from convsmith.schedule.plan import Plan
from convsmith.schedule.schedule import Schedule
from convsmith.statement.parts import splits_of_loops, splits_on_devices
from convsmith.statement.statement import Statement
from convsmith.tune.costs.features import cycles
from convsmith.tune.devices.device_features import engine_features, parts_features
from convsmith.tune.devices.device_fragments import DeviceChoice

__all__ = [
    "MAX_SLOTTED", "UNTIMED", "engine_cycles", "expected_by_engine", "expected_lines", "parts_lines", "ranked_tiles",
    "shared_by_groups",
]  # fmt: skip


PAIR = 2
"""Groups of the clusters of the model: pairs of units are neighbours on every device."""
UNTIMED = 0.95
"""Largest ratio of the expected times with and without a cluster, with operands that stay and without, or with untimed
numbers of groups of warps and others, at which the model takes them: none of these was timed.
"""
MAX_SLOTTED = 24
"""Number of tiles for which the number of slots is chosen."""


def engine_cycles(x: EngineTile, st: Statement, machine: Machine) -> float:
    """Return the cycles that all groups of a tile that a copy engine brings are expected to take, and the kernel that
    adds up its parts.
    """
    parts = parts_features("engine", x.parts, st, machine)
    return cycles((*engine_features(x, st, machine), *parts), machine)


def ranked_tiles(tiles: Iterable[EngineTile], st: Statement, machine: Machine) -> list[EngineTile]:
    """Return the ``tiles`` of ``st``, best expected first; the `MAX_SLOTTED` best ones have the number of slots that
    the model expects to be fastest. Pairs of groups, tiles whose columns stay in shared memory, and those of untimed
    numbers of groups of warps come first if they take `UNTIMED` of the best time or less.

    Fewer slots leave room for more groups on a unit. Of equal expectations, the one with most slots is taken; of equal
    tiles, the one with fewest products.
    """

    def expected(x: EngineTile) -> tuple[float, int]:
        return engine_cycles(x, st, machine), -x.config.buffers

    def by_time(x: EngineTile) -> tuple[float, int, int, str]:
        return engine_cycles(x, st, machine), x.tile[0], -x.row.result.shape[1], str(x.config)

    def slotted(tiles: Iterable[EngineTile]) -> list[EngineTile]:
        ways = ([x, *(x._replace(config=x.config.changed(buffers=n)) for n in numbers if n <= x.config.buffers)]
                for x in tiles)  # fmt: skip
        return [min(x, key=expected) for x in ways]

    numbers, ranked = engine_of(machine).slots, sorted(tiles, key=by_time)
    timed, others = ([x for x in ranked if x.is_timed == is_timed] for is_timed in (True, False))
    best, beside = slotted(timed[:MAX_SLOTTED]), slotted(others[:MAX_SLOTTED])
    every = [*best, *beside]
    best += _quicker((*beside, *_pairs(every, machine), *_resident(every, st, machine)), best, st, machine)
    return [*sorted(best, key=by_time), *timed[MAX_SLOTTED:]]


def _quicker(
    ways: Iterable[EngineTile], tiles: Sequence[EngineTile], st: Statement, machine: Machine
) -> list[EngineTile]:  # fmt: skip
    """Return the ``ways`` that take `UNTIMED` of the best time of ``tiles`` or less."""
    most = UNTIMED * min((engine_cycles(x, st, machine) for x in tiles), default=0.0)
    return [x for x in ways if engine_cycles(x, st, machine) <= most]


def _pairs(tiles: Sequence[EngineTile], machine: Machine) -> Iterator[EngineTile]:
    """Yield the ``tiles`` in clusters of two along rows or columns."""
    for x in tiles if PAIR in engine_of(machine).clusters else ():
        yield from (x.clustered(side, PAIR) for side in (0, 1) if x.around[side] >= PAIR)


def _resident(tiles: Sequence[EngineTile], st: Statement, machine: Machine) -> Iterator[EngineTile]:
    """Yield the ``tiles`` whose columns are those of all tiles of a group, so that their factors may stay in shared
    memory, with each number of slots of the other factor that fits beside them. Tiles of other columns, and of other
    groups of the convolution, are neighbours, and divide the units.
    """
    assert machine.device is not None
    engine, most, nbytes = engine_of(machine), machine.device.shared.bytes, dtype(st.b.dtype).bytes
    for x in tiles:
        beside = x.groups // x.around[0]
        if machine.device.units.count % beside or x.parts > 1 or x.longest or x.steps % 1:
            continue
        held = int(x.steps) * x.tile[1] * x.terms * nbytes + engine.reserved
        (rows, _), *_ = x.config.tiles_at("group")
        order = (rows, *(d.name for d in st.of("batch")), x.config.lane) if beside > 1 else x.config.order
        for slots in engine.slots:
            if held + slots * x.tile[0] * x.terms * nbytes <= most:
                yield x._replace(config=x.config.changed(buffers=slots, resident=(st.b.name,), order=order))


def shared_by_groups(st: Statement, choice: DeviceChoice, machine: Machine) -> Config:
    """Return the config of ``choice`` with the parts of the reduction that the model expects to be fastest, if the
    groups are too few for all units.
    """
    assert machine.device is not None
    config, units = choice.config, machine.device.units
    if not splits_on_devices(st):
        return config
    nest = nest_of(Schedule(), st, loops_after_fusing(st, config), config, machine)
    groups, least = nest.groups, machine.device.costs.resident / nest.size
    turn = choice.cycles / units.turns(groups)

    def expected(split: Sequence[tuple[str, int]]) -> tuple[float, int]:
        parts = prod(n for _, n in split)
        turns = max(units.turns(groups * parts), least)
        return turns * turn / parts + cycles(parts_features("thread", parts, st, machine), machine), parts

    ways: dict[str, list[int]] = {}
    for d in (x for n in st.reduce for x in st.of("k") if x.name == n and n not in st.residues):
        even = [n for n in range(2, min(d.size, MAX_PARTS) + 1) if not d.size % n]
        ways[d.name] = [n for n in even if not d.size // n % config.group_size(d.name)]
    legal = (x for x in splits_of_loops(ways, MAX_PARTS) if splits_on_devices(st, len(x)))
    return config.changed(split=min(((), *legal), key=expected))


def parts_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the parts of a reduction that groups of a device share, if they do, with the number of tiles that they give
    to units, and the time that the model expects with and without them.
    """
    config, machine = plan.config, plan.machine
    if not isinstance(config, Config) or machine.device is None or not config.tiles_at("split"):
        return
    split = config.tiles_at("split")
    loops, parts = " and ".join(f"{loop} in {n} parts" for loop, n in split), prod(n for _, n in split)
    tiles, units = prod(x.extent for x in plan.main.nest.grid), machine.device.units
    joined = "adds its sums to the result" if config.join == "atomic" else "stores its sums, which a kernel adds up"
    yield "parts", (
        f"{loops}, each of which {joined}: {tiles} tiles instead of {-(-tiles // parts)} for "
        f"{units.count} units"
    )
    if config.realise == "hardware" and config.join == "ordered":
        yield from _expected_gain(plan, config)


def expected_by_engine(plan: Plan) -> tuple[float, float] | None:
    """Return the cycles that the model expects of a kernel whose operands a copy engine brings, and the part of them in
    which all units would compute the products, those that meet padding among them; None for other kernels.
    """
    config, machine = plan.config, plan.machine
    if not isinstance(config, Config) or config.realise != "hardware":
        return None
    found = _tile_of(config, _tiles(plan, config))
    if found is None:
        return None
    assert machine.device is not None
    st, units = plan.main.statement.whole, machine.device.units
    expected = engine_cycles(found, st, machine)
    rate = units.count * units.of_fragments * 16 / dtype(st.a.factor).bits
    return expected, plan.problem.flops_dense / 2 / rate / expected


def expected_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what `expected_by_engine` returns."""
    if (found := expected_by_engine(plan)) is not None:
        expected, share = found
        yield "expected", f"{expected:,.0f} cycles by the model: {share:.0%} of the multiply-adds of all units"


def _tile_of(config: Config, tiles: Iterable[EngineTile]) -> EngineTile | None:
    """Return the one of the model's ``tiles`` that has ``config``; None if there is none."""
    names = (config.instruction, config.tiles_at("group"), config.tiles_at("split"))
    own = (x for x in tiles if (x.config.instruction, x.config.tiles_at("group"), x.config.tiles_at("split")) == names)
    found = next(own, None)
    if found is None:
        return None
    (rows, _), *_ = config.tiles_at("group")
    for loop, groups in config.tiles_at("cluster"):
        found = found.clustered(int(loop != rows), groups)
    return found._replace(config=config)


def _tiles(plan: Plan, config: Config) -> list[EngineTile]:
    """Return the tiles that a copy engine may bring for the statement of a ``plan``."""
    st = packed_statement(plan.main.statement.whole, config, plan.machine)
    tiles = engine_tiles(st, plan.machine, plan.problem.accuracy == "any")
    return [] if isinstance(tiles, ConfigError) else tiles


def _expected_gain(plan: Plan, config: Config) -> Iterator[tuple[str, str]]:
    """Yield the cycles that the model expects with the parts of ``config``, and at best without parts."""
    machine, tiles = plan.machine, _tiles(plan, config)
    assert machine.device is not None
    st, own = plan.main.statement.whole, _tile_of(config, tiles)
    alone = min((engine_cycles(x, st, machine) for x in tiles if x.parts == 1), default=0.0)
    if own is not None and alone:
        launch = machine.device.costs.launch
        yield "", (
            f"the model expects {engine_cycles(own, st, machine):,.0f} cycles, {launch:,.0f} of them to start that "
            f"kernel, and {alone:,.0f} without parts"
        )
