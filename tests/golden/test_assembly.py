"""Instructions that the machine code of default kernels must contain, or must not, with any version of LLVM."""

from __future__ import annotations

import re

import pytest

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import emit, lower
from convsmith.ir.intern import interning
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.plan import plan
from convsmith.schedule.planned import without_limits
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in LEVELS}
LAYER = "--stag=axb --dtag=axb mb1ic64ih14iw14oc64oh14ow14kh3kw3ph1pw1"
POINTWISE = "--stag=axb --dtag=axb mb1ic64ih14iw14oc64oh14ow14kh1kw1"
FEW_CHANNELS = "--stag=abx --dtag=abx mb1ic64ih64oc4oh64kh3ph1"
PRODUCT = "64x128:128x96"
SOURCE = "--attr-zero-points=src:common:3+dst:common:5"
WEIGHTS = "--attr-zero-points=src:common:3+wei:common:2"

CASES = {
    "bytes": (f"--dt=u8:s8:s32 {LAYER}", "avx512_vnni", "vpdpbusd"),
    "bytes-to-bytes": (f"--dt=u8:s8:u8 --attr-post-ops=relu {LAYER}", "avx512_vnni", "vpdpbusd"),
    "bytes-signed": (f"--dt=s8:s8:s32 {LAYER}", "avx512_vnni", "vpdpbusd"),
    "bytes-signed-backward": (f"--dir=BWD_D --dt=s32:s8:s8 {LAYER}", "avx512_vnni", "vpdpwssd"),
    "bytes-product": (f"--matmul --dt=u8:s8:s32 {PRODUCT}", "avx512_vnni", "vpdpbusd"),
    "bytes-zero-point": (f"--dt=u8:s8:u8 {SOURCE} {LAYER}", "avx512_vnni", "vpdpbusd"),
    "bytes-zero-points": (f"--dt=u8:s8:s32 {WEIGHTS} {LAYER}", "avx512_vnni", "vpdpbusd"),
    "bytes-unsigned-weights": (f"--dt=u8:u8:u8 {WEIGHTS} {LAYER}", "avx512_vnni", "vpdpbusd"),
    "bytes-zero-points-product": (f"--matmul --dt=u8:u8:s32 {WEIGHTS} {PRODUCT}", "avx512_vnni", "vpdpbusd"),
    "bytes-zero-points-256": (f"--dt=u8:s8:u8 {WEIGHTS} {LAYER}", "avx2_vnni", "vpdpbusd"),
    "bytes-256": (f"--dt=u8:s8:s32 {LAYER}", "avx2_vnni", "vpdpbusd"),
    "bytes-signed-256": (f"--dt=s8:s8:s32 {LAYER}", "avx2_vnni_int8", "vpdpbssd"),
    "narrow": (f"--dt=u8:s8:s32 {LAYER}", "avx512", "vpmaddubsw"),
    "narrow-256": (f"--dt=u8:s8:s32 {LAYER}", "avx2", "vpmaddubsw"),
    "narrow-signed-256": (f"--dt=s8:s8:s32 {LAYER}", "avx2", "vpmaddubsw"),
    "narrow-zero-points-256": (f"--dt=s8:s8:u8 {WEIGHTS} {LAYER}", "avx2", "vpmaddubsw"),
    "words": (f"--dt=u8:u8:s32 {LAYER}", "avx512", "vpmaddwd"),
    "words-256": (f"--dt=u8:u8:s32 {LAYER}", "avx2", "vpmaddwd"),
    "bf16": (f"--dt=bf16:bf16:f32 {POINTWISE}", "avx512_bf16", "vdpbf16ps"),
    "bf16-backward": (f"--dir=BWD_D --dt=f32:bf16:bf16 {POINTWISE}", "avx512_bf16", "vdpbf16ps"),
    "bf16-converted": (f"--dt=bf16 {LAYER}", "avx512", "vfmadd"),
    "f16": (f"--dt=f16 {LAYER}", "avx2", "vfmadd"),
    "f16-sums": (f"--dt=f16 --attr-acc-mode=f16 {LAYER}", "avx512_fp16", "vfmadd231ph"),
    "f16-sums-backward": (f"--dir=BWD_D --dt=f16 --attr-acc-mode=f16 {LAYER}", "avx512_fp16", "vfmadd231ph"),
    "f16-sums-weights": (f"--dir=BWD_W --dt=f16 --attr-acc-mode=any {LAYER}", "avx512_fp16", "vfmadd231ph"),
    "f16-sums-product": (f"--matmul --dt=f16 --attr-acc-mode=f16 {PRODUCT}", "avx512_fp16", "vfmadd231ph"),
    "f64": (f"--dt=f64 {LAYER}", "avx512", "vfmadd"),
    "f32": (LAYER, "avx2", "vfmadd"),
    "f32-backward": (f"--dir=BWD_D {LAYER}", "avx512", "vfmadd"),
    "f32-weights": (f"--dir=BWD_W {LAYER}", "avx512", "vfmadd"),
    "deconvolution": (f"--deconv {LAYER}", "avx512", "vfmadd"),
    "product": (f"--matmul {PRODUCT}", "avx2", "vfmadd"),
    "rows-of-taps": (FEW_CHANNELS, "avx2", "vfmadd"),
    "rows-of-taps-deconvolution": (f"--deconv {FEW_CHANNELS}", "avx2", "vfmadd"),
}  # fmt: skip
"""A problem, a level, and the instruction that its products are added up with."""


def assembly_of(line: str, isa: str) -> str:
    problem, target = parse_problem(line), TARGETS[isa]
    config = default_config(problem, target)
    with interning():
        text = lower(plan(problem, config, target)).text
    return llvm_bind.assembly(text, target.triple, target.cpu, target.features)


def inner_loops(assembly: str) -> list[str]:
    """The blocks that jump back to their own start, as far as the jump."""
    blocks = re.split(r"^(?=\.LBB\w+:)", assembly, flags=re.MULTILINE)
    jumps = ((b, re.search(rf"^\tj\w+\t{re.escape(b.partition(':')[0])}$", b, re.MULTILINE)) for b in blocks)
    return [b[: jump.end()] for b, jump in jumps if jump]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CASES)
def test_hot_loop(name: str) -> None:
    """The loop with most products keeps its sums in registers: nothing of it is on the stack."""
    line, isa, mnemonic = CASES[name]
    text = assembly_of(line, isa)
    hot = max(inner_loops(text), key=lambda loop: loop.count(f"\t{mnemonic}"))
    assert hot.count(f"\t{mnemonic}") >= 8, f"{mnemonic} in\n{hot}"
    assert not re.search(r"%rsp|%rbp|Spill|Reload", hot), hot


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("f16-sums")])
def test_sums_in_f16_convert_nothing_on_the_way(name: str) -> None:
    line, isa, mnemonic = CASES[name]
    hot = max(inner_loops(assembly_of(line, isa)), key=lambda loop: loop.count(f"\t{mnemonic}"))
    assert "%zmm" in hot and "vcvt" not in hot and "vfmadd231ps" not in hot, hot


def test_sums_in_f32_of_f16_take_one_conversion_with_avx512_fp16() -> None:
    """LLVM has one instruction for load, broadcast and conversion."""
    text = assembly_of("--matmul --dt=f16 784x1152:1152x128", "avx512_fp16")
    hot = max(inner_loops(text), key=lambda loop: loop.count("\tvfmadd231ps"))
    assert re.search(r"vcvtph2psx\t.*\{1to16\}", hot) and "vpbroadcastw" not in hot, hot


@pytest.mark.parametrize("isa", ["avx512_fp16", "avx512"])
def test_copies_of_f16_are_converted_outside_of_the_inner_loop(isa: str) -> None:
    text = assembly_of(f"--accuracy=strict --dt=f16 {LAYER}", isa)
    hot = max(inner_loops(text), key=lambda loop: loop.count("\tvfmadd231ps"))
    assert "vcvtph2ps" in text and "vcvtph2ps" not in hot, hot


@pytest.mark.sampled(9, "types")
@pytest.mark.parametrize("isa", list(TARGETS))
@pytest.mark.parametrize("types", ["u8:s8:s32", "s8:s8:s32", "u8:u8:s32", "s8:u8:f32"])
def test_no_sum_of_words_saturates(types: str, isa: str) -> None:
    """vpmaddubsw adds two products in 16 bits, which saturate for large weights: kernels for all weights lack it."""
    problem, target = parse_problem(f"--dt={types} {LAYER}"), TARGETS[isa]
    config = default_config(problem, target)
    with interning():
        limited = plan(problem, config, target)
        limits = emit(limited, lower(limited)).limits
        text = lower(plan(problem, without_limits(config, target), target)).text
    assert ("vpmaddubsw" in config.instruction) == (limits.get("wei") == 64)
    text = llvm_bind.assembly(text, target.triple, target.cpu, target.features)
    assert "vpmaddubsw" not in text and "vpdpbusds" not in text and "vpdpwssds" not in text


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("words")])
def test_weights_are_words_before_the_hot_loop(name: str) -> None:
    """One pixel's bytes are broadcast and extended for several vectors of weights, which are loaded as words."""
    line, isa, mnemonic = CASES[name]
    hot = max(inner_loops(assembly_of(line, isa)), key=lambda loop: loop.count(f"\t{mnemonic}"))
    assert hot.count("\tvpmov") * 2 <= hot.count(f"\t{mnemonic}"), hot


@pytest.mark.parametrize("isa", ["avx512_vnni", "avx512", "avx2"])
@pytest.mark.parametrize("line", ["g64mb1ic64ih14oc64oh14kh3ph1", "g64mb1ic64ih28oc64oh14kh3sh2ph1"])
def test_bytes_of_single_channels_are_multiplied_as_words(line: str, isa: str) -> None:
    text = assembly_of(f"--dt=u8:s8:s32 --stag=axb --dtag=axb {line}", isa)
    assert re.search("vpdpwssd|vpmaddwd", text) and "vpmulld" not in text


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("source", ["u8", "s8"])
def test_pairs_of_bytes_become_words_within_16_bytes(source: str, isa: str) -> None:
    """Widening half a vector of bytes to a whole one takes Zen 3 as long as three products."""
    problem, target = parse_problem(f"--dt={source}:s8:s32 {POINTWISE}"), TARGETS[isa]
    config = without_limits(default_config(problem, target), target)
    name = f"vpmaddwd_{target.vector_bits}_{source}"
    with interning():
        text = lower(plan(problem, config.changed(instruction=name, flip=(), offsets="each"), target)).text
    text = llvm_bind.assembly(text, target.triple, target.cpu, target.features)
    hot = max(inner_loops(text), key=lambda loop: loop.count("\tvpmaddwd"))
    assert 4 <= 2 * hot.count("\tvpunpcklbw") <= hot.count("\tvpmaddwd") and "vpmov" not in hot, hot


@pytest.mark.parametrize("isa", ["avx512_vnni", "avx2_vnni"])
@pytest.mark.parametrize("line", ["g64mb1ic64ih14oc64oh14kh3ph1", "g64mb1ic64ih28oc64oh14kh3sh2ph1"])
def test_words_are_multiplied_and_added_in_one_instruction(line: str, isa: str) -> None:
    """For less latency LLVM would take two; a tile has sums enough to hide that of one."""
    text = assembly_of(f"--dt=u8:s8:s32 --stag=axb --dtag=axb {line}", isa)
    assert text.count("\tvpdpwssd\t") > 30 and "\tvpaddd\t" not in text


def test_windows_of_many_terms_are_multiplied_by_fragments() -> None:
    """The copy of windows decides whether a term is there, at each of a million points."""
    line = "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic672ih14oc672oh6kh5sh2ph1"
    assert "\ttdpbusd" in assembly_of(line, "avx512_amx")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("isa", ["avx512_fp16", "avx512_bf16", "avx2"])
@pytest.mark.parametrize("types", ["bf16", "f16", "f16 --attr-acc-mode=f16", "f32:bf16:f32", "bf16:bf16:s8"])
def test_no_conversion_is_a_call(types: str, isa: str) -> None:
    text = assembly_of(f"--dt={types} {LAYER}", isa)
    called = set(re.findall(r"^\tcallq?\t(\w+)", text, re.MULTILINE))
    own = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    assert called - own <= {"memset"}


@pytest.mark.parametrize(
    ("types", "isa", "mnemonic"),
    [
        ("u8:s8:s32", "avx512_amx", "tdpbusd"), ("s8:s8:f32", "avx512_amx", "tdpbssd"),
        ("u8:u8:s32", "avx512_amx", "tdpbuud"), ("bf16", "avx512_amx", "tdpbf16ps"),
        ("f16", "avx512_amx_fp16", "tdpfp16ps"),
    ],
)  # fmt: skip
def test_hot_loop_on_fragments(types: str, isa: str, mnemonic: str) -> None:
    """Each fragment of a factor is read once for all its products, and no sum leaves its register."""
    hot = max(inner_loops(assembly_of(f"--matmul --dt={types} {PRODUCT}", isa)), key=lambda b: b.count(f"\t{mnemonic}"))
    products, reads = hot.count(f"\t{mnemonic}"), hot.count("\ttileloadd")
    assert products >= 3 and reads < 2 * products, hot
    assert not re.search(r"tilestored|tilezero|%rsp|Spill|Reload", hot), hot
