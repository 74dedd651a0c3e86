"""convsmith for PyTorch: convolutions with torch's arguments, on convsmith's kernels.

    import convsmith.torch as ct
    y = ct.conv2d(x, w, bias, stride=2, padding=1)   # as torch.nn.functional.conv2d; y.backward() works
    fast = ct.optimize(model.eval(), x)              # the model, with its convolutions on convsmith's kernels
    net = ct.compile(model.eval(), x)                # the whole model as one native function

Names are loaded at first use. The functions are operators of `torch.library`, so autograd, autocast, `torch.compile`
and `torch.export` know them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from convsmith.diag.collection import importing
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.forking import import_lock

try:
    import torch as _torch  # noqa: F401  # the package is of no use without it
except ImportError as error:
    raise UnsupportedError(
        f"convsmith.torch needs PyTorch, which cannot be imported ({error}); pip install 'convsmith[torch]' installs "
        "it",
        code="torch",
    ) from None

if TYPE_CHECKING:
    from convsmith.torch.functional import (
        conv1d,
        conv2d,
        conv3d,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
    )
    from convsmith.torch.network import compile
    from convsmith.torch.optimization import optimize
    from convsmith.torch.profiling import profile

_HOME = {
    "functional": (
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    ),
    "network": ("compile",), "optimization": ("optimize",),
    "profiling": ("profile",),
}  # fmt: skip
_MODULE = {name: f"convsmith.torch.{module}" for module, names in _HOME.items() for name in names}

__all__ = [
    "compile", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "optimize",
    "profile",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'convsmith.torch' has no attribute {name!r}")
    with import_lock, importing():
        loaded = import_module(_MODULE[name])
    globals()[name] = value = getattr(loaded, name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
