"""SVE of any vector length: one object is exact at every length, and its loops step by the vectors that there are."""

from __future__ import annotations

import random
import re

import pytest
from emulated import check_emulated, skip_without_emulator

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.compiler.dynamic import at_call
from convsmith.emulate.qemu import UNITS, sve_processor
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

LEVEL = target("aarch64+sve")
NHWC = "--stag=axb --dtag=axb "
SMALL = "mb1ic8ih4iw5oc44oh4ow5kh3kw3ph1pw1"
LONG = f"--attr-post-ops={'+'.join(['linear:2:1', 'abs', 'linear:0.5:-3'] * 8)}"
"""An epilogue with a loop of its own, which is exact."""

CASES = {
    "f32": (SMALL, "fmla"),
    "f32, stride": ("mb2ic3ih7iw7oc44oh4ow4kh3kw3sh2sw2ph1pw1", "fmla"),
    "f32, channels that fill no unit": ("mb1ic3iw6oc27ow6kw3pw1", "fmla"),
    "f32, several vectors at any length": ("mb1ic3iw4oc140ow4kw1", "fmla"),
    "f32, tiles of several vectors": ("mb1ic3iw6oc64ow6kw3pw1", "fmla"),
    "f32, bias and post-ops": (f"--dir=FWD_B --attr-post-ops=sum:2+add:f32:per_oc+relu:0.5 {SMALL}", "fmla"),
    "f32, long epilogue": (f"{LONG} {SMALL}", "fmla"),
    "f32, long epilogue, tiles of several vectors": (f"{LONG} mb1ic3iw9oc64ow9kw3pw1", "fmla"),
    "f32, depthwise": ("g44mb1ic44ih5iw6oc44oh5ow6kh3kw3ph1pw1", "fmla"),
    "f32, groups": ("g2mb1ic8iw5oc72ow5kw3pw1", "fmla"),
    "f32, data gradient": ("--dir=BWD_D mb1ic44ih4iw5oc8oh4ow5kh3kw3ph1pw1", "fmla"),
    "f32, data gradient, stride": ("--dir=BWD_D mb1ic44iw9oc8ow5kw3sw2pw1", "fmla"),
    "f32, deconvolution": (f"--deconv {SMALL}", "fmla"),
    "f64": (f"--dt=f64 {SMALL}", "fmla"),
    "f16": (f"--dt=f16 {SMALL}", "fmla"),
    "f16, sums in f16": (f"--dt=f16 --attr-acc-mode=f16 {SMALL}", "fmla"),
    "bf16": (f"--dt=bf16 {SMALL}", "bfdot"),
    "s8": (f"--dt=s8:s8:s32 {SMALL}", "sdot"),
    "u8": (f"--dt=u8:u8:s32 {SMALL}", "udot"),
    "u8 by s8, requantised": (f"--dt=u8:s8:u8 --attr-scales=wei:per_oc --attr-post-ops=relu {SMALL}", "usdot"),
    "s8 by u8": (f"--dt=s8:u8:f32 {SMALL}", "usdot"),
    "zero points": (f"--dt=u8:s8:s8 --attr-zero-points=src:common:3+dst:common:2 {SMALL}", "usdot"),
    "integer steps": (f"--dt=s8:s8:s8 --attr-post-ops=s32_mulh:per_dim_1 {SMALL}", "sdot"),
    "bytes, padded copy": ("--dt=s8:s8:s32 mb1ic48ih5iw6oc44oh5ow6kh3kw3ph1pw1", "smmla"),
    "bytes, depthwise": ("--dt=u8:s8:u8 g44mb1ic44iw6oc44ow6kw3pw1", "mul|mla"),
    "pixels along lanes": ("--stag=abx --dtag=abx mb1ic3ih5iw9oc8oh5ow9kh1kw1", "fmla"),
    "channels first": ("--stag=abx --dtag=abx mb1ic8ih5iw7oc44oh3ow4kh3kw3sh2sw2ph1pw1", "fmla"),
    "channels first, f16": (f"--dt=f16 --stag=abx --dtag=abx {SMALL}", "fmla"),
    "channels first, bytes": (f"--dt=s8:s8:s32 --stag=abx --dtag=abx {SMALL}", "sdot"),
    "channels first, requantised": (f"--dt=u8:s8:u8 --stag=abx --dtag=abx --attr-scales=wei:per_oc {SMALL}", "usdot"),
    "channels first, stride": ("--stag=abx --dtag=abx mb1ic3iw81oc16ow40kw3sw2pw0", "fmla"),
    "weights gradient": ("--dir=BWD_W mb1ic20ih4iw5oc44oh4ow5kh3kw3ph1pw1", "fmla"),
    "weights gradient, channels first": ("--dir=BWD_W --stag=abx --dtag=abx mb1ic20ih3iw3oc44oh3ow3kh1kw1", "fmla"),
    "weights gradient, depthwise": ("--dir=BWD_W g44mb1ic44ih5iw6oc44oh5ow6kh3kw3ph1pw1", "fmla"),
    "weights gradient, bf16": ("--dir=BWD_W --dt=bf16 mb1ic32ih14oc32oh14kh1", "bfmmla"),
    "weights gradient, f64": (f"--dir=BWD_W --dt=f64 {SMALL}", "fmla"),
    "blocks of channels": ("--stag=aBx16b --dtag=aBx16b mb1ic16iw6oc48ow6kw1pw0", "fmla"),
    "blocks of channels, depthwise": ("--stag=aBx16b --dtag=aBx16b g48mb1ic48ih5iw6oc48oh5ow6kh3kw3ph1pw1", "fmla"),
    "product": ("--matmul 6x9:9x44", "fmla"),
    "product of bytes": ("--dt=s8:s8:s32 --matmul 6x12:12x44", "sdot"),
}  # fmt: skip
"""Problems, and the instruction on scalable vectors that computes them."""
CONFIGS = {
    "padded copy": (SMALL, "--lane=oc --register=ow:5,oc:4 --realise=pad_copy"),
    "masks": (SMALL, "--lane=oc --register=ow:5,oc:4 --realise=mask"),
    "table": (SMALL, "--lane=oc --register=ow:5,oc:4 --realise=indirection"),
    "several vectors a tile": ("mb1ic8ih4iw5oc48oh4ow5kh3kw3ph1pw1", "--lane=oc --register=ow:4,oc:12"),
    "channels that no tile divides": (SMALL, "--lane=oc --register=ow:4,oc:8"),
    "no functions": (SMALL, "--lane=oc --register=ow:2,oc:4 --outline=no"),
    "sums in memory": (SMALL, "--lane=oc --register=ow:2,oc:4 --cache=ic:4"),
    "lanes along terms": (SMALL, "--lane=ic --register=ow:2,oc:4"),
    "threads": ("mb1ic8ih4iw5oc80oh4ow5kh3kw3ph1pw1", "--lane=oc --register=ow:5,oc:4 --order=oc,mb,oh,ow --threads=2"),
    "unpacked": (f"--wtag=xba {SMALL}", "--lane=oc --register=ow:4,oc:4 --pack="),
}
"""Configs that some rewrites leave without scalable loops: their kernels run on vectors of one unit."""


def line_of(text: str) -> str:
    return text if "--stag" in text or "--matmul" in text else NHWC + text


def check(line: str, config: str = "", units: tuple[int, ...] = UNITS) -> None:
    """One object is exact at each number of units."""
    skip_without_emulator(LEVEL)
    problem = parse_problem(line)
    made = Config.parse(f"--target={LEVEL.name} {config}") if config else default_config(problem, LEVEL)
    artifact = build_artifact(problem, made, LEVEL)
    for n in units:
        check_emulated(problem, artifact, random_arrays(problem, n), sve_processor(n))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_loops_step_by_the_vectors_that_there_are(name: str) -> None:
    line, mnemonic = CASES[name]
    problem = parse_problem(line_of(line)).canonical()
    with interning():
        text = lower(plan(problem, default_config(problem, LEVEL), LEVEL)).text
    assembly = llvm_bind.assembly(text, LEVEL.triple, LEVEL.cpu, LEVEL.features)
    assert re.search(rf"^\t({mnemonic})\tz\d+", assembly, re.MULTILINE), assembly
    assert re.search(r"^\twhilel[ot]\tp\d+", assembly, re.MULTILINE)
    assert re.search(r"^\t(cnt[bhwd]|inc[bhwd]|rdvl|addvl)\t", assembly, re.MULTILINE)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", CASES)
def test_one_object_is_exact_at_any_length(name: str) -> None:
    check(line_of(CASES[name][0]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_any_config_is_exact_at_any_length(name: str) -> None:
    line, config = CONFIGS[name]
    check(line_of(line), config, UNITS[:3])


def check_any_sizes(made_for: str, *called_with: str) -> None:
    """Check that a kernel for any sizes has scalable vectors, and is exact at these calls and several lengths."""
    kernel = cs.compile(made_for, target=LEVEL.name, threads=1, dynamic="mb,ih,iw")
    assert kernel.artifact is not None and "<vscale x" in kernel.llvm()
    for line in called_with:
        q = parse_problem(line)
        for units in UNITS[:3]:
            check_emulated(q, at_call(kernel.artifact, q), random_arrays(q, 0), sve_processor(units))


@pytest.mark.parametrize("options", ["--dt=u8:s8:u8", ""], ids=["bytes", "f32"])
def test_kernels_for_any_sizes_are_exact_at_any_length(options: str) -> None:
    skip_without_emulator(LEVEL)
    line = f"{options} {NHWC}"
    sizes = ("mb1ic8ih4iw9oc44oh4ow9", "mb3ic8ih7iw3oc44oh7ow3")
    check_any_sizes(f"{line}{SMALL}", *(f"{line}{x}kh3kw3ph1pw1" for x in sizes))


def test_kernels_for_any_sizes_with_channels_first_are_exact_at_any_length() -> None:
    """With one tap, vectors are of pixels of a row, whose number a call gives."""
    skip_without_emulator(LEVEL)
    line = "--stag=abx --dtag=abx "
    sizes = ("mb1ic8ih5iw9oc12oh5ow9", "mb1ic8ih2iw21oc12oh2ow21", "mb2ic8ih3iw6oc12oh3ow6")
    check_any_sizes(*(f"{line}{x}kh1kw1" for x in sizes))


def random_line(seed: int) -> str:
    """A forward convolution or a gradient of channels last, of any type, with channels that fill units or do not."""
    r = random.Random(seed)
    k, s = r.randint(1, 3), r.randint(1, 2)
    i = r.randint(k, 9)
    p = r.randint(0, k // 2)
    o = (i + 2 * p - k) // s + 1
    types = r.choice(("f32", "bf16", "f16", "f64", "s8:s8:s32", "u8:s8:u8", "u8:s8:f32"))
    direction = r.choice(("", "", "--dir=BWD_D ")) if types in ("f32", "bf16") else ""
    g = r.choice(("", "", f"g{r.randint(2, 40)}"))
    channels = int(g[1:]) if g else 1
    ic, oc = (n * channels for n in (r.choice((1, 3, 8)), r.choice((1, 4, 22, 40))))
    post = r.choice(("", "--attr-post-ops=relu ", "--attr-post-ops=add:f32:per_oc ")) if not direction else ""
    return f"{NHWC}--dt={types} {direction}{post}{g}mb1ic{ic}iw{i}oc{oc}ow{o}kw{k}sw{s}pw{p}"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", [pytest.param(n, marks=() if n < 8 else pytest.mark.slow) for n in range(60)])
def test_random_problems_are_exact_at_any_length(seed: int) -> None:
    check(random_line(seed), units=UNITS[:4])


@pytest.mark.parametrize(
    ("line", "lanes"),
    [("--dt=s8:s8:s32 mb1ic48ih5iw6oc44oh5ow6kh3kw3ph1pw1", 16), ("mb1ic12ih5iw6oc44oh5ow6kh3kw3ph1pw1", 4)],
    ids=["bytes", "f32"],
)
def test_padded_copies_are_of_scalable_vectors(line: str, lanes: int) -> None:
    """A unit of a copy has as many elements as it has room for, if such vectors divide the channels."""
    problem = parse_problem(line_of(line)).canonical()
    config = Config.parse(f"--target={LEVEL.name} --lane=oc --register=ow:5,oc:4 --realise=pad_copy")
    with interning():
        text = str(lower(plan(problem, config, LEVEL)))
    copied = rf"for src_s1.o in 0 .. 3 #scalable:\n +src_s\[.*\]\{{{lanes}\}} = src\[.*\]\{{{lanes}\}}\n"
    assert re.search(copied, text), text


def test_the_plan_says_in_which_order_units_are_packed() -> None:
    config = f"--target={LEVEL.name} --lane=oc --register=ow:2,oc:8 --reduce=kw,ic"
    text = cs.compile(line_of("mb1ic3iw6oc64ow6kw3pw1"), target=LEVEL.name, config=config).explain()
    assert "in the order [kw, ic, oc.v, oc.o, oc.l]" in text
    assert "wei in the order [kw 3, ic 3, oc.v 2, oc.o 8, oc.l 4]" in text
