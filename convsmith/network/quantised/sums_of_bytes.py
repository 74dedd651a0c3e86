"""Sums of two values of bytes as part of the product that computes one of them, which then is never stored.

The epilogue rounds and saturates the product, as its conversion to bytes did, adds the other value, and converts the
sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.network.graph import NetworkNode, result_of
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.quantised.codes import Code
from convsmith.network.quantised.integer_products import scaled, zero_points
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import PER_TENSOR, BinaryPostOp, Eltwise, PostOp
from convsmith.runtime.arrays import Array

__all__ = ["SummedProduct", "summed_product"]

_ROUND = Eltwise("round")
_POINTS = "zero_points_dst"


@record(frozen=True)
class SummedProduct:
    """A product of bytes and the sum behind it: its problem, the `constants` that the sum adds, by array, and the array
    of the value that is added.
    """

    work: Conv | Matmul
    constants: Mapping[str, Array] = field(repr=False)
    addend: str


def summed_product(
    product: NetworkNode, own: Code, total: Pointwise, other: Code, result: Code
) -> SummedProduct | None:  # fmt: skip
    """Return the problem that computes the node `product`, whose result has the code `own`, and the sum `total` of it
    and a value with the code `other`, as bytes of the code `result`; None if it is no product that rounds to bytes.
    """
    work = product.work
    if not isinstance(work, Conv | Matmul) or work.post_ops[-1:] != (_ROUND,) or result_of(work).dtype != own.type:
        return None
    if total.binary != "add" or {*total.shapes} != {result_of(work).shape}:
        return None
    steps = result.without_saturation(total.steps)
    unit = result.scale if all(scaled(step, 1) is not None for step in steps) else 1.0
    low, high = (float(limit - own.point) for limit in own.limits)
    post_ops: list[PostOp] = [*work.post_ops, Eltwise("clip", low, high)]
    constants: dict[str, Array] = {}

    def apply(alg: str, number: Any) -> None:
        constants[f"post_op_{len(post_ops)}"] = np.full((1,) * len(work.product_shape), number, np.float32)
        post_ops.append(BinaryPostOp(alg))

    apply("mul", np.float32(own.scale) / np.float32(other.scale))
    addend = f"post_op_{len(post_ops)}"
    post_ops.append(BinaryPostOp("add", other.type, PER_TENSOR))
    if other.point:
        apply("sub", other.point)
    apply("mul", np.float32(other.scale) / np.float32(unit))
    post_ops += [scaled(step, unit) or step for step in steps]
    if unit != result.scale:
        apply("mul", result.factor)
    kept = [x for x in work.zero_points if x.argument != "dst"]
    if result.point:
        constants[_POINTS] = np.array([result.point], np.int32)
        kept.append(zero_points("dst", constants[_POINTS]))
    made = replace(
        work, dt=(*work.dt[:2], result.type), post_ops=(*post_ops, _ROUND), zero_points=tuple(kept)
    )  # fmt: skip
    return SummedProduct(made, constants, addend)
