"""Checks of arguments that functions of several kinds share: data types of arrays, and whole numbers."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.problem.types import TYPES

__all__ = ["data_type", "whole"]

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


def whole(name: str, value: object) -> int:
    """A whole number, of Python or numpy. UsageError: anything else, True and 2.0 too, which equal whole numbers."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise UsageError(f"{name}={value!r} is not a whole number", code="bad-dim")
