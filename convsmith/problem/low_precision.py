"""The numpy reference of gemmlowp's products: 8-bit matrices with offsets, optionally requantised to fewer bits.

    sum over depth of (lhs + lhs offset) * (rhs + rhs offset)       offsets are added: they are minus the zero points

With b bits an entry v in 0..255 becomes (v * (2**b - 1) + r) // 255, in 0..2**b - 1. The rounding term r is 127, or is
drawn at random from 0..254 so that rounding errors average out. The result is recovered from the sums of products of
requantised entries and from the entries' sums along depth, each term rounded to nearest, ties away from zero::

    products * 255 * 255 / (L * R)  +  lhs sums * rhs offset * 255 / L  +  rhs sums * lhs offset * 255 / R
    + lhs offset * rhs offset * depth                                     with L and R the largest entries

A signed entry v is treated as the unsigned entry v + 128, with an offset that is 128 less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_word, shown
from convsmith.problem.integer_steps import INTEGER_STEPS, LIMITS, wrapped
from convsmith.problem.output_stages import Stage, staged

__all__ = [
    "FULL",
    "NEAREST",
    "ROUNDINGS",
    "centred",
    "check_bits",
    "check_reach",
    "check_rounding",
    "check_seed",
    "drawn",
    "greatest",
    "low_precision_reference",
    "low_precision_sums",
    "requantised",
]

Array = np.ndarray[Any, Any]

FULL = 255
"""The largest 8-bit entry."""

ROUNDINGS = ("nearest", "probabilistic")


NEAREST = 127
"""Rounding term that rounds an entry to the nearest."""


def greatest(bits: int) -> int:
    """Return the largest entry of `bits` bits."""
    return (1 << bits) - 1


def centred(values: Array) -> Array:
    """Return signed entries plus 128, in 0..255; unsigned entries unchanged. The result is int64."""
    result: Array = values.astype(np.int64) + 128 * (values.dtype == np.int8)
    return result


def requantised(values: Array, bits: int, rounding_term: Array | int = NEAREST) -> Array:
    """Return entries of 0..255 as entries of `bits` bits; `rest` is the rounding term."""
    return values if bits == 8 else (values * greatest(bits) + rounding_term) // FULL


def drawn(shapes: Sequence[tuple[int, ...]], bits: tuple[int, int], seed: int) -> tuple[Array | None, Array | None]:
    """Return the random rounding terms of lhs and rhs; None for a matrix that keeps its 8 bits.

    The terms come from numpy's `default_rng(seed)`, lhs first, in row-major order.
    """
    rng = np.random.default_rng(check_seed(seed))
    lhs, rhs = (
        rng.integers(0, FULL, shape, np.int64).astype(np.uint8) if b < 8 else None for shape, b in zip(shapes, bits)
    )
    return lhs, rhs


def low_precision_sums(
    lhs: Array, rhs: Array, offsets: tuple[Array | int, Array | int], bits: tuple[int, int],
    rests: tuple[Array | None, Array | None] = (None, None),
) -> Array:  # fmt: skip
    """Return the product (..., M, N) of u8 or s8 entries (..., M, K) and (..., K, N) at `bits` bits, as int64.

    An offset is a scalar or has shape (M, 1) for lhs or (1, N) for rhs. `rests` holds the rounding terms; None rounds
    to nearest.
    """
    left, right = (
        requantised(centred(x), b, NEAREST if rest is None else rest.astype(np.int64))
        for x, b, rest in zip((lhs, rhs), bits, rests)
    )
    lhs_offset, rhs_offset = (o - 128 * (x.dtype == np.int8) for x, o in zip((lhs, rhs), offsets))
    tops = greatest(bits[0]), greatest(bits[1])
    sums = INTEGER_STEPS["s32_rescale"].apply(left @ right, FULL * FULL, tops[0] * tops[1])
    sums = sums + _quotient(left.sum(-1, keepdims=True) * rhs_offset * FULL, tops[0])
    sums = sums + _quotient(right.sum(-2, keepdims=True) * lhs_offset * FULL, tops[1])
    result: Array = sums + lhs_offset * rhs_offset * lhs.shape[-1]
    return result


def _quotient(a: Array, b: int) -> Array:
    """Return a / b rounded to nearest, ties away from zero."""
    size: Array = (2 * np.abs(a) + b) // (2 * b)
    return np.sign(a) * size


def low_precision_reference(
    lhs: Array, rhs: Array, lhs_offset: Any = 0, rhs_offset: Any = 0, output_stages: Sequence[Stage] = (),
    bits: tuple[int, int] = (8, 8), rounding: str = "nearest", seed: int = 0,
) -> Array:  # fmt: skip
    """Return the product of the u8 or s8 matrices (M, K) and (K, N), bit for bit.

    An offset is a scalar, or one value per row of lhs or column of rhs.
    """
    offsets = (np.reshape(lhs_offset, (-1, 1)).astype(np.int64), np.reshape(rhs_offset, (1, -1)).astype(np.int64))
    rests = drawn((lhs.shape, rhs.shape), bits, seed) if rounding == "probabilistic" else (None, None)
    return staged(wrapped(low_precision_sums(lhs, rhs, offsets, bits, rests)), output_stages)


def check_bits(bits: Any) -> tuple[int, int]:
    """Return the bits of lhs and rhs as a tuple. UsageError unless `bits` holds two integers of 1 to 8."""
    legal = isinstance(bits, tuple | list) and len(bits) == 2 and all(type(b) is int and 1 <= b <= 8 for b in bits)
    if not legal:
        raise UsageError(
            f"bits={shown(bits)} is not legal: expected the bits of lhs and of rhs, each 1 to 8", code="bits"
        )
    return (bits[0], bits[1])


def check_rounding(rounding: str) -> str:
    """Return `rounding`. UsageError unless it is one of `ROUNDINGS`."""
    expect_word("rounding", rounding, ROUNDINGS, "rounding")
    return rounding


def check_seed(seed: Any) -> int | None:
    """Return `seed` as an int; None (a random seed) unchanged. UsageError if it is not an integer of at least 0."""
    if seed is None:
        return None
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or seed < 0:
        raise UsageError(f"seed={shown(seed)} is not legal: expected a whole number of at least 0", code="seed")
    return int(seed)


def check_reach(lhs: Array, rhs: Array, offsets: tuple[Array, Array], bits: tuple[int, int] = (8, 8)) -> None:
    """Raise UsageError if sums of entries of these types and offsets can overflow 32 bits at the depth of `lhs`.

    With fewer than 8 bits, the same limit applies to each term from which the result is recovered.
    """
    depth = lhs.shape[1]
    sizes = []
    for x, offset in zip((lhs, rhs), offsets, strict=True):
        limits = np.iinfo(x.dtype)
        size = max((abs(int(end) + int(o)) for end in (limits.min, limits.max) for o in _ends(offset)), default=0)
        if bits != (8, 8):
            size = max(FULL, size, *(abs(int(o) + int(limits.min)) for o in _ends(offset)))
        sizes.append(size)
    reach = depth * sizes[0] * sizes[1]
    if reach > LIMITS[1]:
        raise UsageError(
            f"lhs_offset={_shown(offsets[0])} and rhs_offset={_shown(offsets[1])} at depth {depth}: sums may reach "
            f"{depth} * {sizes[0]} * {sizes[1]} = {reach}, beyond 32 bits; legal is up to {LIMITS[1]}, such as a depth "
            f"of {LIMITS[1] // (sizes[0] * sizes[1])}",
            code="overflow",
        )


def _ends(offset: Array) -> tuple[int, ...]:
    return (int(offset.min()), int(offset.max())) if offset.size else ()


def _shown(offset: Array) -> str:
    low, high = _ends(offset) or (0, 0)
    return str(low) if low == high else f"{low}..{high}"
