"""Operators that others express: nodes of ONNX in place of a node of ONNX, of an older version of one, or of ONNX
Runtime's own operators.

A row writes nodes for a node: it reads the node's inputs and attributes, and names values that no other node has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.printable import printable
from convsmith.onnx.graph_functions import FUNCTIONS
from convsmith.onnx.replacement import Replacement

__all__ = ["OUTER", "expanded", "is_older"]

OUTER = "floor, or ceil where smaller"
"""The mode of the nearest element before version 11, which no later version names."""
_MICROSOFT = "com.microsoft"
_ONNX = ("", "ai.onnx")


def _fast_gelu(w: Replacement) -> None:
    x = w.op("Add", w.input(0), w.inputs[1]) if w.has(1) else w.input(0)
    w.end("Gelu", x, approximate="tanh")


def _bias_gelu(w: Replacement) -> None:
    w.end("Gelu", w.op("Add", w.input(0), w.input(1)))


def _quick_gelu(w: Replacement) -> None:
    alpha = w.held(np.float32(w.given("alpha", 1.702)))
    w.end("Mul", w.input(0), w.op("Sigmoid", w.op("Mul", w.input(0), alpha)))


def _fused_product(w: Replacement) -> None:
    """Write a product of matrices, each of which may be transposed, times a number."""
    names = []
    for n, word in ((0, "transA"), (1, "transB")):
        rank = len(w.shape_of(w.input(n)))
        order = [*range(rank - 2), rank - 1, rank - 2]
        names.append(w.op("Transpose", w.input(n), perm=order) if w.given(word, 0) else w.input(n))
    alpha = w.given("alpha", 1.0)
    if alpha == 1:
        w.end("MatMul", *names)
    else:
        w.end("Mul", w.op("MatMul", *names), w.held(np.float32(alpha)))


def _fused_convolution(w: Replacement) -> None:
    """Write a convolution, an addend, and an activation."""
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attributes = {name: w.given(name, None) for name in names if w.given(name, None) is not None}
    x = w.op("Conv", *(w.inputs[:3]), **attributes)
    if w.has(3):
        x = w.op("Add", x, w.inputs[3])
    numbers = w.given("activation_params", [])
    words = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
    name = w.given("activation", "Identity")
    if name == "Clip":
        w.end("Clip", x, *(w.held(np.float32(number)) for number in numbers))
    else:
        w.end(name, x, **dict(zip(words.get(name, ()), numbers)))


def _skip_norm(is_simple: bool, w: Replacement) -> None:
    """Write a norm of the sum of two values and a bias, which is an output too."""
    total = w.op("Add", w.input(0), w.input(1))
    bias = 3 if is_simple else 4
    if w.has(bias):
        total = w.op("Add", total, w.inputs[bias])
    epsilon = w.given("epsilon", 1e-12 if not is_simple else 1e-6)
    factors = [w.inputs[n] for n in range(2, 3 if is_simple else 4) if w.has(n)]
    w.end("RMSNormalization" if is_simple else "LayerNormalization", total, *factors, epsilon=epsilon, axis=-1)
    w.end("Identity", total, n=3)
    if any(w.outputs[1:3]):
        raise UnsupportedError("it returns means too; available is the normalised value", code="output")


def _simple_norm(w: Replacement) -> None:
    more = {name: w.given(name, default) for name, default in (("axis", -1), ("epsilon", 1e-5))}
    w.end("RMSNormalization", w.input(0), w.input(1), **more)


def _embedded(w: Replacement) -> None:
    """Write the norm of the sum of the rows of tokens, positions and segments."""
    ids = w.input(0)
    batch, length = w.shape_of(ids)
    words, rows = w.op("Gather", w.input(2), ids), w.held(np.arange(length))
    places = w.inputs[8] if w.has(8) else rows
    total = w.op("Add", words, w.op("Gather", w.input(3), places))
    if w.has(1) and w.has(4):
        total = w.op("Add", total, w.op("Gather", w.inputs[4], w.inputs[1]))
    w.end("LayerNormalization", total, w.input(5), w.input(6), epsilon=w.given("epsilon", 1e-12), axis=-1)
    w.end("Identity", total, n=2)
    if len(w.outputs) > 1 and w.outputs[1]:
        mask = w.inputs[7] if w.has(7) else w.held(np.ones((batch, length), np.int32))
        w.end("ReduceSum", w.op("Cast", mask, to=1), w.held([1]), n=1, keepdims=0)


def _key_mask(w: Replacement, name: str) -> str:
    """Return a mask of keys, one number for each, as one of attention."""
    rank = len(w.shape_of(name))
    if rank != 2:
        raise UnsupportedError(f"its mask has {rank} axes; available are masks of samples and keys", code="mask")
    return str(w.op("Unsqueeze", w.op("Cast", name, to=9), w.held([1, 2])))


def _attended(
    w: Replacement, heads: Sequence[str], mask: str, bias: str, past: Sequence[str], more: dict[str, Any]
) -> None:  # fmt: skip
    """Write the attention of queries, keys and values, with a mask of keys and a bias of products."""
    scores = [_key_mask(w, mask)] if mask else []
    if mask and bias:
        zero, least = w.held(np.float32(0)), w.held(np.float32(np.finfo(np.float32).min))
        scores = [w.op("Add", w.op("Where", scores[0], zero, least), bias)]
    elif bias:
        scores = [bias]
    given = [*heads, *(scores or [""]), *past]
    outputs = [*w.outputs, "", ""][:3]
    while not outputs[-1]:
        outputs.pop()
    w.op("Attention", *given, outputs=outputs, **more)


def _packed_attention(w: Replacement) -> None:
    """Write attention whose queries, keys and values are one product."""
    hidden = w.shape_of(w.input(1))[1]
    sizes = w.given("qkv_hidden_sizes", None) or [hidden // 3] * 3
    if w.has(4) or (len(w.outputs) > 1 and w.outputs[1]):
        raise UnsupportedError("it keeps keys and values of earlier calls; available is attention without", code="past")
    x = w.op("MatMul", w.input(0), w.input(1))
    x = w.op("Add", x, w.inputs[2]) if w.has(2) else x
    parts = w.op("Split", x, w.held(np.array(sizes)), outputs=w.several(3), axis=-1)
    mask, bias = (w.inputs[n] if w.has(n) else "" for n in (3, 5))
    _attended(w, parts, mask, bias, (), _of_heads(w))


def _of_heads(w: Replacement) -> dict[str, Any]:
    """Return the attributes of `Attention` for the number of heads of a contributed operator."""
    count, scale = w.given("num_heads", 0), w.given("scale", 0.0)
    more = {"q_num_heads": count, "kv_num_heads": count, "is_causal": w.given("unidirectional", 0)}
    return {**more, "scale": scale} if scale else more


def _heads_attention(w: Replacement) -> None:
    """Write attention of queries, keys and values with a bias for each."""
    if not w.has(1) or not w.has(2) or any(len(w.shape_of(w.inputs[n])) != 3 for n in range(3)) or w.has(6):
        legal = "queries, keys and values of three axes, each an input, without earlier ones"
        raise UnsupportedError(f"available are {legal}", code="inputs")
    heads = w.inputs[:3]
    if w.has(3):
        sizes = [w.shape_of(name)[2] for name in heads]
        parts = w.op("Split", w.inputs[3], w.held(np.array(sizes)), outputs=w.several(3), axis=0)
        heads = [w.op("Add", x, part) for x, part in zip(heads, parts)]
    mask, bias = (w.inputs[n] if w.has(n) else "" for n in (4, 5))
    _attended(w, heads, mask, bias, (), _of_heads(w))


def _local_response_norm(w: Replacement) -> None:
    """Write the quotient by a power of the mean of squares of neighbouring channels."""
    shape, size = w.shape_of(w.input(0)), w.given("size", 1)
    squares = w.op("Reshape", w.op("Mul", w.input(0), w.input(0)), w.held([shape[0], 1, shape[1], -1]))
    pads = [(size - 1) // 2, 0, size // 2, 0]
    means = w.op("AveragePool", squares, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
    scaled = w.op("Mul", w.op("Reshape", means, w.held([*shape])), w.held(np.float32(w.given("alpha", 1e-4))))
    base = w.op("Add", scaled, w.held(np.float32(w.given("bias", 1.0))))
    w.end("Mul", w.input(0), w.op("Pow", base, w.held(np.float32(-w.given("beta", 0.75)))))


def _unit_norm(w: Replacement) -> None:
    """Write the quotient by the sum of absolute values, or the root of the sum of squares; zeros remain zeros."""
    operator = {1: "ReduceL1", 2: "ReduceL2"}.get(w.given("p", 2), "")
    if not operator:
        raise UnsupportedError(f"p={w.given('p', 2)}; available are 1 and 2", code="attribute")
    norm = w.op(operator, w.input(0), w.held(np.array([w.given("axis", -1)])), keepdims=1)
    zero, one = (w.op("CastLike", w.held(np.float32(x)), w.input(0)) for x in (0, 1))
    w.end("Div", w.input(0), w.op("Where", w.op("Equal", norm, zero), one, norm))


def _mean(w: Replacement) -> None:
    w.end("Mul", w.op("Sum", *w.inputs), w.held(np.float32(1 / len(w.inputs))))


# -- older versions ---------------------------------------------------------------------------------------------------


def _flat_softmax(operator: str, w: Replacement) -> None:
    """Write a softmax over all axes from one on."""
    shape, axis = w.shape_of(w.input(0)), w.given("axis", 1)
    axis += len(shape) * (axis < 0)
    if not 0 <= axis <= len(shape):
        raise UsageError(f"axis={axis} of {len(shape)} dims; legal are the dims", code="axis")
    if axis == len(shape) - 1:
        w.end(operator, w.input(0), axis=axis)
        return
    made = w.op(operator, w.op("Flatten", w.input(0), axis=axis), axis=1)
    w.end("Reshape", made, w.held(np.array(shape, np.int64)))


def _old_resize(w: Replacement) -> None:
    """Write a resize by factors, whose element x of the result lies at x divided by the factor, or takes the element
    below, in smaller results the element above.
    """
    scales = w.input(1) if w.has(1) else w.held(np.float32(w.given("scales", ())))
    way, mode = "asymmetric", w.given("mode", "nearest")
    w.end(
        "Resize", w.input(0), "", scales, mode=mode, coordinate_transformation_mode=way, nearest_mode=OUTER
    )  # fmt: skip


def _aligned(operator: str, axis: int | None, w: Replacement) -> None:
    """Write an operator whose second operand has the axes of the first one from `axis` on, or from an attribute on."""
    start, other = w.given("axis", axis), w.input(1)
    rank, own = (len(w.shape_of(w.input(n))) for n in range(2))
    behind = 0 if start is None or not own else rank - start - own
    if behind > 0:
        other = w.op("Reshape", other, w.held(np.array([*w.shape_of(other), *[1] * behind], np.int64)))
    w.end(operator, w.input(0), other)


_ALWAYS = 2**31
"""No version of ONNX's operators has reached it: every version of the operator is an older one."""
_OF_ONNX: dict[str, Callable[[Replacement], None]] = {
    "LRN": _local_response_norm, "LpNormalization": _unit_norm, "Mean": _mean,
    "SimplifiedLayerNormalization": _simple_norm, **FUNCTIONS,
}  # fmt: skip
_OLDER: dict[str, tuple[int, Callable[[Replacement], None]]] = {
    **{name: (13, partial(_flat_softmax, name)) for name in ("Softmax", "LogSoftmax", "Hardmax")},
    "Scatter": (_ALWAYS, lambda w: w.end("ScatterElements", *w.inputs, axis=w.given("axis", 0))),
    "Upsample": (_ALWAYS, _old_resize), "Resize": (11, _old_resize), "PRelu": (7, partial(_aligned, "PRelu", 1)),
    **{name: (7, partial(_aligned, name, None)) for name in (
        "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Greater", "Less", "Equal",
    )},
}  # fmt: skip
"""Operators whose meaning, or whose attributes, a version of the operator set has changed, by that version."""
_OF_MICROSOFT: dict[str, Callable[[Replacement], None]] = {
    "Gelu": lambda w: w.end("Gelu", w.input(0)), "FastGelu": _fast_gelu, "BiasGelu": _bias_gelu,
    "QuickGelu": _quick_gelu, "FusedMatMul": _fused_product, "FusedConv": _fused_convolution,
    "SkipLayerNormalization": lambda w: _skip_norm(False, w), "EmbedLayerNormalization": _embedded,
    "SkipSimplifiedLayerNormalization": lambda w: _skip_norm(True, w), "SimplifiedLayerNormalization": _simple_norm,
    "Attention": _packed_attention, "MultiHeadAttention": _heads_attention,
}  # fmt: skip
"""Operators of ONNX Runtime's own domain."""


def is_older(proto: Any, version: int) -> bool:
    """Return whether the node `proto` of an operator set of that version has another meaning today."""
    return proto.domain in _ONNX and version < _OLDER.get(proto.op_type, (0,))[0]


def expanded(
    proto: Any, version: int, fresh: Callable[[str], str], package: Any, shape_of: Callable[[str], Any]
) -> Sequence[Any]:  # fmt: skip
    """Return the nodes that replace the node `proto` of an operator set of that version, or the node itself if it has
    no row.

    `fresh` returns a name that no value has, `shape_of` the shape of a value; `package` is the package `onnx`.
    UnsupportedError or UsageError for inputs and attributes that are not available.
    """
    rows = _OF_MICROSOFT if proto.domain == _MICROSOFT else _OF_ONNX if proto.domain in _ONNX else {}
    row = _OLDER[proto.op_type][1] if is_older(proto, version) else rows.get(proto.op_type)
    if row is None:
        return [proto]
    nodes = Replacement(proto, fresh, package, shape_of)
    try:
        row(nodes)
    except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise UsageError(f"its inputs and attributes do not fit: {printable(str(error))}", code="attribute") from None
    return nodes.made
