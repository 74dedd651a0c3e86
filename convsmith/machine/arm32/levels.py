"""Levels of Arm's processors for microcontrollers, highest first: with vectors, and with pairs of halfwords."""

from __future__ import annotations

from convsmith.ir.instruction import SCALARS, RegisterFile, WordConversion
from convsmith.machine.arm32.instructions import DSP, LANES, MVE, PAIRS, pairs, vectors
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.memory import core_caches

MAINLINE, EXTENDED = "thumbv8.1m.main-none-unknown-eabihf", "thumbv7em-none-unknown-eabihf"
"""Triples of Armv8.1-M with vectors and of Armv7E-M, whose functions pass numbers in floating-point registers. Exported
functions have pointers alone.
"""
_SUMS = {"mve": 8, "dsp": 4}
"""Scalar registers for sums: those with even numbers, one of which is the link register, to which instructions on
vectors add, and those that two pointers, the number of steps, and halfwords leave.
"""
_ROWS = tuple((row.name, 4.0) for row in vectors()[1:])


_SCALAR = WordConversion(0, "llvm.arm.vcvtr.f32", "float")
"""`vcvtr` rounds as the processor's state says, which is to nearest even."""
_VECTOR = WordConversion(LANES, "llvm.arm.mve.vcvtn.v4i32.v4f32", f"<{LANES} x i32>", (("i32", "0"),))


def _mve() -> Machine:
    """Return Cortex-M55 and M85: eight vectors, and scalar registers for sums."""
    return Machine(
        name="armv8.1m+mve", triple=MAINLINE, cpu="cortex-m55", features="+mve.fp", needs=MVE,
        vectors=RegisterFile("vector", 8, 32 * LANES), memories=core_caches(32768, 1 << 18, rates=(16, 16)),
        costs=Costs(multiply_add=2.0, broadcast=1.0, latency=2.0, hidden=1.0, hidden_far=1.0, slow=_ROWS),
        attributes=(), instructions=vectors(), address_bits=32, masked_bytes=1, extends_bytes=True,
        loads_predicated=True,
        scalars=RegisterFile(SCALARS, _SUMS["mve"], 32), word_conversions=(_SCALAR, _VECTOR),
    )  # fmt: skip


def _dsp() -> Machine:
    """Return Cortex-M4 and M7: numbers one by one, two of which are treated as a vector."""
    return Machine(
        name="armv7em", triple=EXTENDED, cpu="cortex-m4", features="", needs=DSP,
        vectors=RegisterFile("vector", 6, 32 * PAIRS), memories=core_caches(32768, 1 << 18, rates=(4, 4)),
        costs=Costs(multiply_add=2.0, broadcast=1.0, latency=2.0, hidden=1.0, hidden_far=1.0), attributes=(),
        instructions=pairs(), address_bits=32, scalars=RegisterFile(SCALARS, _SUMS["dsp"], 32),
        loads_words=True, extends_bytes=True, word_conversions=(_SCALAR,),
    )  # fmt: skip


LEVELS = (_mve(), _dsp())
