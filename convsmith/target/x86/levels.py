"""Levels of x86 that code is tuned for, highest first."""

from __future__ import annotations

from convsmith.target.base import Costs, Target
from convsmith.target.x86.instructions import INSTRUCTIONS

TRIPLE = "x86_64-unknown-linux-gnu"
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c")
_AVX2 = ("avx2", "fma", "f16c")


def _rows(features: tuple[str, ...], lanes: int):  # type: ignore[no-untyped-def]
    return tuple(r for r in INSTRUCTIONS if set(r.needs) <= set(features) and r.lanes <= lanes)


def _features(names: tuple[str, ...]) -> str:
    return ",".join("+" + n for n in names)


LEVELS = (
    Target(
        isa="avx512", triple=TRIPLE, cpu="x86-64-v4", features=_features(_AVX512), needs=_AVX512,
        vector_bits=512, registers=32, costs=Costs(1.0, 1.0, 0.5, 4.0), l1_bytes=32768, l1_ways=8,
        attributes=(("prefer-vector-width", "512"),), instructions=_rows(_AVX512, 16), half=True,
    ),
    Target(
        isa="avx2", triple=TRIPLE, cpu="x86-64-v3", features=_features(_AVX2), needs=_AVX2,
        vector_bits=256, registers=16, costs=Costs(0.5, 0.5, 0.5, 4.0), l1_bytes=32768, l1_ways=8,
        attributes=(), instructions=_rows(_AVX2, 8), half=True,
    ),
)  # fmt: skip
