"""Every rule of the simplifier is proved by z3, for all integers, from the very text that runs.

A floor division by a positive number is what SMT-LIB calls ``div``; it is stated here by its definition:
``x = d * q + r`` with ``0 <= r < d``.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest
import z3

from convsmith.arith.rules import RULES, Rule

TIMEOUT_MS = 20_000

HINTS = {
    "div-of-mod": (
        ("a", "d", "mod(div(x, a), d)"),
        ("a * d", "div(x, a * d)", "div(div(x, a), d)"),
        ("a * d", "div(div(x, a), d)", "div(x, a * d)"),
        ("a", "div(mod(x, a * d), a)", "mod(div(x, a), d)"),
        ("a", "mod(div(x, a), d)", "div(mod(x, a * d), a)"),
    ),
}
"""Where a proof multiplies unknowns: (m, u, v) for which z3 is told that ``u > v`` makes ``m * u >= m * v + m``."""


class Translation:
    """Texts of one rule as z3 terms; ``facts`` are what is known of the variables in them."""

    def __init__(self, rule: Rule) -> None:
        self.names: dict[str, Any] = {}
        self.facts: list[Any] = []
        self.known: dict[str, tuple[Any, Any]] = {}
        for p in rule.parts:
            self.names[p] = z3.Int(p)
        for c in rule.constants:
            self.names[c] = z3.Int(c)
            if c in ("d", "g", "a"):
                self.facts.append(self.names[c] > 0)
        for p in rule.bounded:
            lo, hi = self.names["lo_" + p], self.names["hi_" + p] = z3.Ints(f"lo_{p} hi_{p}")
            self.facts += [lo <= self.names[p], self.names[p] <= hi]

    def term(self, text: str) -> Any:
        return self._of(ast.parse(text, mode="eval").body)

    def _divided(self, x: Any, d: Any) -> tuple[Any, Any]:
        key = f"{x} / {d}"
        if key not in self.known:
            n = len(self.facts)
            q, r = self.known[key] = z3.Ints(f"q!{n} r!{n}")
            self.facts.append(z3.And(x == d * q + r, 0 <= r, r < d))
        return self.known[key]

    def _of(self, e: ast.expr) -> Any:
        if isinstance(e, ast.Constant):
            return e.value if not isinstance(e.value, bool) else z3.BoolVal(e.value)
        if isinstance(e, ast.Name):
            return {"TRUE": z3.BoolVal(True), "FALSE": z3.BoolVal(False)}.get(e.id, self.names.get(e.id))
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            return -self._of(e.operand)
        if isinstance(e, ast.BoolOp):
            return (z3.And if isinstance(e.op, ast.And) else z3.Or)(*map(self._of, e.values))
        if isinstance(e, ast.Compare):
            sides = [self._of(x) for x in (e.left, *e.comparators)]
            return z3.And(*(_COMPARE[type(op)](a, b) for op, a, b in zip(e.ops, sides, sides[1:])))
        if isinstance(e, ast.BinOp):
            a, b = self._of(e.left), self._of(e.right)
            if isinstance(e.op, (ast.FloorDiv, ast.Mod)):
                return self._divided(a, b)[isinstance(e.op, ast.Mod)]
            return {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b}[type(e.op)]
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name):
            a, *rest = map(self._of, e.args)
            if e.func.id in ("div", "mod"):
                return self._divided(a, rest[0])[e.func.id == "mod"]
            return _CALL[e.func.id](a, *rest)
        raise AssertionError(f"no z3 term for {ast.unparse(e)}")


_COMPARE = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
}
_CALL = {
    "min": lambda a, b: z3.If(a <= b, a, b),
    "max": lambda a, b: z3.If(a >= b, a, b),
    "both": lambda a, b: z3.And(a, b),
    "nonneg": lambda a: a >= 0,
    "zero": lambda a: a == 0,
}


def refute(rule: Rule, rhs: str | None = None, when: str | None = None) -> tuple[Any, Any]:
    """(unsat, None) where no integers make the two sides differ, else (sat, the integers)."""
    t = Translation(rule)
    left, right = t.term(rule.lhs), t.term(rhs or rule.rhs)
    condition = t.term(when or rule.when)
    for hint in HINTS.get(rule.name, ()):
        m, u, v = map(t.term, hint)
        t.facts.append(z3.Implies(z3.And(m > 0, u > v), m * u >= m * v + m))
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*t.facts, condition, left != right)
    answer = solver.check()
    return answer, solver.model() if answer == z3.sat else None


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_rule_is_proved(rule: Rule) -> None:
    answer, model = refute(rule)
    assert answer == z3.unsat, f"{rule.lhs} -> {rule.rhs} when {rule.when}: {answer} {model}"


def test_the_hint_is_proved() -> None:
    m, u, v = z3.Ints("m u v")
    solver = z3.Solver()
    solver.add(m > 0, u > v, m * u < m * v + m)
    assert solver.check() == z3.unsat


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_the_facts_do_not_contradict_each_other(rule: Rule) -> None:
    """A proof from contradictory facts would prove anything."""
    t = Translation(rule)
    t.term(rule.lhs), t.term(rule.rhs)
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*t.facts, t.term(rule.when))
    assert solver.check() == z3.sat


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_another_right_hand_side_is_refuted(rule: Rule) -> None:
    wrong = {"TRUE": "FALSE", "FALSE": "TRUE"}.get(rule.rhs)
    if wrong is None and "nonneg(" in rule.rhs:
        wrong = rule.rhs.replace("nonneg(", "nonneg(1 + ", 1)
    if wrong is None and "zero(" in rule.rhs:
        wrong = rule.rhs.replace("zero(", "zero(1 + ", 1)
    wrong = wrong or f"{rule.rhs} + 1"
    assert refute(rule, rhs=wrong)[0] == z3.sat


BY_NAME = {r.name: r for r in RULES}


@pytest.mark.parametrize(
    "name, when",
    [
        ("div-in-range", "hi_r - lo_r < d"),
        ("mod-in-range", "lo_r >= 0"),
        ("div-small-rest", "0 <= lo_r and hi_r <= g"),
        ("div-small-rest", "hi_r < g"),
        ("mod-small-rest", "0 <= lo_r and hi_r < g * d + 1"),
        ("min-drop", "hi_d >= 0"),
        ("max-drop", "lo_d <= 0"),
        ("always", "hi_e >= 0"),
        ("never", "lo_e < 0"),
        ("min-at-least", "k < 0"),
        ("max-at-most", "k > 0"),
        ("div-at-least", "k == -1"),
        ("div-at-most", "k == 1"),
        ("no-remainder", "k > 0 and lo_m >= 0"),
        ("no-remainder", "k > 0 and lo_r >= 0"),
        ("no-remainder", "lo_m >= 0 and lo_r >= 0"),
    ],
)
def test_a_wrong_condition_is_refuted(name: str, when: str) -> None:
    answer, model = refute(BY_NAME[name], when=when)
    assert answer == z3.sat and model is not None


def test_every_constant_is_stated_as_the_rules_use_it() -> None:
    """Only divisors are taken as positive: what a rule calls d, g or a divides something in it."""
    for rule in RULES:
        for name in {"d", "g", "a"} & set(rule.constants):
            divisors = [
                ast.unparse(c.args[1])
                for c in ast.walk(ast.parse(rule.lhs, mode="eval"))
                if isinstance(c, ast.Call) and isinstance(c.func, ast.Name) and c.func.id in ("div", "mod")
            ]
            assert any(name in d.split() for d in divisors), f"{rule.name}: {name}"
