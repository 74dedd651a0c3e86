"""Random chains of small convolutions, and the composition of references that they shall equal."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from convsmith.problem import Chain, Conv, reference
from convsmith.problem.attributes import ZERO_POINTS, Quantity
from convsmith.problem.descriptor import output_size
from convsmith.problem.post_ops import SumPostOp, parse_post_ops

Array = np.ndarray[Any, Any]

FLOAT_POST_OPS = ("", "relu", "relu+clip:0:6", "add:f32:per_oc+relu", "prelu:per_oc", "linear:2:1")
QUANTISED_POST_OPS = ("", "relu", "mul:f32:per_oc", "relu+clip:0:100")


def random_chain(rng: random.Random, stages: int = 0, kind: str = "", macs: int = 30_000) -> Chain:
    """A legal chain of at most `macs` multiplications; `kind` is f32, bf16, int8, or empty for any of them."""
    kind = kind or rng.choice(("f32", "f32", "int8", "bf16"))
    while True:
        chain = _chain(rng, stages or rng.choice((2, 2, 3, 4)), kind)
        if chain is not None and chain.flops_dense <= 2 * macs:
            return chain


def _chain(rng: random.Random, count: int, kind: str) -> Chain | None:
    mb, channels = rng.choice((1, 1, 2)), rng.choice((1, 3, 4, 5, 8))
    sizes = (rng.choice((3, 5, 6, 9, 12)), rng.choice((1, 4, 5, 7, 10)))
    source, found = (mb, channels, *sizes), []
    for n in range(count):
        depthwise = rng.random() < 0.4
        g = channels if depthwise else rng.choice([g for g in (1, 1, 1, 2) if channels % g == 0])
        oc = channels * rng.choice((1, 1, 2)) if depthwise else g * rng.choice((1, 2, 3, 5, 8))
        k, s, d = (tuple(rng.choice(x) for _ in sizes) for x in ((1, 1, 2, 3, 3, 5), (1, 1, 1, 2, 3), (0, 0, 0, 1)))
        p = tuple(rng.choice((0, (k - 1) // 2, k - 1, k)) for k in k)
        o = tuple(output_size(i, k, s, d, p, p) for i, k, s, d, p in zip(sizes, k, s, d, p))
        if min(o) < 1:
            return None
        last = n == count - 1
        dt = _types(rng, kind, found[-1].dst_type if found else "", last)
        post_ops = parse_post_ops(rng.choice(FLOAT_POST_OPS if kind != "int8" else QUANTISED_POST_OPS))
        if last and source == (mb, oc, *o) and rng.random() < 0.7:
            first = (found[0] if found else None) or None
            post_ops = (*post_ops, SumPostOp(0.5, 0, first.dt[0] if first else dt[0], "src"))
        points = (Quantity("src", "common", (3,), "s32"),) if kind == "int8" and rng.random() < 0.3 else ()
        found.append(
            Conv(mb=mb, ic=channels, oc=oc, i=sizes, o=o, k=k, s=s, d=d, p=p, g=g, has_groups=g > 1, dt=dt,
                 dir=rng.choice(("FWD_D", "FWD_B")), post_ops=post_ops, zero_points=points, accuracy="strict",
                 stag=rng.choice(("axb", "axb", "any")) if n == 0 else "any",
                 dtag=rng.choice(("axb", "axb", "any", "aBcd4b")) if last else "any")
        )  # fmt: skip
        channels, sizes = oc, o
    return Chain(stages=tuple(found))


def _types(rng: random.Random, kind: str, given: str, last: bool) -> tuple[str, str, str]:
    if kind == "f32":
        return ("f32", "f32", "f32")
    if kind == "bf16":
        return (given or "bf16", "bf16", rng.choice(("bf16", "f32")) if last else "bf16")
    return (given or rng.choice(("u8", "s8")), "s8", rng.choice(("u8", "s8", "s32", "f32") if last else ("u8", "s8")))


def composed(chain: Chain, arrays: Mapping[str, Array]) -> Array:
    """The destination of the last stage, each stage computed by the reference of its own problem."""
    x = arrays["src"]
    for n, stage in enumerate(chain.stages):
        x = reference(stage, {**chain.arrays_of(n, arrays), "src": x}, np.float32)["dst"]
    return x


def has_zero_points(chain: Chain) -> bool:
    """Whether a stage subtracts a zero point from its source."""
    return any(stage.quantity(ZERO_POINTS, "src") for stage in chain.stages)
