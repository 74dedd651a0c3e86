"""The numpy reference: the right numbers of a problem, in oneDNN's order.

    sums = sum (src - src zero point) * (wei - weights' zero point)      over taps inside the image
    v    = sums * src scale * weights' scale + bias, then the post-ops
    dst  = v / dst scale + dst zero point                                rounded to nearest even, saturated

Sums of integers have 32 bits and wrap; they become floating-point numbers before the first step that needs one, so
that an s32 destination without scale, bias, post-op and zero point of its own stays exact. Post-ops in s32 arithmetic
take the place of the second and of the third line: numbers stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.problem import products
from convsmith.problem.attributes import SCALES, ZERO_POINTS, Kind
from convsmith.problem.conv import Conv
from convsmith.problem.eltwise import ALGORITHMS
from convsmith.problem.low_precision import low_precision_sums
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Binary, Depthwise, Eltwise, Integer, PostOp, Prelu, Sum
from convsmith.problem.problem import Problem
from convsmith.problem.types import TYPES, convert

__all__ = ["Step", "conv_reference", "is_exact", "reference", "steps_type", "sums_and_steps"]

Array = np.ndarray[Any, Any]


def reference(
    problem: Problem, arrays: Mapping[str, Array], dtype: Any = np.float64, raw: bool = False
) -> dict[str, Array]:
    """The outputs, by name, from arrays of the shapes that `problem.inputs` state; defaults may be left out.

    `dtype` (float64 or float32) holds sums of floating-point numbers, and every step after the sums is rounded to it.
    `raw` leaves out the conversion to the outputs' types. UsageError: an array is missing, in excess, or of another
    shape.
    """
    values, following = sums_and_steps(problem, arrays, dtype)
    with np.errstate(all="ignore"):
        for step in following:
            values = {name: step.apply(v) for name, v in values.items()}
    return values if raw else {tensor.name: convert(values[tensor.name], tensor.dtype) for tensor in problem.outputs}


class Step(NamedTuple):
    """One step between the sums and the conversion to the output's type.

    `op` is the post-op that it is. Where `spread` is given, `apply` adds up several elements, and `spread` is the same
    on magnitudes; else it takes each element by itself.
    """

    apply: Callable[[Array], Array]
    op: PostOp | None = None
    spread: Callable[[Array], Array] | None = None


def sums_and_steps(
    problem: Problem, arrays: Mapping[str, Array], dtype: Any = np.float64
) -> tuple[dict[str, Array], tuple[Step, ...]]:
    """What `reference` computes first, by output, and the steps that follow (of the one output that has some)."""
    run = _Run(problem, _checked(problem, arrays), np.dtype(dtype))
    return run.sums(), tuple(run.steps())


def is_exact(problem: Problem) -> bool:
    """Whether `reference` in `steps_type` gives a kernel's very bits, where the sums are exact."""
    return not any(isinstance(op, Eltwise) and ALGORITHMS[op.alg].transcendental for op in problem.post_ops)


def steps_type(problem: Problem) -> np.dtype[Any]:
    """The type that holds sums of floating-point numbers in a kernel, and what every step gives."""
    return np.dtype(np.float64 if problem.acc == "f64" else np.float32)


def conv_reference(problem: Conv, src: Array, wei: Array, bias: Array | None = None, dtype: Any = np.float64) -> Array:
    """The destination of a forward problem without other arrays, before its conversion to the destination's type."""
    arrays = {"src": src, "wei": wei} | ({} if bias is None else {"bia": bias})
    return reference(problem, arrays, dtype, raw=True)["dst"]


class _Run:
    """One evaluation: the problem, its arrays, and the type of floating-point numbers."""

    def __init__(self, problem: Problem, arrays: Mapping[str, Array], dtype: np.dtype[Any]) -> None:
        self._problem = problem
        self._arrays = arrays
        self._dtype = dtype

    def sums(self) -> dict[str, Array]:
        """Sums of products, those of integers modulo 2**32; of the bias's gradient, of its terms."""
        problem = self._problem
        if problem.forward:
            if isinstance(problem, Matmul) and problem.bits != (8, 8):
                return {"dst": _wrapped(self._of_fewer_bits(problem))}
            src, wei = self._factor("src", self._source_points()), self._factor("wei", self._weight_points())
            if isinstance(problem, Matmul):
                return {"dst": _wrapped(products.matrix_product(src, wei))}
            assert isinstance(problem, Conv)
            return {"dst": _wrapped(products.forward(problem, src, wei))}
        assert isinstance(problem, Conv)
        if problem.dir == "BWD_D":
            gradient = products.source_gradient(problem, self._factor("wei"), self._factor("diff_dst"))
            return {"diff_src": _wrapped(gradient)}
        src, diff_dst = self._factor("src"), self._factor("diff_dst")
        gradients = {"diff_wei": products.weight_gradient(problem, src, diff_dst)}
        if problem.dir == "BWD_WB":
            gradients["diff_bia"] = products.bias_gradient(diff_dst)
        return gradients

    def _of_fewer_bits(self, problem: Matmul) -> Array:
        src, wei = (self._arrays[name].astype(TYPES[t].numpy) for name, t in zip(("src", "wei"), problem.dt))
        points = [0 if x is None else -x.astype(np.int64) for x in (self._source_points(), self._weight_points())]
        rests = (self._arrays.get("rounding_src"), self._arrays.get("rounding_wei"))
        return low_precision_sums(src, wei, (points[0], points[1]), problem.bits, rests)

    def steps(self) -> Iterator[Step]:
        """What follows."""
        problem = self._problem
        if problem.dir == "BWD_D":
            yield from self._scaled("wei", "dst")
            yield from self._quantised("src")
        elif problem.integer_steps:
            yield from self._integer_steps()
        elif problem.forward:
            steps = problem.scales or problem.post_ops or problem.bias or problem.quantity(ZERO_POINTS, "dst")
            if problem.dt[2] == "s32" and not steps:
                return
            yield from self._scaled("src", "wei")
            if problem.bias:
                bias = self._arrays["bia"].astype(self._dtype)
                operand = bias if isinstance(problem, Matmul) else self._channels(bias)
                yield Step(lambda v: v + operand)
            yield from self._post_ops()

    def _integer_steps(self) -> Iterator[Step]:
        for n, op in enumerate(self._problem.post_ops):
            assert isinstance(op, Integer)
            yield Step(partial(op.apply, operand=self._arrays[f"post_op_{n}"]) if op.takes_operand else op.apply, op)

    def _post_ops(self) -> Iterator[Step]:
        result = "dst"
        for n, op in enumerate(self._problem.post_ops):
            if isinstance(op, Eltwise):
                yield Step(op.apply, op)
            elif isinstance(op, Sum):
                old = np.ascontiguousarray(convert(self._arrays["dst"], self._problem.dst_type))
                yield Step(partial(op.apply, old=old if op.dtype is None else old.view(TYPES[op.dtype].numpy)), op)
            elif isinstance(op, Depthwise):
                yield from self._depthwise(self._arrays[f"post_op_{n}"])
                result = "attr_post_op_dw_dst"
            else:
                assert isinstance(op, Binary | Prelu)
                yield Step(partial(op.apply, operand=self._arrays[f"post_op_{n}"]), op)
        yield from self._quantised(result)

    def _depthwise(self, wei: Array) -> Iterator[Step]:
        """The fused convolution, of what the destination of the first would hold."""
        assert isinstance(self._problem, Conv)
        fused = self._problem.fused
        yield from self._quantised("dst")
        point, scale = self._quantity(ZERO_POINTS, "dst"), self._quantity(SCALES, "dst")
        sums_type = np.int64 if fused.acc == "s32" else self._dtype

        def middle(v: Array) -> Array:
            held = convert(v, fused.dt[0]).astype(sums_type)
            return held if point is None else held - self._channels(point).astype(sums_type)

        def convolved(v: Array, wei: Array) -> Array:
            return products.forward(fused, v, wei.astype(v.dtype))

        yield Step(middle)
        yield Step(lambda v: _wrapped(convolved(v, wei)), spread=lambda size: convolved(size, np.abs(wei)))
        yield Step(lambda v: v.astype(self._dtype))
        if scale is not None:
            yield Step(lambda v: v * self._channels(scale.astype(self._dtype)))
        yield from self._scaled("attr_post_op_dw_wei")

    def _quantised(self, argument: str) -> Iterator[Step]:
        """To what the array of `argument` holds for real values, unrounded."""
        scale, point = self._quantity(SCALES, argument), self._quantity(ZERO_POINTS, argument)
        if scale is not None:
            yield Step(lambda v: v / self._channels(scale.astype(self._dtype)))
        if point is not None:
            yield Step(lambda v: v + self._channels(point.astype(self._dtype)))

    def _scaled(self, *arguments: str) -> Iterator[Step]:
        """Sums, times the scales of the arguments, one after the other."""
        yield Step(lambda v: v.astype(self._dtype))
        for argument in arguments:
            scale = self._quantity(SCALES, argument)
            if scale is not None:
                yield Step(partial(np.multiply, self._channels(scale.astype(self._dtype))))

    # -- arrays -----------------------------------------------------------------------------------------------------

    def _factor(self, name: str, points: Array | None = None) -> Array:
        """One factor of the products: whole numbers where both are, less its zero points."""
        x = self._arrays[name].astype(np.int64 if self._problem.acc == "s32" else self._dtype)
        return x if points is None else x - points

    def _source_points(self) -> Array | None:
        points, problem = self._quantity(ZERO_POINTS, "src"), self._problem
        quantity = problem.quantity(ZERO_POINTS, "src")
        if points is None or quantity is None:
            return None
        if isinstance(problem, Matmul) and quantity.policy == f"per_dim_{problem.rank - 2}":
            return points.astype(np.int64).reshape(-1, 1)
        return self._channels(points).astype(np.int64)

    def _weight_points(self) -> Array | None:
        points = self._quantity(ZERO_POINTS, "wei")
        if points is None or points.size == 1 or isinstance(self._problem, Matmul):
            return points
        assert isinstance(self._problem, Conv)
        outer = self._problem.wei_shape[: 2 if self._problem.has_groups else 1]
        each = points.reshape(-1, *(1,) * (len(outer) - 1)) if points.size < np.prod(outer) else points.reshape(outer)
        return each.reshape(*each.shape, *(1,) * (len(self._problem.wei_shape) - len(outer)))

    def _quantity(self, kind: Kind, argument: str) -> Array | None:
        """Values of the scale or zero point of `argument`: one, or one for each channel; None where it has none."""
        problem, quantity = self._problem, self._problem.quantity(kind, argument)
        if quantity is None:
            return None
        values = self._arrays[problem.attribute_name(kind, argument)]
        if (kind, argument, quantity.policy) == (SCALES, "wei", "per_dim_0") and problem.grouped:
            assert isinstance(problem, Conv)
            values = np.repeat(values, problem.oc // problem.g)
        return values.astype(np.int64) if kind is ZERO_POINTS else values

    def _channels(self, values: Array) -> Array:
        """One value, or one for each channel, against the result."""
        axis, rank = self._problem.channels, len(self._problem.product_shape)
        return values.reshape(-1, *[1] * (rank - 1 - axis))


def _wrapped(sums: Array) -> Array:
    """Sums of integers modulo 2**32, as 32-bit accumulators hold them; others as they are."""
    return sums.astype(np.int32).astype(np.int64) if np.issubdtype(sums.dtype, np.integer) else sums


def _checked(problem: Problem, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs by name, with the defaults of those that are not given."""
    tensors = {tensor.name: tensor for tensor in problem.inputs}
    for name in arrays:
        if name not in tensors:
            raise UsageError(f"{name} is no input of {problem}; its inputs are {', '.join(tensors)}", code="bad-array")
    checked = {}
    for name, tensor in tensors.items():
        if name in arrays:
            array = np.asarray(arrays[name])
        elif tensor.default is not None:
            array = np.broadcast_to(convert(np.asarray(tensor.default, np.float64), tensor.dtype), tensor.shape)
        else:
            raise UsageError(f"{name} is missing; {problem} takes it, of shape {tensor.shape}", code="bad-array")
        if array.shape != tensor.shape:
            raise UsageError(f"{name} has shape {array.shape}; {problem} expects {tensor.shape}", code="bad-shape")
        checked[name] = array
    return checked
