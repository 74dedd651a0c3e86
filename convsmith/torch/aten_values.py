"""Element-wise functions, reductions and pools of PyTorch's programs, by operators of ONNX."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch

from convsmith.diag.errors import UnsupportedError
from convsmith.torch.aten_call import AtenCall, AtenRow, number_of

__all__ = ["VALUES"]


def _unary(operator: str, call: AtenCall, **names: str) -> None:
    call.emit(operator, [call.source], **{name: call.get(own) for name, own in names.items()})


def _binary(operator: str, call: AtenCall) -> None:
    """Emit an operation on two operands, of which one may be a number, in the type of the result."""
    dtype = call.result.dtype
    mode, factor = call.get("rounding_mode"), call.get("alpha")
    if mode not in (None, "floor") or factor not in (None, 1):
        raise UnsupportedError(f"rounding_mode={mode}, alpha={factor}; available are floor or none, and 1", code="mode")
    one, two = (call.operand(call.get(name), dtype) for name in ("self", "other"))
    made = call.emit(operator, [one, two], between=mode is not None)
    if mode is not None:
        call.emit("Floor", [made])


def _bits(operator: str, call: AtenCall) -> None:
    """Emit an operation on the bits of two operands, which are truth values or whole numbers."""
    _binary(operator if call.result.dtype == torch.bool else f"Bitwise{operator}", call)


def _bits_not(call: AtenCall) -> None:
    call.emit("Not" if call.result.dtype == torch.bool else "BitwiseNot", [call.source])


def _remainder(has_first_sign: int, call: AtenCall) -> None:
    """Emit the remainder of two operands, with the sign of the first or of the second one."""
    dtype = call.result.dtype
    operands = [call.operand(call.get(name), dtype) for name in ("self", "other")]
    call.emit("Mod", operands, fmod=has_first_sign)


def _added_product(call: AtenCall) -> None:
    """Emit a + b * c."""
    dtype = call.result.dtype
    if call.get("value") != 1:
        raise UnsupportedError("available is value=1", code="operator")
    one, two = (call.operand(call.get(name), dtype) for name in ("tensor1", "tensor2"))
    call.emit("Add", [call.source, call.emit("Mul", [one, two], between=True)])


def _subtracted_from(call: AtenCall) -> None:
    dtype = call.result.dtype
    call.emit("Sub", [call.operand(call.get("other"), dtype), call.operand(call.get("self"), dtype)])


def _compared(operator: str, call: AtenCall) -> None:
    own, other = call.get("self"), call.get("other")
    dtype = own.meta["val"].dtype
    inputs = [call.operand(own, dtype), call.operand(other, dtype)]
    if operator == "NotEqual":
        call.emit("Not", [call.emit("Equal", inputs, between=True)])
    else:
        call.emit(operator, inputs)


def _cast(call: AtenCall) -> None:
    own = call.first.meta["val"].dtype
    if own == call.result.dtype:
        call.emit("Identity", [call.source])
    else:
        call.emit("Cast", [call.source], to=number_of(call.result.dtype))


def _clamped(call: AtenCall) -> None:
    dtype = call.result.dtype
    low, high = (call.get(name) for name in ("min", "max"))
    low = call.get("min_val") if low is None else low
    high = call.get("max_val") if high is None else high
    for x in (low, high):
        if not isinstance(x, int | float | None):
            raise UnsupportedError("a bound is a tensor; available are numbers", code="operator")
    bounds = [x if x is not None and abs(x) < inf else None for x in (low, high)]
    if bounds == [None, None]:
        call.emit("Identity", [call.source])
        return
    call.emit("Clip", [call.source, *("" if x is None else call.operand(x, dtype) for x in bounds)])


def _relu6(call: AtenCall) -> None:
    dtype = call.result.dtype
    call.emit("Clip", [call.source, call.operand(0, dtype), call.operand(6, dtype)])


def _silu(call: AtenCall) -> None:
    call.emit("Mul", [call.source, call.emit("Sigmoid", [call.source], between=True)])


def _glu(call: AtenCall) -> None:
    (axis,) = call.axes()
    half = call.shape[axis] // 2
    parts = [
        call.emit("Slice", [call.source, *(call.whole([x]) for x in (a, a + half, axis))], between=True)
        for a in (0, half)
    ]
    call.emit("Mul", [parts[0], call.emit("Sigmoid", [parts[1]], between=True)])


def _elu(call: AtenCall) -> None:
    if call.get("scale") != 1 or call.get("input_scale") != 1:
        raise UnsupportedError("available are scale=1 and input_scale=1", code="operator")
    call.emit("Elu", [call.source], alpha=call.get("alpha"))


def _softplus(call: AtenCall) -> None:
    if call.get("beta") != 1:
        raise UnsupportedError("available is beta=1", code="operator")
    call.emit("Softplus", [call.source])


def _prelu(call: AtenCall) -> None:
    slopes = call.reshaped(call.name(call.get("weight")), (-1, *(1,) * (len(call.shape) - 2)), between=True)
    call.emit("PRelu", [call.source, slopes])


def _power(number: float | None, call: AtenCall) -> None:
    exponent = call.get("exponent") if number is None else number
    dtype = call.result.dtype
    call.emit("Pow", [call.operand(call.get("self"), dtype), call.operand(exponent, dtype)])


def _where(call: AtenCall) -> None:
    dtype = call.result.dtype
    mask, yes, no = (call.get(name) for name in ("condition", "self", "other"))
    call.emit("Where", [call.name(mask), call.operand(yes, dtype), call.operand(no, dtype)])


def _filled(call: AtenCall) -> None:
    dtype = call.result.dtype
    call.emit("Where", [call.name(call.get("mask")), call.operand(call.get("value"), dtype), call.source])


# -- reductions -------------------------------------------------------------------------------------------------------


def _reduced(operator: str, call: AtenCall) -> None:
    axes = call.whole(call.axes())
    call.emit(operator, [call.source, axes], keepdims=int(bool(call.get("keepdim"))))


def _norm(call: AtenCall) -> None:
    if call.get("ord") != 2:
        raise UnsupportedError(f"ord={call.get('ord')}; available is 2", code="operator")
    _reduced("ReduceL2", call)


def _variance(call: AtenCall) -> None:
    """Emit the mean of the squared distances from the mean, times n / (n - correction)."""
    axes, dtype = call.axes(), call.result.dtype
    held, correction = call.whole(axes), call.get("correction")
    count = int(np.prod([call.shape[axis] for axis in axes]))
    free = count - (1 if correction is None else correction)
    mean = call.emit("ReduceMean", [call.source, held], between=True)
    away = call.emit("Sub", [call.source, mean], between=True)
    keeps = int(bool(call.get("keepdim")))
    square = call.emit("ReduceSumSquare", [away, held], keepdims=keeps, between=True)
    call.emit("Mul", [square, call.operand(1 / free, dtype)])


def _softmax(operator: str, call: AtenCall) -> None:
    (axis,) = call.axes()
    call.emit(operator, [call.source], axis=axis)


# -- pools ------------------------------------------------------------------------------------------------------------


def _pool(operator: str, call: AtenCall) -> None:
    rank = len(call.shape) - 2
    if call.get("divisor_override") is not None:
        raise UnsupportedError("available is the mean of the elements of a window", code="operator")
    k, p = call.numbers("kernel_size", rank), call.numbers("padding", rank)
    s = call.numbers("stride", rank) if call.get("stride") else k
    attributes: dict[str, Any] = {"kernel_shape": k, "strides": s, "pads": (*p, *p)}
    attributes["ceil_mode"] = int(bool(call.get("ceil_mode")))
    if operator == "MaxPool":
        attributes["dilations"] = call.numbers("dilation", rank)
    else:
        attributes["count_include_pad"] = int(bool(call.get("count_include_pad")))
    call.emit(operator, [call.source], **attributes)


def _adaptive(operator: str, call: AtenCall) -> None:
    rank = len(call.shape) - 2
    sizes = [i if o is None else o for i, o in zip(call.shape[2:], call.numbers("output_size", rank))]
    if any(i % o for i, o in zip(call.shape[2:], sizes)):
        raise UnsupportedError(
            f"{call.shape[2:]} becomes {tuple(sizes)}; available are sizes that divide those of the source", code="size"
        )
    k = tuple(i // o for i, o in zip(call.shape[2:], sizes))
    call.emit(operator, [call.source], kernel_shape=k, strides=k)


_ONE = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "erf": "Erf", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "abs": "Abs", "neg": "Neg", "floor": "Floor", "ceil": "Ceil", "round": "Round", "sin": "Sin", "cos": "Cos",
    "hardswish": "HardSwish", "mish": "Mish", "reciprocal": "Reciprocal", "isnan": "IsNaN", "logical_not": "Not",
    "atan": "Atan",
}  # fmt: skip
_TWO = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min", "logical_and": "And",
    "logical_or": "Or",
}  # fmt: skip
_BITS = {"bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor", "__and__": "And", "__or__": "Or",
         "__xor__": "Xor"}  # fmt: skip
_COMPARISONS = {"eq": "Equal", "ne": "NotEqual", "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less",
                "le": "LessOrEqual"}  # fmt: skip
_SAME = ("alias", "clone", "contiguous", "detach", "dropout", "feature_dropout", "lift_fresh_copy", "to", "_to_copy",
         "type_as", "float")  # fmt: skip

VALUES: dict[str, AtenRow] = {
    **{name: partial(_unary, operator) for name, operator in _ONE.items()},
    **{name: partial(_binary, operator) for name, operator in _TWO.items()},
    **{name: partial(_bits, operator) for name, operator in _BITS.items()}, "bitwise_not": _bits_not,
    "remainder": partial(_remainder, 0), "fmod": partial(_remainder, 1),
    **{name: partial(_compared, operator) for name, operator in _COMPARISONS.items()},
    **dict.fromkeys(_SAME, _cast),
    "addcmul": _added_product, "rsub": _subtracted_from,
    "leaky_relu": partial(_unary, "LeakyRelu", alpha="negative_slope"),
    "gelu": partial(_unary, "Gelu", approximate="approximate"), "silu": _silu, "glu": _glu, "elu": _elu,
    "softplus": _softplus, "relu6": _relu6, "clamp": _clamped, "clamp_min": _clamped, "hardtanh": _clamped,
    "hardsigmoid": lambda call: call.emit("HardSigmoid", [call.source], alpha=1 / 6, beta=0.5),
    "prelu": _prelu,
    "pow": partial(_power, None), "square": partial(_power, 2), "rsqrt": partial(_power, -0.5),
    "where": _where, "masked_fill": _filled,
    "mean": partial(_reduced, "ReduceMean"), "sum": partial(_reduced, "ReduceSum"),
    "amax": partial(_reduced, "ReduceMax"), "amin": partial(_reduced, "ReduceMin"), "linalg_vector_norm": _norm,
    "var": _variance, "softmax": partial(_softmax, "Softmax"), "_softmax": partial(_softmax, "Softmax"),
    "log_softmax": partial(_softmax, "LogSoftmax"),
    **{f"max_pool{rank}d": partial(_pool, "MaxPool") for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": partial(_pool, "AveragePool") for rank in (1, 2, 3)},
    **{f"adaptive_avg_pool{rank}d": partial(_adaptive, "AveragePool") for rank in (1, 2, 3)},
    **{f"adaptive_max_pool{rank}d": partial(_adaptive, "MaxPool") for rank in (1, 2, 3)},
}  # fmt: skip
"""By ATen's name, the function that emits a call."""
