"""Products of 8-bit matrices with offsets, as gemmlowp has them: what they mean in numpy, and with fewer bits than 8.

    sum over depth of (lhs + lhs offset) * (rhs + rhs offset)       offsets are added: they are minus the zero points

With b bits an entry v of 0 to 255 becomes one of 0 to 2**b - 1, (v * (2**b - 1) + r) // 255, where r is 127, or is
drawn from 0 to 254 so that what is lost averages out. From sums of products of such entries, and sums of the entries
along depth, the result is put together again, each term rounded to nearest, ties away from zero::

    products * 255 * 255 / (L * R)  +  lhs sums * rhs offset * 255 / L  +  rhs sums * lhs offset * 255 / R
    + lhs offset * rhs offset * depth                                     with L and R the greatest entries

Signed entries stand for those 128 more, with an offset that is 128 less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_word
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
"""The greatest entry of 8 bits."""

ROUNDINGS = ("nearest", "probabilistic")


NEAREST = 127
"""What is added before the division, so that an entry becomes the nearest."""


def greatest(bits: int) -> int:
    """The greatest entry of so many bits."""
    return (1 << bits) - 1


def centred(values: Array) -> Array:
    """Signed entries as entries of 0 to 255, 128 more; unsigned ones as they are."""
    result: Array = values.astype(np.int64) + 128 * (values.dtype == np.int8)
    return result


def requantised(values: Array, bits: int, rest: Array | int = NEAREST) -> Array:
    """Entries of 0 to 255 as entries of `bits` bits."""
    return values if bits == 8 else (values * greatest(bits) + rest) // FULL


def drawn(shapes: Sequence[tuple[int, ...]], bits: tuple[int, int], seed: int) -> tuple[Array | None, Array | None]:
    """What is added to the entries of lhs and of rhs: numbers of numpy's `default_rng(seed)`, those of lhs first, in
    order of rows; None where entries keep their 8 bits.
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
    """The product (..., M, N) of u8 or s8 entries (..., M, K) and (..., K, N), put together again, as int64.

    Offsets are one, or (M, 1), or (1, N). `rests` are added to entries; where there are none, the nearest is taken.
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
    """a / b to the nearest, away from zero where two are."""
    size: Array = (2 * np.abs(a) + b) // (2 * b)
    return np.sign(a) * size


def low_precision_reference(
    lhs: Array, rhs: Array, lhs_offset: Any = 0, rhs_offset: Any = 0, output_stages: Sequence[Stage] = (),
    bits: tuple[int, int] = (8, 8), rounding: str = "nearest", seed: int = 0,
) -> Array:  # fmt: skip
    """The product of u8 or s8 matrices (M, K) and (K, N), to the bit. Offsets: one, or one for each row or column."""
    offsets = (np.reshape(lhs_offset, (-1, 1)).astype(np.int64), np.reshape(rhs_offset, (1, -1)).astype(np.int64))
    rests = drawn((lhs.shape, rhs.shape), bits, seed) if rounding == "probabilistic" else (None, None)
    return staged(wrapped(low_precision_sums(lhs, rhs, offsets, bits, rests)), output_stages)


def check_bits(bits: Any) -> tuple[int, int]:
    """The bits of lhs and rhs. UsageError: not two whole numbers of 1 to 8."""
    legal = isinstance(bits, tuple | list) and len(bits) == 2 and all(type(b) is int and 1 <= b <= 8 for b in bits)
    if not legal:
        raise UsageError(f"bits={bits!r} is not legal: expected those of lhs and of rhs, each 1 to 8", code="bits")
    return (bits[0], bits[1])


def check_rounding(rounding: str) -> str:
    """One of `ROUNDINGS`. UsageError: it is none."""
    expect_word("rounding", rounding, ROUNDINGS, "rounding")
    return rounding


def check_seed(seed: Any) -> int | None:
    """A seed of numpy's `default_rng`; None draws one. UsageError: no whole number of at least 0."""
    if seed is None:
        return None
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or seed < 0:
        raise UsageError(f"seed={seed!r} is not legal: expected a whole number of at least 0", code="seed")
    return int(seed)


def check_reach(lhs: Array, rhs: Array, offsets: tuple[Array, Array], bits: tuple[int, int] = (8, 8)) -> None:
    """UsageError where sums of entries of these types, with these offsets, may leave 32 bits at this depth.

    With fewer bits, that is where one of the terms that are put together may.
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
