"""Sums without terms run no loop over terms; others keep theirs."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.passes.end_sums import end_sums

SUMS = """kernel k(a: f32[12, 6], d: f32[24])
  for r in 0 .. 4:
    for i in 0 .. 3:
      alloc acc: f32[] @register:
        acc[] = 0.0
        for k in 0 .. {end}:
          for j in 0 .. 2:
            acc[] = acc[] + (a[i + r + k, j * 2] if {cond} else 0.0)
        d[i * 4 + r] = acc[]
"""


@pytest.mark.parametrize("end", ["1", "5", "r + 1", "min(r * 2, 4)"])
@pytest.mark.parametrize(
    "cond",
    ["r % 2 == 0", "(r + 1) % 2 == 0", "r - 2 == 0", "r - 3 == 0", "r - 2 >= 0", "-r * 2 + 3 >= 0", "(r + 3) % 4 == 0"],
)
def test_the_same_terms_are_added(cond: str, end: str) -> None:
    kernel = parse_kernel(SUMS.format(cond=cond, end=end))
    made = end_sums(kernel, ("k",), ("r",))
    assert " if " in str(kernel) and " if " not in str(made)
    assert_same_results(kernel, made)


@pytest.mark.parametrize("cond", ["i + r - 2 >= 0", "-k + 2 >= 0", "j - 1 == 0"])
def test_conditions_on_other_loops_stay(cond: str) -> None:
    kernel = parse_kernel(SUMS.format(cond=f"{cond} and r % 2 == 0", end="3"))
    made = end_sums(kernel, ("k",), ("r",))
    assert f" if {cond} else " in str(made)
    assert_same_results(kernel, made)


def test_a_loop_that_adds_more_than_one_term_is_unchanged() -> None:
    text = SUMS.format(cond="r % 2 == 0", end="3") + "        d[i * 4 + r + 8] = 1.0\n"
    kernel = parse_kernel(text.replace("d[i * 4 + r] = acc[]", "acc[] = acc[] + 1.0"))
    assert end_sums(kernel, ("i",), ("r",)) is kernel


def test_an_unknown_loop_is_refused() -> None:
    with pytest.raises(ConfigError, match="no loop 'x'"):
        end_sums(parse_kernel(SUMS.format(cond="r % 2 == 0", end="3")), ("x",), ("r",))
