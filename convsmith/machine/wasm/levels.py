"""Levels of WebAssembly, highest first; each runs on engines that run the levels above it."""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction, Narrowing, RegisterFile
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.memory import core_caches
from convsmith.machine.transpositions import Transpositions
from convsmith.machine.wasm.instructions import (
    BYTES,
    FOURS,
    FOURS_OF_PAIRS,
    FOURS_OF_SIGNED,
    FOURS_OF_WORDS,
    FUSED,
    RELAXED,
    RELAXED_FMA,
    SEPARATE,
    SIGNED_DOTS,
    SIMD,
    UNSIGNED_DOTS,
    UNSIGNED_PAIRS,
)

TRIPLE = "wasm32-unknown-unknown"
_BITS = 128
_REGISTERS = 15
"""Vector registers that V8 allocates on x86-64, whose sixteenth it keeps for itself. Engines on AArch64 have 30."""
_INTERRUPTED = 15.0
"""Cycles per line, measured in V8 13.6 on a Zen 5: 9 to 27 in four layers. WebAssembly has no prefetches."""
_TRANSFORM = 0.5
"""Fitted by `benchmarks/fit.py` to configs of 35 layers in V8 13.6 on a Zen 5 (`benchmarks/measurements/generic.json`);
no other cost changes by that.
"""
_FETCHED_WEIGHTS = 4 << 20
"""Measured in V8 13.6 on a Zen 4: layers of 4 to 9 MB take 0.74 to 0.98 of the time, smaller ones 0.92 to 1.05."""
_INTERLEAVE = 0.5
"""Cycles of two shuffles, measured in V8 13.6 on an Emerald Rapids in five tiles of two layers."""
_WIDEN = 0.25
"""Cycles of two shuffles, for two bytes. Measured in V8 13.6 on a Zen 3: layers that copy words take 0.72 to 0.93 of
the time, and those with at most 24 channels of the result 0.95 to 1.1.
"""
_CACHES = core_caches(32768, 1 << 20, rates=(32, 16))
"""No engine says how large caches are. Measured in V8 13.6 on a Zen 3, whose second-level cache has 512 KiB: of 160
drawn layers and deconvolutions of f32, 40 first choices changed from those with 256 KiB and the reference costs of
memory, which take 0.85 of the time in the mean, 0.41 at least and 1.19 at most; with 512 KiB 34 changed, which take
0.87.
"""
_IMAGES_FAR, _MEMORY_LINE = 16 << 20, 10.0
"""Tiles of one pixel by all of 128 groups take 0.38 of the time of five pixels by eight groups where images and results
have 12.8 MB together, and the same time where they have 6.4 MB.
"""
_WEIGHTS_NEAR, _MEMORY_WEIGHT = 8 << 20, 0.09
"""The limit and the price of a Zen 3 change two layers of ResNet-50. In V8 13.6 the one that is no longer transformed
takes 0.82 of the time; that of the other one, transformed with fewer weights, varies by more between runs than between
both kernels.
"""
_WAITED_NEAR = 1.0
"""Without it, six of the 160 problems copy no tiles of pixels, which takes 1.05 to 1.27 of the time."""
_BASE = ("bulk-memory", "bulk-memory-opt", "mutable-globals", "nontrapping-fptoint", "sign-ext")
"""Features that every engine with vectors has."""
SHOWN_BY_PRODUCTS = tuple(x for x in (*UNSIGNED_DOTS, *SIGNED_DOTS, *UNSIGNED_PAIRS) if x not in RELAXED)
"""Features that do not decide whether an engine accepts a module, but what its instructions compute."""
_SHUFFLES = ("i8x16.shuffle", "i8x16.shuffle")
_NARROWING = Narrowing(4, "llvm.wasm.narrow.signed.v8i16.v4i32", (
    ("u8", "llvm.wasm.narrow.unsigned.v16i8.v8i16"), ("s8", "llvm.wasm.narrow.signed.v16i8.v8i16"),
))  # fmt: skip
_EXTREMES = "wasm.p"
"""LLVM's functions `pmax` and `pmin`. For a comparison and a selection LLVM takes `relaxed_max`, which returns any
operand if one is NaN, or instructions with a mask.
"""


def _features(needs: tuple[str, ...]) -> str:
    return ",".join(f"+{feature}" for feature in (*needs, *_BASE) if feature not in SHOWN_BY_PRODUCTS)


def _relaxed_fma(needs: tuple[str, ...]) -> str:
    """Return LLVM's function for a product and a sum: the relaxed instruction, or two operations."""
    return RELAXED_FMA if set(RELAXED) <= set(needs) else "fmuladd"


def _level(name: str, needs: tuple[str, ...], products: tuple[Instruction, ...], temporaries: int) -> Machine:
    """Return a level with ``products`` of numbers, which need so many ``temporaries`` besides their operands."""
    return Machine(
        name=name, triple=TRIPLE, cpu="", features=_features(needs), needs=needs,
        vectors=RegisterFile("vector", _REGISTERS, _BITS), memories=_CACHES,
        costs=Costs(multiply_add=0.5, broadcast=0.5, latency=4.0, temporaries=temporaries, interrupted=_INTERRUPTED,
                    interleave=_INTERLEAVE, widen=_WIDEN, transform=_TRANSFORM, fetched_weights=_FETCHED_WEIGHTS,
                    images_far=_IMAGES_FAR, memory_line=_MEMORY_LINE, waited_near=_WAITED_NEAR,
                    weights_near=_WEIGHTS_NEAR, memory_weight=_MEMORY_WEIGHT),
        attributes=(),
        instructions=(*products, *BYTES), transpositions=Transpositions(_BITS, SIMD, _SHUFFLES), address_bits=32,
        relaxed_fma=_relaxed_fma(needs), has_unsigned_offsets=True, loads_constants=True, extremes=_EXTREMES,
        prefetches_by_loads=True, sums_in_turn=True, narrowing=_NARROWING,
    )  # fmt: skip


def _with_fallbacks(level: Machine, *fallbacks: tuple[tuple[str, ...], tuple[Instruction, ...]]) -> Machine:
    """Return the level with machines that run its kernels by other instructions, the fastest first, each with the
    features that these need.
    """
    for needs, rows in reversed(fallbacks):
        own = replace(
            level, features=_features(needs), needs=needs, instructions=(*rows, *BYTES), relaxed_fma=_relaxed_fma(needs)
        )
        level = replace(level, alternative=replace(own, alternative=level.alternative))
    return level


LEVELS = (
    _with_fallbacks(
        _level("wasm32+dot_u8", UNSIGNED_DOTS, (*FUSED, *FOURS), 0),
        (SIGNED_DOTS, (*FUSED, *FOURS_OF_SIGNED)), (SIMD, (*SEPARATE, *FOURS_OF_WORDS)),
    ),
    _with_fallbacks(
        _level("wasm32+pairs_u8", UNSIGNED_PAIRS, (*FUSED, *FOURS_OF_PAIRS), 0), (SIMD, (*SEPARATE, *FOURS_OF_WORDS)),
    ),
    _with_fallbacks(_level("wasm32+relaxed", RELAXED, FUSED, 0), (SIMD, SEPARATE)),
    _level("wasm32", SIMD, SEPARATE, 1),
)  # fmt: skip
"""Levels of WebAssembly, highest first; each includes the rows of the level below it."""
