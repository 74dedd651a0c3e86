"""Checks of the tensors that an optimized network is called with."""

from __future__ import annotations

import torch
from torch import Tensor

from convsmith.diag.errors import UsageError
from convsmith.diag.warning import ConvsmithWarning
from convsmith.torch import devices

__all__ = ["OtherSizesWarning", "check_source"]


class OtherSizesWarning(ConvsmithWarning):
    """A network is called with sizes that no function supports, so PyTorch computes."""


def check_source(x: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Raise UsageError if the source `x` has another data type, is on another device, or requires a gradient."""
    if x.dtype is not dtype or devices.device_of(x) != device:
        raise UsageError(
            f"the source is {x.dtype} on {x.device}; legal is {dtype} on {device}, which the network was optimized for",
            code="dtype",
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise UsageError(
            "the source requires a gradient, which an optimized network does not compute; legal is to call it under "
            "torch.inference_mode(), or with x.detach()",
            code="requires-grad",
        )
