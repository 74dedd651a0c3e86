"""From a config to the list of rewrites: one function for all kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import is_true
from convsmith.layout.view import Dim, Statement
from convsmith.passes.bind import bind
from convsmith.passes.coalesce import coalesce
from convsmith.passes.collapse import collapse
from convsmith.passes.cse import cse
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.fuse import fuse
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.hoist import hoist
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.outline import outline
from convsmith.passes.partition import partition
from convsmith.passes.pick_instructions import pick_instructions
from convsmith.passes.reorder import reorder
from convsmith.passes.restrict import restrict
from convsmith.passes.rfactor import rfactor
from convsmith.passes.round_up import round_up
from convsmith.passes.simplify import simplify
from convsmith.passes.skip_zero import skip_zero
from convsmith.passes.stage import stage
from convsmith.passes.strength import strength_reduce
from convsmith.passes.sum_together import sum_together
from convsmith.passes.tile import tile
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.config import Config
from convsmith.target.base import Target


@dataclass(frozen=True)
class Loops:
    """The loops of a statement after fusing, by role: outermost first within each."""

    extents: dict[str, int]
    kinds: dict[str, str]

    def of(self, *kinds: str) -> list[str]:
        return [n for n, k in self.kinds.items() if k in kinds]


def loops_after_fusing(dims: tuple[Dim, ...], config: Config) -> Loops:
    """Names, extents and kinds of the loops once ``config.fuse`` is done; ConfigError where it cannot be."""
    order = sorted(dims, key=lambda d: ("batch", "n", "m", "k").index(d.kind))
    extents = {d.name: d.size for d in order}
    kinds = {d.name: d.kind for d in order}
    for a, b in config.fuse:
        names = list(extents)
        if a not in names or b not in names or names.index(b) != names.index(a) + 1:
            raise ConfigError("fuse", f"--fuse={a}+{b}: no such neighbours among {', '.join(names)}")
        if (kinds[a] == "k") != (kinds[b] == "k"):
            raise ConfigError("fuse", f"--fuse={a}+{b}: a reduction loop and another cannot be one")
        name = f"{a}_{b}"
        extents = {(name if n == a else n): (s * extents[b] if n == a else s) for n, s in extents.items() if n != b}
        kinds = {(name if n == a else n): ("n" if n == a and "n" in (kinds[a], kinds[b]) else k)
                 for n, k in kinds.items() if n != b}  # fmt: skip
    return Loops(extents, kinds)


def check_config(loops: Loops, config: Config, target: Target, lanes: int) -> None:
    """Raise ConfigError, with the numbers, where no kernel can be made from the config."""
    for name in (config.lane, *dict(config.tile), *config.order, *config.reduce):
        if name not in loops.extents:
            raise ConfigError("unknown-loop", f"config names loop {name!r}; there are {', '.join(loops.extents)}")
    if config.size(config.lane) % lanes and dict(config.tile).get(config.lane):
        raise ConfigError(
            "lanes", f"--tile={config.lane}:{config.size(config.lane)} is no multiple of the {lanes} lanes of a vector"
        )
    need, text = registers_needed(loops, config, target, lanes)
    if need > target.registers:
        raise ConfigError("registers", f"needs {need} vector registers, target has {target.registers} ({text})")


def registers_needed(loops: Loops, config: Config, target: Target, lanes: int) -> tuple[int, str]:
    """Vector registers of the register tile, and how they come about."""
    along_k = loops.kinds[config.lane] == "k"
    others = {n: config.size(n) for n, k in loops.kinds.items() if k != "k" and n != config.lane}
    if along_k:
        vectors = prod(size for n, size in others.items() if loops.kinds[n] != "m")
        pixels = prod(size for n, size in others.items() if loops.kinds[n] == "m")
    else:
        vectors = max(config.size(config.lane), lanes) // lanes
        pixels = prod(others.values())
    spare = target.costs.temporaries
    used = pixels * vectors + vectors + 1 + spare
    text = f"{pixels}x{vectors}: {pixels * vectors} accumulators + {vectors} along the lanes + 1"
    return used, text + (f" + {spare} temporary" if spare else "")


def _tile_steps(loops: Loops, config: Config, lanes: int) -> tuple[list[Step], list[str], list[str], list[str]]:
    """Tiling, and the loops it makes: around the register tile, of the register tile, of the reduction."""
    steps: list[Step] = []
    outer: dict[str, str] = {}
    pixels: list[str] = []
    vectors: list[str] = []
    reduce: dict[str, list[str]] = {}
    lane = [config.lane + ".l"]
    for n in loops.extents:
        size, is_k = config.size(n), loops.kinds[n] == "k"
        if n == config.lane and is_k:
            steps.append(Step(tile, n, lanes, n + ".o", n + ".l"))
            reduce[n] = [n + ".o"]
        elif n == config.lane:
            steps.append(Step(tile, n, max(size, lanes), n + ".o", n + ".r"))
            steps.append(Step(tile, n + ".r", lanes, n + ".v", n + ".l"))
            outer[n] = n + ".o"
            vectors.append(n + ".v")
        elif is_k:
            if size > 1:
                steps.append(Step(tile, n, size, n + ".o", n + ".u"))
                reduce[n] = [n + ".o", n + ".u"]
            else:
                reduce[n] = [n]
        elif size > 1:
            steps.append(Step(tile, n, size, n + ".o", n + ".i"))
            outer[n] = n + ".o"
            (pixels if loops.kinds[n] == "m" else vectors).append(n + ".i")
        else:
            outer[n] = n
    around = [outer[n] for n in config.order if n in outer]
    around += [x for x in outer.values() if x not in around]
    chosen = list(config.reduce) + [n for n in reduce if n not in config.reduce]
    inner = [x for n in chosen for x in reduce[n]]
    return steps, around, [*pixels, *vectors, *lane], inner


def schedule(st: Statement, config: Config, target: Target) -> list[Step]:
    """The rewrites, in order, that turn the naive nest of a statement into the kernel that the config describes."""
    row = next(r for r in target.instructions)
    lanes = row.lanes
    loops = loops_after_fusing(st.dims, config)
    check_config(loops, config, target, lanes)
    along_k = loops.kinds[config.lane] == "k"
    lane = config.lane + ".l"

    first = sorted((d for d in st.dims if d.kind != "k"), key=lambda d: ("batch", "n", "m").index(d.kind))
    steps = [Step(reorder, tuple(d.name for d in first))] if len(first) > 1 else []
    steps += [Step(fuse, a, b, f"{a}_{b}") for a, b in config.fuse]
    steps.append(Step(simplify))
    tiling, around, register, reduce = _tile_steps(loops, config, lanes)
    held = register[:-1] if along_k else register
    widths = ((lane, lanes),)
    steps += tiling
    steps.append(Step(reorder, (*around, *held)))
    if held:
        steps.append(Step(fission, tuple(held), widths))
    steps.append(Step(reorder, (*reduce, *register)))
    if along_k:
        steps.append(Step(rfactor, lane, lanes))
    steps += [Step(derive_packing, name, widths) for name in config.pack]
    masked = not is_true(st.a.mask)
    staged = masked and config.realise == "pad_copy"
    copied: list[Step] = []
    if staged:
        where, parallel = _stage_place(config, around)
        copied = _copy_steps(st, lanes)
        steps.append(Step(stage, st.a.name, where))
    else:
        parallel = around
    if masked and config.realise == "peel":
        steps.append(Step(skip_zero))
    if not along_k:
        steps.append(Step(round_up, tuple(x for x in register if x in (config.lane + ".v", lane)), widths))
    steps.append(Step(simplify))
    unrolled = tuple(x for x in (*register, *(r for r in reduce if r.endswith(".u"))))
    steps.append(Step(bind, unrolled, "unrolled"))
    if config.threads > 1:
        steps.append(Step(bind, tuple(parallel), "parallel"))
    if masked and config.realise == "peel":
        moved = [n for n in reduce if n.startswith("k") and not _along(n, register)]
        steps.append(Step(restrict, tuple(moved)))
    tiled = [n for n in around if n.endswith(".o")]
    inner = [n for n in reduce if n not in tiled]
    vectors = [x for x in register if x.endswith(".v")]
    steps.append(Step(partition, (*tiled, *inner, *vectors), config.pieces))
    steps += copied
    steps += [Step(guard_tails, tuple(register)), Step(flatten), Step(simplify), Step(narrow_index)]
    if staged:
        steps.append(Step(vectorise, f"{st.a.name}_s1.l", lanes, False))
    steps += [Step(vectorise, lane, lanes, False), Step(pick_instructions, target.instructions)]
    stepping = [n for n in reduce if not n.endswith(".u")]
    steps += [Step(coalesce, n, stepping[-1], stepping[-1]) for n in reversed(stepping[:-1])]
    steps.append(Step(simplify, False))
    if config.outline:
        steps.append(Step(outline))
    if config.threads > 1:
        steps.append(Step(collapse))
    steps += [Step(unused_let), Step(hoist), Step(cse), Step(strength_reduce), Step(unroll)]
    if along_k:
        steps.append(Step(sum_together, lanes))
    return steps


def _stage_place(config: Config, around: list[str]) -> tuple[str, list[str]]:
    """The loop in which the padded copy is made, and the loops around it, which are those that may run in parallel.

    One thread copies an image at a time; several copy the rows that they need, each its own.
    """
    place = "mb" if config.threads == 1 else next((n for n in around if n.startswith("o") and n[1] in "dhw"), "mb")
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
    return [
        Step(tile, channels, lanes, channels + ".o", channels + ".l"),
        Step(partition, (*others, channels + ".o")),
    ]


def _along(reduction: str, register: list[str]) -> bool:
    """Whether the output axis that goes with a kernel axis has a register tile."""
    return any("o" + reduction[1:] in x.split(".")[0].split("_") for x in register)
