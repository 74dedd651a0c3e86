"""Scattered vectors of a result become vectors of its neighbours; other nests stay."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.interp.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.passes.transpose_stores import transpose_stores

HEAD = "kernel k(a: f32[64], d: f32[256])\n"


def nest(pixels: int, lanes: int, store: str, value: str) -> str:
    loops = f"  for i in 0 .. {pixels}:\n    for v in 0 .. 2:\n      for l in 0 .. {lanes}:\n"
    return f"{HEAD}{loops}        d[{store}] = {value}\n"


@pytest.mark.parametrize("pixels", [2, 3, 4, 5, 9])
@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_neighbours_are_written_side_by_side(pixels: int, lanes: int) -> None:
    """Also where the loop of neighbours is longer than a vector, and where either is shorter."""
    value = "a[i * 4 + l]" if lanes < 4 else "a[i * 4 + l] + 1.0"
    kernel = parse_kernel(nest(pixels, lanes, "v * 128 + l * 16 + i", value))
    made = transpose_stores(kernel, "i", "l", (4, 4))
    assert str(made).count("alloc d_u") == -(-pixels // 4)
    assert_same_results(kernel, made)


@pytest.mark.parametrize(
    ("store", "value"),
    [
        ("v * 128 + i * 16 + l", "a[i]"),  # vectors are not scattered
        ("v * 128 + l * 16 + i * 2", "a[i]"),  # no neighbours
        ("v * 128 + l * 16 + i", "d[v * 128 + l * 16 + i + 64] + a[l]"),  # reads what it writes elsewhere
    ],
)
def test_others_stay(store: str, value: str) -> None:
    kernel = parse_kernel(nest(4, 4, store, value))
    assert transpose_stores(kernel, "i", "l", (4, 4)) is kernel


ADDEND = "d[v * 128 + l * 16 + i]"


@pytest.mark.parametrize(
    ("value", "is_split"),
    [
        (f"acc[i, v, l] * 2.0 + {ADDEND}", True),
        (f"max(acc[i, v, l] + {ADDEND}, 0.0) * max(acc[i, v, l] + {ADDEND}, 1.0)", True),
        ("acc[i, v, l] + b[v * 128 + l * 16 + i]", True),
        ("acc[i, v, l] + d[v * 128 + l * 16 + i + 64]", False),  # another element of the result
        (f"acc[i, v, l] + {ADDEND} * (acc[i, v, l] + 1.0)", False),  # no single part of the value has the sums
    ],
)
@pytest.mark.parametrize("pixels", [3, 4, 9])
def test_addends_are_read_where_they_are_added(value: str, is_split: bool, pixels: int) -> None:
    """An addend that lies in memory like the result is no vector of distant elements."""
    loops = f"    for i in 0 .. {pixels}:\n      for v in 0 .. 2:\n        for l in 0 .. 4:\n"
    made = parse_kernel(
        "kernel k(a: f32[128], b: f32[256], d: f32[256])\n"
        f"  alloc acc: f32[{pixels}, 2, 4] @register:\n"
        f"{loops}          acc[i, v, l] = a[i * 8 + v * 4 + l]\n"
        f"{loops}          d[v * 128 + l * 16 + i] = {value}\n"
    )
    split = transpose_stores(made, "i", "l", (4, 4))
    assert_same_results(made, split)
    after = [x for x in str(split).splitlines() if "d[t" in x]
    assert (split is not made) == is_split
    if is_split:
        assert after and all("d_u[" in x and ("l * 16" not in x) for x in after)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_full_and_last_vectors_are_transposed_apart(last: int) -> None:
    """Vectors of one lane stay: their elements are no tile."""
    kernel = parse_kernel(
        "kernel k(a: f32[64], d: f32[256])\n"
        "  for i in 0 .. 5:\n"
        "    for v in 0 .. 1:\n      for l in 0 .. 4:\n        d[l * 16 + i] = a[i * 8 + l]\n"
        f"    for v in 1 .. 2:\n      for l in 0 .. {last}:\n        d[v * 64 + l * 16 + i] = a[i * 8 + v * 4 + l]\n"
    )
    made = transpose_stores(kernel, "i", "l", (4, 4))
    assert str(made).count("alloc d_u") == (2 if last == 1 else 4)
    assert_same_results(kernel, made)


def test_statements_that_depend_on_each_other_stay_in_their_loop() -> None:
    kernel = parse_kernel(
        "kernel k(a: f32[64], d: f32[256], e: f32[64])\n"
        "  for i in 0 .. 4:\n"
        "    for l in 0 .. 4:\n      d[l * 16 + i] = a[i * 4 + l]\n"
        "    for l in 0 .. 4:\n      e[i * 4 + l] = d[l * 16 + i + 1] + 1.0\n"
    )
    with pytest.raises(ConfigError, match="transpose_stores"):
        transpose_stores(kernel, "i", "l", (4, 4))


def test_short_vectors_that_are_computed_stay() -> None:
    kernel = parse_kernel(nest(4, 3, "v * 128 + l * 16 + i", "a[l] + 1.0"))
    assert transpose_stores(kernel, "i", "l", (4, 4)) is kernel
    assert transpose_stores(kernel, "i", "l", (4, 3)) is not kernel
    assert transpose_stores(kernel, "i", "l", (4, 3), least=5) is kernel


@pytest.mark.parametrize("stride", [4, 5, 16])
def test_vectors_at_a_stride_of_the_call(stride: int) -> None:
    """A stride that is a size of the kernel scatters vectors like a constant one."""
    head = "kernel k(a: f32[64], d: f32[?], s)\n"
    loops = "  for i in 0 .. 4:\n    for v in 0 .. 2:\n      for l in 0 .. 4:\n"
    kernel = parse_kernel(f"{head}{loops}        d[v * s * 4 + l * s + i] = a[i * 4 + l]\n")
    made = transpose_stores(kernel, "i", "l", (4, 4))
    assert "alloc d_u" in str(made)
    a, found = np.arange(64, dtype=np.float32), []
    for each in (kernel, made):
        d = np.zeros(8 * stride + 4, np.float32)
        run(each, {"a": a, "d": d}, sizes={"s": stride})
        found.append(d)
    np.testing.assert_array_equal(*found)
    assert found[0][stride] == a[1]


@pytest.mark.parametrize(
    ("value", "is_made"),
    [
        ("(a[i * 4 + l] if l - 1 >= 0 else 0.0)", True),  # a partial load
        ("(a[i * 4 + l] if i - 1 >= 0 else 1.0)", True),  # a row
        ("(a[i * 4 + l] if l - 1 >= 0 else 1.0)", False),
        ("(a[i * 4 + l] if l + v - 1 >= 0 else 0.0)", False),  # a run of lanes that the loop around decides
    ],
)
def test_lanes_that_are_masked(value: str, is_made: bool) -> None:
    kernel = parse_kernel(nest(4, 4, "v * 128 + l * 16 + i", value))
    made = transpose_stores(kernel, "i", "l", (4, 4))
    assert (made is not kernel) == is_made
    assert_same_results(kernel, made)
