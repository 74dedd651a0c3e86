"""Masks as cases: at every pixel, the case says of each tap whether it is there, just as the mask does."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from convsmith.arith.evaluate import evaluate, holds
from convsmith.ir.index import Cond, Eq0, Ge0, Var, eq, is_false, is_true, mod
from convsmith.ir.intern import interning
from convsmith.problem import parse_problem
from convsmith.statement.presence import cuts, number
from convsmith.statement.statement import Dim, Statement
from convsmith.statement.views import statement

PIXELS, TAPS = 11, 3
"""Enough pixels for every number of taps, at either end."""

STEPS = list(product((-2, 0, 1, 3), (-3, -2, -1, 0, 1, 2, 3), range(-8, 9)))
"""Factors of the pixel and of the tap, and a constant."""


def points(st: Statement, *kinds: str) -> list[dict[Var, int]]:
    """Every point of the dims of these kinds."""
    dims = st.of(*kinds)
    return [{Var(d.name): x for d, x in zip(dims, at)} for at in product(*(range(d.size) for d in dims))]


def check(st: Statement) -> None:
    """Each case of every cut, and all of them as one number, say the same as the mask."""
    made = cuts(st)
    one, count = number([(cut.index, cut.cases) for cut in made])
    taps, alike = points(st, "k"), {}
    for pixel in points(st, "batch", "n", "m"):
        where = f"{st.a.mask} at {pixel}"
        present = [bool(holds(st.a.mask, pixel | tap)) for tap in taps]
        cases = {cut.var: evaluate(cut.index, pixel) for cut in made}
        assert all(0 <= cases[cut.var] < cut.cases for cut in made), where
        assert [all(holds(cut.cond, cases | tap) for cut in made) for tap in taps] == present, where
        place = evaluate(one, pixel)
        assert 0 <= place < count and alike.setdefault(place, present) == present, where


def with_mask(mask: Cond) -> Statement:
    """A statement over a row of pixels and taps, with this mask."""
    st = statement(parse_problem("mb1ic1iw3oc1ow3kw1"))
    dims = (Dim("ow", PIXELS, "m", "w"), Dim("kw", TAPS, "k", "w"))
    return replace(st, dims=dims, factors=(replace(st.a, masks=(mask,)), st.b))


@pytest.mark.parametrize("kind", ["bound", "equality", "class of 2", "class of 3"])
def test_a_part_on_every_step_and_offset(kind: str) -> None:
    with interning():
        sums = [Var("ow") * pixel + Var("kw") * tap + offset for pixel, tap, offset in STEPS]
        if kind == "bound":
            masks = [e >= 0 for e in sums]
        elif kind == "equality":
            masks = [eq(e, 0) for e in sums]
        else:
            masks = [eq(mod(e, int(kind[-1])), 0) for e in sums]
        parts = [m for m in dict.fromkeys(masks) if not is_true(m) and not is_false(m)]
        assert len(parts) >= 10 and all(isinstance(m, (Ge0, Eq0)) for m in parts)
        for part in parts:
            check(with_mask(part))


WINDOWS = [
    (i, k, s, d, p, o)
    for i, k, s, d, p in product((1, 3, 4), (1, 3), (1, 2, 5), (0, 1, 2), (0, 2, 5))
    for o in {1, (i - 1 + p) // s + 1, (i - 1 + p) // s + 3}
    if (o - 1) * s - i + (k - 1) * (d + 1) + 1 - p > -s
]
"""Windows of every kind: pads and strides beyond the kernel, single pixels and taps, outputs that see padding alone."""


@pytest.mark.parametrize("deconv", [False, True])
def test_windows(deconv: bool) -> None:
    with interning():
        for i, k, s, d, p, o in WINDOWS:
            i, o = (o, i) if deconv else (i, o)
            line = f"mb1ic1iw{i}oc1ow{o}kw{k}sw{s}dw{d}pw{p}"
            st = statement(parse_problem(f"--deconv {line}" if deconv else line))
            if not is_false(st.a.mask):
                check(st)
