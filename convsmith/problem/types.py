"""Data types of arrays as rows of one table: name, numpy type, and whether they are integers; and conversions to them.

A conversion to an integer type rounds to nearest even and saturates; NaN becomes 0. Values are clamped before the cast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from convsmith.diag.choices import suggestion
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import conforms, shown

__all__ = [
    "TYPES", "ArrayType", "array_type", "check_types", "checked_bias_type", "convert", "factor_type",
    "is_integer", "precision", "print_f32", "print_types",
]  # fmt: skip

Array = np.ndarray[Any, Any]


class ArrayType(NamedTuple):
    """One data type; `name` is oneDNN's. Kernels convert its numbers to the type `factor` (by default the type itself)
    before multiplying.
    """

    name: str
    numpy: np.dtype[Any]
    integer: bool
    factor: str = ""

    @property
    def bits(self) -> int:
        """Bits that an element takes in an array: a 4-bit number takes a byte and is stored in its lower half."""
        return self.numpy.itemsize * 8


TYPES = {
    row.name: row
    for row in (
        ArrayType("f32", np.dtype(np.float32), False),
        ArrayType("f64", np.dtype(np.float64), False),
        ArrayType("bf16", np.dtype(ml_dtypes.bfloat16), False),
        ArrayType("f16", np.dtype(np.float16), False),
        ArrayType("f8_e4m3", np.dtype(ml_dtypes.float8_e4m3fn), False),
        ArrayType("f8_e5m2", np.dtype(ml_dtypes.float8_e5m2), False),
        ArrayType("s32", np.dtype(np.int32), True),
        ArrayType("s16", np.dtype(np.int16), True),
        ArrayType("s8", np.dtype(np.int8), True),
        ArrayType("u8", np.dtype(np.uint8), True),
        ArrayType("s4", np.dtype(ml_dtypes.int4), True, "s8"),
        ArrayType("u4", np.dtype(ml_dtypes.uint4), True, "s8"),
    )
}

_OTHERS = ("f4_e2m1", "f4_e3m0", "s64", "boolean", "e8m0")
_SMALL = ("f8_e4m3", "f8_e5m2")
_NARROW = ("s4", "u4")
"""Types that only weights may have; packed operands hold two of their numbers per byte."""
_INPUTS = ("f32", "bf16", "f16", *_SMALL)


def array_type(name: str, option: str) -> ArrayType:
    """Return the row of the type `name`.

    UnsupportedError for a type that only benchdnn knows; UsageError for an unknown one. `option` is named in the
    message.
    """
    known = {row.name: row for row in TYPES.values() if option == "dt" or not row.factor}
    if name in known:
        return known[name]
    if name in (*_OTHERS, *_NARROW):
        raise UnsupportedError(
            f"--{option}: {name} is not available; available: {', '.join(known)}", code="unsupported-option"
        )
    others = {str(other): row.name for row in known.values() for other in (row.name, row.numpy)}
    meant = suggestion(name, others, others)
    raise UsageError(f"--{option}: {name!r} is unknown; legal: {', '.join(known)}{meant}", code="bad-option")


def is_integer(name: str) -> bool:
    """Return whether the type `name` is an integer type."""
    return TYPES[name].integer


def factor_type(name: str) -> str:
    """Return the type in which kernels multiply numbers of the type `name`."""
    return TYPES[name].factor or name


def precision(name: str) -> float:
    """Return the distance from 1 to the next number of the floating-point type ``name``."""
    return float(ml_dtypes.finfo(TYPES[name].numpy).eps)  # type: ignore[no-untyped-call]


def convert(x: Array, name: str) -> Array:
    """Return `x` converted to the type `name`: rounded to nearest even, integers saturated, NaN to 0 for integers."""
    row = TYPES[name]
    if not row.integer:
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(row.numpy)
    limits = ml_dtypes.iinfo(row.numpy)  # type: ignore[no-untyped-call]
    if np.issubdtype(x.dtype, np.integer):
        return np.clip(x, limits.min, limits.max).astype(row.numpy)
    wide = np.rint(x.astype(np.float64))  # holds every limit exactly
    return np.where(np.isnan(wide), 0, np.clip(wide, limits.min, limits.max)).astype(row.numpy)


def print_f32(value: float) -> str:
    """Return the shortest text that reads back as the single-precision number `value`."""
    with np.errstate(over="ignore"):
        return str(np.float32(value)).removesuffix(".0")


def print_types(types: tuple[str, ...]) -> str:
    """Return `f32` if all `types` are equal, otherwise `u8:s8:s32`."""
    return types[0] if len(set(types)) == 1 else ":".join(types)


def checked_bias_type(name: str, dt: tuple[str, str, str], acc: str) -> str:
    """Return the bias's type, empty for the default: f32, or f64 if `dt` contains f64. `acc` is the type of the sums.

    UnsupportedError, which names the default, if the type is not available beside the types `dt`.
    """
    default = "f64" if "f64" in dt else "f32"
    if name in ("", default):
        return ""
    row = array_type(name, "bia-dt")
    if row.name == "f64" or default == "f64" or (row.integer and acc != "s32"):
        raise UnsupportedError(
            f"--bia-dt={row.name} with --dt={print_types(dt)} is not available; the nearest is {default}",
            code="unsupported-types",
        )
    return name


def check_types(dt: tuple[str, str, str], direction: str) -> None:
    """Raise UnsupportedError, which names the nearest available types, if `dt` is not available for `direction`.

    `dt` holds the types of source, weights and destination. UsageError for an unknown type.
    """
    if not conforms(dt, tuple[str, str, str]):
        raise UsageError(f"dt={shown(dt)}: expected the types of source, weights and destination", code="bad-option")
    for name in dt:
        array_type(name, "dt")
    nearest = _nearest(dt, direction)
    if nearest != dt:
        raise UnsupportedError(
            f"--dt={print_types(dt)} with --dir={direction} is not available; the nearest is "
            f"--dt={print_types(nearest)}",
            code="unsupported-types",
        )


def _nearest(dt: tuple[str, str, str], direction: str) -> tuple[str, str, str]:
    """Return the available types nearest to `dt`: `dt` itself if it is available."""
    src, wei, dst = dt
    if "f64" in dt:
        return ("f64", "f64", "f64")
    if direction == "BWD_W" or direction == "BWD_WB":
        a, b, c = (name if name in _INPUTS else "f32" for name in dt)
        return (a, b, c)
    if direction == "BWD_D":
        wei, dst, src = _nearest_product(wei, dst, src, mixed=True)
    else:
        src, wei, dst = _nearest_product(src, wei, dst, mixed=False)
    return (src, wei, dst)


def _nearest_product(a: str, b: str, out: str, mixed: bool) -> tuple[str, str, str]:
    """Return the nearest available types of two factors and the result; `mixed` permits two floating-point types."""
    narrow = b in _NARROW and not mixed
    out = factor_type(out)
    if narrow and not is_integer(a):
        return a if a in ("bf16", "f16") else "f32", b, "f32" if out == "s32" else out
    if is_integer(a) or is_integer(b):
        a = a if a in ("u8", "s8") else "s8"
        return a, b if b in ("u8", "s8") or narrow else "s8", out
    if not mixed and a != b and a != "f32" and not (a in _SMALL and b in _SMALL):
        b = a
    return a, b, "f32" if out == "s32" else out
