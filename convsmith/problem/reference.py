"""The numpy reference: the correct result of a problem, with oneDNN's order of operations.

    sums = sum (src - src zero point) * (wei - weights' zero point)      over taps inside the image
    v    = sums * (src scale * weights' scale) + bias, then the post-ops
    dst  = v / dst scale + dst zero point                                rounded to nearest even, saturated

Sums of integers wrap at 32 bits. They are converted to floating point before the first step that needs it, so an s32
destination without scale, bias, post-op and zero point stays exact. Post-ops in s32 arithmetic replace the second and
third line and keep integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.problem import products
from convsmith.problem.attributes import SCALES, ZERO_POINTS, Kind
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.data import terms
from convsmith.problem.eltwise import ALGORITHMS
from convsmith.problem.low_precision import low_precision_sums
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import BinaryPostOp, Depthwise, Eltwise, Integer, PostOp, Prelu, SumPostOp
from convsmith.problem.problem import Problem
from convsmith.problem.types import TYPES, convert

__all__ = ["ReferenceStep", "conv_reference", "is_exact", "reference", "steps_type", "sums_and_steps"]

Array = np.ndarray[Any, Any]


def reference(
    problem: Problem, arrays: Mapping[str, Array], dtype: Any = np.float64, raw: bool = False
) -> dict[str, Array]:
    """Return the outputs by name, computed from `arrays`, which have the shapes that `problem.inputs` states.

    An input with a default may be omitted. `dtype` (float64 or float32) is the type of floating-point sums and of every
    step after them. `raw` omits the conversion to the outputs' types. UsageError if an array is missing, unknown or of
    a wrong shape.
    """
    values, following = sums_and_steps(problem, arrays, dtype)
    with np.errstate(all="ignore"):
        for step in following:
            values = {name: step.apply(v) for name, v in values.items()}
    return values if raw else {tensor.name: convert(values[tensor.name], tensor.dtype) for tensor in problem.outputs}


class ReferenceStep(NamedTuple):
    """One step between the sums and the conversion to the output's type.

    `op` is the corresponding post-op, if any. If `spread` is None, `apply` works on each element alone. Otherwise
    `apply` adds up at most `terms` products, and `spread` adds up their magnitudes in the same way, for error bounds.
    """

    apply: Callable[[Array], Array]
    op: PostOp | None = None
    spread: Callable[[Array], Array] | None = None
    terms: int = 0


def sums_and_steps(
    problem: Problem, arrays: Mapping[str, Array], dtype: Any = np.float64
) -> tuple[dict[str, Array], tuple[ReferenceStep, ...]]:
    """Return the sums by output, and the steps that `reference` applies to them."""
    checked = _checked(problem, arrays)
    if isinstance(problem, Chain):
        first, *others = (
            _Run(p, problem.arrays_of(n, checked), np.dtype(dtype)) for n, p in enumerate(problem.stages)
        )
        return first.sums(), (*first.steps(), *(step for run in others for step in run.as_steps()))
    run = _Run(problem, checked, np.dtype(dtype))
    return run.sums(), tuple(run.steps())


def is_exact(problem: Problem) -> bool:
    """Return whether `reference` with dtype `steps_type` equals a kernel's result bit for bit, given exact sums."""
    if isinstance(problem, Chain):
        return all(map(is_exact, problem.stages))
    return not any(isinstance(op, Eltwise) and ALGORITHMS[op.alg].transcendental for op in problem.post_ops)


def steps_type(problem: Problem) -> np.dtype[Any]:
    """Return the type of a kernel's floating-point sums and of its steps."""
    return np.dtype(np.float64 if problem.acc == "f64" else np.float32)


def conv_reference(problem: Conv, src: Array, wei: Array, bias: Array | None = None, dtype: Any = np.float64) -> Array:
    """Return the destination of a forward `problem` that has no other arrays, before conversion to the destination's
    type.
    """
    arrays = {"src": src, "wei": wei} | ({} if bias is None else {"bia": bias})
    return reference(problem, arrays, dtype, raw=True)["dst"]


class _Run:
    """One evaluation of the reference on given arrays."""

    def __init__(self, problem: Problem, arrays: Mapping[str, Array], dtype: np.dtype[Any]) -> None:
        self._problem = problem
        self._arrays = arrays
        self._dtype = dtype

    def sums(self) -> dict[str, Array]:
        """Return the sums of products, integers modulo 2**32, and for BWD_WB the sums of the bias gradient."""
        problem = self._problem
        if problem.forward:
            if isinstance(problem, Matmul) and problem.bits != (8, 8):
                return {"dst": _wrapped(self._of_fewer_bits(problem))}
            src, wei = self._factor("src", self._source_points()), self._factor("wei", self._weight_points())
            return {"dst": _wrapped(self._products(src, wei))}
        assert isinstance(problem, Conv)
        if problem.dir == "BWD_D":
            gradient = products.source_gradient(problem, self._factor("wei"), self._factor("diff_dst"))
            return {"diff_src": _wrapped(gradient)}
        src, diff_dst = self._factor("src"), self._factor("diff_dst")
        gradients = {"diff_wei": products.weight_gradient(problem, src, diff_dst)}
        if problem.dir == "BWD_WB":
            gradients["diff_bia"] = products.bias_gradient(diff_dst)
        return gradients

    def as_steps(self) -> Iterator[ReferenceStep]:
        """Yield the whole problem as steps of a chain: they start from the unrounded result of the stage before."""
        problem, dtype = self._problem, self._problem.dt[0]
        yield ReferenceStep(lambda v: convert(v, dtype))

        def sums(src: Array) -> Array:
            return _Run(problem, {**self._arrays, "src": src}, self._dtype).sums()["dst"]

        weights = np.abs(self._factor("wei", self._weight_points()).astype(np.float64))
        yield ReferenceStep(sums, spread=lambda size: self._products(size, weights), terms=terms(problem))
        yield from self.steps()

    def _products(self, src: Array, wei: Array) -> Array:
        """Return the sums of products of two factors, forward."""
        if isinstance(self._problem, Matmul):
            return products.matrix_product(src, wei)
        assert isinstance(self._problem, Conv)
        return products.forward(self._problem, src, wei)

    def _of_fewer_bits(self, problem: Matmul) -> Array:
        src, wei = (self._arrays[name].astype(TYPES[t].numpy) for name, t in zip(("src", "wei"), problem.dt))
        points = [0 if x is None else -x.astype(np.int64) for x in (self._source_points(), self._weight_points())]
        rests = (self._arrays.get("rounding_src"), self._arrays.get("rounding_wei"))
        return low_precision_sums(src, wei, (points[0], points[1]), problem.bits, rests)

    def steps(self) -> Iterator[ReferenceStep]:
        """Yield the steps that follow the sums."""
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
                yield ReferenceStep(lambda v: v + operand)
            yield from self._post_ops()

    def _integer_steps(self) -> Iterator[ReferenceStep]:
        for n, op in enumerate(self._problem.post_ops):
            assert isinstance(op, Integer)
            operand = {"operand": self._arrays[f"post_op_{n}"]} if op.takes_operand else {}
            yield ReferenceStep(partial(op.apply, **operand), op)

    def _post_ops(self) -> Iterator[ReferenceStep]:
        result = "dst"
        for n, op in enumerate(self._problem.post_ops):
            if isinstance(op, Eltwise):
                yield ReferenceStep(op.apply, op)
            elif isinstance(op, SumPostOp):
                name, dtype = (f"post_op_{n}", op.dtype) if op.array else ("dst", None)
                old = np.ascontiguousarray(convert(self._arrays[name], dtype or self._problem.dst_type))
                old = old if op.dtype is None else old.view(TYPES[op.dtype].numpy)
                yield ReferenceStep(partial(op.apply, old=old), op)
            elif isinstance(op, Depthwise):
                yield from self._depthwise(self._arrays[f"post_op_{n}"])
                result = "attr_post_op_dw_dst"
            else:
                assert isinstance(op, BinaryPostOp | Prelu)
                yield ReferenceStep(partial(op.apply, operand=self._arrays[f"post_op_{n}"]), op)
        yield from self._quantised(result)

    def _depthwise(self, wei: Array) -> Iterator[ReferenceStep]:
        """Yield the steps of the fused depthwise convolution, which reads the rounded result of the first convolution.
        """
        assert isinstance(self._problem, Conv)
        fused = self._problem.fused
        yield from self._quantised("dst")
        point = self._quantity(ZERO_POINTS, "dst")
        sums_type = np.int64 if fused.acc == "s32" else self._dtype

        def middle(v: Array) -> Array:
            rounded = convert(v, fused.dt[0]).astype(sums_type)
            return rounded if point is None else rounded - self._channels(point).astype(sums_type)

        def convolved(v: Array, wei: Array) -> Array:
            return products.forward(fused, v, wei.astype(v.dtype))

        yield ReferenceStep(middle)
        yield ReferenceStep(
            lambda v: _wrapped(convolved(v, wei)), spread=lambda size: convolved(size, np.abs(wei)), terms=terms(fused)
        )
        yield from self._scaled("dst", "attr_post_op_dw_wei")

    def _quantised(self, argument: str) -> Iterator[ReferenceStep]:
        """Yield the steps from real values to the unrounded quantised values of `argument`."""
        scale, point = self._quantity(SCALES, argument), self._quantity(ZERO_POINTS, argument)
        if scale is not None:
            yield ReferenceStep(lambda v: v / self._channels(scale.astype(self._dtype)))
        if point is not None:
            yield ReferenceStep(lambda v: v + self._channels(point.astype(self._dtype)))

    def _scaled(self, *arguments: str) -> Iterator[ReferenceStep]:
        """Yield the steps that multiply the sums by the product of the scales of `arguments`."""
        yield ReferenceStep(lambda v: v.astype(self._dtype))
        quantities = (self._quantity(SCALES, argument) for argument in arguments)
        scales = [self._channels(x.astype(self._dtype)) for x in quantities if x is not None]
        if scales:
            yield ReferenceStep(partial(np.multiply, reduce(np.multiply, scales)))

    # -- arrays -----------------------------------------------------------------------------------------------------

    def _factor(self, name: str, points: Array | None = None) -> Array:
        """Return one factor of the products less its zero points, as int64 if the sums are integers."""
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
        shape = (-1, *(1,) * (len(outer) - 1)) if points.size < np.prod(outer) else outer
        channels = points.reshape(shape)
        return channels.reshape(*channels.shape, *(1,) * (len(self._problem.wei_shape) - len(outer)))

    def _quantity(self, kind: Kind, argument: str) -> Array | None:
        """Return the values of the scale or zero point of `argument`, one or one per channel; None if it has none."""
        problem, quantity = self._problem, self._problem.quantity(kind, argument)
        if quantity is None:
            return None
        values = self._arrays[problem.attribute_name(kind, argument)]
        if (kind, argument, quantity.policy) == (SCALES, "wei", "per_dim_0") and problem.grouped:
            assert isinstance(problem, Conv)
            values = np.repeat(values, problem.oc // problem.g)
        return values.astype(np.int64) if kind is ZERO_POINTS else values

    def _channels(self, values: Array) -> Array:
        """Return `values` (one, or one per channel) in a shape that broadcasts against the result."""
        axis, rank = self._problem.channels, len(self._problem.product_shape)
        return values.reshape(-1, *[1] * (rank - 1 - axis))


def _wrapped(sums: Array) -> Array:
    """Return integer sums modulo 2**32, like a 32-bit accumulator; other sums unchanged."""
    return sums.astype(np.int32).astype(np.int64) if np.issubdtype(sums.dtype, np.integer) else sums


def _checked(problem: Problem, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs by name, with defaults for those that `arrays` omits."""
    tensors = {tensor.name: tensor for tensor in problem.inputs}
    for name in arrays:
        if name not in tensors:
            legal = choices(name, tensors)
            raise UsageError(f"{name} is not an input of {problem}; legal are {legal}", code="bad-array")
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
