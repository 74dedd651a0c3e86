"""Inputs of ONNX operators: checks of their types, and scales and zero points as arrays for a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.frontend.arguments import as_numbers, data_type
from convsmith.problem.attributes import Quantity
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import Array

__all__ = [
    "Points",
    "Scalars",
    "bias",
    "given",
    "one_or",
    "present",
    "quantities",
    "scales",
    "zero_points",
]

Scalars: TypeAlias = Array | Sequence[float] | float
"""A scale or a zero point: one, or one per channel, row or column. A Python number may have any type."""

Points: TypeAlias = NDArray[np.int32] | None
"""Zero points as a kernel takes them; None if all are 0."""

_SCALES = ("f32", "f16", "bf16")


def bias(array: Array, dtype: str, channels: int) -> Array:
    """Return the input B. UsageError if its type or shape is not legal."""
    data_type("B", array, (dtype,))
    if array.shape != (channels,):
        raise UsageError(f"B: shape is {array.shape}; legal is ({channels},), one for each channel", code="shape")
    return array


def zero_points(name: str, given: Scalars | None, dtype: str) -> NDArray[np.int32]:
    """Return the zero points of an input of type `dtype` as s32; 0 if `given` is None."""
    if given is None:
        return np.zeros((), np.int32)
    if isinstance(given, np.ndarray | np.generic):
        data_type(name, given, (dtype,))
        return np.asarray(given, np.int32)
    values = as_numbers(name, given)
    limits = np.iinfo(TYPES[dtype].numpy)
    if values.dtype.kind not in "iu" or ((values < limits.min) | (values > limits.max)).any():
        raise UsageError(
            f"{name}={shown(given)} is not legal: expected whole numbers from {limits.min} to {limits.max}",
            code="value",
        )
    return values.astype(np.int32)


def scales(name: str, given: Scalars) -> NDArray[np.float32]:
    """Return the scales as f32. UsageError if one is 0 or not finite."""
    if isinstance(given, np.ndarray):
        data_type(name, given, _SCALES)
    values = as_numbers(name, given)
    if values.dtype.kind == "f" or values.dtype == TYPES["bf16"].numpy or values.dtype.kind in "iu":
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
        if np.isfinite(values).all() and values.all():
            return values
    raise UsageError(f"{name}={shown(given)} is not legal: expected finite numbers other than 0", code="value")


def one_or(name: str, values: NDArray[Any], count: int) -> NDArray[Any]:
    """Return `values` as a vector of one element or of `count`."""
    if values.ndim > 1 or values.size not in (1, count):
        legal = "one number" if count == 1 else f"one number, or {count}: one for each output channel"
        raise UsageError(f"{name}: shape is {values.shape}; legal is {legal}", code="shape")
    return values.reshape(-1)


def present(values: NDArray[np.int32]) -> Points:
    """Return `values`, or None if all are 0, because a kernel without zero points is faster."""
    return values if values.any() else None


def quantities(points: Mapping[str, Points]) -> tuple[Quantity, ...]:
    """Return the zero points of a problem; each call passes their values."""
    return tuple(
        Quantity(argument, "common" if values.size == 1 else "per_oc", (0,), "s32")
        for argument, values in points.items()
        if values is not None
    )


def given(points: Mapping[str, Points]) -> dict[str, Array]:
    """Return the zero points of a call, by the names of a kernel's arguments."""
    return {f"zero_points_{argument}": values for argument, values in points.items() if values is not None}
