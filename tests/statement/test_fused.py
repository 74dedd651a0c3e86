"""A fused depthwise convolution as one kernel of two nests, interpreted: one after the other, and one in the other."""

from __future__ import annotations

import random

import pytest
from legal import legal_problem
from oracles import Oracle, small_target

from convsmith.diag.errors import UnsupportedError
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Alloc
from convsmith.ir.verify import verify
from convsmith.ir.walk import bound_in, statements_of
from convsmith.passes.compute_at import compute_at
from convsmith.problem import Conv, Problem, parse_problem
from convsmith.problem.fusion import middle, stages_of
from convsmith.statement.fused import FusedStatements
from convsmith.statement.views import statement

LINES = [
    "--attr-post-ops=relu+dw:k3s1p1+relu mb1ic3ih6oc5kh1",
    "--stag=axb --dtag=axb --attr-post-ops=dw:k3s2p1 mb2ic3ih7iw5oc4kh1kw1",
    "--attr-post-ops=dw:k5s2p2+sum:2 mb1ic2ih9iw6oc3kh1kw1",
    "--dtag=aBcd4b --attr-post-ops=dw:k1s1p0 mb1ic2ih4oc6kh1",
    "--dt=u8:s8:u8 --attr-post-ops=relu+dw:k3s1p1:u8+relu --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 "
    "mb1ic4ih5oc4kh1",
    "--dt=u8:s8:s8 --attr-zero-points=dst:common:3 --attr-post-ops=dw:k3s1p1:s8 mb1ic4ih5oc4kh1",
    "--dt=bf16 --attr-post-ops=dw:k3s1p1:f32+add:f32:per_oc+mul:f32:per_oc mb1ic4ih5oc4kh1",
    "--attr-post-ops=prelu:per_oc+dw:k3s1p1+prelu:per_oc mb1ic3ih4oh2oc3kh1sh2",
]


def statements_in(problem: Problem) -> FusedStatements:
    """The statements of a problem."""
    stages, target = stages_of(problem), small_target()
    assert stages is not None
    return FusedStatements(stages, 0, tuple(statement(p, target) for p in stages.problems))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", LINES)
def test_two_nests_compute_what_the_reference_computes(line: str) -> None:
    problem = parse_problem(line).canonical()
    with interning():
        kernel = statements_in(problem).naive()
        verify(kernel)
        oracle = Oracle(problem, small_target())
        oracle.check(kernel)
        for loop in ("oh2", "mb2"):
            moved = compute_at(kernel, middle(0), loop)
            verify(moved)
            oracle.check(moved)


def test_rows_of_the_first_lie_in_a_circular_buffer() -> None:
    with interning():
        pair = statements_in(parse_problem(LINES[0]).canonical())
        moved = compute_at(pair.naive(), middle(0), "oh2")
    (buffer,) = {s.buffer for s in statements_of(moved.body) if isinstance(s, Alloc) and s.buffer.name == middle(0)}
    assert buffer.shape == (1, 1, 4, 6)
    names = {v.name for v in bound_in(moved.body)}
    second = pair.renamed(1)
    assert {d.name for d in second.dims} <= names
    assert (second.a.name, second.b.name, second.c.name) == (middle(0), "post_op_1", "dst")


@pytest.mark.slow
def test_random_fused_problems() -> None:
    rng, done = random.Random(5), 0
    while done < 20:
        problem = legal_problem(rng)
        if not isinstance(problem, Conv) or problem.depthwise is None or problem.flops_dense > 5_000:
            continue
        if any(0 in tensor.shape for tensor in problem.tensors):
            continue
        problem = problem.canonical()
        with interning():
            try:
                pair = statements_in(problem)
            except UnsupportedError:
                continue
            kernel = pair.naive()
            moved = compute_at(kernel, middle(0), "oh2") if len(pair.read) > 1 else kernel
            Oracle(problem, small_target()).check(moved)
        done += 1
