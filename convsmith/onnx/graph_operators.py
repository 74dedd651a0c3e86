"""The operators of ONNX that a graph takes: each adds the nodes that compute it. A new operator is a new row.

This module has products and element-wise operators; `MOVES`, `CHOICES`, `POOLS` and others have the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.printable import printable
from convsmith.frontend.transposed import deconvolution_weights
from convsmith.network.operators.choice import ChangeType
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pad import Pad
from convsmith.network.operators.pointwise import Pointwise, broadcast
from convsmith.network.operators.power import Power
from convsmith.onnx.graph_caches import CACHES
from convsmith.onnx.graph_choices import CHOICES
from convsmith.onnx.graph_determinants import DETERMINANTS
from convsmith.onnx.graph_einsum import add_einsum
from convsmith.onnx.graph_gather import GATHERS
from convsmith.onnx.graph_integers import add_conv_integer, add_dynamic_quantise, add_matmul_integer
from convsmith.onnx.graph_moves import MOVES
from convsmith.onnx.graph_node import GraphNode
from convsmith.onnx.graph_orders import ORDERS
from convsmith.onnx.graph_pools import POOLS, window_of
from convsmith.onnx.graph_recurrent import RECURRENT
from convsmith.onnx.graph_regions import REGIONS
from convsmith.onnx.graph_resize import RESIZES
from convsmith.onnx.graph_sampling import SAMPLES
from convsmith.onnx.graph_spectra import SPECTRA
from convsmith.onnx.graph_whole_numbers import WHOLE_NUMBERS, divided
from convsmith.onnx.window import OperandNames, convolution, transposed
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Eltwise

__all__ = ["GRAPH_OPERATORS"]


# -- convolutions and products ----------------------------------------------------------------------------------------


def _conv(node: GraphNode) -> None:
    t = node.type()
    problem = convolution(OperandNames("X", "W"), node.shape(), node.shape(1), window_of(node), dt=(t, t, t))
    if node.inputs[1] in node.reader.constants:
        weights = node.moved(1, lambda x: x.reshape(problem.wei_shape))
    else:
        weights = _viewed(node, node.inputs[1], problem.wei_shape)
    _add_convolution(node, problem, weights, problem.o)


def _overlapped(node: GraphNode) -> None:
    """Add sums of blocks of an image where they overlap: a deconvolution of each channel whose weights are ones, one
    for each element of a block.
    """
    t, shape, image, k = node.type(), node.shape(), node.numbers(1, "image_shape"), node.numbers(2, "block_shape")
    if not image or not k or len(image) != len(k) or len(shape) != 3 or shape[1] % prod(k):
        raise UsageError(
            f"its input is {shape}, for images of {image} and blocks of {k}; legal are (N, C * elements of a block, "
            "blocks)", code="shape",
        )  # fmt: skip
    w, rank, count = window_of(node), len(k), shape[1] // prod(k)
    s, d, pads = w.per_axis("strides", rank, 1, 1), w.per_axis("dilations", rank, 1, 1), w.front_and_back(rank)
    spans = [(taps - 1) * hole + 1 for taps, hole in zip(k, d)]
    blocks = tuple((i + sum(pad) - span) // step + 1 for i, pad, span, step in zip(image, pads, spans, s))
    if min(blocks) < 1 or prod(blocks) != shape[2]:
        raise UsageError(f"it has {shape[2]} blocks; legal are {blocks} for images of {image}", code="shape")
    more = [i + sum(pad) - span - (b - 1) * step for i, pad, span, b, step in zip(image, pads, spans, blocks, s)]
    whole = (*shape[:2], *blocks)
    ones = np.tile(np.eye(prod(k), dtype=node.reader.numpy_of(t)), (count, 1)).reshape(shape[1], 1, *k)
    own = w._replace(kernel_shape=k, group=count, output_padding=tuple(more))
    problem, sizes = transposed(OperandNames("X", "W"), whole, ones.shape, own, dt=(t, t, t))
    weights = node.held(deconvolution_weights(problem, ones))
    x = node.between(Reshape(t, prod(shape)), {"src": node.inputs[0]}, whole)
    _add_convolution(node, problem, weights, sizes, x)


def _conv_transpose(node: GraphNode) -> None:
    t, weights = node.type(), node.inputs[1]
    is_known = weights in node.reader.constants
    problem, sizes = transposed(
        OperandNames("X", "W"), node.shape(), node.shape(1), window_of(node), dt=(t, t, t),
        **({} if is_known else {"wtag": "any"}),
    )  # fmt: skip
    if is_known:
        weights = node.held(deconvolution_weights(problem, node.reader.constants[weights]))
    else:
        grouped = (problem.g, problem.ic // problem.g, problem.oc // problem.g, *problem.k)
        axes = (0, 2, 1, *range(3, len(grouped)))
        turned = node.between(Transpose(t, grouped, axes), {"src": _viewed(node, weights, grouped)})
        weights = _viewed(node, turned, problem.wei_shape)
    _add_convolution(node, problem, weights, sizes)


def _viewed(node: GraphNode, name: str, shape: tuple[int, ...]) -> str:
    """Return the name of a value in another shape. UsageError if that has another number of elements."""
    _require_size(node, name, prod(shape))
    return node.between(Reshape(node.type(), prod(shape)), {"src": name}, shape)


def _require_size(node: GraphNode, name: str, size: int) -> None:
    shape = node.reader.value(name).shape
    if prod(shape) != size:
        raise UsageError(f"{printable(name)} has the shape {shape}; legal are {size} elements", code="shape")


def _add_convolution(
    node: GraphNode, problem: Conv, weights: str, sizes: tuple[int, ...], source: str = ""
) -> None:  # fmt: skip
    """Add a convolution of the first input and its bias, or of a `source` without one. Elements of the spatial `sizes`
    beyond those of the problem are reached by no element of the source.
    """
    t, has_bias, result = node.type(), node.has(2) and not source, (*problem.dst_shape[:2], *sizes)
    arguments = {"src": source or node.inputs[0], "wei": weights}
    if has_bias:
        _require_size(node, node.inputs[2], problem.oc)
    if not has_bias and sizes == problem.o:
        node.add(problem, arguments)
        return
    if has_bias and node.inputs[2] in node.reader.constants and sizes == problem.o:
        node.add(replace(problem, dir="FWD_B", bia_dt=t), {**arguments, "bia": node.inputs[2]})
        return
    name = node.between(problem, arguments)
    if sizes != problem.o:
        before, after = (0,) * len(result), tuple(a - b for a, b in zip(result, problem.dst_shape))
        put = node.between if has_bias else node.add
        name = put(Pad(t, problem.dst_shape, before, after), {"src": name})
    if has_bias:
        along = (problem.oc, *(1,) * len(sizes))
        bias = _viewed(node, node.inputs[2], along)
        node.add(Pointwise(t, (result, along), "add"), {"src_0": name, "src_1": bias})


def _gemm(node: GraphNode) -> None:
    """Add alpha * a @ b + beta * c, of matrices that may be transposed. Constants are multiplied now."""
    t, constants = node.type(), node.reader.constants
    a, b = (_turned(node, n, name) for n, name in ((0, "transA"), (1, "transB")))
    shapes = node.reader.value(a).shape, node.reader.value(b).shape
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    if b in constants and alpha != 1:
        held: Any = constants[b]
        b, alpha = node.held(held * held.dtype.type(alpha)), 1.0
    result = (shapes[0][0], shapes[1][1])
    steps: list[tuple[Pointwise, dict[str, str]]] = []
    if alpha != 1:
        steps.append((Pointwise(t, (result,), "", (Eltwise("linear", alpha),)), {}))
    if node.has(2):
        other = node.inputs[2]
        if other in constants:
            bias: Any = constants[other]
            other = node.held((bias * bias.dtype.type(beta)).reshape((1,) * (2 - bias.ndim) + bias.shape))
        elif beta != 1:
            scaled = Pointwise(t, (node.shape(2),), "", (Eltwise("linear", beta),))
            other = node.between(scaled, {"src_0": other}, node.shape(2))
        steps.append((Pointwise(t, (result, node.reader.value(other).shape), "add"), {"src_1": other}))
    name = (node.between if steps else node.add)(_product(t, *shapes), {"src": a, "wei": b})
    for n, (work, others) in enumerate(steps):
        put = node.between if n + 1 < len(steps) else node.add
        name = put(work, {"src_0": name, **others})


def _turned(node: GraphNode, n: int, attribute: str) -> str:
    """Return the name of the matrix that is input `n`, transposed if the attribute says so."""
    shape = node.shape(n)
    if len(shape) != 2:
        raise UsageError(f"input {n} has the shape {shape}; legal are matrices", code="shape")
    if not node.attribute(attribute, 0):
        return node.inputs[n]
    if node.inputs[n] in node.reader.constants:
        return node.moved(n, lambda x: np.ascontiguousarray(x.T))
    return node.between(Transpose(node.type(), shape, (1, 0)), {"src": node.inputs[n]})


def _matmul(node: GraphNode) -> None:
    a, b, t = node.shape(0), node.shape(1), node.type()
    if not a or not b:
        raise UsageError(f"shapes are {a} and {b}; legal are vectors and matrices, with batch dims", code="product")
    is_row, is_column = len(a) == 1, len(b) == 1
    arguments = {"src": node.inputs[0], "wei": node.inputs[1]}
    if is_row:
        a = (1, *a)
        arguments["src"] = node.between(Reshape(t, prod(a)), {"src": node.inputs[0]}, a)
    if is_column:
        b = (*b, 1)
        arguments["wei"] = node.between(Reshape(t, prod(b)), {"src": node.inputs[1]}, b)
    if a[-1] != b[-2]:
        raise UsageError(f"shapes are {a} and {b}; legal are matrices with as many rows as the first has columns")
    rows, columns = () if is_row else a[-2:-1], () if is_column else b[-1:]
    result = (*np.broadcast_shapes(a[:-2], b[:-2]), *rows, *columns)
    if prod(b[:-2]) == 1:
        node.add(_product(t, (prod(a[:-1]), a[-1]), b[-2:]), arguments, result)
        return
    rank = max(len(a), len(b))
    whole = ((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b)
    node.add(_product(t, *whole), arguments, result)


def _product(type_: str, a: tuple[int, ...], b: tuple[int, ...]) -> Matmul:
    return Matmul(src=a, wei=b, dt=(type_, type_, type_))


def _batch_norm(node: GraphNode) -> None:
    if node.attribute("training_mode", 0):
        raise UnsupportedError("training_mode=1; available are norms whose means are inputs", code="training")
    shape, epsilon, t = node.shape(), node.attribute("epsilon", 1e-5), node.type()
    if len(shape) < 2 or len(node.inputs) != 5:
        words = f"it has {len(node.inputs)} inputs, the first of {shape}; legal are 5, the first of (N, C, *)"
        raise UsageError(words, code="inputs")
    for name in node.inputs[1:]:
        _require_size(node, name, shape[1])
    along = (1, shape[1], *(1,) * (len(shape) - 2))
    known = [node.reader.constants.get(name) for name in node.inputs[1:5]]
    if all(x is not None for x in known):
        scale, shift, mean, variance = (np.asarray(x) for x in known)
        wide = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
        factors = node.held(wide.astype(scale.dtype).reshape(along))
        moved = node.held((shift - mean * wide).astype(scale.dtype).reshape(along))
    else:
        names = [_viewed(node, name, along) for name in node.inputs[1:5]]
        deviation = Pointwise(t, (along,), "", (Eltwise("linear", 1.0, epsilon), Eltwise("sqrt")))
        factors = _between_two(node, "div", names[0], node.between(deviation, {"src_0": names[3]}))
        moved = _between_two(node, "sub", names[1], _between_two(node, "mul", names[2], factors))
    product = _between_two(node, "mul", node.inputs[0], factors)
    node.add(Pointwise(t, (shape, along), "add"), {"src_0": product, "src_1": moved})


def _between_two(node: GraphNode, alg: str, a: str, b: str) -> str:
    """Return the name of an operation on two values."""
    shapes = node.reader.value(a).shape, node.reader.value(b).shape
    return node.between(Pointwise(node.type(), shapes, alg), {"src_0": a, "src_1": b})


# -- element-wise -----------------------------------------------------------------------------------------------------


def _steps(node: GraphNode, *steps: Eltwise) -> None:
    node.add(Pointwise(node.type(), (node.shape(),), "", steps), {"src_0": node.inputs[0]}, node.shape())


_Numbers = tuple[tuple[str, float], ...]


def _unary(alg: str, attributes: _Numbers, node: GraphNode) -> None:
    """Add an element-wise algorithm whose parameters are attributes of the node, or numbers without a name."""
    _steps(node, Eltwise(alg, *(node.attribute(name, number) if name else number for name, number in attributes)))


_UNARY: Mapping[str, tuple[str, _Numbers]] = {
    "Relu": ("relu", ()), "LeakyRelu": ("relu", (("alpha", 0.01),)), "Elu": ("elu", (("alpha", 1.0),)),
    "Sigmoid": ("logistic", ()), "Tanh": ("tanh", ()), "Erf": ("erf", ()), "Exp": ("exp", ()), "Log": ("log", ()),
    "Sqrt": ("sqrt", ()), "Abs": ("abs", ()), "Neg": ("linear", (("", -1.0),)), "Mish": ("mish", ()),
    "Softplus": ("soft_relu", (("", 1.0),)),
    "HardSigmoid": ("hardsigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "HardSwish": ("hardswish", (("", 1 / 6), ("", 0.5))),
    "Round": ("round", ()), "Floor": ("floor", ()), "Sin": ("sin", ()), "Cos": ("cos", ()), "Atan": ("atan", ()),
    "Reciprocal": ("pow", (("", 1.0), ("", -1.0))),
}  # fmt: skip


def _clip(node: GraphNode) -> None:
    low, high = (node.constant(n) for n in (1, 2))
    least = node.attribute("min", -inf) if low is None else float(low)
    most = node.attribute("max", inf) if high is None else float(high)
    if least > -inf and most < inf:
        _steps(node, Eltwise("clip", least, most))
        return
    shapes = (node.shape(), (1,))
    bound = node.held(np.full((1,), least if least > -inf else most, np.float32))
    work = Pointwise(node.type(), shapes, "max" if least > -inf else "min")
    node.add(work, {"src_0": node.inputs[0], "src_1": bound}, node.shape())


def _pow(node: GraphNode) -> None:
    exponent = node.reader.constants.get(node.inputs[1])
    if exponent is None or exponent.size != 1:
        _pow_of_two(node)
        return
    shape = (1,) * (exponent.ndim - len(node.shape())) + node.shape()
    work = Pointwise(node.type(), (node.shape(),), "", (Eltwise("pow", 1.0, float(exponent.reshape(-1)[0])),))
    node.add(work, {"src_0": node.inputs[0]}, shape)


def _pow_of_two(node: GraphNode) -> None:
    """Add the powers of one array whose exponents are another one."""
    t, shapes, kind, exponents = node.type(), (node.shape(), node.shape(1)), node.any_type(1), node.inputs[1]
    if t != "f32":
        raise UnsupportedError(f"powers of {t} with several exponents; available is f32", code="exponent")
    if kind != t:
        exponents = node.between(ChangeType(kind, t, shapes[1] or (1,)), {"src": exponents}, shapes[1])
    shape = broadcast(shapes) if any(shapes) else ()
    node.add(Power(t, shapes), {"src_0": node.inputs[0], "src_1": exponents}, shape)


def _prelu(node: GraphNode) -> None:
    """Add max(x, 0) + slope * min(x, 0)."""
    t, shape, slope = node.type(), node.shape(), node.inputs[1]
    result = np.broadcast_shapes(shape, node.shape(1))
    zero = node.held(np.zeros((1,), node.reader.numpy_of(t)))
    below, above = (
        node.between(Pointwise(t, (shape, (1,)), alg), {"src_0": node.inputs[0], "src_1": zero})
        for alg in ("min", "max")
    )
    sloped = node.between(Pointwise(t, (shape, node.shape(1)), "mul"), {"src_0": below, "src_1": slope})
    node.add(Pointwise(t, (node.reader.value(sloped).shape, shape), "add"), {"src_0": sloped, "src_1": above}, result)


def _ceil(node: GraphNode) -> None:
    _steps(node, Eltwise("linear", -1.0), Eltwise("floor"), Eltwise("linear", -1.0))


def _gelu(node: GraphNode) -> None:
    _steps(node, Eltwise("gelu_tanh" if node.attribute("approximate", "none") == "tanh" else "gelu_erf"))


def _div(node: GraphNode) -> None:
    if node.any_type() in ("s32", "u8", "s8"):
        divided(node)
    else:
        _binary("div", node)


def _binary(alg: str, node: GraphNode) -> None:
    """Add an operator on two values, or on any number of them from left to right."""
    name, shape = node.inputs[0], node.shape()
    if len(node.inputs) == 1:
        node.add(Reshape(node.any_type(), prod(shape)), {"src": name}, shape)
    for n in range(1, len(node.inputs)):
        other = node.inputs[n]
        first, second = (name, shape), (other, node.shape(n))
        if name in node.reader.constants and alg in ("add", "mul", "max", "min"):
            first, second = second, first
        whole = broadcast((shape, node.shape(n))) if shape or node.shape(n) else ()
        work = Pointwise(node.any_type(n), (first[1], second[1]), alg)
        put = node.add if n == len(node.inputs) - 1 else node.between
        name, shape = put(work, {"src_0": first[0], "src_1": second[0]}, whole), whole


GRAPH_OPERATORS: dict[str, Callable[[GraphNode], None]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "Col2Im": _overlapped, "Gemm": _gemm, "MatMul": _matmul,
    "ConvInteger": partial(add_conv_integer, window_of), "MatMulInteger": add_matmul_integer,
    "DynamicQuantizeLinear": add_dynamic_quantise,
    "BatchNormalization": _batch_norm, "Clip": _clip, "Pow": _pow, "Gelu": _gelu, "PRelu": _prelu, "Ceil": _ceil,
    **{name: partial(_unary, *row) for name, row in _UNARY.items()},
    **{name: partial(_binary, name.lower()) for name in ("Add", "Sub", "Mul", "Max", "Min")}, "Div": _div,
    "Sum": partial(_binary, "add"),
    **POOLS, **WHOLE_NUMBERS, **MOVES, **CHOICES, **GATHERS, **CACHES, **RECURRENT, **ORDERS, **SAMPLES, **RESIZES,
    **SPECTRA, **REGIONS, **DETERMINANTS,
    "Einsum": add_einsum,
}  # fmt: skip
"""By ONNX's name, the function that adds the nodes of an operator."""

