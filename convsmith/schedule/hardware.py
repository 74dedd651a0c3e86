"""The plan of a statement whose operands a copy engine brings to shared memory, where groups of warps multiply them.

A group of threads computes a tile of the result. One warp starts the copies of each step, some steps ahead; the others
multiply, ``register`` rows and columns each, with an instruction whose factors lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import lcm, prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.instruction import Instruction
from convsmith.ir.shared import SLOTS, barrier_bytes, taken_bytes
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.device_costs import CopyEngine
from convsmith.passes.end_sums import end_sums
from convsmith.passes.simplify import simplify
from convsmith.passes.stage_results import MappedResult
from convsmith.schedule.clusters import cluster_flaw, parts_flaw, resident_flaw, teams_flaw
from convsmith.schedule.config import Config
from convsmith.schedule.engine_copies import EngineCopy, engine_copy
from convsmith.schedule.engine_results import stored_result
from convsmith.schedule.fusing import bring_together, fuse_pairs, split_classes
from convsmith.schedule.grid import in_blocks, l2_flaw
from convsmith.schedule.group_limits import limit_flaw
from convsmith.schedule.library.warp_groups import GroupTile
from convsmith.schedule.loops import Loop, Loops, loop_over, loops_after_fusing, terms_of_part, with_phases
from convsmith.schedule.nest import Nest
from convsmith.schedule.nest_builders import NestBuilder
from convsmith.schedule.packed_operands import pack_operands
from convsmith.schedule.product_shape import ProductShape, named_row
from convsmith.schedule.schedule import Schedule
from convsmith.statement.parts import part_loop
from convsmith.statement.phases import phases
from convsmith.statement.statement import Statement, View

SHARED = "shared"
"""The file of operands that an instruction reads from shared memory."""
MOST_RUNS = 16
"""Most runs of tiles with equally many steps of which a group computes several tiles: a term of an index for each run
gives the number of steps before a tile.
"""


def hardware_rows(st: Statement, machine: Machine) -> tuple[Instruction, ...]:
    """Return the instructions of ``machine`` that multiply the factors of ``st`` in shared memory."""
    if len(st.factors) < 2 or st.shifted:
        return ()
    types = (st.a.factor, st.b.factor, st.acc)
    return tuple(x for x in machine.fragment_rows(*types) if x.operands[1].file == SHARED)


def hardware_row(st: Statement, config: Config, machine: Machine) -> Instruction:
    """Return the instruction that ``config`` names; ConfigError where it does not multiply the factors of ``st``."""
    return named_row(st, hardware_rows(st, machine), config, machine)


def engine_of(machine: Machine) -> CopyEngine:
    """Return the copy engine of ``machine``, which its instructions on factors in shared memory need."""
    assert machine.device is not None and machine.device.engine is not None
    return machine.device.engine


def is_mn_major(row: Instruction, number: int) -> bool:
    """Return whether the factor of that number is MN-major: its terms are not contiguous."""
    return all(step != 1 for v, step in row.steps(number).items() if not row.steps(0).get(v))


def nest_flaw(
    st: Statement, loops: Loops, config: Config, row: Instruction, machine: Machine
) -> ConfigError | None:  # fmt: skip
    """Return the error if ``config`` does not tile the loops of ``st``, which has its phases, into tiles of groups of
    ``machine`` that multiply with ``row``; otherwise None.
    """
    around, inner = _rows_and_terms(loops, config)
    if len(around) != 1 or set(inner) != set(loops.of("k")) or st.residues:
        return ConfigError(
            "hardware", f"--realise=hardware: --register= has rows along one loop besides {config.lane}, --reduce= "
            "all loops of the reduction, --phases= those that a stride divides; legal is another --realise=",
        )  # fmt: skip
    rows, columns, terms = around[0], config.lane, inner[-1]
    height, width = row.result.shape
    of_group = [(n, config.group_size(n), unit) for n, unit in ((rows, height), (columns, width), (terms, row.terms))]
    sizes = [(n, max(size // unit, 1) * unit, size) for n, size, unit in of_group]
    sizes += [(rows, height, config.size(rows)), (columns, config.group_size(columns), config.size(columns))]
    for name, size, found in sizes:
        if size != found:
            return ConfigError(
                "fragment", f"--instruction={row.name} multiplies {height} rows, {width} columns and {row.terms} "
                f"terms; legal are tiles of a group that are multiples, and --register={rows}:{height},"
                f"{columns}:{config.group_size(columns)}; found {name}:{found}",
            )  # fmt: skip
    for n in (rows, columns):
        beside = any(len(x.terms) > 1 and Var(n) in dict(x.terms) for x in st.c.coords)
        size = config.group_size(n) * config.size(n, "cluster")
        if beside and loops.extents[n] % size:
            return ConfigError(
                "hardware", f"--realise=hardware: {loops.extents[n]} iterations of {n} stand beside those of "
                f"another group in memory; legal are tiles, of all groups of a cluster, that divide them, found {size}",
            )  # fmt: skip
    split = config.tiles_at("split")
    numbers = {Var(part_loop(n)) for n in range(len(split))}
    in_parts = {v for view in st.factors for x in view.coords if numbers & {*dict(x.terms)} for v in dict(x.terms)}
    size = config.group_size(terms)
    if loops.extents[terms] % size and in_parts & {Var(d) for d in loops.dims[terms]}:
        return ConfigError(
            "hardware", f"--realise=hardware: {loops.extents[terms]} terms of a part of the reduction stand "
            f"beside those of another one in memory; legal is a step that divides them, found {size}",
        )  # fmt: skip
    parts = dict(split).get(terms, 1)
    if config.join == "atomic" and parts > 1 and terms_of_part(loops.whole(terms), config, parts) % size:
        return ConfigError(
            "hardware", f"--realise=hardware: a part of the reduction is no whole steps of {size}; legal is a step "
            f"that divides {terms_of_part(loops.whole(terms), config, parts)}",
        )  # fmt: skip
    if config.rounds or config.load_ahead:
        word = "rounds" if config.rounds else "load_ahead"
        return ConfigError(
            word, f"--{word}=yes: under --realise=hardware, factors stay in shared memory, in the slot of the number "
            f"of a step; legal is no --{word}=",
        )  # fmt: skip
    if (flaw := l2_flaw(loops, config)) is not None:
        return flaw
    if (flaw := cluster_flaw(loops, (rows, columns), config, machine)) is not None:
        return flaw
    legal = _over_groups(loops, rows, config)
    if not set(config.order) <= set(legal):
        return ConfigError(
            "unknown-loop", f"--order={','.join(config.order)}: loops over groups are {', '.join(legal)}"
        )
    return None


def _rows_and_terms(loops: Loops, config: Config) -> tuple[list[str], list[str]]:
    """Return the loops of rows (a legal config has one) and the loops of the reduction, outermost first."""
    rows = [n for n in loops.of("batch", "n", "m") if n != config.lane and n in dict(config.tiles_at("register"))]
    return rows, [n for n in config.reduce if n in loops.of("k")] or loops.of("k")


def _over_groups(loops: Loops, rows: str, config: Config) -> list[str]:
    """Return the loops over groups in their default order: loops of ``rows`` and of columns are innermost."""
    return [*(n for n in loops.of("batch", "n", "m") if n not in (rows, config.lane)), rows, config.lane]


class EngineLoops(NamedTuple):
    """The loops of ``st``, a statement with its phases, by their role in products of ``row``: the loops of its ``rows``
    and ``columns``, the innermost one of its ``terms``, and the ``outer`` loops of the reduction.
    """

    st: Statement
    row: Instruction
    rows: str
    columns: str
    terms: str
    outer: tuple[str, ...]


class _EngineTiles(NestBuilder):
    """The tiles of groups of warps, whose operands a copy engine brings; one more warp starts the copies.

    ``st`` is the statement without phases; ``found`` are the loops of the statement with its phases.
    """

    def __init__(self, s: Schedule, st: Statement, loops: Loops, config: Config, found: EngineLoops) -> None:
        super().__init__(s, st, loops, config)
        self.found = found

    def nest(self) -> Nest:
        """Return the nest; tiles of groups are whole."""
        found, (height, width) = self.found, self.found.row.result.shape
        cut_phases(self.s, self.st, self.config)
        bring_together(self.s, found.st, self.config)
        fuse_pairs(self.s, self.config)
        for n, size, letters, level in (
            (found.rows, height, "wi", "group"), (found.columns, width, "fi", "warp"),
            (found.terms, found.row.terms, "si", "group"),
        ):  # fmt: skip
            loop, group = self.part(self.whole(n)), self.config.group_size(n)
            splits = (group, "gb", (loop.level, level)), (size, letters, (level, "instruction"))
            beside = self.config.size(n, "cluster")
            self.split(self.s.extend(loop, lcm(group * beside, max(group, self.config.size(n, "l2")))), splits)
            if beside > 1:
                tiles, *own = self.parts[n]
                clustered = self.s.tile(tiles, beside, ("", "c"), ("grid", "cluster"))
                self.parts[n] = [*clustered, *own]
        for n in found.outer:
            self.parts[n] = [self.part(self.whole(n))]
        grid = [*self.config.order, *_over_groups(self.loops, found.rows, self.config)]
        outer = [self.parts.get(n, [self.whole(n)])[0] for n in dict.fromkeys((*grid, *found.outer, found.terms))]
        inner = [x for parts in self.parts.values() for x in parts[1:]]
        lanes = found.row.result.layout.lanes
        outer = [*in_blocks(self.s, self.config, outer)]
        made, unit = (*self.added, *outer, *inner), ProductShape.of_row(found.row)
        return Nest(made, unit, warp_size=lanes, copiers=lanes, teams=self.config.teams)

    def whole(self, name: str) -> Loop:
        """Return the loop of that name, over groups or over steps."""
        return self.loops.whole(name, "thread" if self.loops.kinds[name] == "k" else "grid")


def group_tile(nest: Nest) -> GroupTile:
    """Return the loops of the tile of a group of warps."""
    (warps,), (fragments,), (steps, term), (row, column) = nest.threads, nest.at("warp"), nest.terms, nest.rows
    cluster = next(iter(nest.at("cluster")), None)
    return GroupTile(nest.grid, nest.steps, warps, fragments, steps, (row, column, term), nest.parts, cluster)


def _copy(found: EngineLoops, tiled: GroupTile, view: View, engine: CopyEngine) -> EngineCopy | ConfigError:
    """Return the copy of an operand, or the error if no tensor map brings it."""
    number, outer = (1, tiled.warps) if view is found.st.a else (2, tiled.fragments)
    element, inside = tiled.inner[number - 1], (tiled.steps, tiled.inner[2])
    loops = (outer, *inside, element) if is_mn_major(found.row, number) else (outer, element, *inside)
    made = engine_copy(found.st, view, (*tiled.grid, *tiled.stepping), loops, engine)
    if isinstance(made, ConfigError):
        return ConfigError(made.code, f"--realise=hardware: {made.message}; legal is another --realise=")
    return made


def cut_phases(s: Schedule, st: Statement, config: Config) -> None:
    """Split loops that a stride must divide into phases, each with the taps that it reads. Loops over taps end where a
    phase has no more.
    """
    classes = split_classes(s, st, config)
    for dim in (d for d in st.dims if d.name in st.residues and d.kind != "k"):
        s.extend(loop_over(dim), 1)
    if st.residues:
        s.run(simplify)
    taps = [x.tap for n, x in phases(st, sparse=True).items() if n in config.phases and x.sparse]
    if taps:
        s.run(end_sums, tuple(taps), tuple(classes))
        s.run(simplify)


def _residing(machine: Machine, nest: Nest, registers: int, shared: Mapping[str, int]) -> int | ConfigError:
    """Return the number of groups, or of clusters, that reside on a device at a time, if each lane needs ``registers``;
    0 if the grid has no more than that. Return the error if a unit has too few registers for one group.
    """
    assert machine.device is not None
    units, multiplying = machine.device.units, nest.size - nest.copiers
    shares = _registers(machine, nest, registers)
    if shares is not None and registers > shares[0]:
        return ConfigError(
            "registers", f"--realise=hardware: {multiplying} threads with {registers} registers; {machine.name} has "
            f"{shares[0]} for each of them; legal are smaller tiles of a group",
        )  # fmt: skip
    used = sum(shared.values()) + engine_of(machine).reserved
    fitting = 1 if shares is not None else units.registers // nest.size // registers
    beside = min(fitting, units.shared // used, units.threads // nest.size)
    residing = units.count * max(beside, 1)
    clusters = prod(x.extent for x in nest.at("cluster"))
    return residing // clusters if nest.groups > residing // clusters * clusters else 0


def _registers(machine: Machine, nest: Nest, registers: int) -> tuple[int, int] | None:
    """Return the registers of a lane that multiplies, and those that a thread keeps which starts copies, if lanes need
    more ``registers`` than threads have at the launch; None if they do not.
    """
    assert machine.device is not None
    units, copiers = machine.device.units, engine_of(machine).copiers
    if registers <= units.registers // nest.size:
        return None
    left = _at_launch(machine, nest) * nest.size - copiers * nest.copiers
    return left // (nest.size - nest.copiers) // units.register_step * units.register_step, copiers


def _at_launch(machine: Machine, nest: Nest) -> int:
    """Return the registers of each thread of a group that has all registers of a unit. An assembler needs as many for
    the sums of one product, although lanes that multiply take more.
    """
    assert machine.device is not None
    units = machine.device.units
    return units.registers // nest.size // units.register_step * units.register_step


def _uneven_phases(st: Statement, config: Config, nest: Nest) -> dict[Loop, int]:
    """Return the loops over phases that meet different numbers of taps, each with the phase that meets most."""
    found = {x.name: x for n, x in phases(st, sparse=True).items() if n in config.phases}
    uneven = {n: x for n, x in found.items() if x.sparse or x.taps % x.classes}
    return {x: uneven[x.of].longest for x in nest.grid if x.of in uneven}


def engine_loops(
    whole: Statement, loops: Loops, config: Config, row: Instruction, machine: Machine
) -> EngineLoops | ConfigError:  # fmt: skip
    """Return the loops of the tile that ``config`` gives a group by their role, or the error if they cannot be
    multiplied with ``row``.
    """
    st = with_phases(whole, config)
    if (flaw := nest_flaw(st, loops, config, row, machine)) is not None:
        return flaw
    (rows,), (*outer, terms) = _rows_and_terms(loops, config)
    return EngineLoops(st, row, rows, config.lane, terms, tuple(outer))


class HardwareTile(NamedTuple):
    """The tile of a group: its ``nest``, whose loops ``schedule`` has made, the statement with its phases, the row that
    multiplies, the copies of the operands, and the bytes of shared memory that each takes.

    ``residing`` groups are on the device at a time if there are more tiles than groups; otherwise it is 0. The number
    of steps of a tile depends on the iterations of ``uneven`` loops over phases, of which each has most at one. The
    engine stores tiles of the result that are ``stored``. Lanes take so many ``registers`` and leave so many to threads
    that start copies, unless each thread has enough at the launch.
    """

    nest: Nest
    schedule: Schedule
    st: Statement
    row: Instruction
    copies: tuple[EngineCopy, ...]
    shared: dict[str, int]
    residing: int
    uneven: dict[Loop, int]
    stored: MappedResult | None = None
    registers: tuple[int, int] | None = None


def hardware_tile(st: Statement, loops: Loops, config: Config, machine: Machine) -> HardwareTile | ConfigError:
    """Return the tile that ``config`` gives a group of ``machine``, or the error if it exceeds a limit of copies or
    products. No kernel is rewritten to determine it.
    """
    row, engine = hardware_row(st, config, machine), engine_of(machine)
    found = engine_loops(st, loops, config, row, machine)
    if isinstance(found, ConfigError):
        return found
    s = Schedule(d.name for d in st.dims)
    pack_operands(s, st, config, machine)
    nest = _EngineTiles(s, st, loops, config, found).nest()
    copies: list[EngineCopy] = []
    shared: dict[str, int] = {}
    for v in found.st.factors:
        copied = _copy(found, group_tile(nest), v, engine)
        if isinstance(copied, ConfigError):
            return copied
        copies.append(copied)
        elements = copied.mapped.map.size * len(copied.mapped.pieces)
        times = prod(x.extent for x in nest.steps) if v.name in config.staged("resident") else config.buffers
        shared[v.name] = elements * dtype(v.dtype).bytes * times
    stored = None
    for name in config.staged("shared"):
        if name not in (legal := [v.name for v in (*found.st.factors, found.st.c)]):
            return ConfigError("shared", f"--shared={name}: legal are {', '.join(legal)}")
    if (name := found.st.c.name) in config.staged("shared"):
        if config.tiles_at("cluster"):
            return ConfigError(
                "cluster", f"--shared={name}: tiles of groups of a cluster are not stored by the engine; legal is "
                f"either --cluster= or {name} in --shared=",
            )  # fmt: skip
        leaving = stored_result(found.st, group_tile(nest), engine, config.store_parts)
        if isinstance(leaving, ConfigError):
            return leaving
        elements = leaving.map.size * len(leaving.parts[0].pieces) * config.teams
        stored, shared[name] = leaving, elements * dtype(found.st.c.dtype).bytes
    elif config.store_parts > 1:
        return ConfigError(
            "store-parts", f"--store_parts={config.store_parts}: {name} leaves from registers; legal is {name} in "
            "--shared=, or --store_parts=1",
        )  # fmt: skip
    taken = {name: taken_bytes(nbytes, SLOTS) for name, nbytes in shared.items()}
    taken["barriers"] = barrier_bytes(config.buffers, config.teams)
    if (flaw := limit_flaw(machine, nest, taken)) is not None:
        return flaw
    if (flaw := parts_flaw(nest, copies, engine)) is not None:
        return flaw
    fragments = prod(x.extent for x in nest.at("warp"))
    needed, own = (n * row.result.layout.registers + engine.addresses for n in (fragments, 1))
    if _registers(machine, nest, needed) is not None and own > _at_launch(machine, nest):
        return ConfigError(
            "registers", f"--realise=hardware: {row.name} needs {own} registers of a lane; {nest.size} threads have "
            f"{_at_launch(machine, nest)} at the launch; legal are narrower products or smaller tiles of a group",
        )  # fmt: skip
    residing = _residing(machine, nest, needed, shared)
    if isinstance(residing, ConfigError):
        return residing
    uneven = _uneven_phases(st, config, nest)
    if (flaw := resident_flaw(found.st, nest, config, 0 if uneven else residing)) is not None:
        return flaw
    if (flaw := teams_flaw(config, bool(residing))) is not None:
        return flaw
    runs = prod(x.extent for x in nest.grid[: max((nest.grid.index(x) + 1 for x in uneven), default=0)])
    return HardwareTile(
        nest, s, found.st, row, tuple(copies), shared, residing if runs <= MOST_RUNS else 0, uneven, stored,
        _registers(machine, nest, needed),
    )  # fmt: skip


def hardware_flaw(st: Statement, config: Config, machine: Machine) -> ConfigError | None:
    """Return the error that planning ``st`` under its own ``config`` would raise, or None, without planning."""
    made = hardware_tile(st, loops_after_fusing(st, config), config, machine)
    return made if isinstance(made, ConfigError) else None


def expected_rate(made: HardwareTile, machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield the bounds on the rate of the products, in words: the traffic of shared memory, and units without a tile.

    Each product reads its factors from shared memory, even if another product of the step reads them too.
    """
    assert machine.device is not None
    units, shared, tiled = machine.device.units, machine.device.shared, group_tile(made.nest)
    (row, column, term), nbytes = (x.extent for x in tiled.inner), dtype(made.st.a.factor).bytes
    rows, columns, terms = tiled.warps.extent * row, tiled.fragments.extent * column, tiled.steps.extent * term
    cycles = rows * columns * terms * nbytes / 2 / units.of_fragments
    read = tiled.warps.extent * tiled.fragments.extent * (row + column) * terms * nbytes / cycles
    written = (rows + columns) * terms * nbytes / cycles
    most = min(shared.banks * shared.width / (read + written), 1.0)
    yield "rate", (
        f"the products of a step take {cycles:.0f} cycles, in each of which shared memory gives {read:.0f} and takes "
        f"{written:.0f} of {shared.banks * shared.width} bytes: at most {most:.0%}"
    )
    tiles = made.nest.groups
    yield "tiles", f"{tiles} on {units.count} units: at most {tiles / (-(-tiles // units.count) * units.count):.0%}"
