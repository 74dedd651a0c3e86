"""Processors of microcontrollers, emulated: kernels of bytes are exact, and sums stay in scalar registers."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache
from itertools import count, islice

import numpy as np
import pytest
from emulated import check_emulated, kinds_of, skip_without_emulator
from problems import exact, random_problem

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.diag.errors import ToolchainError
from convsmith.ir.intern import interning
from convsmith.machine.arm32.levels import LEVELS as ARM32
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.machine.riscv.levels import SMALL
from convsmith.problem import Problem
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.runtime.object_code import ObjectCode
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

LEVELS = (*ARM32, SMALL)
COUNT, OFTEN = 90, 9
"""Random problems, and how many of them run in every test run."""
MACS = 20_000
NHWC = "--stag=axb --dtag=axb"
LINES = {
    "3x3 of s8": f"--dt=s8:s8:s8 {NHWC} mb1ic32ih5oc12oh5kh3ph1",
    "1x1 of u8 by s8": f"--dt=u8:s8:u8 {NHWC} mb1ic24ih4oc12oh4kh1",
    "3x3 of u8 by s8, padded": f"--dt=u8:s8:u8 {NHWC} mb1ic16ih5oc8oh5kh3ph1",
    "few channels": f"--dt=s8:s8:s8 {NHWC} mb1ic3ih8oc8oh4kh3sh2ph1",
    "depthwise": f"--dt=s8:s8:s8 {NHWC} g24mb1ic24ih6oc24oh6kh3ph1",
    "product": "--dt=u8:s8:s32 --matmul 3x40:40x10",
}  # fmt: skip


def assembly_of(problem: Problem, machine: Machine) -> str:
    with interning():
        text = lower(plan(problem.canonical(), default_config(problem, machine), machine)).text
    return llvm_bind.assembly(text, machine.triple, machine.cpu, machine.features)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("machine", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", LINES)
def test_bytes_are_exact(name: str, machine: Machine) -> None:
    skip_without_emulator(machine)
    problem = parse_problem(LINES[name])
    artifact = build_artifact(problem, default_config(problem, machine), machine)
    check_emulated(problem, artifact, random_arrays(problem, 0))


def test_sums_take_the_even_registers_and_the_link_register() -> None:
    """A step of two pixels and four channels is 6 loads and 8 products of 16 terms each."""
    made = assembly_of(parse_problem(f"--dt=s8:s8:s8 {NHWC} mb1ic64ih8oc64oh8kh1"), target("armv8.1m+mve"))
    loop = re.search(r"^\.LBB0_1:\n(.*?)\tbne", made, re.MULTILINE | re.DOTALL)
    assert loop is not None
    found = Counter(line.split()[0] for line in loop[1].splitlines() if line.startswith("\t"))
    assert found["vldrb.u8"] == 6 and found["vmlava.s8"] == 8 and found.total() <= 20, loop[1]
    sums = {line.split()[1].rstrip(",") for line in loop[1].splitlines() if "vmlava" in line}
    assert "lr" in sums and len(sums) >= 7


def test_tails_are_loaded_under_predicates() -> None:
    """The last 8 of 24 terms are one load, whose other lanes are zero, not eight bytes that pass through the stack."""
    made = assembly_of(parse_problem(f"--dt=s8:s8:s8 {NHWC} mb1ic24ih8oc8oh8kh1"), target("armv8.1m+mve"))
    tile = made[: made.index("convsmith_chunk:")]
    found = Counter(line.split()[0] for line in tile.splitlines() if line.startswith("\t"))
    assert found["vldrbt.u8"] == found["vpst"] == 2 and not found["vand"] and not found["vstrb.16"], made


@pytest.mark.sampled(2, "types", "machine")
@pytest.mark.parametrize("machine", [*ARM32, target("aarch64")], ids=lambda t: t.name)
@pytest.mark.parametrize("types", ["s8:s8:s8", "u8:s8:u8"])
def test_results_are_rounded_and_saturated_by_one_instruction(types: str, machine: Machine) -> None:
    line = f"--dt={types} {NHWC} --attr-post-ops=mul:f32:per_dim_1+round mb1ic16ih4oc8oh4kh1"
    made = assembly_of(parse_problem(line), machine)
    names = {"armv8.1m+mve": "vcvtn.s32.f32", "armv7em": "vcvtr.s32.f32", "aarch64": "fcvtns"}
    assert names[machine.name] in made and "rintf" not in made and "vrint" not in made and "frint" not in made
    skip_without_emulator(machine)
    problem = parse_problem(line)
    artifact = build_artifact(problem, default_config(problem, machine), machine)
    arrays = random_arrays(problem, 3)
    scales = next(name for name in arrays if name.startswith("post_op"))
    factors = np.array([0.5, 0.25, -0.5, 1e9, -1e9, np.inf, np.nan, 0.0], np.float32)
    arrays[scales] = factors.reshape(arrays[scales].shape)
    check_emulated(problem, artifact, arrays)


def test_pairs_of_halfwords() -> None:
    """A step of two pixels and two channels is 4 loads, 8 extensions and 8 products of two terms each."""
    made = assembly_of(parse_problem(f"--dt=s8:s8:s8 {NHWC} mb1ic64ih8oc64oh8kh1"), target("armv7em"))
    loop = re.search(r"^\.LBB0_1:\n(.*?)\tbne", made, re.MULTILINE | re.DOTALL)
    assert loop is not None
    found = Counter(line.split()[0] for line in loop[1].splitlines() if line.startswith("\t"))
    assert (found["smlad"], found["sxtb16"]) == (8, 8) and not found["ldrb"] and found["str"] < 2, loop[1]


def test_a_sum_of_a_loop_that_may_not_run_meets_the_one_before_it() -> None:
    """Rows of taps that lie in the padding leave the sums of the other rows as they are, in every lane."""
    machine = target("armv8.1m+mve")
    skip_without_emulator(machine)
    problem = parse_problem(f"--dt=s8:s8:s32 {NHWC} mb1ic16ih2oc8oh4kh3ph2")
    config = (
        f"--target={machine.name} --lane=oc --register=ow:1,oc:8 --order=mb,oh,ow,oc --reduce=kh,kw,ic "
        "--instruction=vmladava_s8_s8 --k_step=ic:16"
    )
    artifact = build_artifact(problem, Config.parse(config), machine)
    check_emulated(problem, artifact, random_arrays(problem, 1))


@pytest.mark.parametrize("zero_points", ["", "--attr-zero-points=src:common:131 "], ids=["", "zero point"])
def test_windows_of_a_flipped_source(zero_points: str) -> None:
    """Absent elements of a copy of windows are the zero point, so that each channel has one sum of weights."""
    machine = target("armv8.1m+mve")
    skip_without_emulator(machine)
    problem = parse_problem(f"--dt=u8:s8:s32 {zero_points}{NHWC} mb1ic1ih20iw20oc8oh8ow9kh10kw4sh2sw2ph2pw1")
    artifact = build_artifact(problem, default_config(problem, machine), machine)
    assert "--realise=window_copy --offsets=sums --flip=src" in artifact.config
    (sums,) = (x for x in artifact.entries["main"].arguments if x.name == "wei_sums")
    assert sums.nbytes == 4 * 8
    check_emulated(problem, artifact, random_arrays(problem, 1))


@pytest.mark.parametrize("machine", LEVELS, ids=lambda t: t.name)
def test_packed_bytes_stay_bytes(machine: Machine) -> None:
    problem = parse_problem(LINES["depthwise"])
    artifact = build_artifact(problem, default_config(problem, machine), machine)
    packed = [a for a in artifact.entries["main"].arguments if a.role == "packed"]
    assert [a.dtype for a in packed] == ["s8"]


def test_addends_in_places() -> None:
    """Objects of Arm keep the addends of relocations in the code, as a linker finds them."""
    text = """target triple = "thumbv7em-none-unknown-eabihf"
    @numbers = constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]
    @third = constant ptr getelementptr (i8, ptr @numbers, i32 8)
    declare void @outside()
    define ptr @place() nounwind {
      call void @outside()
      ret ptr getelementptr (i8, ptr @numbers, i32 12)
    }
    """
    code = ObjectCode(llvm_bind.object_code(text, "thumbv7em-none-unknown-eabihf", "cortex-m4", ""))
    assert code.calls == ("outside",)
    at, far = 0x10000, 0xF00001
    memory = code.at(at, {"outside": far})
    third, numbers = (code.symbols[name] for name in ("third", "numbers"))
    assert int.from_bytes(memory[third : third + 4], "little") == at + numbers + 8
    body = memory[code.symbols["place"] - 1 :]
    assert _branched(body, at + code.symbols["place"] - 1) == far - 1
    assert _moved(body) == at + numbers


def _branched(body: bytes, start: int) -> int:
    """The address that the first `bl` calls."""
    for n in range(0, len(body), 2):
        first, second = (int.from_bytes(body[i : i + 2], "little") for i in (n, n + 2))
        if first >> 11 == 0b11110 and second >> 14 == 0b11 and second >> 12 & 1:
            sign = first >> 10 & 1
            i1, i2 = (1 ^ (second >> bit & 1) ^ sign for bit in (13, 11))
            distance = sign << 24 | i1 << 23 | i2 << 22 | (first & 0x3FF) << 12 | (second & 0x7FF) << 1
            return start + n + 4 + distance - (sign << 25)
    raise AssertionError("no call")


def _moved(body: bytes) -> int:
    """The number that the first pair of `movw` and `movt` makes."""
    halves = {}
    for n in range(0, len(body), 2):
        first, second = (int.from_bytes(body[i : i + 2], "little") for i in (n, n + 2))
        for kind, mark in (("low", 0xF240), ("high", 0xF2C0)):
            if first & 0xFBF0 == mark:
                number = (first & 15) << 12 | (first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF
                halves.setdefault(kind, number)
    return halves["high"] << 16 | halves["low"]


@cache
def problems() -> tuple[Problem, ...]:
    drawn = (random_problem(random.Random(seed), MACS) for seed in count())
    return tuple(islice((p for p in drawn if {*p.dt} <= {"s8", "u8", "s32"}), COUNT))


def case(n: int) -> object:
    return pytest.param(n, id=f"{n}-{LEVELS[n % len(LEVELS)].name}", marks=() if n < OFTEN else pytest.mark.slow)


def test_every_kind_is_among_them() -> None:
    found = Counter(kind for problem in problems() for kind in kinds_of(problem))
    assert not {kind for kind in ("s8", "u8", "zero points", "groups", "strides", "pads") if found[kind] < 3}, found


@pytest.mark.sampled(6)
@pytest.mark.parametrize("n", [case(n) for n in range(COUNT)])
def test_random_problems_of_bytes(n: int) -> None:
    machine, problem = LEVELS[n % len(LEVELS)], problems()[n]
    skip_without_emulator(machine)
    artifact = build_artifact(problem, default_config(exact(problem), machine), machine)
    try:
        check_emulated(problem, artifact, random_arrays(problem, n))
    except ToolchainError as missing:
        assert missing.code == "symbol" and machine.name == "armv7em"
        pytest.skip(f"floating-point numbers need a compiler's library: {missing}")
