"""Rewriters see every index of every statement; decided conditions leave the arm that they choose."""

from __future__ import annotations

import pytest

from convsmith.ir.index import Cond, Ge0, Var, as_index
from convsmith.ir.parse import parse_kernel
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import For
from convsmith.ir.walk import variables_of, walk

HEAD = "kernel k(t: ptr[64], a: f32[64], z: f32[64], b: f32[64], n)\n  for x in 0 .. 2:\n    "
FUNCTION = "function g(p: a, n)\n  a[p + n] = 0.0\n"
PARTS = [
    "b[x + 1] = 0.0", "b[0] = a[x]", "b[0] = max(1.0, a[x] * 2.0)", "b[0] = fma(a[0], a[1], a[x])",
    "b[0] = (a[0] if n - x >= 0 else 1.0)", "b[0] = (1.0 if n >= 0 else a[x])",
    "b[0] = where(a[0] < a[x], 1.0, 0.0)", "b[0] = where(a[0] < 1.0, 1.0, a[x])", "b[0] = sum(a[x]{4})",
    "b[0]{2} = sums(a[0]{4}, a[x]{4})", "b[0]{4} = repeat(a[x]{2}, 2)", "b[0] = lookup(a[x], u8(1))",
    "b[0] = cast(f32, sqrt(a[x]))",
    "if n - x >= 0: b[0] = 0.0", "let y = x * 2: b[y] = 0.0", "for y in x .. 4: b[y] = 0.0",
    "for y in 0 .. x: b[y] = 0.0", "for y in 0 .. 4 carrying p: b = x step 2: b[p] = 0.0",
    "at t[x] + 0 in a or z[0] as p: f32[4]: b[0] = p[0]", "at t[0] + x in a or z[0] as p: f32[4]: b[0] = p[0]",
    "at t[0] + 0 in a or z[x] as p: f32[4]: b[0] = p[0]", "at t[0] + 0 in a or z[0] as p: f32[4]: b[0] = p[x]",
    "fma4(b[x]{4}, a[0]{4})", "fma4(b[0]{4}, a[0]{4}, a[x]{4})",
    "call g(a @ x, 1)", "call g(a @ 0, x)",
    "atomic b[x] += 1.0", "atomic b[0]{4} += a[x]{4}", "async b[x]{4} = a[0]{4}", "async b[0] = a[x]",
    "async b[0] = a[0] if n - x >= 0", "for y in 0 .. x #group: barrier",
]  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_a_rewriter_reaches_every_part(part: str) -> None:
    """A variable that becomes a number is nowhere any more, and the text is that with the number."""
    head = FUNCTION + HEAD if "call" in part else HEAD
    loop = parse_kernel(f"{head}{part}\n").body
    made = substitute(loop.body, {Var("x"): as_index(1)})  # type: ignore[attr-defined]
    expected = parse_kernel(f"{head}{part.replace('max', 'MAX').replace('x', '1').replace('MAX', 'max')}\n").body
    assert str(made) == str(expected.body)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "x", "arm"),
    [
        ("(a[1] if x >= 1 else 2.0)", 1, "a[1]"), ("(a[1] if x >= 1 else 2.0)", 0, "2.0"),
        ("(a[1]{4} if x >= 1 else 2.0)", 1, "a[1]{4}"), ("(a[1]{4} if x >= 1 else 2.0)", 0, "2.0"),
        ("(a[1]{4} if x >= 1 else 2.0) + a[4]{4}", 0, "repeat(2.0, 4) + a[4]{4}"),
    ],
)  # fmt: skip
def test_conditions_that_are_decided(value: str, x: int, arm: str) -> None:
    """The arm that is left has the lanes of the choice, except that a store itself writes a scalar to all lanes."""
    lanes = "{4}" if "{4}" in value else ""
    loop = parse_kernel(f"{HEAD}b[0]{lanes} = {value}\n").body
    assert str(substitute(loop.body, {Var("x"): as_index(x)})) == f"b[0]{lanes} = {arm}"  # type: ignore[attr-defined]


class _Loops(Rewriter):
    """Handles no expression; counts the visits of conditions, which it would dispatch by their class."""

    visits = 0

    def _Ge0(self, c: Ge0) -> Cond:
        _Loops.visits += 1
        return super()._Ge0(c)


class _Conditions(_Loops):
    def visit_Ge0(self, c: Ge0) -> Cond:
        return self._Ge0(c)


def test_a_rewriter_without_methods_for_expressions_visits_none() -> None:
    body = parse_kernel(f"{HEAD}if n - x >= 0: b[0] = (a[0] if n - x >= 0 else 1.0)\n").body
    assert _Loops().stmt(body) is body and not _Loops.visits
    assert _Conditions().stmt(body) is body and _Loops.visits == 1


@pytest.mark.parametrize("part", PARTS)
def test_a_statement_keeps_the_variables_that_occur_in_it(part: str) -> None:
    """A statement without the variable stays the same object; it is asked twice, for the second answer is kept."""
    head = FUNCTION + HEAD if "call" in part else HEAD
    loop = parse_kernel(f"{head}{part}\n").body
    assert isinstance(loop, For)
    found = {x for x in walk(loop.body) if isinstance(x, Var)}
    assert variables_of(loop.body) == found == variables_of(loop.body)
    assert substitute(loop.body, {Var("nowhere"): as_index(1)}) is loop.body
