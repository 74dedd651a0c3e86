"""Autocast on the CPU: the type to which torch casts the factors of products."""

from __future__ import annotations

import torch
from torch import _C

__all__ = ["cast_type", "casting"]

_is_any_enabled = _C._is_any_autocast_enabled


def cast_type() -> torch.dtype | None:
    """Return the type to which torch currently casts the factors of products on the CPU; None if it does not cast."""
    if not _is_any_enabled() or not torch.is_autocast_enabled("cpu"):
        return None
    return torch.get_autocast_dtype("cpu")


def casting(dtype: torch.dtype | None) -> torch.autocast:
    """Return a context in which torch casts the factors of products to a type, or does not cast."""
    return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)
