"""Levels that this machine lacks, emulated: compiled kernels against numpy, exact on whole numbers.

For each level these are the types of factors for which it takes a row that this machine lacks. Two levels that most
machines have run too, in f32.
"""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from emulated import LACKING, check_emulated, known_fault, skip_without_emulator, without_signs
from problems import exact, random_config, random_problem

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.diag.errors import ConfigError
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import F32
from convsmith.machine.base import Machine
from convsmith.machine.host import cpu_features
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import Problem, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import candidates, default_config

TARGETS = (*LACKING, *(t for t in LEVELS if t.name in ("avx512", "avx2") and t not in LACKING))

SHAPES = {
    "one tap": "mb2ic16ih5oc24kh1",
    "padded": "ic16ih6oc32kh3ph1",
    "strided": "ic8ih9iw7oc16kh3kw2sh2sw3ph1pw1",
    "few channels": "mb2ic5ih6oc7kh3ph1",
    "many channels": "ic67ih3oc49kh1",
    "groups": "g3ic15ih5oc27kh3ph1",
    "depthwise": "g19ic19ih5oc19kh3ph1",
    "dilated": "ic9id3ih5iw4oc10kd2kh3kw1ph2dh1",
    "a line": "ic4iw23oc40kw5pw2",
    "product": "--matmul 7x37:37x21",
    "products": "--matmul 2x3x16:2x16x33",
}
INTEGER_OPTIONS = {
    "blocked": "--stag=aBx8b --dtag=aBx8b",
    "channels last": "--stag=axb --dtag=axb",
    "quantised": "--attr-scales=src:common:0.5+wei:per_oc --attr-zero-points=src:common:3+dst:common:2",
    "steps": "--dir=FWD_B --attr-post-ops=sum+relu",
}
FLOAT_OPTIONS = {
    "blocked": "--stag=aBx8b --dtag=aBx8b",
    "channels last": "--stag=axb --dtag=axb",
    "steps": "--dir=FWD_B --attr-post-ops=sum+relu",
    "to the source": "--dir=BWD_D",
    "to the weights": "--dir=BWD_W",
}
PADDED = "mb2ic12ih6oc20kh3ph1"


def type_options(types: tuple[str, str, str]) -> str:
    """The options that ask for sums of that type of products of those types."""
    return f"--dt={':'.join(types)}" + (" --attr-acc-mode=f16" if types[2] == "f16" else "")


def types_of(target: Machine) -> list[tuple[str, str, str]]:
    """Types of factors and sums that are of interest on a level."""
    if target not in LACKING:
        return [("f32", "f32", "f32")]
    rows = {row.types: row for row in reversed(target.instructions)}  # of several for the same types the first is taken
    return [types for types, row in rows.items() if not set(row.needs) <= cpu_features()]


def cases(target: Machine) -> dict[str, str]:
    """Lines by name."""
    found = {}
    for types in types_of(target):
        options = INTEGER_OPTIONS if types[2] == "s32" else FLOAT_OPTIONS
        lines = {name: f"{type_options(types)} {shape}" for name, shape in SHAPES.items()}
        lines |= {name: f"{type_options(types)} {more} {PADDED}" for name, more in options.items()}
        found |= {f"{'-'.join(types)}-{name}": line for name, line in lines.items()}
    return found


CASES = [pytest.param(t, line, id=f"{t.name}-{name}") for t in TARGETS for name, line in cases(t).items()]
ROWS = [pytest.param(t, types, id=f"{t.name}-{'-'.join(types)}") for t in TARGETS for types in types_of(t)]


@pytest.fixture
def emulator(target: Machine) -> None:
    skip_without_emulator(target)


needs_emulator = pytest.mark.usefixtures("emulator")


def rows_of(types: tuple[str, str, str], target: Machine) -> list[Instruction]:
    """The first row for these types, with those of the same instruction on fewer terms, and those that do as much."""
    first = next(iter(target.fragment_rows(*types)), target.nearest(*types))
    assert first is not None
    same = (row for row in target.instructions if row.types[2] == types[2])
    much = first.terms * first.rows
    return [row for row in same if row.mnemonic == first.mnemonic or row.terms * row.rows >= much]


def config_of_row(problem: Problem, types: tuple[str, str, str], target: Machine) -> Config:
    """The best config with one of these rows, else the default."""
    names = {row.name for row in rows_of(types, target)}
    found = (c.config for c in candidates(problem, target, 1) if c.config.instruction in names)
    return next(found, default_config(problem, target))


def check(target: Machine, line: str) -> None:
    problem = parse_problem(line)
    artifact = build_artifact(problem, default_config(exact(problem), target), target)
    if fault := known_fault(problem, artifact):
        pytest.skip(fault)
    check_emulated(problem, artifact, without_signs(problem, artifact, random_arrays(problem)))


@pytest.mark.sampled(27)
@needs_emulator
@pytest.mark.parametrize("target, types", ROWS)
def test_every_row_runs(target: Machine, types: tuple[str, str, str]) -> None:
    check(target, f"{type_options(types)} {SHAPES['one tap']}")


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("target, line", CASES)
def test_exact(target: Machine, line: str) -> None:
    check(target, line)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("target, types", ROWS)
def test_the_row_is_in_the_kernel(target: Machine, types: tuple[str, str, str]) -> None:
    """What `test_exact` runs has the instruction of the first row for these types, or one that does as much."""
    problem = parse_problem(f"{type_options(types)} {SHAPES['one tap']}")
    low = lower(plan(problem, config_of_row(exact(problem), types, target), target))
    text = llvm_bind.assembly(low.text, target.triple, target.cpu, target.features)
    names = {row.mnemonic for row in rows_of(types, target)}
    names |= {"sudot"} if "usdot" in names else set()  # the same products, of an element and a vector
    assert any(re.search(rf"\t.*\b{name}", text) for name in names)


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("target, types", [p for p in ROWS if p.values[1][2] == "s32"])
def test_nothing_saturates(target: Machine, types: tuple[str, str, str]) -> None:
    """Factors at the ends of their types; sums of them leave 16 bits at once."""
    problem = parse_problem(f"{type_options(types)} ic300ih2oc20kh1")
    artifact = build_artifact(problem, default_config(exact(problem), target), target)
    ends = {"u8": (255, 255, 0), "s8": (-128, 127, -128)}
    for a in (0, 1):
        for b in (0, 1, 2):
            arrays = {
                t.name: np.full(t.shape, ends[t.dtype][n], f"{t.dtype[0].replace('s', 'i')}1")
                for t, n in zip(problem.inputs, (a, b))
            }
            check_emulated(problem, artifact, without_signs(problem, artifact, arrays))


@pytest.mark.sampled(8)
@needs_emulator
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_memory_that_entries_share(target: Machine) -> None:
    problem = parse_problem("--dir=BWD_WB mb1ic5ih14oc7kh3ph1")
    config = Config.parse(f"--target={target.name} --lane=oc --register=ic:2,oc:{target.width(F32)} --split=oh:7")
    artifact = build_artifact(problem, config, target)
    assert "shared" in {a.role for entry in artifact.steps.values() for a in entry.arguments}
    check_emulated(problem, artifact, random_arrays(problem))


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("chunk", range(4))
def test_random_configs(target: Machine, chunk: int) -> None:
    legal = 0
    for seed in range(chunk * 40, (chunk + 1) * 40):
        rng = random.Random(seed)
        problem = random_problem(rng, 20_000)
        config = random_config(rng, problem, target)
        try:
            artifact = build_artifact(problem, config, target)
        except ConfigError:
            continue
        if known_fault(problem, artifact):
            continue
        arrays = without_signs(problem, artifact, random_arrays(problem, seed))
        try:
            check_emulated(problem, artifact, arrays)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {problem} under {config}: {error}") from error
        legal += 1
    assert legal > (10 if target.vectors.count > 8 else 4), f"only {legal} of 40 random configs are legal"
