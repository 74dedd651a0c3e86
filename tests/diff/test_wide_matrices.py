"""Products of matrices in the registers of SVE: exact with vectors of 256 and of 512 bits, and of any length."""

from __future__ import annotations

import re

import pytest
from emulated import check_emulated, skip_without_emulator

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact
from convsmith.compiler.driver import build_artifact, lower
from convsmith.emulate.qemu import sve_processor
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import candidates, default_config

NHWC = "--stag=axb --dtag=axb "
CASES = {
    "s8": ("--dt=s8:s8:s32 mb1ic16ih5iw9oc20oh5ow9kh3kw3ph1pw1", "smmla"),
    "u8": ("--dt=u8:u8:s32 mb1ic24iw18oc12ow18kw1pw0", "ummla"),
    "u8 by s8, requantised": (
        "--dt=u8:s8:u8 --attr-scales=wei:per_oc --attr-post-ops=relu mb2ic16iw10oc12ow10kw3pw1", "usmmla"),
    "terms that fill no instruction": ("--dt=s8:s8:s32 mb1ic12iw9oc8ow9kw3pw1", "smmla"),
    "bf16": ("--dt=bf16 mb1ic16ih4iw9oc20oh4ow9kh3kw3ph1pw1", "bfmmla"),
    "product": ("--dt=s8:s8:s32 --matmul 9x16:16x12", "smmla"),
}  # fmt: skip


ANY = target("aarch64+sve")
UNITS = (1, 2, 3, 4)
OF_ANY_LENGTH = {
    **CASES,
    "several fragments a tile": ("--dt=s8:s8:s32 mb1ic16ih5iw9oc64oh5ow9kh3kw3ph1pw1", "smmla"),
    "columns that fill no fragment": ("--dt=s8:s8:s32 mb1ic16iw9oc27ow9kw1pw0", "smmla"),
    "bias and post-ops": (
        "--dir=FWD_B --attr-post-ops=sum+add:f32:per_oc+relu --dt=bf16:bf16:f32 mb1ic8iw7oc32ow7kw1pw0", "bfmmla"),
    "bf16 results": ("--dt=bf16 mb1ic24iw9oc48ow9kw3pw1", "bfmmla"),
    "gradient of the source": ("--dir=BWD_D --dt=bf16 mb1ic32ih4iw9oc16oh4ow9kh3kw3ph1pw1", "bfmmla"),
}  # fmt: skip
CONFIGS = {
    "a single row": "--register=ow:1,oc:16 --realise=pad_copy",
    "rows that fill no fragment": "--register=ow:3,oc:16 --realise=pad_copy",
    "sums in memory": "--register=ow:4,oc:8 --cache=ic:8 --realise=pad_copy",
    "no functions": "--register=ow:4,oc:4 --outline=no --realise=pad_copy",
    "threads": "--register=ow:2,oc:4 --order=oc,mb,oh,ow --threads=2 --realise=pad_copy",
}
"""Configs of products of matrices for a layer of 16 by 64 channels."""


def line_of(line: str) -> str:
    return line if "--matmul" in line else NHWC + line


def on_matrices(line: str, level: Machine, named: str) -> tuple[Problem, Config]:
    """A problem, and the first config of its candidates that has the row of that name."""
    problem = parse_problem(line_of(line)).canonical()
    found = (x.config for x in candidates(problem, level, 1, 200))
    return problem, next(x for x in found if x.instruction == named)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bits", [256, 512])
@pytest.mark.parametrize("name", CASES)
def test_products_are_exact(name: str, bits: int) -> None:
    line, mnemonic = CASES[name]
    level = target(f"aarch64+sve{bits}")
    skip_without_emulator(level)
    problem, config = on_matrices(line, level, f"{mnemonic}_z_{bits // 64}x2")
    artifact = build_artifact(problem, config, level)
    check_emulated(problem, artifact, random_arrays(problem))


def check_at_any_length(problem: Problem, artifact: Artifact) -> None:
    for n in UNITS:
        check_emulated(problem, artifact, random_arrays(problem, n), sve_processor(n))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OF_ANY_LENGTH)
def test_one_object_is_exact_at_any_length(name: str) -> None:
    skip_without_emulator(ANY)
    line, mnemonic = OF_ANY_LENGTH[name]
    problem, config = on_matrices(line, ANY, f"{mnemonic}_2x4")
    check_at_any_length(problem, build_artifact(problem, config, ANY))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_any_config_is_exact_at_any_length(name: str) -> None:
    skip_without_emulator(ANY)
    problem = parse_problem(f"{NHWC}--dt=s8:s8:s32 mb1ic16ih5iw9oc64oh5ow9kh3kw3ph1pw1")
    words = f"--target={ANY.name} --lane=oc --instruction=smmla_2x4 --k_step=ic:8 {CONFIGS[name]}"
    check_at_any_length(problem, build_artifact(problem, Config.parse(words), ANY))


@pytest.mark.parametrize("types, mnemonic", [("s8:s8:s32", "smmla"), ("u8:s8:u8", "usmmla"), ("bf16", "bfmmla")])
def test_the_default_multiplies_matrices_in_every_unit(types: str, mnemonic: str) -> None:
    """Loops step by the units that there are, and one permutation separates each row of sums."""
    problem = parse_problem(f"{NHWC}--dt={types} mb1ic64ih14oc256oh14kh3ph1").canonical()
    with interning():
        text = lower(plan(problem, default_config(problem, ANY), ANY)).text
    assembly = llvm_bind.assembly(text, ANY.triple, ANY.cpu, ANY.features)
    assert re.search(rf"^\t{mnemonic}\tz\d+", assembly, re.MULTILINE), assembly
    assert re.search(r"^\tuzp1\tz\d+\.d", assembly, re.MULTILINE), assembly
    assert not re.search(rf"^\t{mnemonic}\tv\d+", assembly, re.MULTILINE), assembly
