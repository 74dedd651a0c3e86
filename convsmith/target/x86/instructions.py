"""Instructions of x86, one row each."""

from __future__ import annotations

from convsmith.ir.instruction import Instruction
from convsmith.target.base import multiply_add


def _fma(name: str, lanes: int, needs: tuple[str, ...]) -> Instruction:
    vector = f"<{lanes} x float>"
    intrinsic = f"@llvm.fma.v{lanes}f32"
    return multiply_add(
        name,
        lanes,
        f"call {vector} {intrinsic}({vector} {{a}}, {vector} {{b}}, {vector} {{c}})",
        f"declare {vector} {intrinsic}({vector}, {vector}, {vector})",
        needs,
        "vfmadd",
    )


INSTRUCTIONS = (
    _fma("vfmadd_ps_512", 16, ("avx512f",)),
    _fma("vfmadd_ps_256", 8, ("avx2", "fma")),
)
