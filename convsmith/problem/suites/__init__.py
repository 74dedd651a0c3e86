"""Suites of problems: the distinct convolutions of well-known networks, and problems of every kind.

Networks have batch 1 and square inputs of 224 pixels. A name gives channels, kernel, input size and stride
(`rn50_128-128_k3_56_s2`).
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.problem.batch import parse_problems
from convsmith.problem.conv import Conv

__all__ = ["SUITES", "suite"]

SUITES = {
    "resnet50": "ResNet-50 v1.5 (the stride of a bottleneck is on its 3x3)",
    "mobilenet_v2": "MobileNetV2, width 1.0",
    "vgg16": "VGG-16 (configuration D)",
    "cliffs": "1,551 problems of every kind, from the lists of oneDNN and of XNNPACK",
}

def suite(name: str) -> tuple[Conv, ...]:
    """Return the problems of the network `name`, a key of `SUITES`, in network order. UsageError for an unknown name.
    """
    if not isinstance(name, str) or name not in SUITES:
        raise UsageError(f"unknown suite {shown(name)}: legal are {choices(name, SUITES)}", code="bad-suite")
    return _suite(name)


@cache
def _suite(name: str) -> tuple[Conv, ...]:
    text = resources.files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(problem for problem in parse_problems(text, name) if isinstance(problem, Conv))
