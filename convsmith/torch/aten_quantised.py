"""Conversions between floats and bytes of PyTorch's quantised programs, as `torch.export` quantisation writes them.

Convolutions and products between them become kernels on bytes, as in ONNX models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from convsmith.diag.errors import UnsupportedError
from convsmith.network.graph import IntegerConstant
from convsmith.torch.aten_call import AtenCall, AtenRow

__all__ = ["QUANTISED", "integers_behind"]


def _numbers(call: AtenCall, by_channel: bool) -> tuple[Any, Any]:
    """Return scales and zero points. UnsupportedError if a run computes them, or if bytes are of another type."""
    if call.get("dtype") not in (torch.uint8, torch.int8):
        raise UnsupportedError(f"bytes are {call.get('dtype')}; available are uint8 and int8", code="dtype")
    if not by_channel:
        scale, point = call.get("scale"), call.get("zero_point")
        if not isinstance(scale, int | float) or not isinstance(point, int | float):
            raise UnsupportedError("a run computes the scale; available are constant ones", code="constant")
        return np.float32(scale), np.int64(point)
    held = [call.reader.constants.get(call.optional(name)) for name in ("scales", "zero_points")]
    if held[0] is None:
        raise UnsupportedError("a run computes the scales; available are constant ones", code="constant")
    return held[0].astype(np.float32), np.zeros(held[0].shape) if held[1] is None else held[1]


def _convert(operator: str, by_channel: bool, call: AtenCall) -> None:
    """Add a conversion, after a clip if bytes have narrower limits than their type."""
    scale, point = _numbers(call, by_channel)
    dtype: Any = torch.empty(0, dtype=call.get("dtype")).numpy().dtype
    source, limits = call.source, np.iinfo(dtype)
    axis = {"axis": call.get("axis")} if by_channel else {}
    least, most = call.get("quant_min"), call.get("quant_max")
    if operator == "QuantizeLinear" and (least > limits.min or most < limits.max):
        if by_channel:
            legal = f"{limits.min} to {limits.max}"
            raise UnsupportedError(f"bytes are from {least} to {most}; available are {legal}", code="range")
        ends = [call.held(np.float32((end - point) * scale)) for end in (least, most)]
        source = call.emit("Clip", [source, *ends], between=True)
    call.emit(operator, [source, call.held(scale), call.held(point.astype(dtype))], **axis)


def integers_behind(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> IntegerConstant | None:
    """Return the integers behind the constant that a function computes from constants; None if there are none."""
    packet = target.overloadpacket.__name__
    if packet not in ("dequantize_per_tensor", "dequantize_per_channel"):
        return None
    given = {**dict(zip((a.name for a in target._schema.arguments), args)), **kwargs}
    values: Any = given["input"].numpy()
    names, along = ("scale", "zero_point"), tuple[int, ...]()
    if packet == "dequantize_per_channel":
        names = ("scales", "zero_points")
        along = tuple(-1 if n == given["axis"] % values.ndim else 1 for n in range(values.ndim))
    scale, point = (given.get(name) for name in names)
    parts = (np.asarray(scale, np.float32), np.asarray(0 if point is None else point, np.int32))
    wide = [np.broadcast_to(x.reshape(along if x.size > 1 else ()), values.shape) for x in parts]
    return IntegerConstant(values, *wide)


QUANTISED: dict[str, AtenRow] = {
    "quantize_per_tensor": partial(_convert, "QuantizeLinear", False),
    "quantize_per_channel": partial(_convert, "QuantizeLinear", True),
    "dequantize_per_tensor": partial(_convert, "DequantizeLinear", False),
    "dequantize_per_channel": partial(_convert, "DequantizeLinear", True),
}
"""By PyTorch's name, the function that emits the operators of a conversion."""
