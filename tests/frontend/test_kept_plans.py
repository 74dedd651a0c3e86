"""A problem is planned once: the kernel keeps the plan, and what is asked of it later reads that plan."""

from __future__ import annotations

from collections import Counter

import pytest
from callcounts import counting

import convsmith as cs
from convsmith.compiler.driver import lower
from convsmith.compiler.service import compile_or_load
from convsmith.ir.intern import interning
from convsmith.machine.registry import target as known_target
from convsmith.problem.lines import parse_problem
from convsmith.schedule.plan import Plan, plan
from convsmith.schedule.planned import plan_for
from convsmith.statement.views import _statement as statement
from convsmith.statement.winograd import winograd
from convsmith.tune.compile import choose

POINTWISE = "--stag=axb --dtag=axb mb1ic64ih28oc128oh28kh1ph0"
TRANSPOSED = "--stag=axb --dtag=axb mb1ic256ih14oc1024oh14kh1ph0"
TRANSFORMED = "--stag=axb --dtag=axb mb1ic64ih28oc64oh28kh3ph1"
BLOCKED = "--dir=BWD_W --stag=axb --wtag=axb --dtag=axb mb4ic64ih64oc16oh64kh1ph0"
CHAIN = "--stag=axb --dtag=axb mb1ic16ih14oc32kh1ph0 -> g32mb1ic32ih14oc32kh3ph1"


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are made, and none is loaded."""
    monkeypatch.setattr("convsmith.compiler.service.disk_cache", lambda: None)


def counted_compile(line: str, target: str) -> Counter[str]:
    """The calls of each function while a kernel is made."""
    with counting(plan, statement, winograd) as calls:
        compile_or_load(parse_problem(line).canonical(), target=known_target(target), choose=choose)
    return calls


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", [POINTWISE, TRANSFORMED])
@pytest.mark.parametrize("target", ["avx512", "avx2", "aarch64"])
@pytest.mark.usefixtures("no_cache")
def test_a_compilation_plans_once_and_states_the_problem_once(line: str, target: str) -> None:
    calls = counted_compile(line, target)
    assert calls["plan"] == 1 and calls["_statement"] == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.usefixtures("no_cache")
def test_a_transform_is_stated_once_for_each_size_of_its_tiles(target: str) -> None:
    calls = counted_compile(TRANSFORMED, target)
    assert calls["winograd"] == 2  # of 4 and of 2 pixels


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", [POINTWISE, TRANSFORMED, CHAIN])
@pytest.mark.usefixtures("no_cache")
def test_what_is_asked_of_a_kernel_reads_its_plan(line: str) -> None:
    kernel = cs.CompiledKernel(parse_problem(line), known_target("avx512"), None, 1)
    with counting(plan) as calls:
        texts = [(str(kernel.transforms), str(kernel.plan()), kernel.ir(), kernel.llvm()) for _ in range(2)]
        kernel.explain()
    assert texts[0] == texts[1] and not calls["plan"]


def test_a_loaded_kernel_is_planned_once() -> None:
    line = parse_problem(TRANSFORMED)
    for _ in range(2):
        kernel = cs.CompiledKernel(line, known_target("avx512"), None, 1)
    assert kernel.artifact is not None and kernel.artifact.plan is None
    with counting(plan) as calls:
        assert kernel.transforms and kernel.llvm() and kernel.transforms
    assert calls["plan"] == 1


@pytest.mark.parametrize("line", [POINTWISE, TRANSFORMED, CHAIN, "--dir=BWD_W mb2ic8ih6oc8kh3ph1"])
def test_kept_plans_make_the_kernel_that_new_plans_make(line: str) -> None:
    kernel = cs.compile(line, target="avx2", threads=1)
    before = []
    for _ in range(2):
        with kernel.planned() as made:
            before.append(lower(made).text)
    fresh = cs.compile(line, target="avx2", threads=1, config=str(kernel.config))
    assert {*before} == {fresh.llvm()}


def test_a_transform_of_one_convolution_is_no_kernel_of_stages() -> None:
    kernel = cs.compile(TRANSFORMED, target="avx2", threads=1)
    program = kernel.plan().program
    assert program.transform in kernel.transforms and not program.kernels and len(program.statements) == 1


@pytest.mark.parametrize("line", [POINTWISE, TRANSFORMED, CHAIN])
def test_the_rewrites_of_each_kernel_are_worked_out_once(line: str) -> None:
    """Lowering a plan asks once for the rewrites of the main kernel, and of those that run before it."""
    problem, machine = parse_problem(line).canonical(), known_target("avx512")
    with interning():
        made = plan_for(problem, choose(problem, machine, 1, False), machine)
        with counting(Plan.pipeline.fget, Plan.preparing.fget) as calls:  # type: ignore[attr-defined]
            lower(made)
    assert calls["pipeline"] == 1 and calls["preparing"] <= 1


@pytest.mark.parametrize("line, most", [
    (POINTWISE, 55_000), (TRANSPOSED, 54_500), (TRANSFORMED, 180_000), (BLOCKED, 113_000),
])  # fmt: skip
@pytest.mark.usefixtures("no_cache")
def test_a_compilation_calls_few_functions(line: str, most: int) -> None:
    """Functions of Python alone count: their number is the same on every machine, unlike the time that they take, where
    the choice is that of one micro-architecture.
    """
    with cs.settings.scope(micro_architecture="generic"):
        problem, machine = parse_problem(line).canonical(), known_target("avx512")
        compile_or_load(problem, target=machine, choose=choose)  # modules are loaded
        with counting() as calls:
            compile_or_load(problem, target=machine, choose=choose)
    assert calls["all"] <= most
