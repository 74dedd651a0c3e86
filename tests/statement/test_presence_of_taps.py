"""Cases of which taps are there, against the mask at each pixel and tap: all strides, dilations, pads and sizes."""

from __future__ import annotations

import random
from itertools import product

import pytest

from convsmith.arith.evaluate import evaluate, holds
from convsmith.diag.errors import UsageError
from convsmith.ir.index import Var, is_false
from convsmith.ir.intern import interning
from convsmith.machine.generic.level import level
from convsmith.problem import Conv
from convsmith.statement.presence import cuts
from convsmith.statement.views import statement


def _axis(rng: random.Random, stride: int, spacing: int) -> Conv | None:
    """A problem of one axis with pads and sizes at random: pads beyond the kernel and sizes of 1 too."""
    k, i, pad = rng.choice((1, 2, 3, 4)), rng.choice((1, 1, 2, 3, 6)), rng.choice((0, 0, 1, 2, 5, 9))
    back = rng.choice((pad, 0, 1, 7, -(stride - 1)))
    o = (i + pad + back - (k - 1) * spacing - 1) // stride + 1
    try:
        return Conv(
            mb=1, ic=4, oc=4, i=(o,), o=(i,), k=(k,), s=(stride,), d=(spacing - 1,), p=(pad,), deconv=True,
            dt=("s8", "s8", "s32"),
        )  # fmt: skip
    except UsageError:
        return None


def _mirrored(problem: Conv) -> Conv:
    """The convolution whose gradient is the deconvolution."""
    return Conv(
        mb=1, ic=4, oc=4, i=problem.o, o=problem.i, k=problem.k, s=problem.s, d=problem.d, p=problem.p, dt=problem.dt
    )


@pytest.mark.parametrize("stride", range(1, 7))
def test_cases_at_every_pixel(stride: int) -> None:
    rng = random.Random(stride)
    seen = 0
    for spacing, _ in product(range(1, 7), range(12)):
        problem = _axis(rng, stride, spacing)
        for p in (problem, _mirrored(problem)) if problem is not None else ():
            with interning():
                _check(p)
            seen += 1
    assert seen > 40


def _check(problem: Conv) -> None:
    st = statement(problem, level())
    if is_false(st.a.mask):
        return
    found = cuts(st)
    sizes = {Var(d.name): d.size for d in st.dims if d.axis}
    for point in product(*(range(n) for n in sizes.values())):
        at = dict(zip(sizes, point))
        case = {c.var: evaluate(c.index, at) for c in found}
        assert all(0 <= case[c.var] < c.cases for c in found), problem
        there = all(holds(c.cond, {**at, **case}) for c in found)
        assert there == holds(st.a.mask, at), f"{problem} at {at}"
