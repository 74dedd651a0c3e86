"""RISC-V under an emulator: one object is exact with vectors of any length, and loops step by the vectors there are."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from emulated import check_emulated, kinds_of, skip_without_emulator
from problems import exact, random_problem
from test_any_vector_length import CASES, CONFIGS, NHWC, SMALL, line_of, random_line

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.compiler.dynamic import at_call
from convsmith.emulate.qemu import VECTOR_BITS, rvv_processor
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.machine.riscv.levels import LEVELS
from convsmith.problem import Problem
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

LEVEL = target("riscv64+rvv")
TYPES = {"f16": "riscv64+zvfh", "bf16": "riscv64+zvfbfwma"}
"""Levels with instructions for a type."""
COUNT, OFTEN, MACS = 200, 32, 30_000


def products_of(name: str) -> str:
    """The instruction that computes a case of `CASES` on its level."""
    known = {"f32": "vfmacc.vf", "f64": "vfmacc.vf", "bf16": "vfwmaccbf16.vf", "f16": "vfwmacc.vf"}
    if any(x in name for x in ("sums in f16", "depthwise", "product", "pixels", "first", "blocks", "weights gradient")):
        return r"v\w*(macc|madd|mul)(su)?\.v\w"
    return next((x for start, x in known.items() if name.startswith(start)), r"vw?macc(su|u)?\.v\w")


def level_of(line: str) -> str:
    return next((name for t, name in TYPES.items() if f"--dt={t}" in line), LEVEL.name)


def check(line: str, config: str = "", bits: tuple[int, ...] = VECTOR_BITS, level: str = "") -> None:
    """One object is exact with registers of each number of bits."""
    machine = target(level or level_of(line))
    skip_without_emulator(machine)
    problem = parse_problem(line)
    made = Config.parse(f"--target={machine.name} {config}") if config else default_config(problem, machine)
    artifact = build_artifact(problem, made, machine)
    for n in bits:
        check_emulated(problem, artifact, random_arrays(problem, n), rvv_processor(n, machine.needs))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
def test_loops_step_by_the_vectors_that_there_are(name: str) -> None:
    line = re.sub("--dt=b?f16 ", r"\g<0>--accuracy=strict ", line_of(CASES[name][0]))
    machine = target(level_of(line))
    problem = parse_problem(line).canonical()
    with interning():
        text = lower(plan(problem, default_config(problem, machine), machine)).text
    assembly = llvm_bind.assembly(text, machine.triple, machine.cpu, machine.features)
    assert re.search(rf"^\t{products_of(name)}\t", assembly, re.MULTILINE), assembly
    assert re.search(r"^\tcsrr\t\w+, vlenb", assembly, re.MULTILINE)
    assert "llvm.masked.load.nx" not in text and re.search(r"vp\.(strided\.)?load\.nx", text)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", CASES)
def test_one_object_is_exact_at_any_length(name: str) -> None:
    check(line_of(CASES[name][0]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_any_config_is_exact_at_any_length(name: str) -> None:
    line, config = CONFIGS[name]
    of_group = config.replace("oc:4", "oc:1") if "lane=ic" in config else re.sub(r"oc:(4|12)\b", "oc:8", config)
    check(line_of(line), of_group, VECTOR_BITS[:3])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", [pytest.param(n, marks=() if n < 8 else pytest.mark.slow) for n in range(60)])
def test_random_problems_are_exact_at_any_length(seed: int) -> None:
    check(random_line(seed), level=LEVEL.name)


@pytest.mark.parametrize("options", ["--dt=u8:s8:u8", ""], ids=["bytes", "f32"])
def test_sizes_of_a_call(options: str) -> None:
    skip_without_emulator(LEVEL)
    line = f"{options} {NHWC}"
    artifact = cs.compile(f"{line}{SMALL}", target=LEVEL.name, threads=1, dynamic="mb,ih,iw").artifact
    assert artifact is not None
    for sizes in ("mb1ic8ih4iw9oc44oh4ow9", "mb3ic8ih7iw3oc44oh7ow3"):
        q = parse_problem(f"{line}{sizes}kh3kw3ph1pw1")
        for bits in (128, 512):
            check_emulated(q, at_call(artifact, q), random_arrays(q, 0), rvv_processor(bits, LEVEL.needs))


TRANSFORMS = {
    "": "--lane=oc --register=th_tw:6,oc:8 --order=f,oc,th_tw --reduce=ic --winograd=oh:2,ow:2",
    "--dir=BWD_D ": "--lane=ic --register=th_tw:6,ic:8 --order=f,ic,th_tw --reduce=oc --winograd=ih:2,iw:2",
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("direction", TRANSFORMS)
def test_transforms(direction: str) -> None:
    """Winograd's transforms of two by two results are exact for small integers, whose products are scalable."""
    config = f"--fuse=th+tw --pack=wei_w --outline=no {TRANSFORMS[direction]}"
    line = f"{direction}{NHWC}mb1ic16ih8oc32oh8kh3ph1"
    kernel = cs.compile(line, target=LEVEL.name, config=f"--target={LEVEL.name} {config}", threads=1)
    assert "vp.load.nxv8f32" in kernel.llvm()
    check(line, config)


def test_long_epilogues() -> None:
    """An epilogue of many operations is computed on vectors of any length."""
    line = f"--attr-post-ops={'+'.join(['abs', 'linear:1:-3'] * 14)} {NHWC}{SMALL}"
    kernel = cs.compile(line, target=LEVEL.name, threads=1)
    assert "--spill_sums" not in str(kernel.config) and "vp.store.nx" in kernel.llvm()
    check(line)


def problem_of(seed: int) -> Problem:
    return random_problem(random.Random(seed), MACS)


def case(seed: int) -> object:
    level = LEVELS[seed % len(LEVELS)]
    return pytest.param(seed, id=f"{seed}-{level.name}", marks=() if seed < OFTEN else pytest.mark.slow)


def test_every_kind_is_among_them() -> None:
    found = Counter(kind for seed in range(COUNT) for kind in kinds_of(problem_of(seed)))
    wanted = {"FWD_B", "BWD_D", "BWD_W", "product", "f32", "bf16", "f16", "s8", "u8", "zero points", "1D", "2D", "3D",
              "deconvolution", "groups", "strides", "dilations", "pads", "blocks"}  # fmt: skip
    assert not {kind for kind in wanted if found[kind] < 5}, found


@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", [case(seed) for seed in range(COUNT)])
def test_exact(seed: int) -> None:
    machine = LEVELS[seed % len(LEVELS)]
    skip_without_emulator(machine)
    problem = problem_of(seed)
    artifact = build_artifact(problem, default_config(exact(problem), machine), machine)
    check_emulated(problem, artifact, random_arrays(problem, seed))


@pytest.mark.parametrize("name", ["riscv64+rvv", "aarch64+sve"])
def test_lanes_run_along_channels_that_fill_a_unit(name: str) -> None:
    """Vectors of channels are scaled, those of terms are not; fewer channels leave the choice to the model."""
    machine = target(name)
    for line in ("mb1ic64ih14oc20oh14kh3ph1", "mb1ic64ih14oc12oh14kh1ph0"):
        config = default_config(parse_problem(f"--accuracy=strict {NHWC}{line}"), machine)
        assert config.lane == "oc"
    assert default_config(parse_problem(f"--accuracy=strict {NHWC}mb1ic64ih14oc3oh14kh3ph1"), machine).lane == "ic"
