"""Splits a chain, and a convolution with a fused depthwise one, into the problems that they consist of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.layout.tags import ANY
from convsmith.problem.attributes import SCALES, ZERO_POINTS, Quantity
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem

__all__ = ["Stages", "middle", "reads_padding_alone", "stages_of"]

_MIDDLE = "axb"
"""Layout of the array between two convolutions: channels last, the fastest for a depthwise convolution."""
_PARTS = (("dst", "src"), ("attr_post_op_dw_wei", "wei"), ("attr_post_op_dw_dst", "dst"))
"""(argument of the fused problem, argument of the second problem) pairs."""


@record(frozen=True)
class Stages:
    """The `problems` that make up `whole`: each problem after the first reads the result of its predecessor.

    `names` maps, for each problem, the arrays by their names there to their names in the kernel.
    """

    whole: Problem
    problems: tuple[Problem, ...]
    names: tuple[Mapping[str, str], ...]

    def __len__(self) -> int:
        return len(self.problems)


def middle(n: int) -> str:
    """Return the name of the array that problem `n` (from 0) computes for the next one."""
    return f"mid{n + 1}" if n else "mid"


def stages_of(problem: Problem) -> Stages | None:
    """Return the problems that make up `problem`; None if it is one convolution or matrix product."""
    problems: list[Problem] = []
    names: list[dict[str, str]] = []
    if isinstance(problem, Chain):
        for n, stage in enumerate(problem.stages):
            for own, inner in _split(stage):
                problems.append(own)
                names.append({name: problem.names(n).get(given, given) for name, given in inner.items()})
    else:
        for own, inner in _split(problem):
            problems.append(own)
            names.append(dict(inner))
    if len(problems) == 1:
        return None
    for n in range(len(problems) - 1):
        one, two = problems[n], problems[n + 1]
        tag = next((t for t in (one.dtag, two.stag) if t != ANY), _MIDDLE if isinstance(one, Conv) else ANY)
        problems[n], problems[n + 1] = replace(one, dtag=tag), replace(two, stag=tag)
        names[n]["dst"] = names[n + 1]["src"] = middle(n)
    return Stages(problem, tuple(problems), tuple(names))


def reads_padding_alone(problems: Sequence[Problem]) -> int | None:
    """Return the number (from 0) of the last of consecutive `problems` that reads only padding; None if there is none.

    Only elements that the result of the last problem needs count.
    """
    found = None
    for n in range(len(problems)):
        some = [problem for problem in problems[n:] if isinstance(problem, Conv)]
        if len(some) == len(problems) - n and not all(_reads(some, axis) for axis in range(some[0].rank)):
            found = n
    return found


def _reads(problems: Sequence[Conv], axis: int) -> bool:
    """Return whether taps along `axis` lead from an element of the last result to one of the first source."""
    seen: set[tuple[int, int]] = set()

    def leads(n: int, at: int) -> bool:
        problem = problems[n]
        first, step = at * problem.s[axis] - problem.p[axis], problem.d[axis] + 1
        taps = range(max(-(first // step), 0), min(problem.k[axis], (problem.i[axis] - 1 - first) // step + 1))
        for place in ((n, first + tap * step) for tap in taps):
            if place not in seen:
                seen.add(place)
                if n == 0 or leads(n - 1, place[1]):
                    return True
        return False

    size = problems[-1].o[axis]
    return any(leads(len(problems) - 1, at) for at in (size // 2, *range(size)))


def _split(problem: Problem) -> list[tuple[Problem, dict[str, str]]]:
    """Return the problems that `problem` fuses, one or two, each with the names of its arrays in `problem`."""
    if isinstance(problem, Conv) and problem.depthwise is not None:
        return _split_depthwise(problem, problem.depthwise)
    return [(problem, {t.name: t.name for t in problem.tensors})]


def _split_depthwise(problem: Conv, at: int) -> list[tuple[Problem, dict[str, str]]]:
    """Return the pointwise and the depthwise convolution that `problem` fuses, with the names of their arrays.

    UnsupportedError if the result of the first has a scale or zero point per channel.
    """
    for kind in (SCALES, ZERO_POINTS):
        quantity = problem.quantity(kind, "dst")
        if quantity is not None and quantity.policy != "common":
            raise UnsupportedError(
                f"--{kind.option}={quantity} before post-op {problem.post_ops[at]} is not available; the nearest is "
                "common",
                code="unsupported-post-op",
            )
    first = replace(
        problem, post_ops=problem.post_ops[:at], dtag=ANY, name=None, workspace=None,
        scales=tuple(q for q in problem.scales if not q.argument.startswith("attr_post_op")),
    )  # fmt: skip
    scales = [_renamed(problem.quantity(SCALES, whole), own) for whole, own in _PARTS]
    point = _renamed(problem.quantity(ZERO_POINTS, "dst"), "src")
    second = replace(
        problem.fused, post_ops=problem.post_ops[at + 1 :], scales=tuple(filter(None, scales)),
        zero_points=(point,) if point else (),
    )  # fmt: skip
    names = {"wei": f"post_op_{at}"}
    names |= {f"post_op_{n}": f"post_op_{at + 1 + n}" for n in range(len(second.post_ops))}
    for kind in (SCALES, ZERO_POINTS):
        names |= {f"{kind.name}_{own}": problem.attribute_name(kind, whole) for whole, own in _PARTS}
    return [
        (first, {t.name: t.name for t in first.tensors}),
        (second, {t.name: names.get(t.name, t.name) for t in second.tensors}),
    ]


def _renamed(quantity: Quantity | None, argument: str) -> Quantity | None:
    return None if quantity is None else replace(quantity, argument=argument)
