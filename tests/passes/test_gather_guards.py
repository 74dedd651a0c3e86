"""`gather_guards` brings sums under equal conditions together, if the sums of a register keep their order."""

from __future__ import annotations

from convsmith.ir.parse import parse_kernel
from convsmith.passes.gather_guards import gather_guards

HEAD = """kernel k(a: f32[12], dst: f32[8], n)
  alloc x: f32[2] @register:
"""


def _gathered(body: str) -> list[str]:
    kernel = parse_kernel(HEAD + "".join(f"    {line}\n" for line in body.strip().splitlines()))
    lines = str(gather_guards(kernel)).splitlines()[2:]
    return [line.strip() for line in lines if line.strip().startswith("x[")]


def test_sums_of_a_register_keep_their_order() -> None:
    sums = "if n >= 1: x[0] = x[0] + a[0]\nif n >= 2: x[0] = x[0] + a[1]\nif n >= 1: x[0] = x[0] + a[2]"
    assert _gathered(sums) == ["x[0] = x[0] + a[0]", "x[0] = x[0] + a[1]", "x[0] = x[0] + a[2]"]


def test_statements_that_read_other_registers_stay() -> None:
    sums = "if n >= 1: x[0] = x[0] + a[0]\nif n >= 2: x[1] = x[1] + x[0]\nif n >= 1: x[0] = x[0] + a[2]"
    assert _gathered(sums) == ["x[0] = x[0] + a[0]", "x[1] = x[1] + x[0]", "x[0] = x[0] + a[2]"]


def test_conditions_on_lanes_do_not_count() -> None:
    one = "if n >= 1 and lane_number >= 1: x[0] = x[0] + a[0]\nif n >= 2: x[0] = x[0] + a[1]"
    two = "if n >= 1 and lane_number >= 2: x[1] = x[1] + a[2]"
    assert _gathered(f"{one}\n{two}") == ["x[0] = x[0] + a[0]", "x[1] = x[1] + a[2]", "x[0] = x[0] + a[1]"]
