"""Instructions of AArch64 on vectors of 128 bits, one row each.

Products have a form whose factor is one element of a register: `fmla v0.8h, v1.8h, v2.h[0]`. The element is loaded
alone, at a constant offset, where a load into all lanes has none and each copy of an element takes an instruction. LLVM
finds the form of f32 and f64 by itself.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction, vector
from convsmith.machine.rows import dot_call, fused_multiply_add, pairs_of_bytes

_NEON = "llvm.aarch64.neon"
_PAIRS = "addlp.v4i32.v8i16"


def _halves(lanes: int) -> Instruction:
    """Return the row of ``fma`` on f16 numbers, which are stored as 16-bit words, with its form by element."""
    row = fused_multiply_add("fmla_8h", "f16", lanes, ("fullfp16",), "fmla")
    words, numbers = f"<{lanes} x i16>", f"<{lanes} x half>"
    steps = [
        "bitcast <1 x i16> {a} to half",
        f"insertelement {numbers} poison, half {{0}}, i64 0",
        f"shufflevector {numbers} {{1}}, {numbers} poison, <{lanes} x i32> zeroinitializer",
        f"bitcast {words} {{b}} to {numbers}", f"bitcast {words} {{c}} to {numbers}",
        f"call {numbers} @llvm.fma.v{lanes}f16({numbers} {{2}}, {numbers} {{3}}, {numbers} {{4}})",
        f"bitcast {numbers} {{5}} to {words}",
    ]  # fmt: skip
    return _with_form(row, 1, steps)


def _dot(
    mnemonic: str, variant: str, types: tuple[str, str, str], feature: str, swapped: bool = False, one: str = ""
) -> Instruction:  # fmt: skip
    """Return the row of a dot product of four bytes, with its form whose first factor is an element of 32 bits, which
    has the mnemonic ``one`` if that differs.

    LLVM selects that form where an element is repeated as a number of another type than it was inserted as; it loads
    one of the same type into all lanes. Of factors of one type, it expects the element to be the second one.
    """
    intrinsic = f"{_NEON}.{mnemonic}.v4i32.v16i8"
    row = dot_call(mnemonic, variant, types, 4, 4, intrinsic, (feature,), swapped)
    steps = [
        "bitcast <4 x i8> {a} to float",
        "insertelement <4 x float> poison, float {0}, i64 0",
        "bitcast <4 x float> {1} to <4 x i32>",
        "shufflevector <4 x i32> {2}, <4 x i32> poison, <4 x i32> zeroinitializer",
        "bitcast <4 x i32> {3} to <16 x i8>",
    ]
    factors = ["<16 x i8> {4}", "<16 x i8> {b}"][:: -1 if swapped or types[0] == types[1] else 1]
    steps.append(f"call <4 x i32> @{intrinsic}(<4 x i32> {{c}}, {', '.join(factors)})")
    row = _with_form(row, 4, steps, "float")
    assert row.repeated is not None
    return replace(row, repeated=replace(row.repeated, mnemonic=one or mnemonic))


def _with_form(row: Instruction, terms: int, steps: list[str], loaded: str = "") -> Instruction:
    """Return a row with the form of ``steps``, whose first factor has the ``terms`` of one sum, ``loaded`` as a number.
    """
    c, a, b = row.operands
    body = row.body.replace(f"a[l * {terms} + r]", "a[r]").replace("a[l]", "a[0]")
    form = replace(
        row, name=f"{row.name}_one", operands=(c, vector("a", a.dtype, terms), b), body=body, llvm="\n".join(steps),
        loaded=loaded,
    )  # fmt: skip
    return replace(row, repeated=form)


INSTRUCTIONS = (
    fused_multiply_add("fmla_4s", "f32", 4, ("neon",), "fmla"),
    fused_multiply_add("fmla_2d", "f64", 2, ("neon",), "fmla"),
    _halves(8),
    dot_call("bfdot", "4s", ("bf16", "bf16", "f32"), 4, 2, f"{_NEON}.bfdot.v4f32.v8bf16", ("bf16",)),
    _dot("sdot", "4s", ("s8", "s8", "s32"), "dotprod"),
    _dot("udot", "4s", ("u8", "u8", "s32"), "dotprod"),
    _dot("usdot", "4s_us", ("u8", "s8", "s32"), "i8mm", one="sudot"),
    _dot("usdot", "4s_su", ("s8", "u8", "s32"), "i8mm", swapped=True),
    pairs_of_bytes("sadalp", "4s_ss", ("s8", "s8"), 4, f"{_NEON}.s{_PAIRS}", ("neon",)),
    pairs_of_bytes("uadalp", "4s_uu", ("u8", "u8"), 4, f"{_NEON}.u{_PAIRS}", ("neon",)),
    pairs_of_bytes("sadalp", "4s_us", ("u8", "s8"), 4, f"{_NEON}.s{_PAIRS}", ("neon",)),
    pairs_of_bytes("sadalp", "4s_su", ("s8", "u8"), 4, f"{_NEON}.s{_PAIRS}", ("neon",)),
)
"""Among rows that compute the same, the faster one comes first."""
