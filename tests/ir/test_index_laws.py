"""Laws of index arithmetic: the normal form is canonical and means what Python's integers mean."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from draws import examples
from hypothesis import given
from hypothesis import strategies as st

from convsmith.arith.evaluate import evaluate, holds
from convsmith.arith.ranges import interval
from convsmith.ir.index import (
    Cond,
    Index,
    Var,
    as_index,
    conj,
    eq,
    false,
    floordiv,
    is_false,
    is_true,
    maximum,
    minimum,
    mod,
    product,
    quotient,
    true,
)
from convsmith.ir.parse import parse_cond, parse_index
from convsmith.ir.rewrite import Substitute

NAMES = ("a", "b", "ow.i", "oc.o.1")
Tree = Any
"""A variable's name, an int, or (operation, operand, operand)."""

leaves = st.one_of(st.sampled_from(NAMES), st.integers(-9, 9))


def _grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "min", "max", "product"]), inner, inner),
        st.tuples(st.just("mul"), inner, st.integers(-6, 6)),
        st.tuples(st.sampled_from(["div", "mod"]), inner, st.integers(1, 8)),
    )


trees = st.recursive(leaves, _grow, max_leaves=12)
points = st.fixed_dictionaries({n: st.integers(-20, 20) for n in NAMES})

OPERATIONS: dict[str, tuple[Callable[[Any, Any], Index], Callable[[int, int], int]]] = {
    "add": (lambda a, b: a + b, lambda a, b: a + b),
    "sub": (lambda a, b: a - b, lambda a, b: a - b),
    "mul": (lambda a, b: a * b, lambda a, b: a * b),
    "product": (product, lambda a, b: a * b),
    "div": (floordiv, lambda a, b: a // b),
    "mod": (mod, lambda a, b: a % b),
    "min": (minimum, min),
    "max": (maximum, max),
}


def build(t: Tree) -> Index:
    if isinstance(t, tuple):
        a = build(t[1])
        b = t[2] if t[0] in ("mul", "div", "mod") else build(t[2])
        return OPERATIONS[t[0]][0](a, b)
    return Var(t) if isinstance(t, str) else as_index(t)


def directly(t: Tree, point: dict[str, int]) -> int:
    if isinstance(t, tuple):
        return OPERATIONS[t[0]][1](directly(t[1], point), directly(t[2], point))
    return point[t] if isinstance(t, str) else t


@examples(300)
@given(trees, points)
def test_an_index_evaluates_as_python_does(tree: Tree, point: dict[str, int]) -> None:
    assert evaluate(build(tree), {Var(n): x for n, x in point.items()}) == directly(tree, point)


@examples(300)
@given(trees)
def test_printed_text_parses_to_the_same_object(tree: Tree) -> None:
    e = build(tree)
    assert parse_index(str(e)) is e


@examples(100)
@given(trees, points)
def test_printed_text_means_the_same_to_python(tree: Tree, point: dict[str, int]) -> None:
    e = build(tree)
    names = {n.replace(".", "_"): x for n, x in point.items()}
    text = str(e).replace("ow.i", "ow_i").replace("oc.o.1", "oc_o_1")
    assert eval(text, {"min": min, "max": max}, names) == directly(tree, point)


affine = st.recursive(
    st.sampled_from(NAMES),
    lambda x: st.one_of(
        st.tuples(st.sampled_from(["add", "sub"]), x, x), st.tuples(st.just("mul"), x, st.integers(-6, 6))
    ),
    max_leaves=8,
)


@examples(200)
@given(affine, affine)
def test_equal_affine_forms_are_one_object(x: Tree, y: Tree) -> None:
    a, b = build(x), build(y)
    basis = [{n: int(n == m) for n in NAMES} for m in NAMES]
    assert (a is b) == all(directly(x, p) == directly(y, p) for p in basis)
    assert a + b is b + a
    assert (a + b) - b is a
    assert a * 2 - a is a


@examples(200)
@given(trees, trees, st.sampled_from(["<", "<=", ">", ">=", "=="]), points)
def test_a_condition_holds_where_python_says(x: Tree, y: Tree, op: str, point: dict[str, int]) -> None:
    a, b = build(x), build(y)
    c: Cond = {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": eq(a, b)}[op]
    values = {Var(n): v for n, v in point.items()}
    assert bool(holds(c, values)) == eval(f"{directly(x, point)} {op} {directly(y, point)}")
    assert parse_cond(str(c)) is c
    assert parse_cond(f"{a} {op} {b}") is c


def test_the_contract_example() -> None:
    a, b = Var("a"), Var("b")
    e = 2 * (a + b) - a
    assert str(e) == "a + b * 2"
    assert e is a + 2 * b is parse_index("b + a + b")


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("x // 4 * 4 + x % 4", "x"),
        ("(x // 4 * 4 + x % 4) * 3 + y", "x * 3 + y"),
        ("(x * 2 + y) % 10 + (x + y // 2) // 5 * 10", "x * 2 + y"),
        ("(x * 2 + y) % 10 + (x + y // 3) // 5 * 10", "(x * 2 + y) % 10 + (x + y // 3) // 5 * 10"),
        ("x % 5 + x // 5 % 3 * 5", "x % 15"),
        ("(x % 5 + (y * 2 + x // 5) % 5 * 5) * 3 + z", "z + (x + y * 10) % 25 * 3"),
        ("x % 5 + (x // 5 - y) % 5 * 5 + x // 25 * 25", "(x - y * 5) % 25 + x // 25 * 25"),
        ("(x * 2 + y) % 10 + (z * 3 + (x + y // 2) // 5) % 7 * 10", "(x * 2 + y + z * 30) % 70"),
        ("(4 * x + y) // 4", "x + y // 4"),
        ("(4 * x + 2 * y) // 8", "(x * 2 + y) // 4"),
        ("(4 * x + y) % 4", "y % 4"),
        ("(6 * x + 2) % 8", "(x * 3 + 1) % 4 * 2"),
        ("x // 2 // 3", "x // 6"),
        ("x % 6 % 3", "x % 3"),
        ("-(x // 4)", "-(x // 4)"),
        ("-x // 4", "(-x) // 4"),
        ("1 - x % 4", "-(x % 4) + 1"),
        ("min(a + 1, a + 3, b)", "min(a + 1, b)"),
        ("max(1, 5, a)", "max(5, a)"),
        ("min(a, a)", "a"),
        ("max(min(3, 4), 2)", "3"),
        ("a - a", "0"),
        ("-kh + 2", "-kh + 2"),
    ],
)
def test_normal_forms(text: str, printed: str) -> None:
    assert str(parse_index(text)) == printed


def test_quotients_and_remainders_of_every_sum() -> None:
    """Common factors, negative ones and constants: the value is that of Python's integers."""
    for a, b, const, den in itertools.product(range(-6, 7, 2), (-4, -1, 0, 3), range(-5, 6), (1, 2, 3, 4, 6)):
        num = Var("x") * a + Var("y") * b + const
        made = num // den, num % den, num // den * den + num % den, num % den // 2, num // den // 3, num % den % 2
        for x, y in ((-3, 2), (0, 0), (1, -1), (5, 7)):
            n = a * x + b * y + const
            right = n // den, n % den, n, n % den // 2, n // den // 3, n % den % 2
            assert tuple(evaluate(e, {Var("x"): x, Var("y"): y}) for e in made) == right, (str(num), den, x, y)


def test_conditions() -> None:
    a, b = Var("a"), Var("b")
    assert str(conj([a >= 0, a >= 0, b < 3])) == "a >= 0 and -b + 2 >= 0"
    assert is_true(as_index(0) <= 0) and is_false(as_index(0) > 0)
    assert is_false(eq(a * 2, 3)) and is_true(eq(a, a))
    assert eq(a, b) is eq(b, a)
    assert str(a * 4 >= 3) == "a - 1 >= 0"
    assert conj([a >= 0, false()]) is false()
    assert conj([true(), a >= 0]) is (a >= 0)
    assert str(true()) == "true" and str(false()) == "false"


def test_products_are_multiplied_out() -> None:
    a, b, c = Var("a"), Var("b"), Var("c")
    assert str(product(a + 1, b * 2 - 3)) == "-a * 3 + b * 2 + a * b * 2 - 3"
    assert product(product(c, a), b) is product(a, product(b, c)) and str(product(c, a // 2)) == "c * (a // 2)"
    assert product(a, 0).is_const and product(3, a) is a * 3
    assert parse_index("(a + 1) * b - b") is product(a, b)


def test_quotients_by_sizes() -> None:
    a, b, c = Var("a"), Var("b"), Var("c")
    assert quotient(a + 7, as_index(4)) is floordiv(a + 7, 4)
    e = quotient(a - 3, product(b, c) + 1)
    assert str(e) == "(a - 3) // (b * c + 1)" and parse_index(str(e)) is e
    for other in (e * 2 - a, product(quotient(a, b), b) - a, quotient(quotient(a, b), c), e % 3, a - quotient(a, b)):
        assert parse_index(str(other)) is other
    for number in range(-9, 9):
        for low in (1, 2, 5):
            values = {a: number, b: low, c: 2}
            assert evaluate(e, values) == (number - 3) // (low * 2 + 1)
            lo, hi = interval(e, {a: (number - 2, number + 1), b: (1, low), c: (2, 3)})
            assert lo <= evaluate(e, values) <= hi
    assert substitute_index(e, {b: as_index(2), c: as_index(3)}) is floordiv(a - 3, 7)


def substitute_index(e: Index, values: dict[Var, Index]) -> Index:
    return Substitute(values).expr(e)


def test_what_an_index_refuses() -> None:
    a, b = Var("a"), Var("b")
    with pytest.raises(TypeError, match=r"a product of two variables is not an index: \(a\) \* \(b\)"):
        a * b
    for den in (0, -2):
        with pytest.raises(ValueError, match=f"division by {den}: only positive constants"):
            a // den
        with pytest.raises(ValueError, match=f"modulo by {den}"):
            a % den
    with pytest.raises(TypeError, match="a is not a constant"):
        int(a)
    assert int(as_index(7)) == 7
    with pytest.raises(TypeError, match="no truth value"):
        bool(a < b)


def test_equality_is_identity_and_builds_nothing() -> None:
    a = Var("a")
    assert (a == Var("a")) is True
    assert (a == Var("b")) is False
    assert hash(a) == hash(Var("a"))
