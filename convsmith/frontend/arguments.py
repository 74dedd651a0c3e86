"""Checks of arrays that functions of several kinds share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convsmith.diag.errors import UsageError
from convsmith.problem.types import TYPES

__all__ = ["as_numbers", "data_type"]

_TYPE_OF = {row.numpy: row.name for row in TYPES.values()}


def data_type(name: str, array: object, legal: Sequence[str]) -> str:
    """The type of an input, as problems name it. UsageError: it is not one of `legal`."""
    if not isinstance(array, np.ndarray | np.generic):
        raise UsageError(f"{name}: expected an array, got {type(array).__name__}", code="not-an-array")
    found = _TYPE_OF.get(array.dtype, "")
    if found not in legal:
        names = ", ".join(str(TYPES[row].numpy) for row in legal)
        raise UsageError(f"{name}: dtype is {array.dtype}; legal: {names} (arrays are never cast)", code="dtype")
    return found


def as_numbers(name: str, value: object) -> NDArray[Any]:
    """Numbers, or one, as an array; who asks looks at its type and shape. UsageError: no array can be made of it."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name}={value!r} is not legal: expected a number, or an array of them", code="value"
        ) from None
