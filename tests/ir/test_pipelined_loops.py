"""Pipelined loops and copies through tensor maps: their text, their rules, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import InternalError
from convsmith.interp import run
from convsmith.ir.equal import first_mismatch
from convsmith.ir.parse import parse_kernel
from convsmith.ir.verify import verify

TEXT = """\
kernel k(a: f32[40], c: f32[10])
  alloc s: f32[8] @shared:
    for i in 0 .. 10 #pipelined:
      tensor s[i % 2 * 4] = a[0] dims(4:1, 10:4) box(4, 1) at(0, i)
      for w in 0 .. 1 #warp:
        for l in 0 .. 1 #lane:
          c[i] = s[i % 2 * 4 + 3]
"""
WINDOWS = """\
kernel k(a: f32[72], c: f32[36])
  alloc s: f32[18] @shared:
    for k in 0 .. 2 #pipelined:
      tensor s[0] = a[0] dims(2:1, 3:2, 3:6, 4:18) box(2) pixels(9, -1, -1, -1, -1, 1, 1) at(0, -1, -1, 1) offset(k, 1)
      for w in 0 .. 1 #warp:
        for l in 0 .. 18 #lane:
          c[k * 18 + l] = s[l]
"""


def results(text: str, seed: int, size: int) -> np.ndarray:
    """Return ``c`` after a kernel has run on numbers from 1 on."""
    kernel = parse_kernel(text)
    arrays = {b.name: np.arange(1, b.size + 1, dtype=np.float32) for b in kernel.params}
    run(kernel, arrays, seed=seed)
    return arrays["c"][:size]


@pytest.mark.parametrize("text", [TEXT, WINDOWS])
def test_the_text_is_parsed_to_the_same_kernel(text: str) -> None:
    kernel = parse_kernel(text)
    verify(kernel)
    assert str(kernel) == text and first_mismatch(kernel, parse_kernel(str(kernel))) is None
    other = parse_kernel(text.replace("at(0, ", "at(1, "))
    assert "copy to s" in (first_mismatch(kernel, other) or "")


def test_copies_run_ahead_as_far_as_there_is_room() -> None:
    for seed in range(8):
        np.testing.assert_array_equal(results(TEXT, seed, 10), np.arange(4, 41, 4))
    broken = TEXT.replace("s[i % 2 * 4", "s[i % 2 * 0")
    assert any((results(broken, seed, 10) != np.arange(4, 41, 4)).any() for seed in range(8))


def test_an_im2col_copy_brings_pixels_of_windows() -> None:
    """Nine pixels from the corner of image 1 on, with the tap in the middle row and the first or second column."""
    image = np.pad(np.arange(1, 73, dtype=np.float32).reshape(4, 3, 3, 2)[1], ((1, 1), (1, 1), (0, 0)))
    wanted = [image[1:4, k : k + 3].reshape(-1) for k in (0, 1)]
    np.testing.assert_array_equal(results(WINDOWS, 0, 36), np.concatenate(wanted))


@pytest.mark.parametrize("old, new, why", [
    ("#pipelined", "#group", "outside of the loops over threads"),
    ("      tensor s[i % 2 * 4] = a[0] dims(4:1, 10:4) box(4, 1) at(0, i)\n", "", "begins with all of its copies"),
    ("at(0, i)", "at(0)", "1 coordinates and 0 offsets for 2 dims"),
    ("@shared", "@cache", "between global and shared memory"),
    ("alloc s: f32[8]", "alloc s: s32[8]", "copies f32 to s32"),
    ("at(0, i)", "at(0, j)", "j"),
])  # fmt: skip
def test_rules(old: str, new: str, why: str) -> None:
    assert old in TEXT
    with pytest.raises(InternalError, match=why):
        verify(parse_kernel(TEXT.replace(old, new)))
