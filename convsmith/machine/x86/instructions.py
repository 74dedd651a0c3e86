"""Instructions of x86, one row each."""

from __future__ import annotations

from convsmith.ir.instruction import Instruction
from convsmith.machine.base import dot, multiply_add

_LLVM = {
    "f32": "float", "f64": "double", "f16": "half", "bf16": "bfloat",
    "s32": "i32", "s16": "i16", "s8": "i8", "u8": "i8",
}  # fmt: skip


def _fma(name: str, type_: str, lanes: int, needs: tuple[str, ...], mnemonic: str) -> Instruction:
    vector = f"<{lanes} x {_LLVM[type_]}>"
    intrinsic = f"@llvm.fma.v{lanes}{type_}"
    steps = [f"call {vector} {intrinsic}({vector} {{a}}, {vector} {{b}}, {vector} {{c}})"]
    if type_ == "f16":
        words = f"<{lanes} x i16>"
        steps = [f"bitcast {words} {{{x}}} to {vector}" for x in "abc"]
        steps.append(f"call {vector} {intrinsic}({vector} {{0}}, {vector} {{1}}, {vector} {{2}})")
        steps.append(f"bitcast {vector} {{3}} to {words}")
    return multiply_add(
        name, lanes, "\n".join(steps),
        f"declare {vector} {intrinsic}({vector}, {vector}, {vector})", needs, mnemonic, type_,
    )  # fmt: skip


def _dot(name: str, types: tuple[str, str, str], lanes: int, terms: int, intrinsic: str,
         needs: tuple[str, ...]) -> Instruction:  # fmt: skip
    """An instruction that takes its operands as they are."""
    a, b, c = (f"<{n} x {_LLVM[t]}>" for t, n in zip(types, (lanes * terms, lanes * terms, lanes)))
    steps = [f"call {c} @llvm.x86.{intrinsic}({c} {{c}}, {a} {{a}}, {b} {{b}})"]
    if types[0] == "bf16":
        words = f"<{lanes * terms} x i16>"
        steps = [f"bitcast {words} {{{x}}} to {a}" for x in "ab"]
        steps.append(f"call {c} @llvm.x86.{intrinsic}({c} {{c}}, {a} {{0}}, {b} {{1}})")
    return dot(
        name, lanes, terms, types, "\n".join(steps),
        f"declare {c} @llvm.x86.{intrinsic}({c}, {a}, {b})", needs, name.split("_")[0],
    )  # fmt: skip


def _words(name: str, a: str, lanes: int, intrinsic: str, needs: tuple[str, ...], adds: bool) -> Instruction:
    """A product of pairs of bytes, as 16-bit words: nothing can saturate in between.

    ``adds`` says that the instruction adds to the sums; else that takes another.
    """
    words, sums, small = f"<{2 * lanes} x i16>", f"<{lanes} x i32>", f"<{2 * lanes} x i8>"
    first = f"{'zext' if a == 'u8' else 'sext'} {small} {{a}} to {words}"
    call = f"@llvm.x86.{intrinsic}({f'{sums} {{c}}, ' if adds else ''}{words} {{0}}, {words} {{1}})"
    steps = [first, f"sext {small} {{b}} to {words}", f"call {sums} {call}"]
    if not adds:
        steps.append(f"add {sums} {{c}}, {{2}}")
    declare = f"declare {sums} @llvm.x86.{intrinsic}({f'{sums}, ' if adds else ''}{words}, {words})"
    return dot(name, lanes, 2, (a, "s8", "s32"), "\n".join(steps), declare, needs, name.split("_")[0])


_U8, _S8, _BF16 = ("u8", "s8", "s32"), ("s8", "s8", "s32"), ("bf16", "bf16", "f32")

INSTRUCTIONS = (
    _fma("vfmadd_ps_512", "f32", 16, ("avx512f",), "vfmadd"),
    _fma("vfmadd_pd_512", "f64", 8, ("avx512f",), "vfmadd"),
    _fma("vfmadd_ph_512", "f16", 32, ("avx512fp16",), "vfmadd"),
    _fma("vfmadd_ps_256", "f32", 8, ("avx2", "fma"), "vfmadd"),
    _fma("vfmadd_pd_256", "f64", 4, ("avx2", "fma"), "vfmadd"),
    _dot("vpdpbusd_512", _U8, 16, 4, "avx512.vpdpbusd.512", ("avx512vnni",)),
    _words("vpdpwssd_512", "s8", 16, "avx512.vpdpwssd.512", ("avx512vnni",), adds=True),
    _dot("vdpbf16ps_512", _BF16, 16, 2, "avx512bf16.dpbf16ps.512", ("avx512bf16",)),
    _dot("vpdpbusd_256", _U8, 8, 4, "avx512.vpdpbusd.256", ("avxvnni",)),
    _dot("vpdpbssd_256", _S8, 8, 4, "avx2.vpdpbssd.256", ("avxvnniint8",)),
    _words("vpdpwssd_256", "s8", 8, "avx512.vpdpwssd.256", ("avxvnni",), adds=True),
    _words("vpmaddwd_512_u8", "u8", 16, "avx512.pmaddw.d.512", ("avx512bw",), adds=False),
    _words("vpmaddwd_512_s8", "s8", 16, "avx512.pmaddw.d.512", ("avx512bw",), adds=False),
    _words("vpmaddwd_256_u8", "u8", 8, "avx2.pmadd.wd", ("avx2",), adds=False),
    _words("vpmaddwd_256_s8", "s8", 8, "avx2.pmadd.wd", ("avx2",), adds=False),
)
"""Of rows that do the same, the faster comes first."""
