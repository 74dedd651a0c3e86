"""Vectors that cross blocks have a case for each place in a block; others stay as they are."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.cross_blocks import cross_blocks
from convsmith.passes.vectorise import vectorise


def groups(count: int, channels: int, block: int, place: str = "") -> Kernel:
    """Groups of ``channels``, each written as a vector to blocks that are 100 elements apart."""
    at = place or f"g * {channels} + l"
    return parse_kernel(f"""kernel k(a: f32[{count * channels}], dst: f32[4000])
  for g in 0 .. {count}:
    for l in 0 .. {channels}:
      dst[({at}) % {block} + ({at}) // {block} * 100] = a[g * {channels} + l]
""")


@pytest.mark.parametrize("count, channels, block", [(4, 3, 4), (8, 6, 16), (5, 12, 16), (3, 4, 16), (2, 7, 8)])
def test_each_group_writes_its_channels(count: int, channels: int, block: int) -> None:
    kernel = groups(count, channels, block)
    made = cross_blocks(kernel, "l")
    assert made is not kernel
    assert_same_results(kernel, made)
    vectors = vectorise(made, "l", channels, True)
    assert_same_results(kernel, vectors)


def test_cases_are_those_that_occur() -> None:
    assert str(cross_blocks(groups(8, 12, 16), "l")).count("if ") == 4
    assert str(cross_blocks(groups(2, 12, 16), "l")).count("if ") == 2
    assert str(cross_blocks(groups(1, 12, 16), "l")).count("if ") == 0


@pytest.mark.parametrize("kernel", [groups(4, 16, 16), groups(4, 3, 4, "g * 4 + l"), groups(4, 3, 4, "g * 8 + l")])
def test_groups_that_begin_with_a_block_are_left(kernel: Kernel) -> None:
    assert cross_blocks(kernel, "l") is kernel


def test_more_cases_than_permitted_are_left() -> None:
    kernel = groups(8, 3, 16)
    assert cross_blocks(kernel, "l", 7) is kernel
    assert cross_blocks(kernel, "l", 8) is not kernel


def test_loops_in_the_nest_are_unrolled() -> None:
    kernel = parse_kernel("""kernel k(a: f32[48], dst: f32[4000])
  for g in 0 .. 4:
    for v in 0 .. 3 #unrolled:
      for l in 0 .. 4:
        dst[(g * 12 + v * 4 + l) % 16 + (g * 12 + v * 4 + l) // 16 * 100] = a[g * 12 + v * 4 + l]
""")
    made = cross_blocks(kernel, "l")
    assert "for v" not in str(made)
    assert_same_results(kernel, made)
