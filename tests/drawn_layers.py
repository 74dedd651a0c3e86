"""Random layers and chains of layers as networks have them, and every CPU that is known with its costs.

The problems of `legal.py` have every type and attribute. These have the types, channels and kernels for which the
choice among ways to compute is wide: transforms, blocked layouts, fused stages, one channel beside many.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.machine.aarch64.levels import LEVELS as AARCH64
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level
from convsmith.machine.hexagon.levels import LEVELS as HEXAGON
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.x86.levels import LEVELS as X86
from convsmith.problem import Chain, Conv, Problem
from convsmith.problem.descriptor import output_size
from convsmith.problem.post_ops import parse_post_ops

P = TypeVar("P", bound=Problem)

ON_X86 = tuple((of.name, of.of(target)) for of in MICRO_ARCHITECTURES for target in X86)
"""Every level of x86 with the costs of each micro-architecture, by its name."""
OTHERS = tuple(("reference", target) for target in (level(), *AARCH64, *HEXAGON))
CHANNELS = (1, 1, 1, 2, 3, 5, 8, 16, 16, 17, 24, 32, 33, 48, 64, 64, 128)
IMAGES = (1, 2, 3, 5, 7, 8, 13, 14, 17, 28, 31, 56, 80)
KERNELS = (1, 2, 3, 3, 3, 3, 3, 4, 5, 7)
BLOCKS = {rank: tuple(f"aB{'cde'[:rank]}{n}b" for n in (16, 8)) for rank in (1, 2, 3)}
FORWARD = (
    *("f32",) * 6, "bf16", "f16", "f32:bf16:f32", "bf16:bf16:f32", "u8:s8:s32", "s8:s8:s8", "u8:s8:f32", "f64",
)  # fmt: skip
BACKWARD = ("f32", "f32", "f32", "f32", "bf16", "f16", "f32:bf16:f32")
POST_OPS = ("", "", "relu", "add:f32:per_oc+relu", "clip:0:6")
ACCURACIES = ("relaxed", "relaxed", "relaxed", "any", "strict")
LONG = {1: (64, 192, 1000, 4097, 16384, 100003), 2: (32, 64, 192, 500, 1024), 3: (16, 32, 64, 192, 256)}
"""Sizes of long images, by their rank."""
LONG_CHANNELS = ((1, 1, 1), (1, 3, 8), (1, 32, 1), (1, 1, 32), (1, 16, 16), (1, 192, 32), (4, 4, 4), (32, 1, 1))
"""Groups, and channels of one group, beside long images."""
PRODUCTS = 1 << 28
"""Maximum number of multiplications: larger problems differ in the trip counts of their outer loops."""


def random_machine(rng: random.Random) -> tuple[str, Machine]:
    """A level of a CPU, and the name of the micro-architecture whose costs it has."""
    return rng.choice(ON_X86 if rng.random() < 0.8 else OTHERS)


def random_layer(rng: random.Random) -> Conv:
    """A convolution, a gradient of one, or a deconvolution."""
    return _small(_layer, rng)


def random_chain(rng: random.Random) -> Chain:
    """Two to four convolutions, each of which reads the result of the one before."""
    return _small(_chain, rng)


def random_long_layer(rng: random.Random) -> Conv:
    """A layer with few channels whose kernels and strides are about as long as its images."""
    return _legal(_long_layer, rng)


def _small(draw: Callable[[random.Random], P], rng: random.Random) -> P:
    """The first legal problem of `draw` that has at most `PRODUCTS` multiplications."""
    while (problem := _legal(draw, rng)).flops_dense > 2 * PRODUCTS:
        pass
    return problem


def _legal(draw: Callable[[random.Random], P], rng: random.Random) -> P:
    """The first legal problem of `draw`."""
    while True:
        try:
            return draw(rng)
        except (UsageError, UnsupportedError):
            continue


def _layer(rng: random.Random) -> Conv:
    rank = rng.choice((2, 2, 2, 2, 1, 3))
    direction = rng.choice(("FWD_D", "FWD_D", "FWD_B", "BWD_D", "BWD_D", "BWD_W"))
    g = rng.choice((1, 1, 1, 1, 2, 3, 16, 24))
    ic, oc = (1, rng.choice((1, 1, 2, 4))) if g > 3 else (rng.choice(CHANNELS), rng.choice(CHANNELS))
    axes = [_axis(rng) for _ in range(rank)]
    fine, coarse, k, s, d, p = zip(*(axes[:1] * rank if rng.random() < 0.6 else axes))
    deconv, is_forward = rng.random() < 0.25, direction.startswith("FWD")
    tags = ("abx", "axb", *BLOCKS[rank])
    stag = rng.choice(tags)
    return Conv(
        mb=rng.choice((1, 1, 2, 3, 8)), ic=g * ic, oc=g * oc,
        i=coarse if deconv else fine, o=fine if deconv else coarse,
        k=k, s=s, d=d, p=p, g=g, has_groups=g > 1, dir=direction, deconv=deconv,
        dt=_types(rng.choice(FORWARD if is_forward else BACKWARD)), stag=stag,
        dtag=stag if rng.random() < 0.7 else rng.choice(tags), accuracy=rng.choice(ACCURACIES),
        post_ops=parse_post_ops(rng.choice((*POST_OPS, "sum")) if is_forward else ""),
    )  # fmt: skip


def _axis(rng: random.Random) -> tuple[int, ...]:
    """Extents of the fine and of the coarse side, the kernel's, stride, dilation and front pad along one axis."""
    size, k = rng.choice(IMAGES), rng.choice(KERNELS)
    s, d = rng.choice((1, 1, 1, 1, 1, 2, 2, 3)), rng.choice((0, 0, 0, 0, 0, 1, 2))
    reach = (k - 1) * (d + 1) + 1
    p = rng.choice((0, reach // 2, reach // 2, reach - 1, reach))
    back = rng.choice((p, p, 0, 1))
    return size, max((size + p + back - reach) // s + 1, 1), k, s, d, p


def _long_layer(rng: random.Random) -> Conv:
    rank = rng.choice((1, 2, 3))
    axes = [_long_axis(rng, LONG[rank]) for _ in range(rank)]
    fine, coarse, k, s, d, p = zip(*(axes[:1] * rank if rng.random() < 0.6 else axes))
    g, ic, oc = rng.choice(LONG_CHANNELS)
    deconv, direction = rng.random() < 0.3, rng.choice(("FWD_D", "BWD_D", "BWD_W"))
    stag, dtag = rng.choice(("abx", "axb")), rng.choice(("abx", "axb"))
    return Conv(
        mb=rng.choice((1, 2)), ic=g * ic, oc=g * oc, i=coarse if deconv else fine, o=fine if deconv else coarse,
        k=k, s=s, d=d, p=p, g=g, has_groups=g > 1, dir=direction, deconv=deconv,
        dt=_types(rng.choice(("f32", "f32", "bf16"))), stag=stag, dtag=dtag,
    )  # fmt: skip


def _long_axis(rng: random.Random, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """What `_axis` returns, of an image of one of ``sizes`` and a kernel about as long."""
    n = rng.choice(sizes if rng.random() < 0.75 else (1, 3, 8))
    k = rng.choice((n, n, n, max(n // 2, 1), max(n - 1, 1), 3, 1))
    s, d = rng.choice((1, 1, k, k, n, max(n // 2, 1), 2)), rng.choice((0, 0, 0, 0, 1, n - 1, 3))
    reach = (k - 1) * (d + 1) + 1
    p = rng.choice((0, 0, reach // 2, reach - 1, n, 1))
    back = rng.choice((p, p, 0, reach - 1))
    return n, max((n + p + back - reach) // s + 1, 1), k, s, d, p


def _types(text: str) -> tuple[str, str, str]:
    a, b, c = text.split(":") * (1 if ":" in text else 3)
    return a, b, c


def _chain(rng: random.Random) -> Chain:
    mb, channels = rng.choice((1, 1, 2)), rng.choice((1, 3, 4, 8, 16, 17, 32, 64))
    rank = rng.choice((2, 2, 2, 1))
    sizes = tuple(rng.choice((*IMAGES, 112)) for _ in range(rank))
    kind, count, found = rng.choice(("f32", "f32", "f32", "bf16", "u8:s8:u8")), rng.choice((2, 2, 3, 4)), []
    for n in range(count):
        is_last = n == count - 1
        is_depthwise = rng.random() < 0.3
        g = channels if is_depthwise else rng.choice([g for g in (1, 1, 1, 2) if not channels % g])
        oc = channels * rng.choice((1, 1, 2)) if is_depthwise else g * rng.choice((1, 2, 3, 8, 16, 17, 32))
        k, s, d = (tuple(rng.choice(x) for _ in sizes) for x in ((1, 1, 3, 3, 3, 5), (1, 1, 1, 2, 3), (0, 0, 0, 0, 1)))
        p = tuple(rng.choice((0, (x - 1) // 2, (x - 1) // 2, x - 1, x)) for x in k)
        o = tuple(output_size(*axis) for axis in zip(sizes, k, s, d, p, p))
        ends = ("axb", "axb", "abx", *BLOCKS[rank])
        tags: dict[str, Any] = {"stag": rng.choice(ends) if n == 0 else "any"}
        tags["dtag"] = rng.choice(ends) if is_last else "any"
        found.append(
            Conv(mb=mb, ic=channels, oc=oc, i=sizes, o=o, k=k, s=s, d=d, p=p, g=g, has_groups=g > 1,
                 dir=rng.choice(("FWD_D", "FWD_B")), dt=_types(kind), post_ops=parse_post_ops(rng.choice(POST_OPS)),
                 accuracy=rng.choice(ACCURACIES), **tags)
        )  # fmt: skip
        channels, sizes = oc, o
    return Chain(stages=tuple(found))
