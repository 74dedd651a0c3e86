"""Conversions as machine code: every pair of types, scalar and vector, on every level of this machine."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from natives import assert_same_bits, computed, elementwise_kernel, interpreted, mnemonics

from convsmith.ir.types import DTYPES
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS

TARGETS = host_targets()


@cache
def samples(name: str) -> np.ndarray:
    """Ends, ties, neighbours of powers of two and what is no number; 256 elements or more, by 32."""
    row = DTYPES[name]
    rng = np.random.default_rng(1)
    if row.kind != "float":
        low, high = row.limits
        ends = [low, low + 1, high - 1, high, 0, 1, -1 if low else 2, 127, 126, 2**24 + 1, 2**24 + 3, 65519, 65520, 255]
        ends += [2**25 + 2**17 + 1, 2**30 - 2**21 - 1, -(2**25) - 2**17 - 1]  # of f32 a tie of bf16, and none
        kept = [x for x in ends if low <= x <= high]
        return np.concatenate([kept, rng.integers(low, high + 1, 288 - len(kept))]).astype(row.numpy)
    powers = 2.0 ** np.arange(-150, 130)
    steps = np.concatenate(
        [powers, powers * (1 + 2.0**-8), powers * (1 + 2.0**-11), powers * (1 + 2.0**-11 + 2.0**-40)]
    )
    halves = np.arange(-300, 300) / 2 + rng.choice([0, 2.0**-30, -(2.0**-30)], 600)
    ends = [
        2.0**31 - 0.5,
        2.0**31 - 1,
        2.0**31,
        2.0**31 - 128,
        2.0**31 + 256,
        32767.5,
        65519.9,
        65520,
        65504,
        1e300,
        3e38,
    ]
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-25, 2.0**-25 * (1 + 2.0**-20), 2.0**-14 * (1 - 2.0**-12)]
    bits = rng.integers(0, 2**32, 500, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        found = np.concatenate([steps, -steps, halves, ends, np.negative(ends), odd, bits]).astype(row.numpy)
    return np.resize(found, -(-len(found) // 32) * 32)


@pytest.mark.sampled(24, "of", "to", "lanes", "target", wide=1, every="of+to")
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("lanes", [0, 4, 16])
@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("of", DTYPES)
def test_every_pair(of: str, to: str, lanes: int, target: Machine) -> None:
    inputs = {"a": samples(of)}
    expected = interpreted(f"cast({to}, a@)", inputs, to, 16)
    assert_same_bits(computed(f"cast({to}, a@)", inputs, to, lanes, target), expected)


def test_constants_of_every_type() -> None:
    for name, row in DTYPES.items():
        number = -1.5 if row.kind == "float" else row.limits[1] // 2
        text = f"{name}({number})"
        for target in TARGETS:
            for lanes in (0, 8):
                found = computed(text, {"a": np.zeros(8, np.float32)}, name, lanes, target)
                assert_same_bits(found, np.full(8, number, row.numpy))


@pytest.mark.sampled(8, "target")
@pytest.mark.parametrize("target", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("of", "to", "most"),
    [
        ("s8", "s32", 1), ("u8", "s32", 1), ("s8", "f32", 2), ("u8", "f32", 2), ("f16", "f32", 1), ("bf16", "f32", 2),
        ("f32", "f16", 1), ("f32", "bf16", 10), ("f32", "s8", 10), ("f32", "u8", 11), ("f32", "s32", 8),
        ("s32", "f32", 1), ("s32", "s8", 3), ("s32", "u8", 3), ("f64", "f32", 3), ("f32", "f64", 3),
    ],
)  # fmt: skip
def test_vectors_stay_vectors(of: str, to: str, most: int, target: Machine) -> None:
    """No calls, no scalar arithmetic, and few instructions besides loads, stores and constants."""
    lanes = target.lanes(32)
    names = mnemonics(elementwise_kernel(f"cast({to}, a@)", {"a": of, "out": to}, lanes * 8, lanes), target)
    vectors = [n for n in names if n.startswith("v") and not n.startswith(("vmov", "vzero", "vbroad", "vpbroad"))]
    assert vectors and len(vectors) <= most, names
    assert not [n for n in names if re.match(r"call|v(add|sub|mul|min|max|round)s[sd]|vcvt\w*(s[sd]|2si)", n)], names
