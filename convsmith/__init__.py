"""convsmith: a compiler for convolutions.

    import convsmith as cs
    y = cs.conv2d(x, w, bias, stride=2, padding=1, activation="relu")
    k = cs.compile("mb1ic64ih56oc64oh56kh3ph1", src_tag="axb", dst_tag="axb")
    z = cs.compile("--dir=BWD_D --dt=bf16 mb1ic64ih56oc64oh56kh3ph1").run(wei=w, diff_dst=d)["diff_src"]
    y = cs.onnx.conv(x, w, b, strides=(2, 2))
    net = cs.onnx.compile("model.onnx")

Names are loaded at first use: importing the package is cheap, and LLVM is loaded by the first kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from convsmith.diag.collection import importing
from convsmith.diag.forking import import_lock

if TYPE_CHECKING:
    from convsmith import onnx
    from convsmith.diag.errors import (
        ConfigError,
        ConvsmithError,
        InternalError,
        ToolchainError,
        UnsupportedError,
        UsageError,
    )
    from convsmith.diag.settings import settings
    from convsmith.exporter.library import export
    from convsmith.frontend.conv_functions import (
        conv1d,
        conv2d,
        conv3d,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
    )
    from convsmith.frontend.kernel import CompiledKernel
    from convsmith.frontend.low_precision import gemm_lowp, pack_lowp
    from convsmith.frontend.micro_kernel import micro_kernel
    from convsmith.frontend.numpy_api import compile, load_packed, reorder
    from convsmith.layout.layout import Layout
    from convsmith.network.network import Network
    from convsmith.network.sizes import NetworkOfSizes, load
    from convsmith.problem.conv import Conv
    from convsmith.problem.suites import suite
    from convsmith.runtime.denormals import DenormalWarning
    from convsmith.runtime.packed import Packed
    from convsmith.schedule.config import Config

__version__ = "0.1.0"

_HOME = {
    "diag.errors": (
        "ConfigError", "ConvsmithError", "InternalError", "ToolchainError", "UnsupportedError", "UsageError",
    ),
    "diag.settings": ("settings",),
    "exporter.library": ("export",),
    "frontend.conv_functions": (
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    ),
    "frontend.kernel": ("CompiledKernel",),
    "frontend.low_precision": ("gemm_lowp", "pack_lowp"),
    "frontend.micro_kernel": ("micro_kernel",),
    "frontend.numpy_api": ("compile", "load_packed", "reorder"),
    "layout.layout": ("Layout",),
    "network.network": ("Network",),
    "network.sizes": ("NetworkOfSizes", "load"),
    "schedule.config": ("Config",),
    "problem.conv": ("Conv",),
    "problem.suites": ("suite",),
    "runtime.denormals": ("DenormalWarning",),
    "runtime.packed": ("Packed",),
}  # fmt: skip
_NAMESPACES = {"onnx": "convsmith.onnx", "torch": "convsmith.torch"}
_MODULE = {name: f"convsmith.{module}" for module, names in _HOME.items() for name in names}

__all__ = [
    "CompiledKernel", "Config", "ConfigError", "Conv", "ConvsmithError", "DenormalWarning", "InternalError", "Layout",
    "Network", "NetworkOfSizes", "Packed", "ToolchainError", "UnsupportedError", "UsageError", "__version__", "compile",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "export", "gemm_lowp",
    "load", "load_packed", "micro_kernel", "onnx", "pack_lowp", "reorder", "settings", "suite",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        module, attribute = _NAMESPACES[name], ""
    elif name in _MODULE:
        module, attribute = _MODULE[name], name
    else:
        raise AttributeError(f"module 'convsmith' has no attribute {name!r}")
    with import_lock, importing():
        loaded = import_module(module)
    globals()[name] = value = getattr(loaded, attribute) if attribute else loaded
    return value


def __dir__() -> list[str]:
    return list(__all__)
