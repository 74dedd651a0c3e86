"""Levels of WebAssembly, highest first; each includes the rows of the level below it."""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction, RegisterFile
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.memory import core_caches
from convsmith.machine.transpositions import Transpositions
from convsmith.machine.wasm.instructions import BYTES, FUSED, RELAXED, SEPARATE, SIMD

TRIPLE = "wasm32-unknown-unknown"
_BITS = 128
_REGISTERS = 15
"""Vector registers that V8 allocates on x86-64, whose sixteenth it keeps for itself. Engines on AArch64 have 30."""
_BASE = ("bulk-memory", "bulk-memory-opt", "mutable-globals", "nontrapping-fptoint", "sign-ext")
"""Features that every engine with vectors has."""
_SHUFFLES = ("i8x16.shuffle", "i8x16.shuffle")


def _features(needs: tuple[str, ...]) -> str:
    return ",".join(f"+{feature}" for feature in (*needs, *_BASE))


def _level(name: str, needs: tuple[str, ...], products: tuple[Instruction, ...], temporaries: int) -> Machine:
    """Return a level with ``products`` of numbers, which need so many ``temporaries`` besides their operands."""
    return Machine(
        name=name, triple=TRIPLE, cpu="", features=_features(needs), needs=needs,
        vectors=RegisterFile("vector", _REGISTERS, _BITS), memories=core_caches(32768, 1 << 18, rates=(32, 16)),
        costs=Costs(multiply_add=0.5, broadcast=0.5, latency=4.0, temporaries=temporaries), attributes=(),
        instructions=(*products, *BYTES), transpositions=Transpositions(_BITS, SIMD, _SHUFFLES), address_bits=32,
        lacks_fma=True, has_unsigned_offsets=True,
    )  # fmt: skip


def _relaxed() -> Machine:
    """Return the level with a multiply-add, which an engine may round once or twice."""
    level = _level("wasm32+relaxed", RELAXED, FUSED, 0)
    plain = replace(level, features=_features(SIMD), needs=SIMD, instructions=(*SEPARATE, *BYTES))
    return replace(level, alternative=plain)


LEVELS = (_relaxed(), _level("wasm32", SIMD, SEPARATE, 1))
