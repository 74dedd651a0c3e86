"""Checks of array arguments that several public functions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import without_mask

__all__ = ["as_numbers", "data_type"]

_TYPE_OF = {row.numpy: row.name for row in TYPES.values()}


def data_type(name: str, array: object, legal: Sequence[str]) -> str:
    """Return the type of the input `array`, in the spelling of problems. UsageError if it is not one of `legal`."""
    if not isinstance(array, np.ndarray | np.generic):
        raise UsageError(f"{name}: expected an array, got {type(array).__name__}", code="not-an-array")
    dtype = _TYPE_OF.get(array.dtype, "")
    if dtype not in legal:
        names = ", ".join(str(TYPES[row].numpy) for row in legal)
        raise UsageError(f"{name}: dtype is {array.dtype}; legal: {names} (arrays are never cast)", code="dtype")
    return dtype


def as_numbers(name: str, value: object) -> NDArray[Any]:
    """Return `value`, a number or a sequence of numbers, as an array. UsageError if numpy cannot convert it, or if it
    has masked elements.

    The caller checks type and shape.
    """
    try:
        return np.asarray(without_mask(name, value) if isinstance(value, np.ndarray) else value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name}={shown(value)} is not legal: expected a number, or an array of them", code="value"
        ) from None
