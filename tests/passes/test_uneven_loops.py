"""Loops whose ends depend on outer loops: they are fused, and pipelined across the iterations of a loop around them."""

from __future__ import annotations

from itertools import product

import pytest
from oracles import assert_same_results

from convsmith.arith.evaluate import evaluate
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var
from convsmith.ir.parse import parse_kernel
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of
from convsmith.passes.bind import bind
from convsmith.passes.fuse import fuse
from convsmith.passes.pipeline_copies import pipeline_copies
from convsmith.passes.residue import residue

NEST = """kernel k(a: f32[8, 8], d: f32[4, 40])
  for r in 0 .. 4:
    for i in 0 .. {outer}:
      for j in 0 .. {inner}:
        d[r, i * 6 + j] = a[i, j] + a[j, i]
"""
COUNTS = ("r % 2", "r % 2 + 1", "r % 2 + 2", "r", "r + 2", "(r + 1) // 4 * 2", "min(r * 3, 5)", "3")


@pytest.mark.parametrize(("outer", "inner"), list(product(COUNTS, COUNTS)))
def test_fused_loops_run_the_same_iterations(outer: str, inner: str) -> None:
    kernel = parse_kernel(NEST.format(outer=outer, inner=inner))
    made = fuse(kernel, "i", "j", "i_j")
    assert [x.var.name for x in loops_of(made.body)] == ["r", "i_j"]
    assert_same_results(kernel, made)


@pytest.mark.parametrize("inner", ["r % 2", "r % 2 + 1", "r % 2 + 3"])
def test_no_variable_divides_for_two_counts(inner: str) -> None:
    made = fuse(parse_kernel(NEST.format(outer="3", inner=inner)), "i", "j", "i_j")
    assert "i_j // (" not in str(made)


@pytest.mark.parametrize("inner", ["i + 1", "r - 2"])
def test_a_count_that_varies_or_may_be_negative_is_refused(inner: str) -> None:
    with pytest.raises(ConfigError, match="equally often") as error:
        fuse(parse_kernel(NEST.format(outer="3", inner=inner)), "i", "j", "i_j")
    assert error.value.code == "bounds"


TILES = """kernel k(a: f32[64, 4], d: f32[24])
  for x in 0 .. {tiles}:
    alloc acc: f32[] @register:
      acc[] = 0.0
      for s in 0 .. {steps}:
        alloc t: f32[4] @shared:
          tensor t[0] = a[0, 0] dims(4:1, 64:4) box(4, 1) at(0, x + s)
          for w in 0 .. 1:
            acc[] = acc[] + t[x % 4]
      d[x] = acc[]
"""
STEPS = ("x // 4 % 2", "x // 3", "3 - x // 8", "min(x, 4)", "(x // 6) * (x // 6)")


def value(i: Index, **variables: int) -> int:
    return int(evaluate(i, {Var(n): x for n, x in variables.items()}))


@pytest.mark.parametrize("turning", [False, True])
@pytest.mark.parametrize(("steps", "tiles", "groups"), list(product(STEPS, (7, 16, 24), (1, 3, 5))))
def test_steps_of_rounds_are_numbered_without_gaps(steps: str, tiles: int, groups: int, turning: bool) -> None:
    kernel = bind(parse_kernel(TILES.format(tiles=tiles, steps=steps)), ("x",), "grid")
    kernel = residue(kernel, "x", groups, "g", turning)
    made = pipeline_copies(kernel, "s", 3, "x")
    (steps_before,) = (x.hi for x in loops_of(kernel.body) if x.var.name == "s")
    (group, rounds, loop) = (x for x in loops_of(made.body) if x.var.name in ("g", "x", "s"))
    for g in range(group.hi.const):
        end = 0
        for x in range(value(rounds.hi, g=g)):
            lo, hi = (value(i, g=g, x=x) for i in (loop.lo, loop.hi))
            assert lo == end and hi - lo == value(steps_before, g=g, x=x)
            end = hi
    verify(made)
    assert_same_results(kernel, made)


def test_steps_that_depend_on_a_loop_between_are_refused() -> None:
    text = TILES.format(tiles=4, steps="s").replace("for s in 0 .. s", "for s in 0 .. y + 1").replace("x + s", "y + s")
    lines = text.splitlines(keepends=True)
    kernel = parse_kernel("".join([*lines[:2], "    for y in 0 .. 2:\n", *("  " + x for x in lines[2:])]))
    with pytest.raises(ConfigError, match="one loop over groups"):
        pipeline_copies(kernel, "s", 3, "x")


def test_steps_that_change_from_tile_to_tile_are_refused() -> None:
    kernel = parse_kernel(TILES.format(tiles=60, steps="x % 2 + 1").replace("d: f32[24]", "d: f32[60]"))
    with pytest.raises(ConfigError, match="change more than 32 times"):
        pipeline_copies(residue(bind(kernel, ("x",), "grid"), "x", 3, "g"), "s", 3, "x")
