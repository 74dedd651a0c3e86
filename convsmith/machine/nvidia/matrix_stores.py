"""Stores of fragments to shared memory by rows (stmatrix): each lane gives the address of a row, which all lanes write.

A matrix has 8 rows of 16 bytes. Each of the four warps of a group stores its own matrices.
"""

from __future__ import annotations

from convsmith.ir.instruction import FragmentLayout, Instruction, Operand
from convsmith.machine.nvidia.fragments import HELD, SHARED
from convsmith.machine.nvidia.warpgroups import LANES

_WIDTH = 8
"""Elements of 16 bits in a row of a matrix, and rows of a matrix."""


def _matrix_store(type_: str, matrices: int, is_transposed: bool) -> Instruction:
    """Return the row that stores ``matrices`` of words of two elements, of which a lane holds one of each."""
    giver, element = f"l // 32 * 32 + r * {_WIDTH}", "l % 4 * 2 + e"
    coords = (f"{giver} + l % 32 // 4", element)
    if is_transposed:
        coords = (f"{giver} + {element}", "l % 32 // 4")
    intrinsic = f"llvm.nvvm.stmatrix.sync.aligned.m8n8.x{matrices}{'.trans' * is_transposed}.b16.p3"
    names = ["{a}"] if matrices == 1 else [f"{{a{n}}}" for n in range(matrices)]
    words = ", ".join(f"i32 {x}" for x in names)
    held = FragmentLayout(("e",), 1, elements=_WIDTH)
    return Instruction(
        f"stmatrix_x{matrices}{'_trans' * is_transposed}_{type_}",
        tuple(Operand(x, type_, (_WIDTH,), held, *where) for x, where in (("c", SHARED), ("a", HELD))),
        f"  for j in 0 .. {_WIDTH}:\n    c[j] = a[j]\n",
        f"call void @{intrinsic}(ptr addrspace(3) {{c}}, {words})",
        f"declare void @{intrinsic}(ptr addrspace(3), {', '.join(['i32'] * matrices)})", ("sm_90",),
        f"STSM.16.M{'T' if is_transposed else ''}88",
        exchange=FragmentLayout(coords, LANES, elements=2, registers=matrices),
    )  # fmt: skip


MATRIX_STORES = tuple(
    _matrix_store(type_, matrices, is_transposed)
    for type_ in ("bf16", "f16") for is_transposed in (False, True) for matrices in (4, 2, 1)
)  # fmt: skip
"""Stores of results of products of warp groups; rows with more matrices precede rows of the same type with fewer."""
