"""Vectors write the zeros that a layout in blocks adds, unless some of these zeros would be missing or misplaced."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import assert_same_results

import convsmith as cs
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.machine.registry import host_targets
from convsmith.passes.fill_blocks import fill_blocks


def blocks(
    store: str = "d[i * 4]{4/3}", value: str = "a[i * 4]{4}", pads: str = "3 .. 4", rest: str = "d[i * 4 + 16]{4}",
    around: str = "for j in 0 .. 1",
) -> Kernel:  # fmt: skip
    """Four blocks whose last element is zero, and four whole ones."""
    return parse_kernel(f"""kernel k(a: f32[32], d: f32[32])
  for i in 0 .. 4:
    {around}:
      {store} = {value}
      {rest} = a[i * 4]{"{4}" * ("{" in rest)}
  for pad0 in 0 .. 4:
    for pad1 in {pads}:
      d[pad0 * 4 + pad1] = 0.0
""")


@pytest.mark.parametrize("value", ["a[i * 4]{4}", "a[i * 4]{4} * a[i * 4 + 1]{4} + a[0]{4}"])
def test_whole_vectors_replace_the_nest_of_zeros(value: str) -> None:
    kernel = blocks(value=value)
    made = fill_blocks(kernel, "d", 4)
    assert "pad" not in str(made) and "d[i * 4]{4} = " in str(made)
    assert_same_results(kernel, made)


@pytest.mark.parametrize(
    ("shape", "element", "replaced"),
    [("4", "0", True), ("2, 4", "1, 0", True), ("4", "1", False), ("8", "0", False), ("1", "0", False)],
)
def test_the_first_element_of_a_register_is_part_of_a_vector(shape: str, element: str, replaced: bool) -> None:
    kernel = parse_kernel(f"""kernel k(a: f32[32], d: f32[32])
  for i in 0 .. 4:
    alloc acc: f32[{shape}] @register:
      acc[{element}] = a[i * 4]
      d[i * 4] = acc[{element}]
  for pad0 in 0 .. 4:
    for pad1 in 1 .. 4:
      d[pad0 * 4 + pad1] = 0.0
""")
    made = fill_blocks(kernel, "d", 4)
    assert ("pad" not in str(made)) == (f"d[i * 4]{{4}} = acc[{element}]{{4/1}}" in str(made)) == replaced
    assert_same_results(kernel, made)


@pytest.mark.parametrize(
    ("stored", "runs", "pads"),
    [
        ("d[i * 16]{4/3}", 4, "3 .. 16"),
        ("d[i * 16]{4}", 4, "4 .. 16"),
        ("d[i * 16]{4}", 3, None),
        ("d[i * 8]{4}", 4, None),
        ("d[i * 16 + 4]{4}", 4, None),
        ("d[i * 16]{4/3}", 4, "3 .. 15"),
    ],
    ids=["partial", "whole", "fewer-runs", "shorter-blocks", "second-vector", "short-run"],
)
def test_vectors_of_zeros_continue_the_last_channels(stored: str, runs: int, pads: str | None) -> None:
    kernel = parse_kernel(f"""kernel k(a: f32[16], d: f32[64])
  for i in 0 .. 4:
    {stored} = a[i * 4]{{4}}
  for pad0 in 0 .. {runs}:
    for pad1 in {pads or "4 .. 16"}:
      d[pad0 * 16 + pad1] = 0.0
""")
    made = fill_blocks(kernel, "d", 4)
    is_replaced = pads in ("3 .. 16", "4 .. 16")
    assert ("pad0" not in str(made)) == is_replaced
    assert all((f"d[i * 16 + {n}]{{4}} = 0.0" in str(made)) == is_replaced for n in (4, 8, 12))
    assert_same_results(kernel, made)


@pytest.mark.parametrize(
    "kernel",
    [
        blocks(store="d[i * 4 + 1]{4/3}"),
        blocks(store="d[i * 2]{4/3}"),
        blocks(store="d[i * 4]{4:2/3}"),
        blocks(pads="2 .. 4"),
        blocks(store="d[i * 4]{4/2}"),
        blocks(store="d[i * 4]{4}"),
        blocks(rest="d[i * 4 + 16]"),
        blocks(store="d[i * 4]", value="a[i * 4]", pads="1 .. 4"),
        blocks(rest="d[i + 16]{4}"),
        blocks(around="for j in 0 .. 2"),
        blocks(around="if i >= 0"),
        blocks(around="for j in i .. i + 1"),
    ],
    ids=[
        "off-by-one", "overlapping", "strided", "more-zeros", "other-lanes", "whole", "scalar", "of-memory",
        "unaligned", "twice", "conditional", "unknown-count",
    ],
)  # fmt: skip
def test_these_are_left(kernel: Kernel) -> None:
    assert fill_blocks(kernel, "d", 4) is kernel


def test_vectors_of_zeros_have_the_lanes_of_the_vector_before_them() -> None:
    kernel = parse_kernel("""kernel k(a: f32[64], d: f32[64])
  for i in 0 .. 4:
    d[i * 16]{8/7} = a[i * 16]{8}
  for pad0 in 0 .. 4:
    for pad1 in 7 .. 16:
      d[pad0 * 16 + pad1] = 0.0
""")
    made = fill_blocks(kernel, "d", 4)
    assert "pad0" not in str(made) and "d[i * 16 + 8]{8} = 0.0" in str(made)
    assert_same_results(kernel, made)


def test_padding_is_zero_whatever_the_source_holds() -> None:
    """Products of packed zeros and of values that are not finite are no zeros."""
    kernel = cs.compile("--stag=aBx16b --dtag=aBx16b mb1ic16ih5oc24oh5kh1ph0", threads=1, target="avx512")
    assert "pad1" not in kernel.ir()
    if "avx512" not in {level.name for level in host_targets()}:
        pytest.skip("this machine lacks avx512")
    result = kernel(np.full((1, 1, 5, 5, 16), np.inf, np.float32), np.ones((24, 16, 1, 1), np.float32))
    assert np.isinf(result[:, 0]).all() and np.isinf(result[:, 1, ..., :8]).all()
    assert not result[:, 1, ..., 8:].any()


@pytest.mark.parametrize(
    "line",
    [
        "--stag=aBx16b --dtag=aBx16b g8mb1ic8ih6oc8oh6kh3ph1",
        "--stag=aBx16b --dtag=aBx16b mb3ic1ih7oc1oh4kh4ph0",
        "--stag=aBx16b --dtag=aBx16b mb1ic3ih5oc20oh5kh1ph0",
        "--dir=BWD_D --stag=aBx16b --dtag=aBx16b mb2ic2ih8oc2oh8kh1ph0",
    ],
)
def test_the_zeros_of_blocks_of_two_vectors_leave_with_the_channels(line: str) -> None:
    kernel = cs.compile(line, threads=1, target="avx2")
    assert "pad1" not in kernel.ir()
    if "avx2" in {level.name for level in host_targets()}:
        assert kernel.verify().ok
