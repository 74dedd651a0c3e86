"""Products of 8-bit matrices with offsets, as gemmlowp has them: what they mean in numpy, and with fewer bits than 8.

    sum over depth of (lhs + lhs offset) * (rhs + rhs offset)       offsets are added: they are minus the zero points

With b bits an entry v of 0 to 255 becomes one of 0 to 2**b - 1, (v * (2**b - 1) + r) // 255, where r is 127, or is
drawn from 0 to 254 so that what is lost averages out. From sums of products of such entries, and sums of the entries
along depth, the result is put together again, each term rounded to nearest, ties away from zero::

    products * 255 * 255 / (L * R)  +  lhs sums * rhs offset * 255 / L  +  rhs sums * lhs offset * 255 / R
    + lhs offset * rhs offset * depth                                     with L and R the greatest entries
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.problem.integer_steps import INTEGER_STEPS, LIMITS, wrapped
from convsmith.problem.output_stages import Stage, staged

__all__ = [
    "ROUNDINGS",
    "LowPrecision",
    "centred",
    "check_bits",
    "check_reach",
    "check_rounding",
    "low_precision_reference",
    "requantised",
    "unpacking",
]

Array = np.ndarray[Any, Any]

FULL = 255
"""The greatest entry of 8 bits."""

ROUNDINGS = ("nearest", "probabilistic")


class LowPrecision(NamedTuple):
    """What is added to sums of products of requantised entries, once those are rescaled by `scale`."""

    scale: tuple[int, int]
    addends: tuple[Array, ...]


def centred(values: Array, offset: Array) -> tuple[Array, Array]:
    """Signed entries as entries of 0 to 255, 128 more, with an offset that is 128 less; unsigned ones as they are."""
    if values.dtype != np.int8:
        return values, offset
    return values.view(np.uint8) ^ 0x80, offset - 128


def requantised(values: Array, bits: int, rng: np.random.Generator | None = None) -> Array:
    """Entries of 0 to 255 as entries of `bits` bits: the nearest, or by numbers of a generator."""
    if bits == 8:
        return values
    top = (1 << bits) - 1
    if rng is None:
        nearest = bytes((v * top + 127) // FULL for v in range(FULL + 1))
        return np.frombuffer(values.tobytes().translate(nearest), np.uint8).reshape(values.shape)
    rest = rng.integers(0, FULL, values.shape, np.int64)
    return ((values * np.int64(top) + rest) // FULL).astype(np.uint8)


def unpacking(lhs: Array, rhs: Array, offsets: tuple[Array, Array], bits: tuple[int, int]) -> LowPrecision:
    """How the product of requantised entries is put together again; offsets are (1, 1), (M, 1) or (1, N)."""
    left, right = ((1 << b) - 1 for b in bits)
    lhs_offset, rhs_offset = offsets
    rows = lhs.sum(1, dtype=np.int64, keepdims=True)
    columns = rhs.sum(0, dtype=np.int64, keepdims=True)
    terms = [_quotient(rows * rhs_offset * FULL, left), _quotient(columns * lhs_offset * FULL, right)]
    constant = lhs_offset * rhs_offset * lhs.shape[1]
    return LowPrecision((FULL * FULL, left * right), (*terms, constant))


def _quotient(a: Array, b: int) -> Array:
    """a / b to the nearest, away from zero where two are."""
    size: Array = (2 * np.abs(a) + b) // (2 * b)
    return np.sign(a) * size


def low_precision_reference(
    lhs: Array, rhs: Array, lhs_offset: Any = 0, rhs_offset: Any = 0, output_stages: Sequence[Stage] = (),
    bits: tuple[int, int] = (8, 8), rounding: str = "nearest", seed: int = 0,
) -> Array:  # fmt: skip
    """The product of u8 or s8 matrices (M, K) and (K, N), to the bit. Offsets: one, or one for each row or column.

    Probabilistic rounding takes numbers of numpy's `default_rng(seed)`, those of lhs first, in order of rows.
    """
    offsets = (np.reshape(lhs_offset, (-1, 1)).astype(np.int64), np.reshape(rhs_offset, (1, -1)).astype(np.int64))
    if bits == (8, 8):
        return staged(wrapped((lhs + offsets[0]) @ (rhs + offsets[1])), output_stages)
    rng = np.random.default_rng(seed) if rounding == "probabilistic" else None
    (left, left_offset), (right, right_offset) = (centred(x, o) for x, o in zip((lhs, rhs), offsets, strict=True))
    left, right = requantised(left, bits[0], rng), requantised(right, bits[1], rng)
    scale, addends = unpacking(left, right, (left_offset, right_offset), bits)
    acc = INTEGER_STEPS["s32_rescale"].apply(left.astype(np.int64) @ right.astype(np.int64), *scale)
    return staged(wrapped(sum(addends, acc)), output_stages)


def check_bits(bits: Any) -> tuple[int, int]:
    """The bits of lhs and rhs. UsageError: not two whole numbers of 1 to 8."""
    legal = isinstance(bits, tuple | list) and len(bits) == 2 and all(type(b) is int and 1 <= b <= 8 for b in bits)
    if not legal:
        raise UsageError(f"bits={bits!r} is not legal: expected those of lhs and of rhs, each 1 to 8", code="bits")
    return (bits[0], bits[1])


def check_rounding(rounding: str) -> str:
    """One of `ROUNDINGS`. UsageError: it is none."""
    if rounding not in ROUNDINGS:
        raise UsageError(f"rounding={rounding!r} is not legal: expected {' or '.join(ROUNDINGS)}", code="rounding")
    return rounding


def check_reach(lhs: Array, rhs: Array, offsets: tuple[Array, Array]) -> None:
    """UsageError where sums of entries of these types, with these offsets, may leave 32 bits at this depth."""
    depth = lhs.shape[1]
    sizes = []
    for x, offset in zip((lhs, rhs), offsets, strict=True):
        limits = np.iinfo(x.dtype)
        sizes.append(
            max((abs(int(end) + int(o)) for end in (limits.min, limits.max) for o in _ends(offset)), default=0)
        )
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
