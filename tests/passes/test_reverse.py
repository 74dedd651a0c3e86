"""A reversed loop runs the same iterations, where their order has no effect."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.machine.registry import target
from convsmith.passes.reverse import reverse
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

ROWS = """kernel k(a: f32[16], d: f32[16])
  for i in 0 .. 4:
    d[i] = a[i + 8]
  for i in {start} .. 6:
    for t in 0 .. 3:
      d[{at}] = d[{read}] + a[i + t]
"""


@pytest.mark.parametrize("start", [0, 2])
def test_iterations_around_the_inner_loop_run_from_the_last_to_the_first(start: int) -> None:
    kernel = parse_kernel(ROWS.format(start=start, at="i", read="i"))
    made = reverse(kernel, "i", "t")
    assert_same_results(kernel, made)
    text = str(made)
    assert "d[i] = a[i + 8]" in text
    assert f"d[-i + {start + 5}] = d[-i + {start + 5}]" in text


def test_an_order_that_has_an_effect_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        reverse(parse_kernel(ROWS.format(start=0, at="i + 1", read="i")), "i", "t")
    assert error.value.code == "dependence"


CASES = [
    ("--deconv g8mb1ic8ih9oc8oh11kh3ph0", 1),
    ("--dir=BWD_D g8mb1ic8ih9oc8oh9kh3ph1", 1),
    ("g8mb1ic8ih11oc8oh9kh3ph0", 0),
]


@pytest.mark.parametrize(("line", "count"), CASES)
def test_rows_run_against_taps_where_the_next_tap_is_that_of_the_row_before(line: str, count: int) -> None:
    row, column, channel, term = ("ih", "iw", "ic", "oc") if "BWD_D" in line else ("oh", "ow", "oc", "ic")
    words = f"--register={channel}:1,{row}:3,{column}:8,kh:3 --order=mb,g,{row},{column},{channel}"
    config = Config.parse(f"--target=avx2 --lane={column} {words} --reduce=kw,{term},kh --realise=pad_copy")
    steps = plan(parse_problem(f"--stag=abx --dtag=abx {line}"), config, target("avx2")).pipeline
    found = [step.args for step in steps if step.run is reverse]
    assert [tuple(map(str, x)) for x in found] == [(f"{row}.i", "kh.u")] * count
