"""Instructions of AArch64 on vectors of 128 bits, one row each."""

from __future__ import annotations

from convsmith.machine.rows import dot_call, fused_multiply_add, pairs_of_bytes

_NEON = "llvm.aarch64.neon"
_DOT, _PAIRS = ".v4i32.v16i8", "addlp.v4i32.v8i16"

INSTRUCTIONS = (
    fused_multiply_add("fmla_4s", "f32", 4, ("neon",), "fmla"),
    fused_multiply_add("fmla_2d", "f64", 2, ("neon",), "fmla"),
    fused_multiply_add("fmla_8h", "f16", 8, ("fullfp16",), "fmla"),
    dot_call("bfdot", "4s", ("bf16", "bf16", "f32"), 4, 2, f"{_NEON}.bfdot.v4f32.v8bf16", ("bf16",)),
    dot_call("sdot", "4s", ("s8", "s8", "s32"), 4, 4, f"{_NEON}.sdot{_DOT}", ("dotprod",)),
    dot_call("udot", "4s", ("u8", "u8", "s32"), 4, 4, f"{_NEON}.udot{_DOT}", ("dotprod",)),
    dot_call("usdot", "4s_us", ("u8", "s8", "s32"), 4, 4, f"{_NEON}.usdot{_DOT}", ("i8mm",)),
    dot_call("usdot", "4s_su", ("s8", "u8", "s32"), 4, 4, f"{_NEON}.usdot{_DOT}", ("i8mm",), swapped=True),
    pairs_of_bytes("sadalp", "4s_ss", ("s8", "s8"), 4, f"{_NEON}.s{_PAIRS}", ("neon",)),
    pairs_of_bytes("uadalp", "4s_uu", ("u8", "u8"), 4, f"{_NEON}.u{_PAIRS}", ("neon",)),
    pairs_of_bytes("sadalp", "4s_us", ("u8", "s8"), 4, f"{_NEON}.s{_PAIRS}", ("neon",)),
    pairs_of_bytes("sadalp", "4s_su", ("s8", "u8"), 4, f"{_NEON}.s{_PAIRS}", ("neon",)),
)
"""Among rows that compute the same, the faster one comes first."""
