"""Tails become whole where only registers see it; reads and writes beyond an array's end stay as they are."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.round_up import round_up


def tail(read: str, packed: str = "f32[3, 4]", write: str = "acc[l] = {}", scope: str = "register") -> Kernel:
    return parse_kernel(f"""kernel k(a: {packed}, d: f32[10])
  for o in 0 .. 3:
    alloc acc: f32[4] @{scope}:
      for l in 0 .. min(-o * 4 + 10, 4):
        {write.format(read)}
      for m in 0 .. min(-o * 4 + 10, 4):
        d[m + o * 4] = acc[m]
""")


@pytest.mark.parametrize("scope", ["register", "cache"])
def test_a_tail_of_registers_and_of_own_memory(scope: str) -> None:
    kernel = tail("a[o, l]", scope=scope)
    made = round_up(kernel, ("l",))
    assert "for l in 0 .. 4:" in str(made)
    assert_same_results(kernel, made)


@pytest.mark.parametrize(
    "kernel",
    [
        tail("a[o * 4 + l]", "f32[10]"), tail("a[o, l]", "f32[3, 3]"), tail("a[o, l - 1]"), tail("a[2 - o, l + 1]"),
        tail("a[o, l]", write="d[l + o * 4] = {}"), tail("a[o, l]", write="a[o, l] = {} + 1.0"),
        tail("a[o, l]", write="acc[l + 1] = {}", scope="cache"),
    ],
    ids=["row-ends", "one-too-few", "before", "beyond", "writes-results", "writes-what-it-reads", "beyond-own-memory"],
)  # fmt: skip
def test_these_are_left(kernel: Kernel) -> None:
    assert round_up(kernel, ("l",)) is kernel


def test_a_loop_whose_new_iterations_write_what_is_read_keeps_its_end() -> None:
    kernel = parse_kernel("""kernel k(a: f32[8], d: f32[1])
  alloc acc: f32[4] @register:
    for m in 0 .. 4:
      acc[m] = 1.0
    for l in 0 .. 3:
      acc[l] = a[l]
    d[0] = acc[3]
""")
    assert round_up(kernel, ("l",), (("l", 4),)) is kernel


def test_one_channel_of_own_memory_is_written_by_no_added_lane() -> None:
    """A result of one channel has no coordinate that tells lanes apart: each added lane would write the channel."""
    kernel = parse_kernel("""kernel k(a: f32[5, 4], d: f32[5])
  alloc kept: f32[5, 1] @cache:
    for i in 0 .. 5:
      alloc acc: f32[4] @register:
        for l in 0 .. 1:
          acc[l] = a[i, l]
        for l in 0 .. 1:
          kept[i, 0] = acc[l]
    for i in 0 .. 5:
      d[i] = kept[i, 0]
""")
    made = round_up(kernel, ("l",), (("l", 4),))
    assert str(made).count("for l in 0 .. 4:") == str(made).count("for l in 0 .. 1:") == 1
    assert_same_results(kernel, made)


@pytest.mark.parametrize(("read", "whole"), [("a[k, l]", True), ("a[k, l + 1]", False)], ids=["padded", "row-ends"])
def test_sums_that_memory_keeps_have_the_lanes_that_are_added_to(read: str, whole: bool) -> None:
    """Lanes that no loop adds to are neither stored nor loaded, so that nothing reads them."""
    kernel = parse_kernel(f"""kernel k(a: f32[6, 4], d: f32[3])
  alloc kept: f32[4] @cache:
    for b in 0 .. 2:
      alloc acc: f32[4] @register:
        if b < 1:
          for l in 0 .. 3:
            acc[l] = 0.0
        if b >= 1:
          for l in 0 .. 3:
            acc[l] = kept[l]
        for k in 0 .. 3:
          for l in 0 .. 3:
            acc[l] = acc[l] + {read}
        if b < 1:
          for l in 0 .. 3:
            kept[l] = acc[l]
        if b >= 1:
          for m in 0 .. 3:
            d[m] = acc[m]
""")
    made = round_up(kernel, ("l",), (("l", 4),))
    assert str(made).count("for l in 0 .. 4:") == (4 if whole else 1)
    assert_same_results(kernel, made)


def test_a_tile_without_an_iteration_stays_without() -> None:
    """The last vector of a tile of two: its first value is not set either. A mask and the loop's end become one test.
    """
    kernel = parse_kernel("""kernel k(a: f32[2, 3, 4], d: f32[16])
  for o in 0 .. 2:
    alloc acc: f32[3, 4] @register:
      for v in 0 .. 3:
        for l in 0 .. min(-o * 8 - v * 4 + 16, 4):
          for q in 0 .. 1:
            if q + o >= 0:
              acc[v, l] = a[o, v, l]
      for v in 0 .. 2:
        for l in 0 .. 4:
          d[l + o * 8 + v * 4] = acc[v, l]
""")
    made = round_up(kernel, ("l",))
    assert "for l in 0 .. 4:" in str(made) and "if min(-o * 8 - v * 4 + 16, 4) - 1 >= 0 and " in str(made)
    assert str(made).count("if ") == 1
    assert_same_results(kernel, made)
