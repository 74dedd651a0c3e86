"""Products of warp groups (wgmma): four warps multiply matrices in shared memory.

The sums are spread over the registers of the 128 lanes. A factor is named by a *descriptor*, a word with its address in
shared memory and its format: rows of 128 bytes, whose pieces of 16 bytes are swizzled by the copy engine. A factor is
*K-major* if the terms of a row are contiguous, else *MN-major*.
"""

from __future__ import annotations

from convsmith.ir.instruction import SHARED, FragmentLayout, Instruction, Operand
from convsmith.ir.types import dtype
from convsmith.machine.nvidia.fragments import ROUNDED, SMALL

LANES = 128
"""Lanes of a warp group."""
PRODUCT_ROWS = 64
"""Rows of a product."""
PRODUCT_COLUMNS = (256, 192, 160, 128, 96, 64, 32, 16)
"""Columns of the products that are in the table. A factor that is MN-major has them in rows of 128 bytes, or of fewer
where these do not divide them.
"""
_FACTOR = FragmentLayout(("l", "e"), 1)
"""The layout of a factor, which is not held in registers."""
BYTES = 32
"""Bytes of the terms of a row of a factor."""


def sums_layout(columns: int) -> FragmentLayout:
    """Return the layout of 64 rows and ``columns``: each warp has 16 rows."""
    row, column = "l // 32 * 16 + l % 32 // 4 + r // 2 % 2 * 8", "l % 4 * 2 + r % 2 + r // 4 * 8"
    return FragmentLayout((row, column), LANES, registers=columns // 2)


def _factor(name: str, type_: str, outer: int, terms: int, is_mn_major: bool) -> Operand:
    shape = (terms, outer) if is_mn_major else (outer, terms)
    return Operand(name, type_, shape, _FACTOR, SHARED, "shared")


def product(factors: tuple[str, str], columns: int, turned: tuple[bool, bool] = (False, False)) -> Instruction:
    """Return the row of a product with ``columns``; ``turned`` says which factors are MN-major."""
    left, right = factors
    terms, sums = BYTES // dtype(left).bytes, "f32" if dtype(left).kind == "float" else "s32"
    count = columns // 2
    word, letter = ("i32", "r") if sums == "s32" else ("float", "f")
    held = ", ".join(f"${n}" for n in range(count))
    flags = "" if sums == "s32" else ", 1, 1" + (f", {turned[0]:d}, {turned[1]:d}" if terms == 16 else "")
    shape = f"m{PRODUCT_ROWS}n{columns}k{terms}"
    named = tuple(ROUNDED if x == sums else x for x in factors)
    types = ".".join(x.removeprefix("f8_") for x in named)
    text = (
        f"\\7B .reg .pred p; setp.ne.b32 p, ${2 * count + 2}, 0; wgmma.mma_async.sync.aligned.{shape}.{sums}."
        f"{types} \\7B{held}\\7D, ${2 * count}, ${2 * count + 1}, p{flags}; \\7D"
    )
    ties = ",".join([f"={letter}"] * count + [str(n) for n in range(count)])
    given = ", ".join([*(f"{word} {{c{n}}}" for n in range(count)), "i64 {a}", "i64 {b}", "i32 1"])
    result = f"{{{{{', '.join([word] * count)}}}}}"
    lines = [f'call {result} asm sideeffect "{text}", "{ties},l,l,r"({given})']
    lines += [f"extractvalue {result} {{0}}, {n}" for n in range(count)]
    a, b = ("a[k, m]" if turned[0] else "a[m, k]"), ("b[k, l]" if turned[1] else "b[l, k]")
    term = f"{a} * {b}" if left == sums else f"cast({sums}, {a}) * cast({sums}, {b})"
    body = (
        f"  for m in 0 .. {PRODUCT_ROWS}:\n"
        f"    for l in 0 .. {columns}:\n"
        f"      for k in 0 .. {terms}:\n"
        f"        c[m, l] = c[m, l] + {term}\n"
    )
    operands = (
        Operand("c", sums, (PRODUCT_ROWS, columns), sums_layout(columns), "lane", "fragment"),
        _factor("a", left, PRODUCT_ROWS, terms, turned[0]), _factor("b", right, columns, terms, turned[1]),
    )  # fmt: skip
    majors = ["mn" if x else "k" for x in turned] if any(turned) else []
    name = "_".join(["wgmma", shape, *dict.fromkeys(named), *majors])
    kind = "IGMMA" if sums == "s32" else "QGMMA" if left in SMALL else "HGMMA"
    mnemonic = f"{kind}.{PRODUCT_ROWS}x{columns}x{terms}"
    return Instruction(
        name, operands, body, "\n".join(lines), "", ("sm_90a",), mnemonic,
        rounds="factors" if left == sums else "sums" if left in SMALL else "",
    )  # fmt: skip


_MAJORS = ((False, False), (False, True), (True, True))
"""Flags of the two factors that are MN-major: in a forward pass, a backward pass by data, and one by weights."""
_BYTES = (*((a, b) for a in ("s8", "u8") for b in ("s8", "u8")), *((a, b) for a in SMALL for b in SMALL))
"""Types of factors of bytes. The sums of 8-bit floats are f32, which the hardware adds up with about 14 bits."""
_OTHERS = (*_BYTES, ("f32", "f32"))
"""Types of factors that are K-major in every product. A number of f32 is truncated to 11 significant bits."""
GROUP_PRODUCTS = (
    *(product((t, t), n, turned) for t in ("bf16", "f16") for turned in _MAJORS for n in PRODUCT_COLUMNS),
    *(product(types, n) for types in _OTHERS for n in PRODUCT_COLUMNS),
)
"""Products of sm_90a."""
