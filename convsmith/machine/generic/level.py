"""The portable level: vectors of 128 bits, whatever the machine makes of them."""

from __future__ import annotations

import llvmlite.binding as llvm

from convsmith.machine.base import Costs, Machine, multiply_add
from convsmith.machine.transpositions import transpositions

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
    """The portable level for a triple of LLVM's, by default this process's."""
    return Machine(
        isa="generic", triple=triple or llvm.get_default_triple(), cpu="", features="", needs=(), vector_bits=128,
        registers=16, costs=Costs(0.5, 0.5, 1.5, 6.0, temporaries=1),
        l1_bytes=32768, l1_ways=8, l2_bytes=1 << 18, attributes=(), instructions=(PORTABLE_FMA,),
        transpositions=transpositions(128, (), ("", "")),
    )  # fmt: skip
