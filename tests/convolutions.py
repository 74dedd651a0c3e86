"""Shared by several folders of tests: random problems and configs, integer data, guarded calls of artifacts."""

from __future__ import annotations

import ctypes
import random
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.diag.errors import ConvsmithError, UsageError
from convsmith.interp import run
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.layout.layout import Layout
from convsmith.layout.tags import print_strided
from convsmith.passes.manager import Step
from convsmith.problem import Conv
from convsmith.problem.post_ops import parse_post_ops
from convsmith.problem.reference import conv_reference
from convsmith.runtime.host import HostLibrary
from convsmith.schedule.config import REALISATIONS, Config
from convsmith.target.base import Target, multiply_add
from convsmith.target.generic.level import level

Array = np.ndarray[Any, Any]

MARGIN = 64
"""Elements of canary before and after each buffer."""

CANARY = np.float32(1e30)
TAGS = {
    1: ("abx", "axb", "aBc4b", "aBc16b", "aBc8b", "cab", "ABc4b2a"),
    2: ("abx", "axb", "aBcd4b", "aBcd16b", "aBcd8b", "dbac", "aBCd4b2c"),
    3: ("abx", "axb", "aBcde4b", "aBcde16b", "aBcde8b", "edcba", "ABcde2b2a"),
}
WEIGHT_TAGS = {
    False: {1: ("axb", "ABc4b4a"), 2: ("axb", "ABcd4b4a"), 3: ("axb", "ABcde4b4a")},
    True: {1: ("axb", "aBCd4c4b"), 2: ("axb", "aBCde4c4b"), 3: ("axb", "aBCdef4c4b")},
}
POST_OPS = ("relu", "relu:0.5", "clip:-3:5", "clip_v2:0:6", "relu+clip:1:7")
EXTENTS = (1, 2, 3, 5, 7, 11, 13, 4, 8, 16, 17, 31)


# -- problems
def random_problem(rng: random.Random, macs: int = 60_000) -> Conv:
    """A legal problem of any kind, of at most ``macs`` multiplications (or about, for the smallest)."""
    while True:
        problem = _problem(rng, macs)
        if problem is not None:
            return problem


def _problem(rng: random.Random, macs: int) -> Conv | None:
    rank = rng.choice((1, 2, 2, 2, 3))
    small = macs < 2000
    kind = rng.choice(("dense", "dense", "dense", "groups", "depthwise"))
    channels = (1, 2, 3, 4, 5) if small else (1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 31, 32, 37)
    g = 1 if kind == "dense" else rng.choice((2, 3, 4) if small else (2, 3, 4, 7, 16, 19))
    icg, ocg = (1, rng.choice((1, 1, 2))) if kind == "depthwise" else (rng.choice(channels), rng.choice(channels))
    k = [rng.choice((1, 1, 2, 3, 3, 5)) for _ in range(rank)]
    s = [rng.choice((1, 1, 1, 2, 3)) for _ in range(rank)]
    d = [rng.choice((0, 0, 0, 1, 2)) for _ in range(rank)]
    i = [rng.choice((1, 2, 3, 4, 5) if small else EXTENTS) for _ in range(rank)]
    p = [rng.choice((0, 0, 1, 2, 4)) for _ in range(rank)]
    o = []
    for n in range(rank):
        keff = (k[n] - 1) * (d[n] + 1) + 1
        back = rng.choice((p[n], 0, 1, 3, -1, -(s[n] - 1)))
        o.append((i[n] + p[n] + back - keff) // s[n] + 1)
    if any(x < 1 for x in o):
        return None
    mb = rng.choice((1, 1, 1, 2, 3))
    cost = mb * g * icg * ocg
    for n in range(rank):
        cost *= k[n] * o[n]
    if cost > macs:
        return None
    tags = TAGS[rank]
    has_groups = g > 1 or rng.random() < 0.1
    try:
        return Conv(
            mb=mb, ic=g * icg, oc=g * ocg, i=tuple(i), o=tuple(o), k=tuple(k), s=tuple(s), d=tuple(d), p=tuple(p),
            g=g, has_groups=has_groups, dir=rng.choice(("FWD_B", "FWD_D")),
            stag=rng.choice(tags), dtag=rng.choice(tags), wtag=rng.choice(("any", *WEIGHT_TAGS[has_groups][rank])),
        )  # fmt: skip
    except UsageError:
        return None


def with_options(problem: Conv, rng: random.Random) -> Conv:
    """The problem, half the time with a post-op, and now and then with slack in its tensors."""
    tags = {}
    for tag, layout in (("stag", problem.src_layout), ("wtag", problem.wei_layout), ("dtag", problem.dst_layout)):
        if rng.random() < 0.15:
            tags[tag] = with_slack(layout, rng)
    post_ops = parse_post_ops(rng.choice(POST_OPS)) if rng.random() < 0.5 else ()
    return replace(problem, post_ops=post_ops, **tags)


def with_slack(layout: Layout, rng: random.Random) -> str:
    """A tag of the same blocks with memory between most of them that belongs to no element."""
    stride, blocks = 1, []
    for b in reversed(layout.blocks):
        stride = max(stride, 1)
        blocks.append((b.dim, b.size, stride))
        stride = stride * max(b.size, 1) + rng.choice((0, 0, 1, 3))
    return print_strided(tuple(reversed(blocks)))


# -- configs
def loop_names(problem: Conv) -> list[str]:
    """Loops of the naive nest in the order in which they may be fused."""
    groups = ["g"] if problem.g > 1 else []
    axes = problem.axes
    return [*groups, "oc", "mb", *("o" + a for a in axes), "ic", *("k" + a for a in axes)]


def random_config(rng: random.Random, problem: Conv, isa: str, lanes: int, threads: int = 1) -> Config:
    """A config that is mostly legal; one that is not shall raise ConfigError."""
    names = loop_names(problem)
    fuse = []
    if rng.random() < 0.4:
        at = rng.randrange(len(names) - 1)
        a, b = names[at], names[at + 1]
        fuse.append((a, b))
        names[at : at + 2] = [f"{a}_{b}"]
        if rng.random() < 0.3 and at < len(names) - 1:
            fuse.append((names[at], names[at + 1]))
            names[at : at + 2] = [f"{names[at]}_{names[at + 1]}"]
    reductions = [n for n in names if n.startswith(("ic", "k"))]
    others = [n for n in names if n not in reductions]
    output = [n for n in others if "oc" in n or n == "g"]
    lane = rng.choice([*output, *output, *output, *reductions, *(others if rng.random() < 0.2 else [])])
    tile = {}
    for n in others:
        if n != lane and rng.random() < 0.35:
            tile[n] = rng.choice((2, 3, 4, 5, 7))
    for n in reductions:
        if n != lane and rng.random() < 0.25:
            tile[n] = rng.choice((2, 3, 4))
    if lane in others and rng.random() < 0.9:
        tile[lane] = lanes * rng.choice((1, 1, 2, 3)) + (rng.random() < 0.03)
    rng.shuffle(others)
    rng.shuffle(reductions)
    return Config(
        isa=isa, lane=lane, fuse=tuple(fuse), tile=tuple(tile.items()),
        order=tuple(others) if rng.random() < 0.7 else (), reduce=tuple(reductions) if rng.random() < 0.7 else (),
        realise=rng.choice(("peel", "peel", "peel", "mask", *REALISATIONS)),
        pack=("wei",) if rng.random() < 0.85 else (), pieces=rng.choice((1, 2, 4, 8, 8, 16)),
        outline=rng.random() < 0.7, threads=threads,
    )  # fmt: skip


# -- data
def data_of(problem: Conv, seed: int = 0, limit: int = 4) -> tuple[Array, Array, Array | None]:
    """Logical source, weights and bias of small integers, so that every order of summation is exact."""
    rng = np.random.default_rng(seed)

    def make(shape: tuple[int, ...]) -> Array:
        return rng.integers(-limit, limit + 1, shape).astype(np.float32)

    return make(problem.src_shape), make(problem.wei_shape), make(problem.bias_shape) if problem.bias else None


def expected(problem: Conv, src: Array, wei: Array, bias: Array | None) -> Array:
    """The logical destination that the reference computes."""
    with np.errstate(invalid="ignore"):
        return conv_reference(problem, src, wei, bias).astype(np.float32)


def memory_of(x: Array, layout: Layout, slack: float = np.nan) -> Array:
    """The memory of a logical array in a layout, with ``slack`` where no logical element lies."""
    memory = np.full(layout.size, slack, x.dtype)
    memory[places_of(layout)] = x.ravel()
    return memory


def places_of(layout: Layout) -> Array:
    """Offsets of all logical elements, in row-major order of their coordinates."""
    total = np.zeros(layout.shape, np.int64)
    for dim, size in enumerate(layout.shape):
        rest = np.arange(size)
        along = np.zeros(size, np.int64)
        for b in reversed(layout.blocks):
            if b.dim == dim:
                along += rest % b.size * b.stride
                rest = rest // b.size
        total += along.reshape([-1 if n == dim else 1 for n in range(len(layout.shape))])
    return total.ravel()


def padding_lanes(layout: Layout) -> Array:
    """Offsets of the elements that the blocks hold beyond the shape: zero in a result."""
    full = Layout(layout.padded_shape, layout.blocks)
    inside = np.zeros(layout.size, bool)
    inside[places_of(layout)] = True
    every = places_of(full)
    return every[~inside[every]]


class Guarded:
    """Memory with a margin on both sides that must not change."""

    def __init__(self, contents: Array, margin: float) -> None:
        self.whole = np.full(len(contents) + 2 * MARGIN, margin, contents.dtype)
        self.inside = self.whole[MARGIN : MARGIN + len(contents)]
        self.inside[:] = contents
        self.before = self.whole.copy()

    @property
    def address(self) -> int:
        return self.inside.ctypes.data

    def check_margin(self, name: str) -> None:
        same = self.whole.view(np.uint32) == self.before.view(np.uint32)
        same[MARGIN : MARGIN + len(self.inside)] = True
        assert same.all(), f"{name}: elements {np.flatnonzero(~same) - MARGIN} beyond its {len(self.inside)} changed"

    def check_unchanged(self, name: str) -> None:
        assert (self.whole.view(np.uint32) == self.before.view(np.uint32)).all(), f"{name} was written to"


class Compiled:
    """An artifact in this process, called with NaN in all slack and canaries around all buffers."""

    def __init__(self, problem: Conv, artifact: Artifact) -> None:
        self.problem, self.artifact = problem, artifact
        self.library = HostLibrary(artifact)

    def __call__(self, src: Array, wei: Array, bias: Array | None, chunks: int = 0) -> Array:
        """The memory of the destination, for logical inputs.

        Fails where anything but logical elements and padding lanes of the destination changes, or an input does.
        With ``chunks`` the tasks run as that many chunks, last one first, instead of through the entry.
        """
        problem = self.problem
        buffers: dict[str, Guarded] = {
            "src": Guarded(memory_of(src, problem.src_layout), np.nan),
            "wei": Guarded(memory_of(wei, problem.wei_layout), np.nan),
            "dst": Guarded(np.full(problem.dst_layout.size, CANARY), CANARY),
        }
        if bias is not None:
            buffers["bia"] = Guarded(bias, np.nan)
        if "pack" in self.artifact.entries:
            self._call("pack", buffers)
            buffers["wei_p"].check_margin("wei_p")
            packed = buffers["wei_p"].inside
            assert (packed != CANARY).all(), "a part of the packed operand is not written"
            assert np.isfinite(packed).all() or not np.isfinite(wei).all(), "the packed operand holds slack"
            buffers["wei_p"] = Guarded(packed, np.nan)
        self._call("main", buffers, chunks)
        for name, b in buffers.items():
            if name in ("dst", "scratch"):
                b.check_margin(name)
            else:
                b.check_unchanged(name)
        dst = buffers["dst"].inside
        touched = np.zeros(len(dst), bool)
        touched[places_of(problem.dst_layout)] = True
        touched[padding_lanes(problem.dst_layout)] = True
        assert (dst[~touched] == CANARY).all(), "dst: elements between the logical ones changed"
        return dst

    def _call(self, name: str, buffers: dict[str, Guarded], chunks: int = 0) -> None:
        function = self.library[name]
        arguments = function.entry.arguments
        block = (ctypes.c_uint64 * len(arguments))()
        for n, a in enumerate(arguments):
            if a.role in ("packed", "scratch") and a.name not in buffers:
                size = a.size * (function.entry.threads if a.role == "scratch" else 1)
                buffers[a.name] = Guarded(np.full(size, CANARY), CANARY)
            block[n] = buffers[a.name].address
        address = ctypes.addressof(block)
        if not chunks:
            function(address)
        for part in reversed(range(chunks)):
            function._chunk(address, part, chunks)


def logical(problem: Conv, memory: Array) -> Array:
    """The logical destination within its memory."""
    return memory[places_of(problem.dst_layout)].reshape(problem.dst_shape)


def check_result(problem: Conv, memory: Array, truth: Array, lanes: bool = True) -> None:
    """Every logical element is exact, and lanes of padding are zero."""
    got = logical(problem, memory)
    wrong = np.argwhere(got != truth)
    assert not len(wrong), f"{len(wrong)} of {got.size} wrong, first {tuple(wrong[0])}: {got[tuple(wrong[0])]}"
    if lanes:
        rest = memory[padding_lanes(problem.dst_layout)]
        assert (rest == 0).all(), f"lanes of padding hold {rest[rest != 0][:4]}"


# -- the interpreter as an instrument
def small_target(lanes: int = 4, registers: int = 32) -> Target:
    """The portable level with vectors of that many lanes, so that tiny problems have tails."""
    row = multiply_add(f"multiply_add_{lanes}", lanes, "", "", (), "")
    return replace(level(), vector_bits=32 * lanes, registers=registers, instructions=(row,))


class Oracle:
    """Interprets every kernel on the line and compares its destination with the reference.

    ``changes`` collects the passes that changed a kernel.
    """

    def __init__(self, problem: Conv, target: Target, seed: int = 0) -> None:
        self.problem = problem
        self.instructions = {row.name: row.kernel for row in target.instructions}
        self.src, self.wei, self.bias = data_of(problem, seed)
        self.truth = expected(problem, self.src, self.wei, self.bias)
        self.changes: set[str] = set()

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        if not changed:
            return
        if step is not None:
            self.changes.add(step.name)
        try:
            verify(kernel)
            self.check(kernel)
        except (AssertionError, ConvsmithError) as error:
            raise AssertionError(f"after {step or 'naive'}: {error}\n{kernel}") from error

    def arrays(self, kernel: Kernel) -> dict[str, Array]:
        """The arguments of a kernel, packed operands included."""
        arrays = {
            "src": memory_of(self.src, self.problem.src_layout),
            "wei": memory_of(self.wei, self.problem.wei_layout),
            "dst": np.full(self.problem.dst_layout.size, CANARY),
        }
        if self.bias is not None:
            arrays["bia"] = self.bias.copy()
        for pack in kernel.packs:
            arrays[pack.params[1].name] = self.packed(pack, arrays["wei"])
        return arrays

    def packed(self, pack: Kernel, wei: Array) -> Array:
        """What a packing kernel makes of the weights."""
        operand, packed = pack.params
        out = np.full(packed.size, np.nan, np.float32)
        run(pack, {operand.name: wei.copy(), packed.name: out}, self.instructions)
        assert np.isfinite(out).all(), f"{pack.name} leaves elements out, or packs slack"
        return out

    def check(self, kernel: Kernel) -> None:
        arrays = self.arrays(kernel)
        run(kernel, arrays, self.instructions)
        check_result(self.problem, arrays["dst"], self.truth)
        untouched = np.ones(len(arrays["dst"]), bool)
        untouched[places_of(self.problem.dst_layout)] = False
        untouched[padding_lanes(self.problem.dst_layout)] = False
        assert (arrays["dst"][untouched] == CANARY).all(), "elements between the logical ones changed"
