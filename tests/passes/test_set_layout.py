"""Buffers with other rows: longer ones, and rotated ones whose parts have any size."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.passes.buffer_layouts import LongRows, RotatedRows, RowPanels
from convsmith.passes.set_layout import set_layout

TEXT = """
kernel k(a: f32[4, 4], dst: f32[4, 4])
  alloc a_s: f32[4, 4] @shared:
    for i in 0 .. 4:
      for j in 0 .. 4:
        a_s[i, j] = a[i, j]
    for i in 0 .. 4:
      for j in 0 .. 4:
        dst[i, j] = a_s[j, i]
"""


@pytest.mark.parametrize("elements", [1, 2, 4])
def test_parts_of_every_size(elements: int) -> None:
    kernel = set_layout(parse_kernel(TEXT), "a_s", RotatedRows(elements))
    a = np.arange(16, dtype=np.float32)
    arrays = {"a": a, "dst": np.zeros_like(a)}
    run(kernel, arrays)
    assert np.array_equal(arrays["dst"].reshape(4, 4), a.reshape(4, 4).T)


@pytest.mark.parametrize("elements", [0, -1, 3, 8])
def test_parts_that_are_not_legal(elements: int) -> None:
    with pytest.raises(ConfigError, match=f"set_layout: parts of {elements} elements; legal"):
        set_layout(parse_kernel(TEXT), "a_s", RotatedRows(elements))


def test_longer_rows() -> None:
    kernel = set_layout(parse_kernel(TEXT), "a_s", LongRows(1))
    assert "alloc a_s: f32[4, 4] = 0:4:5 1:4:1 @shared" in str(kernel)
    with pytest.raises(ConfigError, match=r"-1 elements for each row of .*; legal is 0 or more"):
        set_layout(parse_kernel(TEXT), "a_s", LongRows(-1))


def test_runs_shorter_than_the_room_are_one_row_with_the_next_dim() -> None:
    """Elements of four channels of adjacent pixels stay adjacent."""
    text = """
kernel k(a: f32[3, 4, 4], dst: f32[3, 4, 4])
  alloc a_s: f32[3, 4, 4] @shared:
    for h in 0 .. 3:
      for w in 0 .. 4:
        for c in 0 .. 4:
          a_s[h, w, c] = a[h, w, c]
    for h in 0 .. 3:
      for w in 0 .. 4:
        for c in 0 .. 4:
          dst[h, w, c] = a_s[h, w, c]
"""
    for elements, layout in ((4, " = 0:3:32 1:4:8 2:4:1"), (8, " = 0:3:24 1:4:4 2:4:1"), (64, "")):
        kernel = str(set_layout(parse_kernel(text), "a_s", LongRows(elements)))
        assert f"alloc a_s: f32[3, 4, 4]{layout} @shared" in kernel


@pytest.mark.parametrize("layout", [LongRows(1), RotatedRows(2)], ids=str)
def test_buffers_whose_elements_cannot_move(layout: LongRows | RotatedRows) -> None:
    """A parameter lies where the caller has it, and registers have no rows."""
    with pytest.raises(ConfigError, match=r"no buffer dst that may lie in rows .*; legal are a_s"):
        set_layout(parse_kernel(TEXT), "dst", layout)
    with pytest.raises(ConfigError, match="is in registers; legal are buffers in memory"):
        set_layout(parse_kernel(TEXT.replace("@shared", "@register")), "a_s", layout)


def test_rows_in_panels() -> None:
    """Rows of 4 elements in two panels: the first halves of all rows, then the second ones."""
    text = """
kernel k(a: f32[1, 3, 4], dst: f32[3, 4])
  alloc a_s: f32[1, 3, 4] @shared:
    for i in 0 .. 3:
      for j in 0 .. 4:
        a_s[0, i, j] = a[0, i, j]
    for i in 0 .. 3:
      for j in 0 .. 4:
        dst[i, j] = a_s[0, i, j]
"""
    kernel = set_layout(parse_kernel(text), "a_s", RowPanels(2))
    assert "alloc a_s: f32[1, 2, 3, 2] @shared" in str(kernel)
    assert "a_s[0, j // 2, i, j % 2] = a[0, i, j]" in str(kernel)
    a = np.arange(12, dtype=np.float32)
    arrays = {"a": a, "dst": np.zeros_like(a)}
    run(kernel, arrays)
    assert np.array_equal(arrays["dst"], a)
    with pytest.raises(ConfigError, match="panels of 3; legal are divisors of the 4 of a row"):
        set_layout(parse_kernel(text), "a_s", RowPanels(3))
