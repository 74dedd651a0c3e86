"""The rules of the simplifier, as data.

The normal form (:mod:`convsmith.ir.index`) applies identities that hold for all integers.  A rule applies an identity
that holds if the parts lie within known ranges.  Each rule is one row: left-hand side, right-hand side and condition.
Its text is compiled to the code that runs, and tests prove the same text with z3 for all integers.  A *matcher* only
proposes values for the names in the text; ``lo`` and ``hi`` are the bounds of a part.

Every rule makes its node smaller in this order, so that simplification terminates: fewer divisions, modulos, minima and
maxima; then fewer modulos inside divisions; then fewer terms and arguments below all of these; then fewer terms of a
condition.  A condition may become a conjunction of smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from convsmith.arith.ranges import Ranges, try_interval
from convsmith.ir.index import (
    Eq0,
    FloorDiv,
    Ge0,
    Max,
    Min,
    Mod,
    as_index,
    conj,
    eq,
    false,
    floordiv,
    ge0,
    make_sum,
    maximum,
    minimum,
    mod,
    split_multiple,
    true,
)

Binding = dict[str, Any]


class Rule(NamedTuple):
    """Replaces ``lhs`` by ``rhs`` if ``when`` holds.

    ``parts`` names the index expressions of the text, ``constants`` the ints (divisors are positive).  ``lo_r`` and
    ``hi_r`` are bounds of the part ``r``; the rule holds for every ``r`` within them.
    """

    name: str
    root: type
    lhs: str
    rhs: str
    when: str
    parts: tuple[str, ...]
    constants: tuple[str, ...]
    bounded: tuple[str, ...]
    match: Callable[[Any], Iterator[Binding]]
    guard: Callable[..., bool]
    build: Callable[..., Any]

    def apply(self, node: Any, ranges: Ranges) -> Any:
        """Return the rewritten node, or None if the rule does not apply."""
        for binding in self.match(node):
            for part in self.bounded:
                r = try_interval(as_index(binding[part]), ranges)
                if r is None:
                    break
                binding["lo_" + part], binding["hi_" + part] = r
            else:
                if self.guard(**binding):
                    return self.build(**binding)
        return None


_BUILD: dict[str, Any] = {
    "div": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
    "both": lambda a, b: conj((a, b)),
    "nonneg": ge0,
    "zero": lambda e: eq(e, 0),
    "TRUE": true(),
    "FALSE": false(),
}


def _rule(name: str, root: type, lhs: str, rhs: str, when: str, parts: str, constants: str, match: Any) -> Rule:
    bounded = tuple(p for p in parts.split() if f"lo_{p}" in when + rhs or f"hi_{p}" in when + rhs)
    names = ", ".join([*parts.split(), *constants.split(), *(f"{b}_{p}" for p in bounded for b in ("lo", "hi"))])
    guard = eval(f"lambda {names}: {when}", {})
    build = eval(f"lambda {names}: {rhs}", dict(_BUILD))
    words = (tuple(parts.split()), tuple(constants.split()))
    return Rule(name, root, lhs, rhs, when, *words, bounded, match, guard, build)


# -- matchers: they yield the bindings under which a node is an instance of the left-hand side
def _split_by_range(e: FloorDiv | Mod) -> Iterator[Binding]:
    q, r = split_multiple(e.num, e.den)
    yield {"q": q, "r": r, "d": e.den}


def _split_small(e: FloorDiv | Mod) -> Iterator[Binding]:
    """Yield num = g * x + r with g dividing the divisor, for each coefficient g."""
    for g in sorted({abs(c) for _, c in e.num.terms if 1 < abs(c) < e.den and e.den % abs(c) == 0}, reverse=True):
        x, r = split_multiple(e.num, g)
        if x.terms and r.terms:
            yield {"x": x, "r": r, "g": g, "d": e.den // g}


def _div_of_mod(e: FloorDiv | Mod) -> Iterator[Binding]:
    n = e.num
    if type(n) is Mod and n.den % e.den == 0:
        yield {"x": n.num, "a": e.den, "d": n.den // e.den}


def _pairs(e: Min | Max) -> Iterator[Binding]:
    """Yield arguments ``a + d`` and ``a``, with ``o`` the extremum of the remaining arguments."""
    join = minimum if type(e) is Min else maximum
    for j, b in enumerate(e.args):
        for i, a in enumerate(e.args):
            if i != j:
                others = [x for n, x in enumerate(e.args) if n not in (i, j)]
                yield {"a": a, "d": b - a, "o": join(*others) if others else a}


def _whole(c: Ge0) -> Iterator[Binding]:
    yield {"e": c.arg}


def _first_extremum(kind: type) -> Callable[[Ge0], Iterator[Binding]]:
    def match(c: Ge0) -> Iterator[Binding]:
        for atom, k in c.arg.terms:
            if type(atom) is kind:
                remainder = make_sum(c.arg.const, {a: n for a, n in c.arg.terms if a is not atom})
                first = atom.args[0]  # type: ignore[attr-defined]
                others = atom.args[1:]  # type: ignore[attr-defined]
                other = minimum(*others) if kind is Min else maximum(*others)
                yield {"a": first, "b": other, "r": remainder, "k": k}

    return match


def _division(c: Ge0) -> Iterator[Binding]:
    for atom, k in c.arg.terms:
        if type(atom) is FloorDiv and abs(k) == 1:
            yield {"x": atom.num, "d": atom.den, "k": k, "r": c.arg - atom * k}


def _remainder(c: Eq0) -> Iterator[Binding]:
    for atom, k in c.arg.terms:
        others = c.arg - atom * k
        if type(atom) is Mod and others.terms:
            yield {"m": atom, "k": abs(k), "r": others if k > 0 else -others}


RULES: tuple[Rule, ...] = (
    _rule("div-in-range", FloorDiv,
          "div(q * d + r, d)", "q + lo_r // d", "lo_r // d == hi_r // d", "q r", "d", _split_by_range),
    _rule("mod-in-range", Mod,
          "mod(q * d + r, d)", "r - lo_r // d * d", "lo_r // d == hi_r // d", "q r", "d", _split_by_range),
    _rule("div-small-rest", FloorDiv,
          "div(x * g + r, d * g)", "div(x, d)", "0 <= lo_r and hi_r < g", "x r", "g d", _split_small),
    _rule("mod-small-rest", Mod,
          "mod(x * g + r, d * g)", "mod(x, d) * g + r", "0 <= lo_r and hi_r < g", "x r", "g d", _split_small),
    _rule("div-of-mod", FloorDiv,
          "div(mod(x, a * d), a)", "mod(div(x, a), d)", "True", "x", "a d", _div_of_mod),
    _rule("min-drop", Min,
          "min(min(a, o), a + d)", "min(a, o)", "lo_d >= 0", "a d o", "", _pairs),
    _rule("max-drop", Max,
          "max(max(a, o), a + d)", "max(a, o)", "hi_d <= 0", "a d o", "", _pairs),
    _rule("always", Ge0,
          "nonneg(e)", "TRUE", "lo_e >= 0", "e", "", _whole),
    _rule("never", Ge0,
          "nonneg(e)", "FALSE", "hi_e < 0", "e", "", _whole),
    _rule("min-at-least", Ge0,
          "nonneg(min(a, b) * k + r)", "both(nonneg(a * k + r), nonneg(b * k + r))", "k > 0",
          "a b r", "k", _first_extremum(Min)),
    _rule("max-at-most", Ge0,
          "nonneg(max(a, b) * k + r)", "both(nonneg(a * k + r), nonneg(b * k + r))", "k < 0",
          "a b r", "k", _first_extremum(Max)),
    _rule("div-at-least", Ge0,
          "nonneg(div(x, d) * k + r)", "nonneg(x + r * d)", "k == 1", "x r", "d k", _division),
    _rule("div-at-most", Ge0,
          "nonneg(div(x, d) * k + r)", "nonneg(r * d + (d - 1) - x)", "k == -1", "x r", "d k", _division),
    _rule("no-remainder", Eq0,
          "zero(m * k + r)", "both(zero(m), zero(r))", "k > 0 and lo_m >= 0 and lo_r >= 0", "m r", "k", _remainder),
)
BY_ROOT: dict[type, tuple[Rule, ...]] = {
    root: tuple(r for r in RULES if r.root is root) for root in (FloorDiv, Mod, Min, Max, Ge0, Eq0)
}
