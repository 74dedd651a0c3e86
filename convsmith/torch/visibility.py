"""Whether torch must see a call: a kernel that runs at once saves the microseconds of torch's dispatcher."""

from __future__ import annotations

import torch
from torch import _C, Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

__all__ = ["has_tangent", "is_recorded", "is_unseen"]

_PLAIN = (Tensor, Parameter, type(None))
"""Classes of tensors that torch dispatches on by their keys alone."""

_ORDINARY = {_C._dispatch_keys(torch.empty(0)).raw_repr()}
with torch.inference_mode():
    _ORDINARY.add(_C._dispatch_keys(torch.empty(0)).raw_repr())
"""Dispatch keys of dense tensors in memory of the CPU: none negated, conjugated, batched or without data."""


def is_unseen(x: Tensor, w: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether only autograd may have to see a call on these tensors.

    They are ordinary ones of the CPU, and no autocast, mode, tracer or profiler is active.
    """
    return (
        not torch.compiler.is_compiling()
        and type(x) in _PLAIN
        and type(w) in _PLAIN
        and type(bias) in _PLAIN
        and _C._dispatch_keys(x).raw_repr() in _ORDINARY
        and _C._dispatch_keys(w).raw_repr() in _ORDINARY
        and (bias is None or _C._dispatch_keys(bias).raw_repr() in _ORDINARY)
        and not _C._is_any_autocast_enabled()
        and not _C._len_torch_dispatch_stack()
        and not _C._len_torch_function_stack()
        and _C._get_tracing_state() is None
        and forward_ad._current_level < 0
        and not _C._autograd._profiler_enabled()
    )


def is_recorded(x: Tensor, w: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether autograd records a call on these tensors."""
    return (
        x.requires_grad or w.requires_grad or (bias is not None and bias.requires_grad)
    ) and torch.is_grad_enabled()  # fmt: skip


def has_tangent(tensor: Tensor) -> bool:
    """Return whether a tensor carries a tangent of forward-mode autograd."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
