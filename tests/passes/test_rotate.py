"""A rotated loop runs the same iterations, where their order has no effect."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.passes.bind import bind
from convsmith.passes.rotate import rotate

BODY = """kernel k(a: f32[8], d: f32[8])
  for n in 0 .. 2:
    for i in 0 .. {end}:
      d[{at}] = d[{at}] + a[i + n]
"""


@pytest.mark.parametrize("start", range(5))
@pytest.mark.parametrize("kind", ["serial", "grid"])
def test_iterations_run_once(start: int, kind: str) -> None:
    kernel = parse_kernel(BODY.format(end=5, at="i"))
    kernel = bind(kernel, ("i",), kind) if kind == "serial" else parse_kernel(
        "kernel k(a: f32[8], d: f32[8])\n  for i in 0 .. 5 #grid:\n    d[i] = a[i + 2]\n"
    )  # fmt: skip
    made = rotate(kernel, "i", start)
    assert (made is kernel) == (start == 0)
    if start:
        assert_same_results(kernel, made)


def test_an_order_that_has_an_effect_is_refused() -> None:
    text = "kernel k(a: f32[8], d: f32[8])\n  for i in 0 .. 5:\n    d[i + 1] = d[i] * a[i]\n"
    with pytest.raises(ConfigError) as error:
        rotate(parse_kernel(text), "i", 2)
    assert error.value.code == "dependence"


@pytest.mark.parametrize(("end", "start"), [("5", 5), ("5", -1), ("n + 2", 1)])
def test_a_start_outside_of_the_loop_is_refused(end: str, start: int) -> None:
    with pytest.raises(ConfigError, match="legal are an end that is a number") as error:
        rotate(parse_kernel(BODY.format(end=end, at="i")), "i", start)
    assert error.value.code == "bounds"
