"""Denormal weights: numbers so close to zero that a CPU needs hundreds of cycles to multiply by one.

By default the kernel computes with them, after one warning per kernel; the caller can replace them by zero. Denormal
numbers of f16 and of 8-bit floats are normal numbers of f32, in which they are multiplied, so they cause no warning.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import ml_dtypes
import numpy as np

from convsmith.diag.expect import expect_word
from convsmith.ir.types import DTYPES
from convsmith.runtime.arrays import Array, as_array

__all__ = ["DENORMALS", "DenormalWarning", "count_denormals", "warn_of_denormals", "with_denormals"]

DENORMALS = ("keep", "flush")
"""Legal values of the option."""

_CHUNK = 1 << 15
"""Elements examined at once, so that their bits stay in the second-level cache."""

_FLOATS = {np.dtype(t.element) for t in DTYPES.values() if t.kind == "float"}
_SLOW = {np.dtype(name): (np.dtype(f"u{size}"), mantissa) for name, size, mantissa in (
    ("float32", 4, 23), ("float64", 8, 52), ("bfloat16", 2, 7),
)}  # fmt: skip
"""Types whose denormal numbers slow a multiplication, with the unsigned type of their bits and the bits of the
mantissa.
"""


class DenormalWarning(UserWarning):
    """Weights hold denormal numbers."""


def with_denormals(choice: str, name: str, weights: Any) -> Any:
    """Return the argument `name`, with denormal numbers replaced by zero if `choice` is "flush"."""
    expect_word("denormals", choice, DENORMALS, "denormals")
    if choice == "keep":
        return weights
    array = as_array(name, weights)
    if array.dtype not in _FLOATS:
        return array
    if array.dtype in _SLOW and not count_denormals(array):
        return array
    tiny = ml_dtypes.finfo(array.dtype).smallest_normal  # type: ignore[no-untyped-call]
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(array) < tiny, array.dtype.type(0), array)


def count_denormals(array: Array) -> int:
    """Return the number of elements that slow a multiplication."""
    row = _SLOW.get(array.dtype)
    if row is None:
        return 0
    bits, mantissa = row
    flat = array.ravel("K").view(bits)
    one, limit = bits.type(1), (1 << mantissa + 1) - 1
    count = 0
    for start in range(0, flat.size, _CHUNK):
        # With the sign removed and 1 subtracted, zero is the largest number and denormal numbers are the smallest.
        magnitudes = flat[start : start + _CHUNK] << one
        magnitudes -= one
        if magnitudes.min() < limit:
            count += int(np.count_nonzero(magnitudes < limit))
    return count


def warn_of_denormals(name: str, count: int, size: int) -> None:
    """Warn at the caller's line outside this package."""
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
