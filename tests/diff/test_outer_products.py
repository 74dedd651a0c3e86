"""SME: outer products of vectors add to tiles of ZA, in streaming mode; kernels are exact under the emulator."""

from __future__ import annotations

import re

import pytest
from emulated import check_emulated, known_fault, skip_without_emulator

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

LEVEL = target("aarch64+sme512")
NHWC = "--stag=axb --dtag=axb"
SMALL = f"{NHWC} mb1ic16ih6oc40oh6kh3ph1"
FMOPA = "fmopa_za_f32_f32"
ZA = f"--lane=oc --register=ow:{{}} --instruction={FMOPA} --k_step=ic:1 --realise=pad_copy"
ZA64 = "--lane=oc --register=ow:16,oc:32 --instruction=fmopa_za_f64_f64 --k_step=ic:1 --realise=pad_copy"
CASES = {
    "f32": (SMALL, ""),
    "f32, one tap": (f"{NHWC} mb2ic24ih9oc40oh9kh1", ""),
    "f32, channels first": ("--stag=abx --dtag=abx mb1ic16ih6oc40oh6kh3ph1", ""),
    "f32, blocks": ("--stag=aBx16b --dtag=aBx16b mb1ic16ih6oc32oh6kh3ph1", ""),
    "f32, stride": (f"{NHWC} mb1ic16ih13oc20oh7kh3sh2ph1", ""),
    "f32, few channels": (f"{NHWC} mb1ic3ih20oc32oh10kh7sh2ph3", ""),
    "f32, bias and post-ops": (f"--dir=FWD_B --attr-post-ops=sum:2+relu {SMALL}", ""),
    "f32, data gradient": (f"--dir=BWD_D {SMALL}", ""),
    "f32, deconvolution": (f"--deconv {SMALL}", ""),
    "f32, several tiles of pixels": (f"{NHWC} mb1ic8ih20oc32oh20kh3ph1", ZA.format("20,oc:32")),
    "f32, sums in memory": (f"{NHWC} mb1ic16ih9oc32oh9kh3ph1", f"{ZA.format('9,oc:32')} --cache=ic:8"),
    "f32, no functions": (f"{NHWC} mb1ic8ih9oc64oh9kh3ph1", f"{ZA.format('9,oc:64')} --outline=no"),
    "f32, product": ("--matmul 40x18:18x36", f"--lane=n --register=m:16,n:32 --instruction={FMOPA} --k_step=k:1"),
    "f64": (f"--dt=f64 {SMALL}", ""),
    "f64, channels first": ("--dt=f64 --stag=abx --dtag=abx mb1ic16ih6oc40oh6kh3ph1", ""),
    "f64, gradient of weights": (f"--dt=f64 --dir=BWD_W {SMALL}", ""),
    "f64, eight tiles": (f"--dt=f64 {NHWC} mb1ic8ih16oc32oh16kh3ph1", ZA64),
    "bf16": (f"--dt=bf16:bf16:f32 {SMALL}", ""),
    "bf16, result too": (f"--dt=bf16 {SMALL}", ""),
    "f16": (f"--dt=f16:f16:f32 {SMALL}", ""),
    "s8": (f"--dt=s8:s8:s32 {SMALL}", ""),
    "u8": (f"--dt=u8:u8:s32 {SMALL}", ""),
    "u8 by s8, requantised": (f"--dt=u8:s8:u8 --attr-scales=wei:per_oc --attr-post-ops=relu {SMALL}", ""),
    "s8 by u8": (f"--dt=s8:u8:f32 {SMALL}", ""),
}  # fmt: skip
"""Problems, and configs where others than the default one are of interest."""


SECOND = target("aarch64+sme2")
WORDS = (
    "--lane=oc --fuse=th+tw --register=th_tw:16,oc:16 --order=f,oc,th_tw --reduce=ic --pack=wei_w --outline=no "
    "--winograd=oh:2,ow:2 --instruction=smopa_za_s16_s16 --k_step=ic:2"
)


@pytest.mark.parametrize(
    ("line", "config"), [("--dt=s8:s8:s32", WORDS), ("--dt=u8:s8:s32", ""), ("", "")], ids=["words", "bytes", "f32"]
)
def test_the_second_version_is_exact(line: str, config: str) -> None:
    """Its outer products of 16-bit words multiply the factors that a transform makes of bytes."""
    skip_without_emulator(SECOND)
    problem = parse_problem(f"{line} {NHWC} mb1ic16ih8oc32oh8kh3ph1").canonical()
    made = Config.parse(f"--target={SECOND.name} {config}") if config else default_config(problem, SECOND)
    artifact = build_artifact(problem, made, SECOND)
    assert "sme2" in artifact.needs
    check_emulated(problem, artifact, random_arrays(problem, 0))


def config_of(name: str) -> tuple[str, Config]:
    line, config = CASES[name]
    made = Config.parse(f"--target={LEVEL.name} {config}") if config else default_config(parse_problem(line), LEVEL)
    return line, made


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_outer_products_are_exact(name: str) -> None:
    skip_without_emulator(LEVEL)
    line, config = config_of(name)
    assert "mopa_za" in config.instruction
    problem = parse_problem(line)
    artifact = build_artifact(problem, config, LEVEL)
    if fault := known_fault(problem, artifact):
        pytest.skip(fault)
    check_emulated(problem, artifact, random_arrays(problem, 1))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_products_add_to_tiles_in_streaming_mode(name: str) -> None:
    """A kernel enters streaming mode once and leaves it once; sums reach memory from tiles, row by row."""
    line, config = config_of(name)
    with interning():
        text = lower(plan(parse_problem(line).canonical(), config, LEVEL)).text
    assembly = llvm_bind.assembly(text, LEVEL.triple, LEVEL.cpu, LEVEL.features)
    mnemonic = LEVEL.rows[config.instruction].mnemonic
    assert re.search(rf"^\t{mnemonic}\tza\d\.[sd], p\d/m, p\d/m, z\d+\.\w, z\d+\.\w", assembly, re.MULTILINE), assembly
    assert re.search(r"^\tst1([wd])\t\{za\dh\.[sd]\[w\d+, \d\]\}", assembly, re.MULTILINE)
    bodies = re.split(r"^(\w+):", assembly, flags=re.MULTILINE)
    modes = {name: re.findall(r"\t(smst\w+)\tsm", body) for name, body in zip(bodies[1::2], bodies[2::2])}
    assert all(found in ([], ["smstart", "smstop"]) for name, found in modes.items() if "tile" not in name)
    assert not any(found for name, found in modes.items() if "tile" in name)


def test_tiles_need_no_room_for_factors() -> None:
    """Factors are in vectors, so all four tiles hold sums; a tile more is refused with the numbers."""
    line = f"{NHWC} mb1ic8ih9oc80oh9kh3ph1"
    page = cs.compile(line, target=LEVEL.name, threads=1, config=ZA.format("9,oc:64")).explain()
    assert "registers     4 of 4 registers for fragments, 1x4: 4 accumulators\n" in page
    with pytest.raises(cs.ConfigError, match=r"needs 5 registers for fragments, target has 4 \(1x5: 5 accumulators\)"):
        cs.compile(line, target=LEVEL.name, threads=1, config=ZA.format("9,oc:80"))
