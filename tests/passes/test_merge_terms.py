"""Products of one term become products of several: which terms merge, and which products stay."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.interp import run
from convsmith.ir.instruction import Instruction, vector
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Invoke, Kernel
from convsmith.ir.walk import statements_of
from convsmith.machine.base import dot
from convsmith.passes.merge_terms import merge_terms

PAIRS = dot("pairs", 4, 2, ("s8", "s8", "s32"), "", "", (), "")
BODY = "  for l in 0 .. 4:\n    c[l] = c[l] + cast(s32, a[l]) * cast(s32, b[l])\n"
OPERANDS = tuple(vector(x, t, 4) for x, t in zip("cab", ("s32", "s8", "s8")))
SINGLE = Instruction("single", OPERANDS, BODY, "", "", (), "")
HEAD = "kernel k(a: s8[48], b: s8[48], dst: s32[8], n)\n  alloc acc: s32[2, 4] @register:\n"


def kernel_of(*products: tuple[int, int, int], guard: int = -1) -> Kernel:
    """Sums at (sum, offset of a, offset of b); those from the position ``guard`` on run under a condition."""
    lines = [f"    acc[{n}, 0]{{4}} = s32(0)" for n in range(2)]
    for at, (c, a, b) in enumerate(products):
        if at == guard:
            lines.append("    if n - 1 >= 0:")
        lines.append(f"{' ' * (6 if 0 <= guard <= at else 4)}single(acc[{c}, 0]{{4}}, a[{a}]{{4}}, b[{b}]{{4}})")
    lines += [f"    dst[{4 * n}]{{4}} = acc[{n}, 0]{{4}}" for n in range(2)]
    return parse_kernel(HEAD + "\n".join(lines) + "\n")


def invoked(kernel: Kernel) -> list[Invoke]:
    return [s for s in statements_of(kernel.body) if isinstance(s, Invoke)]


def check(kernel: Kernel) -> list[str]:
    """Return the instructions after merging; the results must be those of before."""
    made = merge_terms(kernel, SINGLE, PAIRS)
    rng = np.random.default_rng(0)
    given = {x: rng.integers(-9, 10, 48, dtype="i1") for x in "ab"}
    results = []
    for each in (kernel, made):
        dst = np.zeros(8, "i4")
        rows = {x.name: x.kernel for x in (SINGLE, PAIRS)}
        run(each, {**given, "dst": dst}, rows, {"n": 1})
        results.append(dst)
    np.testing.assert_array_equal(*results)
    return [s.instruction for s in invoked(made)]


def test_an_odd_term_stays() -> None:
    assert check(kernel_of((0, 0, 0), (0, 8, 4), (0, 16, 8))) == ["pairs", "single"]


def test_factors_in_opposite_orders_merge() -> None:
    assert check(kernel_of((0, 16, 0), (0, 8, 4), (1, 24, 0), (1, 16, 4))) == ["pairs", "pairs"]


def test_the_distance_with_the_fewest_vectors_is_taken() -> None:
    """Both sums have two taps in two rows, and their columns overlap: rows merge, whose vectors they share."""
    products = [(c, 4 * (c + k) + 16 * r, 16 * r + 4 * k) for c in range(2) for r in range(2) for k in range(2)]
    made = merge_terms(kernel_of(*products), SINGLE, PAIRS)
    vectors = {str(x.args[0]) for x in invoked(made)}
    assert len(invoked(made)) == 4 and len(vectors) == 3


def test_terms_under_a_condition_merge_among_themselves() -> None:
    assert check(kernel_of((0, 0, 0), (0, 8, 4), (0, 16, 8), guard=1)) == ["single", "pairs"]


@pytest.mark.parametrize("products", [[(0, 0, 0)], [(0, 0, 0), (1, 8, 4)], [(0, 8, 0), (0, 8, 4)]])
def test_single_terms_and_equal_elements_stay(products: list[tuple[int, int, int]]) -> None:
    assert "pairs" not in check(kernel_of(*products))


def test_absent_lanes_stay() -> None:
    text = str(kernel_of((0, 0, 0), (0, 8, 4))).replace("a[8]{4}", "a[8]{4/3}")
    assert [s.instruction for s in invoked(merge_terms(parse_kernel(text), SINGLE, PAIRS))] == ["single", "single"]
