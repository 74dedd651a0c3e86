"""Strided results of which no pixel meets a tap: the mask says so, and the default config makes a kernel of zeros."""

from __future__ import annotations

import random
from itertools import product

import pytest

from convsmith.arith.evaluate import holds
from convsmith.compiler.driver import lower
from convsmith.diag.errors import UsageError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.index import Var, is_false
from convsmith.ir.intern import interning
from convsmith.machine.generic.level import level
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.verification import verify_kernel
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.schedule.plan import plan
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config

KINDS = ("--dir=BWD_D", "--deconv", "--dir=BWD_D --dt=f32:s8:s8", "--deconv --dt=s8")
TARGETS = [level(), *(t for t in LEVELS if t.name in ("avx512_amx", "avx2"))]


def problems(kind: str) -> list[Conv]:
    """Legal problems of one axis: pads and strides beyond the kernel, holes, single pixels and taps."""
    found = []
    for fine, k, s, p, d, coarse in product((1, 2, 3), (1, 2, 3), (2, 3, 5), (0, 1, 2, 4, 7), (0, 1, 2), (1, 2, 5)):
        i, o = (coarse, fine) if "deconv" in kind else (fine, coarse)
        try:
            problem = parse_problem(f"{kind} mb1ic9iw{i}oc17ow{o}kw{k}sw{s}pw{p}dw{d}")
        except UsageError:
            continue
        assert isinstance(problem, Conv)
        found.append(problem)
    return found


def meets(problem: Conv) -> bool:
    """Whether a pixel meets a tap, by trying all."""
    (k,), (s,), (d,), (p,), (fine,), (coarse,) = (
        problem.k, problem.s, problem.d, problem.p, problem.fine, problem.coarse
    )  # fmt: skip
    return any(0 <= x * s + tap * (d + 1) - p < fine for x in range(coarse) for tap in range(k))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_is_false_where_nothing_meets(kind: str) -> None:
    never = 0
    with interning():
        for problem in problems(kind):
            st = statement(problem.canonical(), level())
            assert is_false(st.a.mask) is not meets(problem), problem
            never += is_false(st.a.mask)
            sizes = {Var(d.name): d.size for d in st.dims if d.axis}
            points = (dict(zip(sizes, point)) for point in product(*(range(n) for n in sizes.values())))
            assert any(holds(st.a.mask, at) for at in points) is meets(problem), problem
    assert never > 20


@pytest.mark.sampled(4, "target")
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", KINDS)
def test_the_default_config_makes_a_kernel(kind: str, target: object) -> None:
    """One axis without terms, alone and beside one that has some."""
    rng = random.Random(kind)
    never = [p for p in problems(kind) if not meets(p)]
    for problem in rng.sample(never, 8):
        with interning():
            plain = problem.canonical()
            lower(plan(plain, default_config(plain, target), target))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_results_without_terms_are_zero(kind: str) -> None:
    problem = next(p for p in problems(kind) if not meets(p))
    verdict = verify_kernel(CompiledKernel(problem, level()))
    assert verdict.ok, verdict.detail
