"""Naive nests, interpreted: every kind of problem is what the reference says, borders and strides of every size."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from guarded import check_result, expected, memories

from convsmith.diag.settings import settings
from convsmith.interp import run
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.statement import views
from convsmith.statement.naive import naive
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement
from convsmith.tune.compile import compile_problem

SIZES = [
    (i, k, s, d, p)
    for i, k, s, d, p in product((1, 2, 5), (1, 2, 3), (1, 2, 5), (0, 2), (0, 1, 4))
    if i + p > (k - 1) * (d + 1)
]
"""Image, kernel, stride, dilation and pad: pads and strides beyond the kernel, sizes of 1."""

KINDS = ("", "--dir=BWD_D", "--dir=BWD_W", "--deconv", "--deconv --dir=BWD_D", "--deconv --dir=BWD_W")


def check(line: str) -> None:
    """The naive nest leaves the reference's numbers, and touches nothing else."""
    problem = parse_problem(line)
    arrays = random_arrays(problem)
    memory = memories(problem, arrays)
    with interning():
        kernel = naive(problem, statement(problem))
        run(kernel, {b.name: memory[b.name] for b in kernel.params})
    check_result(problem, memory, expected(problem, arrays))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*KINDS, "groups", "products", "zero points"])
def test_every_product_is_that_of_the_loops(kind: str) -> None:
    rng = random.Random(kind)
    if kind == "products":
        for line in ("2x3:3x4", "2x2x3:1x3x2", "1x2x3:2x3x2", "2x1x3:2x3x1", "2x1x2x3:1x3x3x2"):
            check(f"--matmul {line}")
        return
    head = {"groups": "g2", "zero points": ""}.get(kind, "")
    points = "--dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:common:2"
    options = {"groups": "", "zero points": points}.get(kind, kind)
    for i, k, s, d, p in rng.sample(SIZES, 24):
        o = (i + p - (k - 1) * (d + 1) - 1) // s + 1 + rng.choice((0, 0, 1, 3))
        i, o = (o, i) if "deconv" in kind else (i, o)
        check(f"{options} {head}mb1ic4iw{i}oc2ow{o}kw{k}sw{s}dw{d}pw{p}")


@pytest.mark.parametrize(
    "options",
    [
        "--dir=FWD_B", "--attr-scales=src:common:0.5+wei:per_oc", "--attr-scales=dst:common:0.25 --dt=s8:s8:s8",
        "--attr-post-ops=sum:2:1", "--attr-post-ops=relu:0.5+sum:0.5", "--attr-post-ops=add:f32:per_oc+clip:-3:5",
        "--attr-post-ops=prelu:per_oc", "--attr-zero-points=dst:common:3 --dt=u8:s8:u8", "--dt=s8:s8:s8 --dir=FWD_B",
        "--dt=u8:s8:s32 --attr-post-ops=s32_add:per_oc+s32_rshift:common:2", "--attr-post-ops=sub:s8:per_tensor",
    ],
)  # fmt: skip
def test_what_follows_the_sums(options: str) -> None:
    check(f"{options} mb2ic3iw4oc5ow4kw3pw1")


def test_nothing_is_read_beyond_the_arrays() -> None:
    """The interpreter refuses what lies outside, so a mask that lets it in is an error and no wrong number."""
    problem = parse_problem("mb1ic1iw2oc1ow5kw2pw2")
    with interning():
        st = statement(problem)
        kernel = naive(problem, st)
    memory = memories(problem, random_arrays(problem))
    run(kernel, {b.name: memory[b.name] for b in kernel.params})
    assert np.isfinite(memory["dst"]).all()


def test_choosing_and_compiling_share_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Statement] = []
    make = views._statement

    def counted(*arguments: Any) -> Statement:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(views, "_statement", counted)
    problem = parse_problem("--stag=axb --dtag=axb mb1ic4ih4oc4oh4kh3ph1")
    with settings.scope(cache="off"):
        compile_problem(problem, target=target(), threads=1)
    assert len(made) == 1


def test_the_views_of_a_3x3_convolution_are_those_of_the_document() -> None:
    """The source's view has six dims, which two of its coordinates combine, with a mask for each of these two."""
    with interning():
        st = statement(parse_problem("mb2ic3ih7iw7oc5oh4ow4kh3kw3sh2sw2ph1pw1"))
        src, wei = st.factors
        assert [d.name for kind in "mnk" for d in st.of(kind)] == ["mb", "oh", "ow", "oc", "ic", "kh", "kw"]
        assert [*map(str, src.coords)] == ["mb", "ic", "kh + oh * 2 - 1", "kw + ow * 2 - 1"]
        assert [*map(str, src.masks)] == [
            "true", "true", "kh + oh * 2 - 1 >= 0 and -kh - oh * 2 + 7 >= 0",
            "kw + ow * 2 - 1 >= 0 and -kw - ow * 2 + 7 >= 0",
        ]  # fmt: skip
        assert [*map(str, wei.coords)] == ["oc", "ic", "kh", "kw"]
        assert [*map(str, st.c.coords)] == ["mb", "oc", "oh", "ow"]
