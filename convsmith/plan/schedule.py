"""From a config to the list of rewrites: one function for all kernels.

Three parts: bring the nest into its order around the register tile; decide how masked elements and packed operands
are read; lower what comes out to vectors, instructions, functions and pointers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, is_false, is_true, parts_of
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.passes.bind import bind
from convsmith.passes.coalesce import coalesce
from convsmith.passes.collapse import collapse
from convsmith.passes.cse import cse
from convsmith.passes.cut import cut
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.drain import drain
from convsmith.passes.fill_terms import fill_terms
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.fuse import fuse
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.hoist import hoist
from convsmith.passes.hoist_pointers import hoist_pointers
from convsmith.passes.keep_sums import keep_sums
from convsmith.passes.lift import lift
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.outline import outline
from convsmith.passes.partition import partition
from convsmith.passes.rebase import rebase
from convsmith.passes.reorder import reorder
from convsmith.passes.replace import replace
from convsmith.passes.residue import residue
from convsmith.passes.restrict import restrict
from convsmith.passes.rfactor import rfactor
from convsmith.passes.round_up import round_up
from convsmith.passes.simplify import simplify
from convsmith.passes.sink import sink
from convsmith.passes.skip_zero import skip_zero
from convsmith.passes.solve import solve
from convsmith.passes.stage import stage
from convsmith.passes.strength import strength_reduce
from convsmith.passes.sum_together import sum_together
from convsmith.passes.tile import tile
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
from convsmith.plan.config import Config
from convsmith.plan.loops import Loops, Unit, check_config, filled_lanes, loops_after_fusing
from convsmith.plan.pointers import indirect, indirect_step
from convsmith.statement.epilogue import top_bit
from convsmith.statement.phases import phased, phases, residues
from convsmith.statement.statement import KINDS, Statement

FEW_CHANNELS = 8
"""So many are a small part of a vector."""


@dataclass
class Nest:
    """Names of the loops that tiling makes, outermost first."""

    lane: str
    along_k: bool
    unit: Unit
    filled: int
    """Lanes of a vector that are in use."""
    around: list[str] = field(default_factory=list)
    pixels: list[str] = field(default_factory=list)
    vectors: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    reduce: list[str] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    depth: str = ""
    """The loop over blocks of a reduction loop."""
    within: list[str] = field(default_factory=list)
    """Loops around the register tile that run within such a block."""

    @property
    def outside(self) -> list[str]:
        """Loops around the register tile that are around the whole of each sum."""
        return self.around[: len(self.around) - len(self.within)]

    @property
    def lanes(self) -> int:
        """Elements of an accumulator."""
        return self.unit.lanes

    @property
    def held(self) -> list[str]:
        """Loops over accumulators."""
        return [*self.pixels, *self.vectors, *self.rows, *([] if self.along_k else [self.lane])]

    @property
    def register(self) -> list[str]:
        """Loops within the register tile."""
        return [*self.pixels, *self.vectors, *self.rows, self.lane]

    @property
    def unrolled(self) -> list[str]:
        """Loops that run as straight lines: of fragments, those from one to the next."""
        if self.rows:
            return [*self.pixels, *self.vectors]
        return [*self.register, *self.terms, *(n for n in self.reduce if n.endswith(".u"))]

    @property
    def widths(self) -> tuple[tuple[str, int], ...]:
        """Loops that have room for a whole vector or fragment, however short they are."""
        filled = self.terms if self.unit.dot and not self.rows else ()
        rows = ((n, self.unit.rows) for n in self.rows)
        return ((self.lane, self.lanes), *rows, *((n, self.unit.terms) for n in filled))

    @property
    def term_order(self) -> list[str]:
        """The register tile's loops with the terms among them, as instructions take them."""
        if self.rows:
            groups, terms = self.terms
            return [*self.pixels, *self.vectors, *self.rows, groups, self.lane, terms]
        inner = (self.lane, *self.terms) if self.unit.dot else (*self.terms, self.lane)
        return [*self.pixels, *self.vectors, *inner]


def schedule(st: Statement, config: Config, target: Machine) -> list[Step]:
    """The rewrites, in order, that turn the naive nest of a statement into the kernel that the config describes."""
    loops, nest, order_steps = _ordered(st, config, target)
    start = [*_pointer_steps(st, config), *order_steps]
    st = phased(st, config.phases)
    return [
        *start,
        *_read_steps(st, loops, config, nest),
        *_lower_steps(st, config, target, nest),
    ]


def nest_of(st: Statement, config: Config, target: Machine) -> Nest:
    """Return the loops of the scheduled nest by their roles."""
    return _ordered(st, config, target)[1]


def _ordered(st: Statement, config: Config, target: Machine) -> tuple[Loops, Nest, list[Step]]:
    """Return the fused loops, the nest that tiling makes of them, and the steps that make it."""
    unit = Unit.of(st, target, config)
    loops = loops_after_fusing(st, config)
    check_config(st, loops, config, target, unit)
    nest = Nest(config.lane + ".l", loops.kinds[config.lane] == "k", unit, filled_lanes(st, config.lane, unit))
    return loops, nest, _order_steps(st, loops, config, nest)


def _pointer_steps(st: Statement, config: Config) -> list[Step]:
    """Read A through a table of pointers, where there is anything to read."""
    if not indirect(st, config):
        return []
    if config.phases:
        raise ConfigError("phases", f"--phases={','.join(config.phases)}: --realise=indirection has none")
    return [indirect_step(st, config.table)]


def _order_steps(st: Statement, loops: Loops, config: Config, nest: Nest) -> list[Step]:
    """Fuse, tile, reorder; split the register loops' body; sink them under the reduction."""
    first = sorted((d for d in st.dims if d.kind != "k"), key=lambda d: KINDS.index(d.kind))
    steps = [Step(reorder, tuple(d.name for d in first))] if len(first) > 1 else []
    if sum(n in pair for pair in config.fuse for n in st.reduce) > 1:
        steps.append(Step(reorder, st.reduce))
    steps += _class_steps(st, config, nest)
    steps += [Step(fuse, a, b, f"{a}_{b}") for a, b in config.fuse]
    steps.append(Step(simplify))
    steps += _tile_steps(loops, config, nest)
    steps.append(Step(reorder, (*nest.around, *nest.held)))
    if nest.held:
        steps.append(Step(fission, tuple(nest.held), nest.widths))
    steps += [Step(sink, tuple(nest.register)), Step(reorder, (*nest.reduce, *nest.terms))]
    if nest.terms:
        steps.append(Step(reorder, tuple(nest.term_order)))
    if nest.along_k:
        steps.append(Step(rfactor, nest.lane, nest.lanes))
    elif nest.rows or (config.drain and nest.held):
        steps.append(Step(drain, (*nest.pixels, *nest.vectors, *nest.rows), ".w"))
    if nest.within:
        steps.append(Step(keep_sums, nest.depth, tuple(nest.within)))
    return steps


def _class_steps(st: Statement, config: Config, nest: Nest) -> list[Step]:
    """Cut loops that a stride must divide into residue classes; phases go outside, in runs that are all alike."""
    steps: list[Step] = []
    kinds = {d.name: d.kind for d in st.dims}
    found = {n: p for n, p in phases(st).items() if n in config.phases}
    solved: list[Step] = []
    for n, modulus in residues(st).items():
        name = found[n].name if n in found else n + ".r"
        steps.append(Step(residue, n, modulus, name))
        if kinds[n] == "k" and not indirect(st, config):
            solved.append(Step(solve, name))
        elif n not in found:
            (nest.reduce if kinds[n] == "k" else nest.around).append(name)
            nest.classes.append(name)
    steps += solved
    if found:
        whole = phased(st, config.phases)
        names = [d.name for d in sorted(whole.dims, key=lambda d: KINDS.index(d.kind)) if d.kind != "k"]
        for p in found.values():
            steps += [Step(reorder, (p.name, *(n for n in names if n != p.name))), Step(cut, p.name, p.cuts)]
        steps += [Step(simplify), Step(reorder, tuple(names))]
    return steps


def _tile_steps(loops: Loops, config: Config, nest: Nest) -> list[Step]:
    """Split every loop by its tile, and enter the loops that come of it into the nest."""
    steps: list[Step] = []
    outer: dict[str, str] = {}
    reduce: dict[str, list[str]] = {}
    blocks = {n: size for n, size in config.cache if size < loops.extents[n]}
    for n, kind in loops.kinds.items():
        size = config.size(n)
        if n == config.lane and kind == "k":
            steps.append(Step(tile, n, nest.lanes, n + ".o", nest.lane))
            reduce[n] = [n + ".o"]
        elif n == config.lane:
            steps.append(Step(tile, n, max(size, nest.filled), n + ".o", n + ".t"))
            steps.append(Step(tile, n + ".t", nest.filled, n + ".v", nest.lane))
            outer[n] = n + ".o"
            nest.vectors.append(n + ".v")
        elif n in dict(config.terms):
            steps.append(Step(tile, n, dict(config.terms)[n], n + ".o", n + ".q"))
            reduce[n] = [n + ".o"]
            nest.terms.append(n + ".q")
            if nest.unit.rows > 1:
                steps.append(Step(tile, n + ".q", nest.unit.group, n + ".q", n + ".p"))
                nest.terms.append(n + ".p")
        elif nest.unit.rows > 1 and kind == "m" and n in dict(config.register):
            steps.append(Step(tile, n, size, n + ".o", n + ".t"))
            steps.append(Step(tile, n + ".t", _height(size, nest.unit.rows), n + ".i", n + ".m"))
            outer[n] = n + ".o"
            nest.pixels.append(n + ".i")
            nest.rows.append(n + ".m")
        elif size > 1:
            inner = n + (".u" if kind == "k" else ".i")
            steps.append(Step(tile, n, size, n + ".o", inner))
            if kind == "k":
                reduce[n] = [n + ".o", inner]
            else:
                outer[n] = n + ".o"
                (nest.pixels if kind == "m" else nest.vectors).append(inner)
        elif kind == "k":
            reduce[n] = [n]
        else:
            outer[n] = n
    for n, size in blocks.items():
        tiles = outer[n] if n in outer else reduce[n][0]
        tile_size = max(config.size(n), dict(config.terms).get(n, 1), nest.filled if n == config.lane else 1)
        steps.append(Step(tile, tiles, size // tile_size, f"{n}.b", tiles))
    deep = [n in reduce for n in blocks]
    nest.around += [f"{n}.b" for n in blocks if n in outer]
    nest.reduce[:0] = [f"{n}.b" for n in blocks if n in reduce]
    first = len(nest.around) - len(blocks) + 1 + deep.index(True) if any(deep) else 0
    nest.around += [outer.pop(n) for n in config.order if n in outer]
    nest.around += outer.values()
    if any(deep):
        nest.depth, nest.within = nest.reduce[0], nest.around[first:]
    nest.reduce += [x for n in config.reduce if n in reduce for x in reduce.pop(n)]
    nest.reduce += [x for names in reduce.values() for x in names]
    return steps


def _height(pixels: int, most: int) -> int:
    """Rows of each of the fragments that pixels are divided among."""
    return -(-pixels // -(-pixels // most))


def _read_steps(st: Statement, loops: Loops, config: Config, nest: Nest) -> list[Step]:
    """Pack operands, realise the views, split off what is cut short."""
    steps = [
        Step(derive_packing, (name, *_added(st, name)), f"{name}_p", nest.widths, not nest.unit.dot)
        for name in config.pack
    ]
    masked = _masked(st)
    parallel = nest.outside
    for operand, name in _held(st, config).items():
        moving = [n for n, loop in enumerate(nest.around) if _moves(st, loops, config, operand, loop)]
        last = moving[-1] if moving else 0
        if last == len(nest.around) - 1 or nest.rows:
            raise ConfigError(
                "hold", f"--hold={operand}: loops around a register tile of vectors that do not move {operand} must be "
                f"innermost, they are {', '.join(nest.around)}",
            )  # fmt: skip
        if nest.along_k:
            raise ConfigError(
                "hold", f"--hold={operand}: lanes lie along the reduction loop {config.lane}; legal are others"
            )
        if long := ", ".join(n for n in loops.of("k") if _moves(st, loops, config, operand, n)):
            raise ConfigError("hold", f"--hold={operand}: needs register tiles of all of {long}")
        parallel = nest.outside[: last + 1]
        steps.append(Step(stage, name, parallel[-1], None, 0, "register", nest.lanes))
    if _copied(st, config):
        if st.shifted:
            raise ConfigError(
                "stage", f"--realise=pad_copy: {st.a.name} has a zero point; legal are peel, mask, and --offsets=sums"
            )
        place, around = _stage_place(loops, config, nest.around)
        parallel = [n for n in around if n in parallel]
        near = _neighbours(st, config, nest)
        filled = (*(near or (None,)), top_bit(st.a)) if st.a.flipped else near
        steps.append(Step(stage, st.a.name, place, *filled))
    if masked and config.realise == "peel":
        steps.append(Step(skip_zero))
    if not nest.along_k:
        steps.append(Step(round_up, (*nest.vectors, nest.lane), (*nest.widths, (nest.lane, nest.filled))))
    if nest.unit.dot and not nest.rows:
        steps += [Step(fill_terms, name, nest.unit.terms) for name in nest.terms]
    steps.append(Step(simplify))
    if indirect(st, config):
        steps.append(Step(lift))
    steps.append(Step(bind, tuple(nest.unrolled), "unrolled"))
    if config.threads > 1 and parallel:
        steps.append(Step(bind, tuple(parallel), "parallel"))
    if masked and config.realise == "peel":
        tiled_axes = {a for n in nest.register for a in loops.axes[n.partition(".")[0]]}
        moved = (n for n in nest.reduce if n not in nest.classes and _free(loops.axes[n.partition(".")[0]], tiled_axes))
        steps.append(Step(restrict, (*moved, nest.lane) if nest.along_k else tuple(moved)))
    cut = _cutting(st, nest) if masked and nest.along_k and config.realise == "peel" else set()
    tiled = (n for n in nest.around if n.endswith((".o", ".b")) or n in nest.classes or n in cut)
    vectors = (n for n in (*nest.pixels, *nest.vectors) if n.endswith(".v") or n in cut)
    exact = ((nest.lane,),) if cut else ()
    steps.append(Step(partition, (*tiled, *nest.reduce, *vectors), config.pieces, *exact))
    if cut:
        steps.append(Step(rebase, nest.lane))
    if _copied(st, config):
        steps += _copy_steps(st, nest.lanes)
    return steps


def _lower_steps(st: Statement, config: Config, target: Machine, nest: Nest) -> list[Step]:
    """Flat offsets, vectors, instructions, functions, tasks, pointers."""
    steps = [Step(guard_tails, tuple(nest.unrolled)), Step(flatten), Step(simplify)]
    if nest.rows:
        rows = target.fragment_rows(st.a.factor, st.b.factor, st.acc)
        steps += [Step(unroll), Step(simplify), Step(replace, rows, True)]
    if _copied(st, config) and _rows(st):
        steps += _row_steps(st, target.lanes(dtype(st.a.dtype).bits))
    steps.append(Step(narrow_index))
    if _copied(st, config) and not _rows(st):
        steps.append(Step(vectorise, f"{st.a.name}_s1.l", nest.lanes, False))
    if nest.unit.dot and not nest.rows:
        steps += [Step(vectorise, name, nest.unit.terms, False) for name in nest.terms]
    steps += [Step(vectorise, f"{name}_s.l", nest.lanes, False) for name in _held(st, config).values()]
    steps += [Step(vectorise, nest.lane, nest.lanes, False), Step(replace, target.instructions)]
    *stepping, last = (n for n in nest.reduce if not n.endswith((".u", ".b")))
    steps += [Step(coalesce, n, last, last) for n in reversed(stepping)]
    steps.append(Step(simplify, False))
    if config.outline:
        steps.append(Step(outline))
    if config.threads > 1:
        steps.append(Step(collapse))
    steps += [Step(unused_let), Step(hoist), Step(cse), Step(strength_reduce), Step(unroll)]
    if indirect(st, config):
        steps.append(Step(hoist_pointers))
    if nest.along_k:
        steps.append(Step(sum_together, nest.lanes))
    return steps


def _added(st: Statement, name: str) -> tuple[str, ...]:
    """The array of what is added to each entry of an operand, where there is one."""
    return tuple(v.fewer.rest for v in (st.a, st.b) if v.name == name and v.fewer is not None and v.fewer.rest)


def _masked(st: Statement) -> bool:
    """Whether some terms are absent, and some are not."""
    return not is_true(st.a.mask) and not is_false(st.a.mask)


def _copied(st: Statement, config: Config) -> bool:
    """Whether A is copied first."""
    return config.realise == "pad_copy" and not is_false(st.a.mask)


def _moves(st: Statement, loops: Loops, config: Config, operand: str, loop: str) -> bool:
    """Whether a loop around the register tile moves an operand; one that runs once, in one class, moves none."""
    base = loop.partition(".")[0]
    view = st.a if st.a.name == operand else st.b
    indexes = any(Var(part) in variables_of(x) for x in view.coords for part in base.split("_"))
    return indexes and (loops.extents[base] > config.size(base) or base in loops.residues)


def _held(st: Statement, config: Config) -> dict[str, str]:
    """The operands that stay in registers, with the names under which they are read."""
    for name in config.hold:
        if name not in (st.a.name, st.b.name) or (name == st.a.name and config.realise == "pad_copy"):
            raise ConfigError("hold", f"--hold={name}: legal are operands that are not copied first, {st.b.name} say")
        view = st.a if st.a.name == name else st.b
        if name not in config.pack and not view.layout.is_plain:
            raise ConfigError("hold", f"--hold={name}: its layout has blocks; legal is to pack it: --pack={name}")
    return {name: f"{name}_p" if name in config.pack else name for name in config.hold}


def _neighbours(st: Statement, config: Config, nest: Nest) -> tuple[int, ...]:
    """The dim of A whose elements one instruction adds up, if any: in the copy they lie side by side."""
    loops = {Var(n) for n, _ in config.terms} if nest.unit.dot else set()
    return tuple(dim for dim, x in enumerate(st.a.coords) if loops & variables_of(x))[-1:]


def _stage_place(loops: Loops, config: Config, around: list[str]) -> tuple[str, list[str]]:
    """The loop in which the padded copy is made, and the loops around it, which are those that may run in parallel.

    One thread copies an image at a time; several copy the rows that they need, each its own.
    """
    rows = (n for n in around if loops.axes.get(n.partition(".")[0]))
    images = (n for n in around if n.partition(".")[0] == "mb")
    place = next(images if config.threads == 1 else chain(rows, images), "mb")
    if place not in around:
        raise ConfigError(
            "stage", f"--realise=pad_copy needs loop mb or a loop over rows around the tile, not {', '.join(around)}"
        )
    return place, around[: around.index(place) + 1]


def _copy_steps(st: Statement, lanes: int) -> list[Step]:
    """Split the copy at the borders of the image, and copy vectors of channels."""
    name = f"{st.a.name}_s"
    channels = f"{name}1"
    others = [f"{name}{n}" for n in range(2, len(st.a.coords))]
    if _rows(st):
        return [Step(partition, tuple(others))]
    return [
        Step(tile, channels, lanes, channels + ".o", channels + ".l"),
        Step(partition, (*others, channels + ".o")),
    ]


def _rows(st: Statement) -> bool:
    """Whether few channels lie side by side, and so do the pixels of a row: then rows are copied, not channels."""
    layout, last = st.a.layout, len(st.a.coords) - 1
    if not layout.is_plain or last < 2 or layout.shape[1] > FEW_CHANNELS:
        return False
    return layout.strides[1] == 1 and layout.strides[last] == layout.shape[1]


def _row_steps(st: Statement, lanes: int) -> list[Step]:
    """Make pixels and channels of a row one loop, of vectors."""
    row, channels = (f"{st.a.name}_s{n}" for n in (len(st.a.coords) - 1, 1))
    return [
        Step(coalesce, row, channels, row),
        Step(tile, row, lanes, row + ".o", row + ".l"),
        Step(partition, (row + ".o",)),
        Step(vectorise, row + ".l", lanes, False),
    ]


def _cutting(st: Statement, nest: Nest) -> set[str]:
    """Loops of the result that decide which lanes along a reduction loop have terms."""
    lane = {Var(name) for name in nest.lane.partition(".")[0].split("_")}
    masks = (variables_of(part) for part in parts_of(st.a.mask))
    names = {str(v) for used in masks if used & lane for v in used}
    return {n for n in (*nest.around, *nest.pixels) if names & set(n.partition(".")[0].split("_"))}


def _free(axes: str, tiled: set[str]) -> bool:
    """Whether a reduction loop runs along axes, and no loop of the register tile along one of them."""
    return bool(axes) and not tiled & set(axes)
