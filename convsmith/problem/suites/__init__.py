"""Lists of problems: the unique convolutions of known networks, and files of descriptors.

A list is text: one problem a line, `#` at the start of a word begins a comment. Networks are at batch 1, square input
of 224 pixels; names say network, channels, kernel, input size, stride (`rn50_128-128_k3_56_s2`).
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem

__all__ = ["SUITES", "parse_problems", "suite"]

SUITES = {
    "resnet50": "ResNet-50 v1.5 (the stride of a bottleneck is on its 3x3)",
    "mobilenet_v2": "MobileNetV2, width 1.0",
    "vgg16": "VGG-16 (configuration D)",
}


def suite(name: str) -> tuple[Conv, ...]:
    """The problems of a network in `SUITES`, in the order of the network. UsageError: no such network."""
    if not isinstance(name, str) or name not in SUITES:
        raise UsageError(f"unknown suite {name!r}: legal are {', '.join(SUITES)}", code="bad-suite")
    return _suite(name)


@cache
def _suite(name: str) -> tuple[Conv, ...]:
    text = resources.files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(problem for problem in parse_problems(text, name) if isinstance(problem, Conv))


def parse_problems(text: str, source: str) -> list[Problem]:
    """The problems of a text, one a line. An error names `source` and the line's number, and keeps its class."""
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if not line:
            continue
        try:
            problems.append(parse_problem(line))
        except (UsageError, UnsupportedError) as error:
            raise type(error)(f"{source}:{number}: {error}", code=error.code) from None
    return problems
