"""Instructions of x86, one row each."""

from __future__ import annotations

from convsmith.machine.rows import dot_call, fused_multiply_add, narrow_products, pairs_of_words, single_products

_U8, _S8, _BF16 = ("u8", "s8", "s32"), ("s8", "s8", "s32"), ("bf16", "bf16", "f32")
_WORDS = {512: "llvm.x86.avx512.pmaddw.d.512", 256: "llvm.x86.avx2.pmadd.wd"}
"""The intrinsic that sums pairs of products of 16-bit words, by the bits of a vector."""

INSTRUCTIONS = (
    fused_multiply_add("vfmadd_ps_512", "f32", 16, ("avx512f",), "vfmadd"),
    fused_multiply_add("vfmadd_pd_512", "f64", 8, ("avx512f",), "vfmadd"),
    fused_multiply_add("vfmadd_ph_512", "f16", 32, ("avx512fp16",), "vfmadd"),
    fused_multiply_add("vfmadd_ps_256", "f32", 8, ("avx2", "fma"), "vfmadd"),
    fused_multiply_add("vfmadd_pd_256", "f64", 4, ("avx2", "fma"), "vfmadd"),
    dot_call("vpdpbusd", "512", _U8, 16, 4, "llvm.x86.avx512.vpdpbusd.512", ("avx512vnni",)),
    pairs_of_words("vpdpwssd", "512", "s8", 16, "llvm.x86.avx512.vpdpwssd.512", ("avx512vnni",), adds=True),
    pairs_of_words("vpdpwssd", "512_s16", "s16", 16, "llvm.x86.avx512.vpdpwssd.512", ("avx512vnni",), adds=True),
    dot_call("vdpbf16ps", "512", _BF16, 16, 2, "llvm.x86.avx512bf16.dpbf16ps.512", ("avx512bf16",), flushes=True,
             repeated_last=True),
    single_products("vdpbf16ps", "512_single", "bf16", 16, "llvm.x86.avx512bf16.dpbf16ps.512", ("avx512bf16",), True),
    dot_call("vpdpbusd", "256", _U8, 8, 4, "llvm.x86.avx512.vpdpbusd.256", ("avxvnni",)),
    dot_call("vpdpbssd", "256", _S8, 8, 4, "llvm.x86.avx2.vpdpbssd.256", ("avxvnniint8",)),
    pairs_of_words("vpdpwssd", "256", "s8", 8, "llvm.x86.avx512.vpdpwssd.256", ("avxvnni",), adds=True),
    pairs_of_words("vpdpwssd", "256_s16", "s16", 8, "llvm.x86.avx512.vpdpwssd.256", ("avxvnni",), adds=True),
    narrow_products("vpmaddubsw", "512", 16, "llvm.x86.avx512.pmaddubs.w.512", _WORDS[512], ("avx512bw",)),
    narrow_products("vpmaddubsw", "256", 8, "llvm.x86.avx2.pmadd.ub.sw", _WORDS[256], ("avx2",)),
    pairs_of_words("vpmaddwd", "512_u8", "u8", 16, _WORDS[512], ("avx512bw",), adds=False),
    pairs_of_words("vpmaddwd", "512_s8", "s8", 16, _WORDS[512], ("avx512bw",), adds=False),
    pairs_of_words("vpmaddwd", "256_u8", "u8", 8, _WORDS[256], ("avx2",), adds=False),
    pairs_of_words("vpmaddwd", "256_s8", "s8", 8, _WORDS[256], ("avx2",), adds=False),
    pairs_of_words("vpmaddwd", "512_s16", "s16", 16, _WORDS[512], ("avx512bw",), adds=False),
    pairs_of_words("vpmaddwd", "256_s16", "s16", 8, _WORDS[256], ("avx2",), adds=False),
    pairs_of_words("vpmaddwd", "256_u8_copied", "u8", 8, _WORDS[256], ("avx2",), adds=False, copied=True),
    pairs_of_words("vpmaddwd", "256_s8_copied", "s8", 8, _WORDS[256], ("avx2",), adds=False, copied=True),
)
"""Among rows that compute the same, the faster one comes first."""
