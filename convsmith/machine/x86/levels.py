"""Levels of x86 that code is tuned for, highest first."""

from __future__ import annotations

from convsmith.ir.instruction import Instruction, Narrowing, RegisterFile, WordConversion
from convsmith.ir.types import Half, dtype
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.memory import core_caches
from convsmith.machine.transpositions import Transpositions
from convsmith.machine.x86.amx import INSTRUCTIONS as FRAGMENT_INSTRUCTIONS
from convsmith.machine.x86.amx import TILES
from convsmith.machine.x86.instructions import INSTRUCTIONS

TRIPLE = "x86_64-unknown-linux-gnu"
_AVX2 = ("avx2", "fma", "f16c")
_SHUFFLES = ("unpck", "shuf")
_FENCE = "llvm.x86.sse.sfence"
_ROUNDING_512 = WordConversion(
    16, "llvm.x86.avx512.mask.cvtps2dq.512", "<16 x i32>",
    after=(("<16 x i32>", "zeroinitializer"), ("i16", "-1"), ("i32", "4")),
)  # fmt: skip
_ROUNDING_256 = WordConversion(8, "llvm.x86.avx.cvt.ps2dq.256", "<8 x i32>")
_NARROWING_256 = Narrowing(
    8, "llvm.x86.avx2.packssdw", (("u8", "llvm.x86.avx2.packuswb"), ("s8", "llvm.x86.avx2.packsswb")), parts=2
)
_NARROWING_512 = Narrowing(
    16, "llvm.x86.avx512.packssdw.512",
    (("u8", "llvm.x86.avx512.packuswb.512"), ("s8", "llvm.x86.avx512.packsswb.512")), parts=4, joins=True,
)  # fmt: skip
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", *_AVX2)
_PREFERENCES = ("fast-dpwssd",)
"""LLVM's tuning preferences on every level: where the level has it, one instruction multiplies words and adds the
products to sums. Register tiles have enough sums to hide its latency.
"""


def _rows(features: tuple[str, ...], bits: int) -> tuple[Instruction, ...]:
    """Return the instructions that the features permit: on vectors of ``bits``, and on fragments with the given rows.
    """
    rows = (*INSTRUCTIONS, *FRAGMENT_INSTRUCTIONS)
    return tuple(
        r for r in rows if set(r.needs) <= set(features) and r.lanes * dtype(r.types[2]).bits == bits
    )  # fmt: skip


def _features(names: tuple[str, ...]) -> str:
    return ",".join("+" + n for n in (*names, *_PREFERENCES))


def _avx512(name: str, *more: str) -> Machine:
    needs = (*_AVX512, *more)
    half: Half = "computes" if "avx512fp16" in more else "converts"
    return Machine(
        name=name, triple=TRIPLE, cpu="x86-64-v4", features=_features(needs), needs=needs,
        vectors=RegisterFile("vector", 32, 512), memories=core_caches(32768, 1 << 20, rates=(64, 32)),
        costs=Costs(multiply_add=1.0, broadcast=0.5, latency=4.0, convert=1.25, word_transform=0.65),
        attributes=(("prefer-vector-width", "512"),), instructions=_rows(needs, 512),
        transpositions=Transpositions(512, _AVX512, _SHUFFLES), half=half,
        fragments=(TILES,) if "amx-tile" in needs else (),
        permissions=("amx",) if "amx-tile" in needs else (), masked_bytes=1, has_masked_stores=True,
        has_word_products=True, has_fused_steps=True, word_rounding=_ROUNDING_512, narrowing=_NARROWING_512,
        fence=_FENCE, word_lookup="llvm.x86.avx512.vpermi2var.hi.512",
    )  # fmt: skip


def _avx2(name: str, *more: str) -> Machine:
    needs = (*_AVX2, *more)
    return Machine(
        name=name, triple=TRIPLE, cpu="x86-64-v3", features=_features(needs), needs=needs,
        vectors=RegisterFile("vector", 16, 256), memories=core_caches(32768, 1 << 18, rates=(64, 32)),
        costs=Costs(multiply_add=0.5, broadcast=0.5, latency=4.0, byte_product=4, word_transform=0.65),
        attributes=(), instructions=_rows(needs, 256),
        transpositions=Transpositions(256, _AVX2, _SHUFFLES), half="converts", masked_bytes=4, has_word_products=True,
        has_fused_steps=True, word_rounding=_ROUNDING_256, narrowing=_NARROWING_256, fence=_FENCE,
    )  # fmt: skip


_AMX = ("avx512vnni", "avx512bf16", "avx512fp16", "amx-tile", "amx-int8", "amx-bf16")

LEVELS = (
    _avx512("avx512_amx_fp16", *_AMX, "amx-fp16"),
    _avx512("avx512_amx", *_AMX),
    _avx512("avx512_fp16", "avx512vnni", "avx512bf16", "avx512fp16"),
    _avx512("avx512_bf16", "avx512vnni", "avx512bf16"),
    _avx512("avx512_vnni", "avx512vnni"),
    _avx512("avx512"),
    _avx2("avx2_vnni_int8", "avxvnni", "avxvnniint8"),
    _avx2("avx2_vnni", "avxvnni"),
    _avx2("avx2"),
)
