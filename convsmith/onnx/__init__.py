"""ONNX: models as one function, convolutions and integer products as functions on arrays, and profiles of models.

    net = cs.onnx.compile("model.onnx")
    y = cs.onnx.conv(x, w, b, strides=(2, 2))
    print(cs.onnx.profile("model.onnx"))
    cs.onnx.quantize("model.onnx", samples).save("int8.onnx")

The functions on arrays need no package of ONNX; `compile` and `quantize` need `onnx`, a profile `onnxruntime` too.
Names are loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from convsmith.diag.forking import import_lock

if TYPE_CHECKING:
    from convsmith.measure.profile import ModelProfile
    from convsmith.onnx.network import compile
    from convsmith.onnx.operators import (
        conv,
        conv_integer,
        conv_transpose,
        matmul_integer,
        qlinear_conv,
        qlinear_matmul,
    )
    from convsmith.onnx.profiling import profile
    from convsmith.onnx.quantisation import QuantizedModel, quantize

_OPERATORS = ("conv", "conv_integer", "conv_transpose", "matmul_integer", "qlinear_conv", "qlinear_matmul")
_HOME = {name: "onnx.operators" for name in _OPERATORS} | {
    "ModelProfile": "measure.profile", "compile": "onnx.network", "profile": "onnx.profiling",
    "QuantizedModel": "onnx.quantisation", "quantize": "onnx.quantisation",
}  # fmt: skip

__all__ = [
    "ModelProfile", "QuantizedModel", "compile", "conv", "conv_integer", "conv_transpose", "matmul_integer", "profile",
    "qlinear_conv", "qlinear_matmul", "quantize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'convsmith.onnx' has no attribute {name!r}")
    with import_lock:
        value = getattr(import_module(f"convsmith.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
