"""Convolutions, products, attention and norms of PyTorch's programs, by operators of ONNX."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.torch.aten_call import AtenCall, AtenRow

__all__ = ["PRODUCTS"]


def _conv(call: AtenCall, transposed: bool = False) -> None:
    rank = len(call.shape) - 2
    padding = call.get("padding")
    s, d = call.numbers("stride", rank), call.numbers("dilation", rank)
    attributes: dict[str, Any] = {"strides": s, "dilations": d, "group": call.get("groups")}
    if isinstance(padding, str):
        attributes["auto_pad"] = {"same": "SAME_UPPER", "valid": "VALID"}[padding]
    else:
        p = call.numbers("padding", rank)
        attributes["pads"] = (*p, *p)
    if transposed or call.get("transposed"):
        attributes["output_padding"] = call.numbers("output_padding", rank)
    operator = "ConvTranspose" if "output_padding" in attributes else "Conv"
    bias = call.optional("bias")
    inputs = [call.factor(call.first), call.factor(call.get("weight")), *([bias] if bias else [])]
    call.emit(operator, inputs, **attributes)


def _transposed(call: AtenCall, name: str) -> str:
    """Return the name of a value with its last two axes exchanged."""
    rank = len(call.reader.value(name).shape)
    axes = (*range(rank - 2), rank - 1, rank - 2)
    held = call.reader.constants.get(name)
    if held is not None:
        return call.moved(name, lambda x: np.ascontiguousarray(x.transpose(axes)))
    return call.emit("Transpose", [name], perm=axes, between=True)


def _linear(call: AtenCall) -> None:
    weights, bias = _transposed(call, call.factor(call.get("weight"))), call.optional("bias")
    product = call.emit("MatMul", [call.factor(call.first), weights], between=bool(bias))
    if bias:
        call.emit("Add", [product, bias])


def _matmul(call: AtenCall) -> None:
    call.emit("MatMul", [call.factor(call.first), call.factor(call.get("mat2") or call.get("other"))])


def _addmm(call: AtenCall) -> None:
    if call.get("alpha") != 1 or call.get("beta") != 1:
        raise UnsupportedError("available are alpha=1 and beta=1", code="product")
    one, two = ("mat1", "mat2") if call.get("mat1") is not None else ("batch1", "batch2")
    product = call.emit("MatMul", [call.factor(call.get(one)), call.factor(call.get(two))], between=True)
    call.emit("Add", [product, call.source])


def _attention(call: AtenCall) -> None:
    """Emit softmax(query * keys^T * scale + mask) * values."""
    if call.get("dropout_p"):
        raise UnsupportedError("available is attention without dropout", code="operator")
    dtype = call.result.dtype
    q, k, v = (call.factor(call.get(name)) for name in ("query", "key", "value"))
    if call.get("enable_gqa"):
        axis, heads = len(call.shape) - 3, call.shape[-3]
        k, v = (call.repeated(x, axis, heads // call.reader.value(x).shape[axis], between=True) for x in (k, v))
    scale = call.get("scale") or 1 / math.sqrt(call.shape[-1])
    scaled = call.emit("Mul", [q, call.operand(scale, dtype)], between=True)
    scores = call.emit("MatMul", [scaled, _transposed(call, k)], between=True)
    mask = call.optional("attn_mask")
    if call.get("is_causal"):
        size = (call.reader.value(q).shape[-2], call.reader.value(k).shape[-2])
        mask = call.held(np.tri(*size, dtype=np.uint8))
    if mask:
        masked = call.reader.value(mask)
        if masked.type == "u8":
            lowest = call.operand(-math.inf, dtype)
            scores = call.emit("Where", [mask, scores, lowest], between=True)
        else:
            scores = call.emit("Add", [scores, mask], between=True)
    shares = call.emit("Softmax", [scores], axis=-1, between=True)
    call.emit("MatMul", [shares, v])


# -- norms ------------------------------------------------------------------------------------------------------------


def _scaled(call: AtenCall, name: str, along: tuple[int, ...] | None = None) -> None:
    """Emit the product with the weight and the sum with the bias, in the shape `along`; the last is the result."""
    steps = [(op, call.optional(arg)) for op, arg in (("Mul", "weight"), ("Add", "bias")) if call.optional(arg)]
    for n, (operator, factor) in enumerate(steps):
        whole = call.reshaped(factor, along, between=True) if along else factor
        name = call.emit(operator, [name, whole], between=n < len(steps) - 1)
    if not steps:
        call.emit("Identity", [name])


def _batch_norm(call: AtenCall) -> None:
    if call.get("training"):
        raise UnsupportedError("it computes means in each run; available are norms in eval mode", code="training")
    channels = call.shape[1]
    dtype = call.result.dtype
    ones, zeros = (call.operand([x] * channels, dtype) for x in (1.0, 0.0))
    given = (call.optional("weight") or ones, call.optional("bias") or zeros)
    means = (call.optional("running_mean") or zeros, call.optional("running_var") or ones)
    call.emit("BatchNormalization", [call.source, *given, *means], epsilon=call.get("eps"))


def _layer_norm(call: AtenCall) -> None:
    rank = len(call.get("normalized_shape"))
    inputs = [call.source, call.optional("weight"), call.optional("bias")]
    call.emit("LayerNormalization", inputs, axis=-rank, epsilon=call.get("eps"))


def _group_norm(call: AtenCall) -> None:
    groups = call.get("num_groups") or call.get("group")
    inputs = [call.source, call.optional("weight"), call.optional("bias")]
    call.emit("GroupNormalization", inputs, num_groups=groups, epsilon=call.get("eps"))


def _instance_norm(call: AtenCall) -> None:
    if not call.get("use_input_stats"):
        _batch_norm(call)
        return
    norm = call.emit("InstanceNormalization", [call.source], epsilon=call.get("eps"), between=True)
    _scaled(call, norm, (1, call.shape[1], *(1,) * (len(call.shape) - 2)))


def _rms_norm(call: AtenCall) -> None:
    rank, dtype = len(call.get("normalized_shape")), call.result.dtype
    axes = call.held(np.arange(-rank, 0))
    square = call.emit("Mul", [call.source, call.source], between=True)
    mean = call.emit("ReduceMean", [square, axes], between=True)
    eps = call.get("eps")
    moved = call.emit("Add", [mean, call.operand(1e-7 if eps is None else eps, dtype)], between=True)
    size = call.emit("Sqrt", [moved], between=True)
    _scaled(call, call.emit("Div", [call.source, size], between=True))


PRODUCTS: dict[str, AtenRow] = {
    **{f"conv{rank}d": _conv for rank in (1, 2, 3)}, "convolution": _conv,
    **{f"conv_transpose{rank}d": partial(_conv, transposed=True) for rank in (1, 2, 3)},
    "linear": _linear, "matmul": _matmul, "mm": _matmul, "bmm": _matmul, "addmm": _addmm, "baddbmm": _addmm,
    "scaled_dot_product_attention": _attention,
    "batch_norm": _batch_norm, "_native_batch_norm_legit_no_training": _batch_norm,
    "layer_norm": _layer_norm, "group_norm": _group_norm, "instance_norm": _instance_norm, "rms_norm": _rms_norm,
}  # fmt: skip
"""By ATen's name, the function that emits a call."""
