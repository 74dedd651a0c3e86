"""Conditions on a loop's variable become its bounds: the same iterations run, for every factor and offset."""

from __future__ import annotations

from itertools import product

import pytest
from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.passes.restrict import restrict


def guarded(cond: str, lo: int = 0, hi: int = 6) -> str:
    return f"""kernel k(d: f32[8, 12])
  for o in 0 .. 8:
    d[o, 0] = 10.0
    for i in {lo} .. {hi}:
      if {cond}:
        d[o, i + 2] = d[o, i + 2] + 1.0
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("factor", [-3, -2, -1, 1, 2, 3])
def test_every_factor_and_offset(factor: int) -> None:
    """Bounds round inwards: a tap that lies between two pixels is not there."""
    for outer, offset in product((-2, -1, 1, 3), range(-5, 6)):
        kernel = parse_kernel(guarded(f"i * {factor} + o * {outer} + {offset} >= 0"))
        made = restrict(kernel, ("i",))
        assert "if " in str(kernel) and "if " not in str(made)
        assert_same_results(kernel, made)


@pytest.mark.parametrize(
    "cond",
    [
        "i * 2 + o - 3 >= 0 and -i * 3 + o + 4 >= 0",
        "i * 2 - o >= 0 and i * 3 - 5 >= 0 and -i * 2 - o + 9 >= 0",
        "i % 2 == 0 and i * 2 - o >= 0",
        "i // 2 - o >= 0 and i - 1 >= 0",
        "i + o - 4 == 0 and i - 1 >= 0",
    ],
)
@pytest.mark.parametrize(("lo", "hi"), [(0, 6), (-2, 3), (2, 9), (3, 4)])
def test_several_conditions(cond: str, lo: int, hi: int) -> None:
    kernel = parse_kernel(guarded(cond, lo, hi))
    made = restrict(kernel, ("i",))
    assert made is not kernel
    assert_same_results(kernel, made)


def test_a_condition_on_an_inner_loop_stays() -> None:
    text = """kernel k(d: f32[8, 12])
  for i in 0 .. 4:
    for j in 0 .. 4:
      if i * 2 - j - 1 >= 0 and i - 1 >= 0:
        d[i, j] = 1.0
"""
    kernel = parse_kernel(text)
    made = restrict(kernel, ("i",))
    assert "for i in 1 .. 4" in str(made) and "if i * 2 - j - 1 >= 0" in str(made)
    assert_same_results(kernel, made)


@pytest.mark.parametrize("offset", range(-3, 4))
@pytest.mark.parametrize("factor", [-2, -1, 1, 2])
def test_a_loop_of_one_iteration_runs_if_conditions_outside_it_hold(factor: int, offset: int) -> None:
    """As the only tap of a kernel does in the padding: no product is guarded within the loops over channels."""
    kernel = parse_kernel(f"""kernel k(d: f32[8, 12])
  for o in 0 .. 8:
    for k in {offset} .. {offset + 1}:
      for i in 0 .. 3:
        if o * {factor} + {offset + 4} >= 0 and -o + 5 >= 0:
          d[o, i] = 1.0
""")
    made = restrict(kernel, ("k", "i"))
    assert "if " in str(kernel) and "if " not in str(made)
    assert_same_results(kernel, made)


def test_a_loop_of_more_iterations_keeps_conditions_outside_it() -> None:
    kernel = parse_kernel(guarded("o - 3 >= 0"))
    assert "if o - 3 >= 0" in str(restrict(kernel, ("i",)))
    assert_same_results(kernel, restrict(kernel, ("i",)))
