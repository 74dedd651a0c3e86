"""Splits a convolution with a fused depthwise convolution into the two problems that it consists of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from convsmith.diag.errors import UnsupportedError
from convsmith.problem.attributes import SCALES, ZERO_POINTS, Quantity
from convsmith.problem.conv import Conv

__all__ = ["Fused", "split_depthwise"]

_MIDDLE = "axb"
"""Layout of the array between the two convolutions: channels last, the fastest for a depthwise convolution."""
_PARTS = (("dst", "src"), ("attr_post_op_dw_wei", "wei"), ("attr_post_op_dw_dst", "dst"))
"""(argument of the fused problem, argument of the second problem) pairs."""


@dataclass(frozen=True)
class Fused:
    """`first` computes the source of `second`; `names` maps inputs of `second` to their names in the fused problem."""

    first: Conv
    second: Conv
    names: dict[str, str]


def split_depthwise(problem: Conv) -> Fused:
    """Return the pointwise and the depthwise convolution that `problem` fuses.

    UnsupportedError if the result of the first has a scale or zero point per channel.
    """
    at = problem.depthwise
    assert at is not None
    for kind in (SCALES, ZERO_POINTS):
        quantity = problem.quantity(kind, "dst")
        if quantity is not None and quantity.policy != "common":
            raise UnsupportedError(
                f"--{kind.option}={quantity} before post-op {problem.post_ops[at]} is not available; the nearest is "
                "common",
                code="unsupported-post-op",
            )
    first = replace(
        problem, post_ops=problem.post_ops[:at], dtag=_MIDDLE, name=None,
        scales=tuple(q for q in problem.scales if not q.argument.startswith("attr_post_op")),
    )  # fmt: skip
    scales = [_renamed(problem.quantity(SCALES, whole), own) for whole, own in _PARTS]
    point = _renamed(problem.quantity(ZERO_POINTS, "dst"), "src")
    second = replace(
        problem.fused, stag=_MIDDLE, post_ops=problem.post_ops[at + 1 :], scales=tuple(filter(None, scales)),
        zero_points=(point,) if point else (),
    )  # fmt: skip
    names = {"wei": f"post_op_{at}"}
    names |= {f"post_op_{n}": f"post_op_{at + 1 + n}" for n in range(len(second.post_ops))}
    for kind in (SCALES, ZERO_POINTS):
        names |= {f"{kind.name}_{own}": problem.attribute_name(kind, whole) for whole, own in _PARTS}
    return Fused(first, second, {own: whole for own, whole in names.items() if own in _inputs(second)})


def _renamed(quantity: Quantity | None, argument: str) -> Quantity | None:
    return None if quantity is None else replace(quantity, argument=argument)


def _inputs(problem: Conv) -> set[str]:
    return {tensor.name for tensor in problem.inputs}
