"""The plan of a statement whose operands a copy engine brings to shared memory, where groups of warps multiply them.

A group of threads computes a tile of the result. One warp starts the copies of each step, some steps ahead; the others
multiply, ``register`` rows and columns each, with an instruction whose factors lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var
from convsmith.ir.instruction import Instruction
from convsmith.ir.shared import SLOTS, barrier_bytes, taken_bytes
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.device_costs import CopyEngine
from convsmith.passes.bind import bind
from convsmith.passes.contract import contract
from convsmith.passes.copy_tiles import copy_tiles
from convsmith.passes.cse import cse
from convsmith.passes.extend import extend
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.fuse import fuse
from convsmith.passes.hoist import hoist
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.pipeline_copies import pipeline_copies
from convsmith.passes.reorder import reorder
from convsmith.passes.replace import replace
from convsmith.passes.residue import residue
from convsmith.passes.rounds import rounds
from convsmith.passes.simplify import simplify
from convsmith.passes.solve import solve
from convsmith.passes.speculate import speculate
from convsmith.passes.spread_lanes import run_name, spread_lanes
from convsmith.passes.tensor_copies import MappedCopy, tensor_copies
from convsmith.passes.tile import tile
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.config import Config
from convsmith.schedule.group_limits import limit_flaw
from convsmith.schedule.group_nest import GRID_DIMS, GroupNest
from convsmith.schedule.group_plan import GroupPlan
from convsmith.schedule.loops import Loop, Loops, fused_name, loops_after_fusing
from convsmith.schedule.tensor_views import TileLoop, mapped_copy
from convsmith.statement.parts import PART
from convsmith.statement.phases import phased, phases
from convsmith.statement.statement import KINDS, Statement, View

GROUP, STEP = "x", "s"
"""Names of the loops that several loops over groups, and over steps of the reduction become."""
SHARED = "shared"
"""The file of operands that an instruction reads from shared memory."""
RESIDING = "resident"
"""The loop over the groups that reside on a device at a time."""
RUNS = (2, 4)
"""Neighbouring elements of a fragment that a lane has, which it accesses as vectors."""


def hardware_rows(st: Statement, machine: Machine) -> tuple[Instruction, ...]:
    """Return the instructions of ``machine`` that multiply the factors of ``st`` in shared memory."""
    if len(st.factors) < 2 or st.shifted:
        return ()
    types = (st.a.factor, st.b.factor, st.acc)
    return tuple(x for x in machine.fragment_rows(*types) if x.operands[1].file == SHARED)


def hardware_row(st: Statement, config: Config, machine: Machine) -> Instruction:
    """Return the instruction that ``config`` names; ConfigError where it does not multiply the factors of ``st``."""
    legal = {row.name: row for row in hardware_rows(st, machine)}
    if config.instruction not in legal:
        raise ConfigError(
            "instruction", f"--realise=hardware --instruction={config.instruction}: legal for "
            f"{':'.join((*(v.factor for v in st.factors), st.acc))} on {machine.name} are {', '.join(legal) or 'none'}",
        )  # fmt: skip
    return legal[config.instruction]


def engine_of(machine: Machine) -> CopyEngine:
    """Return the copy engine of ``machine``, which its instructions on factors in shared memory need."""
    assert machine.device is not None and machine.device.engine is not None
    return machine.device.engine


def is_turned(row: Instruction, number: int) -> bool:
    """Return whether the factor of that number is MN-major: its terms are no neighbours."""
    return all(step != 1 for v, step in row.steps(number).items() if not row.steps(0).get(v))


def nest_flaw(st: Statement, loops: Loops, config: Config, row: Instruction) -> ConfigError | None:
    """Return the error where ``config`` gives the loops of ``st``, which has its phases, no tiles of groups that
    multiply with ``row``, else None.
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
        if beside and loops.extents[n] % config.group_size(n):
            return ConfigError(
                "hardware", f"--realise=hardware: {loops.extents[n]} iterations of {n} stand beside those of "
                f"another group in memory; legal is a tile that divides them, found {config.group_size(n)}",
            )  # fmt: skip
    in_parts = {v for view in st.factors for x in view.coords if Var(PART) in dict(x.terms) for v in dict(x.terms)}
    size = config.group_size(terms)
    if loops.extents[terms] % size and in_parts & {Var(d) for d in loops.dims[terms]}:
        return ConfigError(
            "hardware", f"--realise=hardware: {loops.extents[terms]} terms of a part of the reduction stand "
            f"beside those of another one in memory; legal is a step that divides them, found {size}",
        )  # fmt: skip
    legal = _over_groups(loops, rows, config)
    if not set(config.order) <= set(legal):
        return ConfigError(
            "unknown-loop", f"--order={','.join(config.order)}: loops over groups are {', '.join(legal)}"
        )
    return None


def _rows_and_terms(loops: Loops, config: Config) -> tuple[list[str], list[str]]:
    """Return the loops of rows, of which a legal config has one, and those of the reduction, outermost first."""
    rows = [n for n in loops.of("batch", "n", "m") if n != config.lane and n in dict(config.register)]
    return rows, [n for n in config.reduce if n in loops.of("k")] or loops.of("k")


def _over_groups(loops: Loops, rows: str, config: Config) -> list[str]:
    """Return the loops over groups in their default order: those of ``rows`` and of columns are the innermost."""
    return [*(n for n in loops.of("batch", "n", "m") if n not in (rows, config.lane)), rows, config.lane]


class _CopiedOperand(NamedTuple):
    """The copy of an operand, with the loops over its dims."""

    copy: MappedCopy
    loops: tuple[str, ...]


class HardwareNest:
    """The loops of a tile of the result, by role, and the copies of the operands.

    ``st`` is the statement ``whole`` with its phases. ``rows`` and ``columns`` are loops of it, ``terms`` its innermost
    reduction loop. Loops within the tile have the names of these with an end: ``.g`` over tiles, ``.w`` over warps,
    ``.f`` over instructions of a warp, ``.s`` over instructions of a step, and ``.i`` within an instruction.
    """

    def __init__(
        self, whole: Statement, st: Statement, loops: Loops, config: Config, row: Instruction, engine: CopyEngine
    ) -> None:
        self.whole, self.st, self.loops, self.config, self.row, self.engine = whole, st, loops, config, row, engine
        (self.rows,), (*self.outer_terms, self.terms) = _rows_and_terms(loops, config)
        self.columns = config.lane
        height, width = row.result.shape
        self.warps = config.group_size(self.rows) // height
        self.fragments = config.group_size(self.columns) // width
        self.steps = config.group_size(self.terms) // row.terms
        self.residing = 0
        """Groups that reside on the device at a time, where there are more tiles, else 0."""
        self.grid = [*config.order, *(n for n in _over_groups(loops, self.rows, config) if n not in config.order)]
        """The loops over groups, outermost first."""

    def tiles(self) -> list[TileLoop]:
        """Return the tiles of all loops."""
        sizes = {d.name: d.size for d in self.st.dims}
        found = []
        for n in self.loops.extents:
            dims = tuple((d, sizes[d]) for d in self.loops.dims[n])
            size = self.config.group_size(n) if n in (self.rows, self.columns, self.terms) else 1
            start: Index = Var(f"{n}.g") * size if n in (self.rows, self.columns, self.terms) else Var(n)
            found.append(TileLoop(dims, start, size))
        return found

    def copy(self, view: View) -> _CopiedOperand | ConfigError:
        """Return the copy of an operand, and the loops over its dims; or the error where no tensor map brings it."""
        number = 1 if view is self.st.a else 2
        loop, outer = (self.rows, f"{self.rows}.w") if number == 1 else (self.columns, f"{self.columns}.f")
        turned = is_turned(self.row, number)
        inner = self.loops.dims[loop if turned else self.terms][-1]
        made = mapped_copy(self.st, view, self.tiles(), inner, self.engine)
        if isinstance(made, ConfigError):
            return made
        if not turned and len(made.pieces) > 1:
            row = made.map.box[0]
            return ConfigError(
                "tensor-map", f"--realise=hardware: a step of {len(made.pieces) * row} terms; legal is at most {row}, "
                f"which a row of the copy of {view.name} has",
            )  # fmt: skip
        if turned and made.map.box[0] != self.row.result.shape[number - 1]:
            return ConfigError(
                "instruction", f"--instruction={self.row.name}: {view.name} lies in rows along {inner}, of which a "
                f"copy brings {made.map.box[0]}; legal is an instruction of as many",
            )  # fmt: skip
        inside = (f"{self.terms}.s", f"{self.terms}.i")
        size = self.row.result.shape[number - 1]
        place = Var(f"{made.name}.{outer}") * size + Var(f"{made.name}.{loop}.i")
        tile = self.config.group_size(loop)
        made = made._replace(needed=Var(f"{loop}.g") * tile + place < self.loops.extents[loop])
        return _CopiedOperand(made, (outer, *inside, f"{loop}.i") if turned else (outer, f"{loop}.i", *inside))

    def over_groups(self, of: str) -> str:
        """Return the name of the loop over groups that is a part of the loop ``of``, or is that loop."""
        return f"{of}.g" if of in (self.rows, self.columns) else of

    def loop(self, name: str, of: str, extent: int, size: int = 1) -> Loop:
        return self.loops.part(name, of, "register", extent, size, is_tiled=size > 1)

    def group_nest(self) -> GroupNest:
        """Return the nest by role, for limits and reports: the warps that multiply and the one that copies."""
        tiles = {n: self.config.group_size(n) for n in (self.rows, self.columns, self.terms)}
        counts = {n: -(-self.loops.extents[n] // size) for n, size in tiles.items()}
        grid = [
            self.loop(self.over_groups(n), n, counts.get(n, self.loops.extents[n]), tiles.get(n, 1)) for n in self.grid
        ]
        steps = [self.loop(n, n, self.loops.extents[n]) for n in self.outer_terms]
        steps.append(self.loop(f"{self.terms}.g", self.terms, counts[self.terms], tiles[self.terms]))
        lanes = self.row.result.layout.lanes
        threads = self.loop(f"{self.rows}.w", self.rows, (self.warps + 1) * lanes)
        registers = (self.loop(f"{self.columns}.f", self.columns, self.fragments),)
        return GroupNest(tuple(grid), (threads,), registers, tuple(steps), ())


def hardware_steps(
    nest: HardwareNest, copies: list[tuple[MappedCopy, tuple[str, ...]]], machine: Machine
) -> list[Step]:
    """Return the rewrites from the naive nest to straight lines of a thread."""
    st, config, row = nest.st, nest.config, nest.row
    r, c, k = nest.rows, nest.columns, nest.terms
    height, width = row.result.shape
    first = sorted((d for d in st.dims if d.kind != "k"), key=lambda d: KINDS.index(d.kind))
    steps = phase_steps(nest.whole, config)
    steps += [Step(reorder, tuple(d.name for d in first)), Step(reorder, tuple(d.name for d in st.of("k")))]
    steps += [Step(fuse, a, b, fused_name(a, b)) for a, b in config.fuse]
    steps.append(Step(simplify))
    for n, inner in ((r, (height, "w", "i")), (c, (width, "f", "i")), (k, (row.terms, "s", "i"))):
        size = config.group_size(n)
        steps += [Step(extend, n, size), Step(tile, n, size, f"{n}.g", f"{n}.b")]
        steps.append(Step(tile, f"{n}.b", inner[0], f"{n}.{inner[1]}", f"{n}.{inner[2]}"))
    grid = tuple(map(nest.over_groups, nest.grid))
    sums = (f"{r}.w", f"{c}.f", f"{r}.i", f"{c}.i")
    stepping = (*nest.outer_terms, f"{k}.g")
    tile_loop = GROUP if len(grid) > 1 else grid[0]
    around = tile_loop if nest.residing else ""
    products = (f"{r}.w", f"{k}.s", f"{c}.f", f"{r}.i", f"{c}.i", f"{k}.i")
    steps += [
        Step(reorder, (*grid, *sums)), Step(bind, grid, "grid"), Step(bind, (f"{r}.w",), "warp"), Step(fission, sums),
        Step(reorder, (*stepping, *products)), Step(simplify),
        Step(copy_tiles, stepping[-1], tuple((v.array, dims) for v, (_, dims) in zip(st.factors, copies))),
        Step(speculate), Step(tensor_copies, tuple(x for x, _ in copies)), *packed(stepping, STEP, 1),
        *(packed(grid, GROUP, 1 if nest.residing else GRID_DIMS)),
        *([Step(rounds, tile_loop, nest.residing, RESIDING)] if nest.residing else []),
        Step(pipeline_copies, STEP if len(stepping) > 1 else stepping[0], config.buffers, around),
        Step(bind, (f"{k}.s", f"{c}.f"), "unrolled"), Step(flatten), Step(simplify),
        Step(contract, machine.scalar_types), Step(replace, (row,), products[-3:]), Step(spread_lanes, (row,)),
        Step(simplify), *(Step(vectorise, run_name(n), n, False) for n in RUNS),
        Step(narrow_index), Step(simplify, False), Step(unused_let), Step(hoist), Step(cse), Step(unroll),
    ]  # fmt: skip
    return steps


def packed(loops: tuple[str, ...], name: str, most: int) -> list[Step]:
    """Return the rewrites that leave at most ``most`` of the adjacent ``loops``: the last ones become the loop
    ``name``.
    """
    steps = []
    outer = loops[: most][-1]
    for n, inner in enumerate(loops[most:], most):
        fused = name if n == len(loops) - 1 else f"{name}.{n}"
        steps.append(Step(fuse, outer, inner, fused))
        outer = fused
    return steps


def phase_steps(st: Statement, config: Config) -> list[Step]:
    """Return the rewrites that cut loops which a stride must divide into phases, each with the taps that it meets."""
    found, kinds = phases(st), {d.name: d.kind for d in st.dims}
    cut = [(n, size, found[n].name if n in found else f"{n}.r") for n, size in st.residues.items()]
    steps = [Step(residue, *x) for x in cut] + [Step(solve, name) for n, _, name in cut if kinds[n] == "k"]
    return steps + [Step(extend, n, 1) for n, *_ in cut] + ([Step(simplify)] if cut else [])


def _residing(machine: Machine, groups: GroupNest, registers: int, shared: Mapping[str, int]) -> int | ConfigError:
    """Return the number of groups that reside on a device at a time, each lane of which needs ``registers``; 0 if the
    grid has no more groups than that. Return the error where a unit has too few registers for one.
    """
    assert machine.device is not None
    units = machine.device.units
    most = units.registers // groups.size
    if registers > most:
        return ConfigError(
            "registers", f"--realise=hardware: {groups.size} threads with {registers} registers; {machine.name} has "
            f"{most} for each of so many; legal are smaller tiles of a group",
        )  # fmt: skip
    used = sum(shared.values()) + engine_of(machine).reserved
    beside = min(most // registers, units.shared // used, units.threads // groups.size)
    residing = units.count * max(beside, 1)
    return residing if prod(groups.grid_sizes) > residing else 0


def hardware_nest(
    whole: Statement, loops: Loops, config: Config, row: Instruction, machine: Machine
) -> HardwareNest | ConfigError:  # fmt: skip
    """Return the loops of the tile that ``config`` gives a group, or the error where they do not multiply with ``row``.
    """
    st = phased(whole, config.phases)
    return nest_flaw(st, loops, config, row) or HardwareNest(whole, st, loops, config, row, engine_of(machine))


class HardwareTile(NamedTuple):
    """The tile of a group: its nest, the copies of its operands, and the bytes of shared memory that each takes."""

    nest: HardwareNest
    copies: list[tuple[MappedCopy, tuple[str, ...]]]
    groups: GroupNest
    shared: dict[str, int]


def hardware_tile(st: Statement, loops: Loops, config: Config, machine: Machine) -> HardwareTile | ConfigError:
    """Return the tile that ``config`` gives a group of ``machine``, or the error where copies or products have a limit
    that it exceeds. No rewrite is made for that.
    """
    row = hardware_row(st, config, machine)
    nest = hardware_nest(st, loops, config, row, machine)
    if isinstance(nest, ConfigError):
        return nest
    copies: list[tuple[MappedCopy, tuple[str, ...]]] = []
    shared: dict[str, int] = {}
    for v in nest.st.factors:
        copied = nest.copy(v)
        if isinstance(copied, ConfigError):
            return copied
        copies.append(copied)
        shared[v.name] = copied.copy.map.size * len(copied.copy.pieces) * dtype(v.dtype).bytes * config.buffers
    groups = nest.group_nest()
    slots = {name: taken_bytes(nbytes, SLOTS) for name, nbytes in shared.items()}
    if (flaw := limit_flaw(machine, groups, {**slots, "barriers": barrier_bytes(config.buffers)})) is not None:
        return flaw
    registers = nest.fragments * row.result.layout.registers + nest.engine.addresses
    residing = _residing(machine, groups, registers, shared)
    if isinstance(residing, ConfigError):
        return residing
    nest.residing = residing
    return HardwareTile(nest, copies, groups, shared)


def hardware_flaw(st: Statement, config: Config, machine: Machine) -> ConfigError | None:
    """Return the error that planning ``st`` under its own ``config`` would raise, or None; nothing is planned."""
    made = hardware_tile(st, loops_after_fusing(st, config), config, machine)
    return made if isinstance(made, ConfigError) else None


def hardware_plan(st: Statement, config: Config, machine: Machine) -> GroupPlan:
    """Return the plan of ``st`` under its own ``config``; ConfigError where copies or products have a limit."""
    loops = loops_after_fusing(st, config)
    made = hardware_tile(st, loops, config, machine)
    if isinstance(made, ConfigError):
        raise made
    nest, copies, groups, shared = made
    steps = hardware_steps(nest, copies, machine)
    cut = next(n for n, x in enumerate(steps) if x.run is flatten) - 1
    expected = tuple(_expected(nest, groups, machine))
    return GroupPlan(st, config, loops, groups, shared, tuple(steps[:cut]), tuple(steps[cut:]), expected=expected)


def _expected(nest: HardwareNest, groups: GroupNest, machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield what bounds the rate of the products, in words: the traffic of shared memory, and units without a tile.

    A product reads its factors from shared memory, also those that another one of the step reads.
    """
    assert machine.device is not None
    units, shared, row = machine.device.units, machine.device.shared, nest.row
    rows, columns, terms = (nest.config.group_size(n) for n in (nest.rows, nest.columns, nest.terms))
    nbytes, (height, width) = dtype(nest.st.a.factor).bytes, row.result.shape
    cycles = rows * columns * terms * nbytes / 2 / units.of_fragments
    read = nest.warps * nest.fragments * (height + width) * terms * nbytes / cycles
    written = (rows + columns) * terms * nbytes / cycles
    most = min(shared.banks * shared.width / (read + written), 1.0)
    yield "rate", (
        f"the products of a step take {cycles:.0f} cycles, in each of which shared memory gives {read:.0f} and takes "
        f"{written:.0f} of {shared.banks * shared.width} bytes: at most {most:.0%}"
    )
    tiles = prod(groups.grid_sizes)
    yield "tiles", f"{tiles} on {units.count} units: at most {tiles / (-(-tiles // units.count) * units.count):.0%}"
