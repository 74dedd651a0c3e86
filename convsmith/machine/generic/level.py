"""The portable level: vectors of 128 bits, which LLVM lowers to the instructions of any machine."""

from __future__ import annotations

import llvmlite.binding as llvm

from convsmith.ir.instruction import RegisterFile
from convsmith.machine.base import Machine, multiply_add
from convsmith.machine.costs import Costs
from convsmith.machine.memory import core_caches
from convsmith.machine.transpositions import Transpositions

_VECTOR = "<4 x float>"

PORTABLE_FMA = multiply_add(
    "multiply_add_128",
    4,
    f"call {_VECTOR} @llvm.fmuladd.v4f32({_VECTOR} {{a}}, {_VECTOR} {{b}}, {_VECTOR} {{c}})",
    f"declare {_VECTOR} @llvm.fmuladd.v4f32({_VECTOR}, {_VECTOR}, {_VECTOR})",
    (),
    "",
)


def level(triple: str | None = None) -> Machine:
    """Return the portable level for an LLVM triple, by default the triple of this process."""
    return Machine(
        name="generic", triple=triple or llvm.get_default_triple(), cpu="", features="", needs=(),
        vectors=RegisterFile("vector", 16, 128), memories=core_caches(32768, 1 << 18, rates=(32, 32)),
        costs=Costs(multiply_add=0.5, broadcast=1.5, latency=6.0, temporaries=1),
        attributes=(), instructions=(PORTABLE_FMA,), transpositions=Transpositions(128, (), ("", "")),
    )  # fmt: skip
