"""Denormal weights: numbers so near zero that a CPU takes some hundred cycles for each multiplication by one.

They are computed with as they are, after one warning for each kernel, or taken as zero where the caller says so. The
denormal numbers of f16 are normal ones of f32, in which they are multiplied, and slow nothing: there is no warning.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import ml_dtypes
import numpy as np

from convsmith.diag.expect import expect_word
from convsmith.runtime.arrays import Array, as_array

__all__ = ["DENORMALS", "DenormalWarning", "count_denormals", "warn_of_denormals", "with_denormals"]

DENORMALS = ("keep", "flush")
"""What a caller can ask for."""

_CHUNK = 1 << 15
"""Elements that are looked at together: their bits stay in the cache of the second level."""

_SLOW = {np.dtype(name): (np.dtype(f"u{size}"), mantissa) for name, size, mantissa in (
    ("float32", 4, 23), ("float64", 8, 52), ("bfloat16", 2, 7),
)}  # fmt: skip
"""Types whose denormal numbers slow a multiplication: the unsigned type of their bits, and those of the mantissa."""


class DenormalWarning(UserWarning):
    """Weights hold denormal numbers."""


def with_denormals(choice: str, name: str, weights: Any) -> Any:
    """The argument `name` as the caller asks for it: itself, or with zeros for its denormal numbers."""
    expect_word("denormals", choice, DENORMALS, "denormals")
    if choice == "keep":
        return weights
    array = as_array(name, weights)
    if not np.issubdtype(array.dtype, np.floating) and array.dtype != ml_dtypes.bfloat16:
        return array
    tiny = ml_dtypes.finfo(array.dtype).smallest_normal  # type: ignore[no-untyped-call]
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(array) < tiny, array.dtype.type(0), array)


def count_denormals(array: Array) -> int:
    """How many elements slow a multiplication."""
    row = _SLOW.get(array.dtype)
    if row is None:
        return 0
    bits, mantissa = row
    flat = array.ravel("K").view(bits)
    one, limit = bits.type(1), (1 << mantissa + 1) - 1
    found = 0
    for start in range(0, flat.size, _CHUNK):
        # Without the sign, and less 1 so that zero becomes the largest number, denormal ones are the smallest.
        magnitudes = flat[start : start + _CHUNK] << one
        magnitudes -= one
        if magnitudes.min() < limit:
            found += int(np.count_nonzero(magnitudes < limit))
    return found


def warn_of_denormals(name: str, count: int, size: int) -> None:
    """Warn at the line of the caller outside this package."""
    frame, level = sys._getframe(1), 2
    package = __name__.partition(".")[0] + "."
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f'{name}: {count} of {size} are denormal numbers, which slow every multiplication; denormals="flush" takes '
        "them as zero (conv2d and its like, Kernel.pack)",
        DenormalWarning,
        stacklevel=level,
    )
