"""Vectors of RISC-V as groups of any number of registers: the model chooses it, and one object is exact anywhere."""

from __future__ import annotations

import re

import pytest
from emulated import check_emulated, skip_without_emulator
from test_any_vector_length import CASES, NHWC, SMALL, line_of

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.diag.errors import ConfigError
from convsmith.emulate.qemu import VECTOR_BITS, rvv_processor
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import candidates, default_config

LEVEL = target("riscv64+rvv")
GROUPS = (1, 2, 8)
"""Registers of a group that is not the level's own."""
POINTWISE = "--accuracy=strict --stag=axb --dtag=axb mb1ic64ih14oc{}oh14kh1ph0"


def of_group(line: str, group: int, level: str = LEVEL.name) -> str:
    """The best config for a problem whose vectors are groups of that many registers."""
    machine = target(level)
    chosen = default_config(parse_problem(line).canonical(), machine.with_vectors(group))
    return str(chosen.of_each(vector_registers=group))


@pytest.mark.sampled(17)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", CASES)
def test_one_object_is_exact_at_any_length(name: str, group: int) -> None:
    level = "riscv64+zvfh" if "--dt=f16" in CASES[name][0] else LEVEL.name
    if "--dt=bf16" in CASES[name][0]:
        level = "riscv64+zvfbfwma"
    machine = target(level)
    skip_without_emulator(machine)
    problem = parse_problem(line_of(CASES[name][0]))
    config = cs.Config.parse(of_group(line_of(CASES[name][0]), group, level))
    artifact = build_artifact(problem, config, machine)
    for bits in VECTOR_BITS:
        check_emulated(problem, artifact, random_arrays(problem, bits), rvv_processor(bits, machine.needs))


@pytest.mark.parametrize("group", GROUPS)
def test_transforms(group: int) -> None:
    skip_without_emulator(LEVEL)
    line = f"{NHWC}mb1ic16ih8oc32oh8kh3ph1"
    lanes = 2 * group
    config = cs.Config.parse(
        f"--target={LEVEL.name} --lane=oc --fuse=th+tw --register=th_tw:2,oc:{lanes} --order=f,oc,th_tw --reduce=ic "
        f"--pack=wei_w --outline=no --vector_registers={group} --winograd=oh:2,ow:2"
    )
    problem = parse_problem(line)
    artifact = build_artifact(problem, config, LEVEL)
    for bits in VECTOR_BITS:
        check_emulated(problem, artifact, random_arrays(problem, bits), rvv_processor(bits, LEVEL.needs))


@pytest.mark.parametrize("group", GROUPS)
def test_products_name_the_group(group: int) -> None:
    config = cs.Config.parse(of_group(POINTWISE.format(128), group))
    with interning():
        text = lower(plan(parse_problem(POINTWISE.format(128)).canonical(), config, LEVEL)).text
    assembly = llvm_bind.assembly(text, LEVEL.triple, LEVEL.cpu, LEVEL.features)
    length = next(
        line for line in reversed(assembly[: assembly.index("vfmacc.vf")].splitlines()) if line.startswith("\tvset")
    )
    assert re.search(rf"\tvsetv\w+\t\w+, \w+, e32, m{group}, ", length), length


@pytest.mark.parametrize(("channels", "group"), [(16, 2), (24, 2), (64, 0), (128, 8), (1000, 8)])
def test_the_model_chooses_by_channels(channels: int, group: int) -> None:
    """Many channels fill long groups at any length, few channels leave them empty where registers are long."""
    for types in ("", "--dt=u8:s8:s32 "):
        problem = parse_problem(types + POINTWISE.format(channels)).canonical()
        assert default_config(problem, LEVEL).vector_registers == group


def test_the_model_chooses_by_pixels() -> None:
    """One pixel needs a group of sums and one of weights, which leaves registers for long ones."""
    problem = parse_problem(f"{NHWC}mb1ic256ih1oc256oh1kh1ph0").canonical()
    first, *others = candidates(problem, LEVEL, 1)
    assert first.config.vector_registers == 8
    assert {x.config.vector_registers for x in others} == {8, 0, 2, 1}


def test_stages_have_vectors_of_one_length() -> None:
    line = "--attr-post-ops=dw:k3s1p1 --stag=axb --dtag=axb mb1ic16ih8oc64oh8kh1ph0"
    kernel = cs.compile(line, target=LEVEL.name, threads=1)
    assert isinstance(kernel.config, cs.Config)
    assert {stage.vector_registers for stage in kernel.config.stages} == {0}


@pytest.mark.parametrize(
    ("level", "group", "legal"), [(LEVEL.name, 3, "1 or 2 or 4 or 8 registers"), ("avx2", 2, "1 register")]
)
def test_other_groups_are_refused(level: str, group: int, legal: str) -> None:
    config = cs.Config.parse(f"--target={level} --lane=oc --vector_registers={group}")
    with pytest.raises(ConfigError, match=f"vectors of {re.escape(level)} have {legal}$") as error:
        build_artifact(parse_problem(f"{NHWC}{SMALL}"), config, target(level))
    assert error.value.code == "vector_registers"


def test_statements_of_a_kernel_share_the_word() -> None:
    first = cs.Config("riscv64+rvv", "oc", vector_registers=2)
    with pytest.raises(ConfigError, match="one --vector_registers"):
        first.changed(consumer=cs.Config("riscv64+rvv", "g"), compute_at="mb")
