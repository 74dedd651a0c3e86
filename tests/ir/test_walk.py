"""Rewriters see every index of every statement; decided conditions leave the arm that they choose."""

from __future__ import annotations

import pytest

from convsmith.ir.index import Var, as_index
from convsmith.ir.parse import parse_kernel
from convsmith.ir.walk import substitute

HEAD = "kernel k(t: ptr[64], a: f32[64], z: f32[64], b: f32[64], n)\n  for x in 0 .. 2:\n    "
FUNCTION = "function g(p: a, n)\n  a[p + n] = 0.0\n"
PARTS = [
    "b[x + 1] = 0.0", "b[0] = a[x]", "b[0] = max(1.0, a[x] * 2.0)", "b[0] = fma(a[0], a[1], a[x])",
    "b[0] = (a[0] if n - x >= 0 else 1.0)", "b[0] = (1.0 if n >= 0 else a[x])",
    "b[0] = where(a[0] < a[x], 1.0, 0.0)", "b[0] = where(a[0] < 1.0, 1.0, a[x])", "b[0] = sum(a[x]{4})",
    "b[0]{2} = sums(a[0]{4}, a[x]{4})", "b[0]{4} = repeat(a[x]{2}, 2)", "b[0] = cast(f32, sqrt(a[x]))",
    "if n - x >= 0: b[0] = 0.0", "let y = x * 2: b[y] = 0.0", "for y in x .. 4: b[y] = 0.0",
    "for y in 0 .. x: b[y] = 0.0", "for y in 0 .. 4 carrying p: b = x step 2: b[p] = 0.0",
    "at t[x] + 0 in a or z[0] as p: f32[4]: b[0] = p[0]", "at t[0] + x in a or z[0] as p: f32[4]: b[0] = p[0]",
    "at t[0] + 0 in a or z[x] as p: f32[4]: b[0] = p[0]", "at t[0] + 0 in a or z[0] as p: f32[4]: b[0] = p[x]",
    "fma4(b[x]{4}, a[0]{4})", "fma4(b[0]{4}, a[0]{4}, a[x]{4})",
    "call g(a @ x, 1)", "call g(a @ 0, x)",
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
        ("(a[1]{4} if x >= 1 else 2.0)", 1, "a[1]{4}"), ("(a[1]{4} if x >= 1 else 2.0)", 0, "repeat(2.0, 4)"),
    ],
)  # fmt: skip
def test_conditions_that_are_decided(value: str, x: int, arm: str) -> None:
    lanes = "{4}" if "{4}" in value else ""
    loop = parse_kernel(f"{HEAD}b[0]{lanes} = {value}\n").body
    assert str(substitute(loop.body, {Var("x"): as_index(x)})) == f"b[0]{lanes} = {arm}"  # type: ignore[attr-defined]
