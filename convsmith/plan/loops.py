"""The loops of a config, and whether a kernel can be made from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Ge0, Var, is_true, parts_of
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.plan.config import Config
from convsmith.statement.phases import phased, residues
from convsmith.statement.statement import KINDS, Statement, view_steps

SPARE = 3
"""Fragments for factors: of the weights, of the source, and of a rest of it that has fewer rows."""


@dataclass(frozen=True)
class Unit:
    """What a statement's products are computed with: ``lanes`` sums at once, each of ``terms`` products.

    ``dot`` says that one instruction adds them up, on the operands' own types; else both are converted to the type of
    sums first. With several ``rows`` it works on fragments: so many rows of ``lanes`` sums, ``group`` of the terms side
    by side in the packed operand.
    """

    lanes: int
    terms: int
    dot: bool
    rows: int = 1
    group: int = 1

    @staticmethod
    def of(st: Statement, target: Machine, config: Config) -> Unit:
        """What a config makes of the target's instructions for the types."""
        for row in target.fragment_rows(st.a.factor, st.b.factor, st.acc):
            if fits_fragments(st, row, config):
                return Unit(row.lanes, row.terms, True, row.rows, row.group)
        return Unit._of_vectors(st, target, config)

    @staticmethod
    def choices(st: Statement, target: Machine) -> list[Unit]:
        """What is worth a look for the types: instructions on fragments, where they serve, and on vectors."""
        fragments = (row for row in target.fragment_rows(st.a.factor, st.b.factor, st.acc) if fits_fragments(st, row))
        found = [Unit(row.lanes, row.terms, True, row.rows, row.group) for row in fragments][:1]
        return [*found, Unit._of_vectors(st, target, None)]

    @staticmethod
    def _of_vectors(st: Statement, target: Machine, config: Config | None) -> Unit:
        row = target.row(st.a.factor, st.b.factor, st.acc)
        if row is not None and row.terms > 1 and st.constant and not st.shifted:
            terms = ((st.reduce[-1], row.terms),) if config is None else config.terms
            wanted = len(terms) == 1 and terms[0][1] == row.terms and _iterations(st, terms[0][0]) > 1
            if wanted and (config is None or config.lane in (st.n, *(f"{d.name}_{st.n}" for d in st.of("batch")))):
                return Unit(row.lanes, row.terms, True)
        return Unit.plain(st, target)

    @staticmethod
    def plain(st: Statement, target: Machine) -> Unit:
        """The target's best for products of the type of sums."""
        row = target.row(st.acc, st.acc, st.acc)
        return Unit(row.lanes if row is not None else target.lanes(dtype(st.acc).bits), 1, False)


def fits_fragments(st: Statement, row: Instruction, config: Config | None = None) -> bool:
    """Whether an instruction on fragments serves a statement (under a config): no element of a fragment is absent.

    Its terms fill fragments, its result has columns, and its pixels lie at even distances; where some are absent, or
    channels are apart, A is copied first.
    """
    loop = st.reduce[-1]
    sizes = {d.name: d.size for d in st.dims}
    size = sizes[loop]
    plain = st.a.factor == st.a.dtype and st.a.fewer is None and st.constant and not st.shifted
    # A copy has zeros beyond the borders; it has none where a stride meets no element, and there is none of nothing.
    bordered = all(isinstance(part, Ge0) for part in parts_of(st.a.mask))
    # Blocks round an axis up: elements between its end and theirs lie in memory, and count as absent there.
    extents = zip(st.a.masks, st.a.layout.shape, st.a.layout.padded_shape)
    bordered = bordered and all(is_true(mask) or size == rounded for mask, size, rounded in extents)
    # In a result of one column nothing moves along the lanes.
    if not plain or not bordered or sizes[st.n] == 1 or size % row.terms:
        return False
    steps = view_steps(st.a)
    even = is_true(st.a.mask) and steps.get(Var(loop)) == 1
    if config is None:
        return even or any(d.name == "mb" for d in st.of("m"))
    inner = [d.name for d in st.of("m")][-1]
    names = {n for n, _ in config.register if n != config.lane}
    tiled = [n for n in names if n == inner or n.endswith(f"_{inner}")]
    return (
        config.terms == ((loop, row.terms),) and config.lane == st.n and len(tiled) == len(names) == 1
        and (even or config.realise == "pad_copy")
    )  # fmt: skip


@dataclass(frozen=True)
class Loops:
    """The loops of a statement after fusing, by role: outermost first within each.

    ``axes`` are the letters of the spatial axes that a loop runs along; ``residues`` the moduli of loops that are cut
    into residue classes.
    """

    extents: dict[str, int]
    kinds: dict[str, str]
    axes: dict[str, str]
    residues: dict[str, int]

    def of(self, *kinds: str) -> list[str]:
        return [n for n, k in self.kinds.items() if k in kinds]


def _iterations(st: Statement, loop: str) -> int:
    """Most that a loop runs, fused or cut into residue classes."""
    classes = residues(st)
    return prod(-(-d.size // classes.get(d.name, 1)) for d in st.dims if d.name in loop.split("_"))


def loops_after_fusing(st: Statement, config: Config) -> Loops:
    """Names, extents and kinds of the loops with the config's phases, once fused; ConfigError where that cannot be."""
    st = phased(st, config.phases)
    order = sorted(st.dims, key=lambda d: (KINDS.index(d.kind), st.reduce.index(d.name) if d.kind == "k" else 0))
    classes = residues(st)
    extents = {d.name: -(-d.size // classes.get(d.name, 1)) for d in order}
    kinds = {d.name: d.kind for d in order}
    axes = {d.name: d.axis for d in order}
    for a, b in config.fuse:
        names = list(extents)
        if a not in names or b not in names or names.index(b) != names.index(a) + 1:
            raise ConfigError("fuse", f"--fuse={a}+{b}: no such neighbours among {', '.join(names)}")
        if a in classes or b in classes:
            raise ConfigError("fuse", f"--fuse={a}+{b}: a loop that a stride must divide cannot be fused")
        if (kinds[a] == "k") != (kinds[b] == "k"):
            raise ConfigError("fuse", f"--fuse={a}+{b}: a reduction loop and another cannot be one")
        name = f"{a}_{b}"
        extents = {(name if n == a else n): (s * extents[b] if n == a else s) for n, s in extents.items() if n != b}
        kinds = {(name if n == a else n): ("n" if n == a and "n" in (kinds[a], kinds[b]) else k)
                 for n, k in kinds.items() if n != b}  # fmt: skip
        axes[name] = axes[a] + axes[b]
    return Loops(extents, kinds, {n: axes[n] for n in extents}, classes)


def filled_lanes(st: Statement, lane: str, unit: Unit) -> int:
    """Lanes of a vector that are in use: where it holds channels of several groups, as many as are whole groups.

    Then all vectors have the same channels at the same places.
    """
    fused = (n.size for n in st.of("n") for d in st.of("batch") if lane == f"{d.name}_{n.name}")
    channels = next(fused, unit.lanes)
    return unit.lanes - unit.lanes % channels if channels < unit.lanes else unit.lanes


def check_config(st: Statement, loops: Loops, config: Config, target: Machine, unit: Unit) -> None:
    """Raise ConfigError, with the numbers, where no kernel can be made from the config."""
    sizes = (*config.register, *config.cache, *config.terms)
    for name in (config.lane, *dict(sizes), *config.order, *config.reduce):
        if name not in loops.extents:
            raise ConfigError("unknown-loop", f"config names loop {name!r}; there are {', '.join(loops.extents)}")
    lanes = filled_lanes(st, config.lane, unit)
    held = f"{lanes} lanes of a vector" + (" that whole groups fill" if lanes < unit.lanes else "")
    if config.size(config.lane) % lanes and dict(config.register).get(config.lane):
        raise ConfigError("lanes", f"--register={config.lane}:{config.size(config.lane)} is no multiple of the {held}")
    for name, size in config.terms:
        if loops.kinds[name] != "k":
            raise ConfigError("terms", f"--terms={name}:{size}: loop {name} is no reduction loop")
    deep = [n for n, _ in config.cache if loops.kinds[n] == "k"]
    if len(deep) > 1 or config.lane in deep:
        raise ConfigError(
            "cache", f"--cache={','.join(deep)}: legal is one reduction loop that lanes do not lie along"
        )
    for name, size in config.cache:
        if name == config.lane and size % lanes:
            raise ConfigError("cache", f"--cache={name}:{size} is no multiple of the {held}")
    need, text = registers_needed(loops, config, target, unit, lanes)
    if need > (there := _registers(target, unit)):
        what = "registers for fragments" if unit.rows > 1 else "vector registers"
        raise ConfigError("registers", f"needs {need} {what}, target has {there} ({text})")


def fits_registers(loops: Loops, config: Config, target: Machine, unit: Unit, filled: int) -> bool:
    """Whether the register tile has room, where vectors have ``filled`` lanes in use."""
    return registers_needed(loops, config, target, unit, filled)[0] <= _registers(target, unit)


def _registers(target: Machine, unit: Unit) -> int:
    """Registers for what the unit works on: vectors, or fragments."""
    return target.fragments.count if unit.rows > 1 and target.fragments is not None else target.registers


def registers_needed(loops: Loops, config: Config, target: Machine, unit: Unit, filled: int) -> tuple[int, str]:
    """Registers of the register tile (of vectors, or of fragments), and how they come about."""
    along_k = loops.kinds[config.lane] == "k"
    others = {n: config.size(n) for n, k in loops.kinds.items() if k != "k" and n != config.lane}
    if along_k:
        vectors = prod(size for n, size in others.items() if loops.kinds[n] != "m")
        pixels = prod(size for n, size in others.items() if loops.kinds[n] == "m")
    else:
        vectors = max(config.size(config.lane), filled) // filled
        pixels = prod(others.values())
    if unit.rows > 1:
        high = -(-pixels // unit.rows)
        return high * vectors + SPARE, f"{high}x{vectors}: {high * vectors} accumulators + {SPARE} of factors"
    spare = target.costs.temporaries
    read = vectors * (1 if unit.dot else prod(size for _, size in config.terms))
    used = pixels * vectors + read + 1 + spare
    many, one = ("sources", "weight") if loops.kinds[config.lane] == "m" else ("weights", "source")
    text = f"{pixels}x{vectors}: {pixels * vectors} accumulators + {read} {many} + 1 {one}"
    return used, text + (f" + {spare} temporary" if spare else "")
