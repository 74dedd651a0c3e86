"""Conditions under which a call may bypass torch's dispatcher, which costs microseconds."""

from __future__ import annotations

import torch
from torch import _C, Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

__all__ = ["bypass_on", "has_tangent", "is_recorded", "is_unseen"]

_PLAIN = (Tensor, Parameter)
"""Classes of tensors that torch dispatches on by their keys alone."""

# Every call evaluates all of these, so functions are looked up in modules once.
_is_compiling = torch.compiler.is_compiling
_keys_of, _is_autocast = _C._dispatch_keys, _C._is_any_autocast_enabled
_modes, _function_modes = _C._len_torch_dispatch_stack, _C._len_torch_function_stack
_tracer, _is_profiled = _C._get_tracing_state, _C._autograd._profiler_enabled

_ORDINARY = {_keys_of(torch.empty(0)).raw_repr()}
with torch.inference_mode():
    _ORDINARY.add(_keys_of(torch.empty(0)).raw_repr())
"""Dispatch keys of dense tensors that are not negated, conjugated, batched or without data: of those on the CPU, and on
devices that `bypass_on` has added.
"""


def bypass_on(device: torch.device) -> None:
    """Let calls on ordinary tensors of a device bypass the dispatcher."""
    if device.type in _DEVICES or _is_compiling() or _modes() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    _DEVICES.add(device.type)
    for mode in (False, True):
        with torch.inference_mode(mode):
            _ORDINARY.add(_keys_of(torch.empty(0, device=device)).raw_repr())


_DEVICES = {"cpu", "meta"}
"""Types of devices for which the keys of ordinary tensors are known, or which no call bypasses."""


def is_unseen(x: Tensor, w: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether, besides autograd, no part of torch needs to see a call on these tensors.

    This holds for ordinary tensors of the CPU, or of a GPU after a first call, if no autocast, mode, tracer or profiler
    is active.
    """
    return (
        not _is_compiling()
        and type(x) in _PLAIN
        and type(w) in _PLAIN
        and _keys_of(x).raw_repr() in _ORDINARY
        and _keys_of(w).raw_repr() in _ORDINARY
        and (bias is None or (type(bias) in _PLAIN and _keys_of(bias).raw_repr() in _ORDINARY))
        and not _is_autocast()
        and not _modes()
        and not _function_modes()
        and _tracer() is None
        and forward_ad._current_level < 0
        and not _is_profiled()
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
