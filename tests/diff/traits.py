"""The traits of a problem by which tests say that a set of problems is of all kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from convsmith.problem import Matmul, Problem

ALL = {
    "FWD_D", "FWD_B", "BWD_D", "BWD_W", "matmul", "deconvolution", "groups", "depthwise", "blocked", "post-ops",
    "zero points", "scales", "bias", "1 axes", "2 axes", "3 axes", "strides", "dilation", "padding",
}  # fmt: skip
BLOCKED = ("tag=aBc", "tag=ABc")
"""Parts of lines whose layouts have blocks."""


def count_traits(problems: Iterable[Problem]) -> Counter[str]:
    """Return how many of the problems have each trait."""
    return Counter(x for problem in problems for x in set(_traits(problem)))


def _traits(problem: Problem) -> Iterator[str]:
    line = str(problem)
    yield from (name for name, has in (
        ("post-ops", problem.post_ops), ("zero points", problem.zero_points), ("scales", problem.scales),
        ("bias", problem.bias), ("deconvolution", "--deconv" in line), ("blocked", any(x in line for x in BLOCKED)),
    ) if has)  # fmt: skip
    if isinstance(problem, Matmul):
        yield "matmul"
        return
    yield problem.dir
    yield f"{len(problem.i)} axes"
    yield from (name for name, has in (
        ("groups", problem.g > 1), ("depthwise", problem.g == problem.ic == problem.oc > 1),
        ("padding", any(problem.p)), ("strides", any(x > 1 for x in problem.s)), ("dilation", any(problem.d)),
    ) if has)  # fmt: skip
