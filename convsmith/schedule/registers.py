"""Registers of a register tile, and whether a kernel can be made from a config."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.instruction import RegisterFile
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import CONFIG_ROWS, DEFAULTS
from convsmith.schedule.loops import Loops
from convsmith.schedule.pointers import indirect
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.statement import Statement

SPARE = 3
"""Number of fragments for factors in the register file of the sums: weights, source, and a remainder of the source with
fewer rows."""
AHEAD = 5
"""Number of vector registers beside the sums and the weights of a step, all of which LLVM holds where fragments are
vectors: it loads the rows of two fragments of the source ahead.
"""


class Registers(NamedTuple):
    """The ``needed`` registers of the ``available`` ones of ``file``, and the ``text`` that explains the number."""

    needed: int
    available: int
    file: str
    text: str

    @property
    def fit(self) -> bool:
        """Whether the machine has enough registers for the register tile."""
        return self.needed <= self.available


def filled_lanes(st: Statement, dims: tuple[str, ...], unit: ProductShape, tile: int = 1) -> int:
    """Return the lanes in use of a vector along ``dims``: the channels of whole groups, if it holds several, or of a
    register ``tile`` that is shorter than a vector.

    Then all vectors have the same channels at the same places.
    """
    if 1 < tile < unit.lanes and unit.converts and dims in [(d.name,) for d in st.of("n")]:
        return tile
    fused = (n.size for n in st.of("n") for d in st.of("batch") if dims == (d.name, n.name))
    channels = next(fused, unit.lanes)
    return unit.lanes - unit.lanes % channels if channels < unit.lanes else unit.lanes


TILED = ("register", "group", "cache", "k_step", "first_last_tile")
"""Levels of tiles of the loops of a statement."""


def check_words(loops: Loops, config: Config, machine: Machine) -> None:
    """Raise ConfigError where ``config`` has a word that only other machines understand, or names a loop that is not
    among ``loops``.
    """
    others, why = "groups", "has no groups of threads"
    if machine.device is not None:
        others, why = "vectors", "runs groups of threads"
    for word in (row.name for row in CONFIG_ROWS.values() if row.machines == others):
        if config.value(word) != DEFAULTS[word]:
            raise ConfigError(word, f"--{word}=: {machine.name} {why}; legal is no --{word}=")
    tiled = [x.loop for x in config.tiles if x.level in TILED]
    for name in (config.lane, *tiled, *config.order, *config.reduce):
        if name not in loops.extents:
            raise ConfigError("unknown-loop", f"config names loop {name!r}; there are {', '.join(loops.extents)}")


def check_config(
    st: Statement, loops: Loops, config: Config, target: Machine, unit: ProductShape, may_spill: bool = False
) -> Registers:
    """Return the registers of the register tile; ConfigError, with the numbers, if ``config`` makes no kernel.

    A register tile that ``may_spill`` may need any number of registers.
    """
    lanes = filled_lanes(st, loops.dims[config.lane], unit, config.size(config.lane))
    held = f"{lanes} lanes of a vector" + (" that whole groups fill" if lanes < unit.lanes else "")
    if config.size(config.lane) % lanes and dict(config.tiles_at("register")).get(config.lane):
        raise ConfigError("lanes", f"--register={config.lane}:{config.size(config.lane)} is no multiple of the {held}")
    for name, size in config.tiles_at("k_step"):
        if loops.kinds[name] != "k":
            raise ConfigError("k_step", f"--k_step={name}:{size}: loop {name} is no reduction loop")
    deep = [n for n, _ in config.tiles_at("cache") if loops.kinds[n] == "k"]
    places = [place for place, (n, _) in enumerate(config.tiles_at("cache")) if n in deep]
    adjacent = not deep or places[-1] - places[0] < len(deep) == len({*deep})
    if config.lane in deep or not adjacent:
        raise ConfigError(
            "cache",
            f"--cache={','.join(deep)}: legal are adjacent cache tiles of different reduction loops that lanes do not "
            "lie along",
        )
    if indirect(st, config) and loops.residues.keys() & set(deep):
        raise ConfigError(
            "cache", f"--cache={','.join(deep)}: a stride must divide the loop, and --realise=indirection runs its "
            "residue classes within cache tiles; legal are other loops",
        )  # fmt: skip
    for name, size in config.tiles_at("cache"):
        if name == config.lane and size % lanes:
            raise ConfigError("cache", f"--cache={name}:{size} is no multiple of the {held}")
    for name, _ in config.tiles_at("first_last_tile"):
        if loops.kinds[name] != "k":
            legal = ", ".join(loops.of("k"))
            raise ConfigError("first_last_tile", f"--first_last_tile={name}: legal are reduction loops, {legal}")
    if unsized := [n for n, _ in config.tails() if n not in loops.symbolic]:
        raise ConfigError("remainder", f"--remainder={unsized[0]}: its extent is not an argument of the call")
    needed = registers(loops, config, target, unit, lanes)
    if not (needed.fit or may_spill):
        raise ConfigError(
            "registers", f"needs {needed.needed} {needed.file}, target has {needed.available} ({needed.text})"
        )
    return needed


def register_file(target: Machine, unit: ProductShape) -> RegisterFile:
    """Return the registers that hold the sums of ``unit``."""
    return next(file for file in target.register_files if file.name == unit.file)


def shares_scalars(loops: Loops, lane: str, target: Machine) -> bool:
    """Return whether ``target`` reads the factor that lanes along ``lane`` share from scalar registers."""
    return target.reads_scalars and loops.kinds[lane] in ("m", "n")


def registers(loops: Loops, config: Config, target: Machine, unit: ProductShape, filled: int) -> Registers:
    """Return the registers of the register tile, whose vectors have ``filled`` lanes in use."""
    along_k = loops.kinds[config.lane] == "k"
    others = {n: config.size(n) for n, k in loops.kinds.items() if k != "k" and n != config.lane}
    if along_k:
        vectors = prod(size for n, size in others.items() if loops.kinds[n] != "m")
        pixels = prod(size for n, size in others.items() if loops.kinds[n] == "m")
    else:
        vectors = max(config.size(config.lane), filled) // filled
        pixels = prod(others.values())
    if unit.rows > 1:
        file, high = register_file(target, unit), -(-pixels // unit.rows)
        each = unit.registers_of_fragment(file)
        spare = SPARE if unit.factor_file == unit.file else 0
        if unit.file == target.vectors.name:
            spare = vectors * each + AHEAD
        sums = high * vectors * each
        text = f"{high}x{vectors}: {sums} accumulators" + (f" + {spare} of factors" if spare else "")
        name = "vector registers" if file is target.vectors else "registers for fragments"
        return Registers(sums + spare, file.count, name, text)
    if unit.file != target.vectors.name:
        file, held = register_file(target, unit), pixels * vectors * unit.lanes
        text = f"{pixels}x{vectors}: {pixels * vectors} accumulators of {unit.lanes} sums"
        return Registers(held, file.count, f"{file.name} registers", text)
    flips = any(name not in config.staged("pack") for name in config.flip)  # by a constant that all vectors share
    spare = target.costs.temporaries + unit.temporaries + flips
    read = vectors * (1 if unit.dot else prod(size for _, size in config.tiles_at("k_step")))
    many, one = ("sources", "weight") if loops.kinds[config.lane] == "m" else ("weights", "source")
    shared = shares_scalars(loops, config.lane, target)
    text = f"{pixels}x{vectors}: {pixels * vectors} accumulators + {read} {many}"
    text += ("" if shared else f" + 1 {one}") + (f" + {spare} temporary" if spare else "")
    return Registers(pixels * vectors + read + (not shared) + spare, target.registers, "vector registers", text)
