"""Suites of problems: the distinct convolutions of well-known networks, and problems of every kind.

Networks have batch 1 and square inputs of 224 pixels. A name gives channels, kernel, input size and stride
(`rn50_128-128_k3_56_s2`).
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from importlib import resources

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.problem.batch import parse_problems
from convsmith.problem.conv import Conv

__all__ = ["SUITES", "every_way", "suite"]

SUITES = {
    "resnet50": "ResNet-50 v1.5 (the stride of a bottleneck is on its 3x3)",
    "mobilenet_v2": "MobileNetV2, width 1.0",
    "vgg16": "VGG-16 (configuration D)",
    "cliffs": "620 problems of every kind, from the lists of oneDNN and of XNNPACK",
}

_F32, _BF16, _BYTES = ("f32",) * 3, ("bf16",) * 3, ("u8", "s8", "s32")
_WAYS = (
    *((direction, _F32, tag) for direction in ("FWD_D", "BWD_D", "BWD_W") for tag in ("axb", "abx", "aBx16b")),
    ("FWD_D", _BYTES, "axb"),
    ("FWD_D", _BF16, "axb"),
)
"""Direction, types, and layout of source and destination: channels last, first, and in blocks of 16."""


_LAST = ("BWD_W", "axb")
"""The way whose result, the gradient of the weights, is channels last too, as in libraries with channels-last weights.
"""


def suite(name: str) -> tuple[Conv, ...]:
    """Return the problems of the network `name`, a key of `SUITES`, in network order. UsageError for an unknown name.
    """
    if not isinstance(name, str) or name not in SUITES:
        raise UsageError(f"unknown suite {shown(name)}: legal are {choices(name, SUITES)}", code="bad-suite")
    return _suite(name)


def every_way(name: str, sample: int = 0, seed: int = 0) -> tuple[Conv, ...]:
    """Return each problem of the suite `name` in all directions, layouts and kinds of types.

    With `sample`, return that many of them, drawn by `seed`. UsageError for an unknown name.
    """
    ways = [
        replace(problem, dir=direction, dt=dt, stag=tag, dtag=tag, wtag="axb" if (direction, tag) == _LAST else "any")
        for problem in suite(name) for direction, dt, tag in _WAYS
    ]  # fmt: skip
    return tuple(random.Random(seed).sample(ways, min(sample, len(ways))) if sample else ways)


@cache
def _suite(name: str) -> tuple[Conv, ...]:
    text = resources.files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(problem for problem in parse_problems(text, name) if isinstance(problem, Conv))
