"""A copy evaluates the conditions of its footprint, however they are written: none is left at the reads of the copy."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.passes.box_copy import BoxCopy
from convsmith.passes.compute_at import compute_at
from convsmith.passes.copies import CopyLayout
from convsmith.passes.manager import Step
from convsmith.passes.ordered_copy import OrderedCopy
from convsmith.passes.stage import BOX, stage
from convsmith.passes.tile_copy import TileCopy
from convsmith.passes.window_copy import WindowCopy, Windows


def test_conditions_of_a_fused_tap_are_those_of_the_copy() -> None:
    """``t // 2 + i - 1 >= 0`` simplifies to a condition that divides nothing."""
    kernel = parse_kernel(
        """\
kernel k(a: f32[3, 5, 2], b: f32[6], c: f32[3, 5])
  for n in 0 .. 3:
    for i in 0 .. 5:
      for t in 0 .. 6:
        c[n, i] = c[n, i] + (a[n, i + t // 2 - 1, t % 2] * b[t] if t + i * 2 - 2 >= 0 and -t - i * 2 + 11 >= 0 else 0.0)
"""
    )
    staged = stage(kernel, "a", "n")
    assert str(staged).count(" if ") == 1, "the one in the copy"
    assert_same_results(kernel, staged)


def test_a_copy_holds_elements_of_the_type_to_which_they_are_converted() -> None:
    """No conversion is left at the reads of the copy; the zeros around the image are of that type too."""
    kernel = parse_kernel(
        """\
kernel k(a: f16[2, 3], b: f32[2], c: f32[2, 4])
  for n in 0 .. 2:
    for i in 0 .. 4:
      for k in 0 .. 2:
        c[n, i] = c[n, i] + (cast(f32, a[n, i + k - 1]) * b[k] if i + k - 1 >= 0 and -i - k + 3 >= 0 else 0.0)
"""
    )
    staged = stage(kernel, "a", "n", BoxCopy(convert=True))
    assert "alloc a_s: f32[1, 5] @cache" in str(staged)
    assert str(staged).count("cast(") == 1, "the one in the copy"
    assert_same_results(kernel, staged)


@pytest.mark.parametrize(("place", "shape"), [("n", "f32[1, 3, 4]"), ("i", "f32[1, 2, 4]")])
def test_loads_keep_the_conditions_of_dims_without_padding(place: str, shape: str) -> None:
    """A copy of all rows holds those that exist; a copy for each row has the rows of its taps, absent ones too."""
    kernel = parse_kernel(
        """\
kernel k(a: f32[2, 3, 2], b: f32[2], c: f32[2, 4, 3])
  for n in 0 .. 2:
    for i in 0 .. 4:
      for j in 0 .. 3:
        for k in 0 .. 2:
          for l in 0 .. 2:
            c[n, i, j] = c[n, i, j] + (a[n, i + k - 1, j + l - 1] * b[k] if i + k - 1 >= 0 and -i - k + 3 >= 0 \
and j + l - 1 >= 0 and -j - l + 2 >= 0 else 0.0)
"""
    )
    staged = stage(kernel, "a", place, BoxCopy(inside=(1,)))
    assert f"alloc a_s: {shape} @cache" in str(staged)
    assert "* b[k] if i + k - 1 >= 0 and -i - k + 3 >= 0 else 0.0)" in str(staged)
    assert_same_results(kernel, staged)


def test_a_converted_copy_has_elements_of_one_type() -> None:
    kernel = parse_kernel(
        """\
kernel k(a: f16[2, 3], c: f32[2, 3], d: f64[2, 3])
  for n in 0 .. 2:
    for i in 0 .. 3:
      c[n, i] = cast(f32, a[n, i])
      d[n, i] = cast(f64, a[n, i])
"""
    )
    with pytest.raises(ConfigError, match="read as f32, f64; legal is one type"):
        stage(kernel, "a", "n", BoxCopy(convert=True))


COPIES = """\
kernel k(a: s32[9], b: s32[9])
  alloc t: s32[9] @cache:
    for x in 0 .. 9:
      t[x] = a[x] + s32(1)
    for i in 0 .. 2:
      for k in 0 .. 4:
        b[k + i * 4] = t[k + i * 4]
      for k in 4 .. 5:
        b[k + i * 4] = t[k + i * 4] * s32(2)
"""


def test_the_footprint_holds_what_all_loops_of_a_name_read() -> None:
    """Copies of a loop, which `cut` makes for example, have one name and run over different parts of its range."""
    kernel = parse_kernel(COPIES)
    assert_same_results(kernel, compute_at(kernel, "t", "i", False))
    unfused = parse_kernel(COPIES.replace("t[k + i * 4]", "a[k + i * 4]"))
    assert_same_results(unfused, stage(unfused, "a", "i"))


PIXELS = Windows((("i", 6),), (("i", 1),), 6)
TERMS = Windows((("k", 3), ("ic", 2)), (("t.o", 4), ("t.i", 1)), 8)
LAYOUTS: dict[str, tuple[str, CopyLayout, str, str]] = {
    "windows": (
        "n", WindowCopy(PIXELS, TERMS),
        """\
kernel k(a: f32[8, 2], b: f32[6], c: f32[3, 6])
  for n in 0 .. 3:
    for i in 0 .. 6:
      for t.o in 0 .. 2:
        for t.i in 0 .. min(-t.o * 4 + 6, 4):
          c[n, i] = c[n, i] + a[i + t.o * 2 + t.i // 2, t.i % 2] * b[t.i + t.o * 4]
""",
        """\
kernel k(a: f32[8, 2], b: f32[6], c: f32[3, 6])
  for n in 0 .. 3:
    alloc a_s: f32[6, 8] @cache:
      for a_s.i in 0 .. 6:
        for a_s.z in 0 .. 2:
          a_s[a_s.i, a_s.z + 6] = 0.0
      for a_s.i in 0 .. 6:
        for a_s.k in 0 .. 3:
          for a_s.ic in 0 .. 2:
            a_s[a_s.i, a_s.ic + a_s.k * 2] = a[a_s.i + a_s.k, a_s.ic]
      for i in 0 .. 6:
        for t.o in 0 .. 2:
          for t.i in 0 .. min(-t.o * 4 + 6, 4):
            c[n, i] = c[n, i] + a_s[i, t.i + t.o * 4] * b[t.i + t.o * 4]
""",
    ),
    "order": (
        "i", OrderedCopy(),
        """\
kernel k(a: f32[4, 6], b: f32[2, 4], c: f32[2, 6])
  for i in 0 .. 2:
    for n in 0 .. 2:
      for k in 0 .. 4:
        for l in 0 .. 3:
          c[n, i * 3 + l] = c[n, i * 3 + l] + a[k, i * 3 + l] * b[n, k]
""",
        """\
kernel k(a: f32[4, 6], b: f32[2, 4], c: f32[2, 6])
  for i in 0 .. 2:
    alloc a_n: f32[4, 3] @cache:
      for k in 0 .. 4:
        for l in 0 .. 3:
          a_n[k, l] = a[k, i * 3 + l]
      for n in 0 .. 2:
        for k in 0 .. 4:
          for l in 0 .. 3:
            c[n, i * 3 + l] = c[n, i * 3 + l] + a_n[k, l] * b[n, k]
""",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("loop", "layout", "before", "after"), LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_of_copies(loop: str, layout: CopyLayout, before: str, after: str) -> None:
    kernel = parse_kernel(before)
    made = stage(kernel, "a", loop, layout)
    assert str(made).strip() == after.strip()
    assert_same_results(kernel, made)


TILES = """\
kernel k(a: f32[6], b: f32[2, 3], c: f32[4, 2])
  for k in 0 .. 3:
    for i in 0 .. 4:
      for j in 0 .. 2:
        c[i, j] = c[i, j] + (a[i + k - 1] * b[j, k] if i + k - 1 >= 0 else 0.0)
"""


def test_a_tile_has_a_place_for_each_iteration() -> None:
    """The masks of both operands go into their copies, one after the other."""
    kernel = parse_kernel(TILES)
    one = stage(kernel, "b", "k", TileCopy(("j",)), "shared")
    both = stage(one, "a", "k", TileCopy(("i",)), "shared")
    for made in (one, both):
        assert_same_results(kernel, made)
    assert str(both).strip() == """\
kernel k(a: f32[6], b: f32[2, 3], c: f32[4, 2])
  for k in 0 .. 3:
    alloc a_s: f32[4] @shared:
      for a_s.i in 0 .. 4:
        a_s[a_s.i] = (a[a_s.i + k - 1] if a_s.i + k - 1 >= 0 else 0.0)
      alloc b_s: f32[2] @shared:
        for b_s.j in 0 .. 2:
          b_s[b_s.j] = b[b_s.j, k]
        for i in 0 .. 4:
          for j in 0 .. 2:
            c[i, j] = c[i, j] + a_s[i] * b_s[j]"""


def test_a_copy_with_a_place_for_each_iteration_holds_one_read() -> None:
    twice = TILES.replace("* b[", "* a[j] * b[")
    for layout in (TileCopy(("i",)), WindowCopy(PIXELS, TERMS)):
        with pytest.raises(ConfigError, match=r"reads a.* at 2 places; legal is one"):
            stage(parse_kernel(twice), "a", "k", layout)
    with pytest.raises(ConfigError, match="k has no loop x from 0 within"):
        stage(parse_kernel(TILES), "a", "k", TileCopy(("x",)))


def test_texts_of_layouts_differ_as_the_layouts_do() -> None:
    """Equal texts of rewrites stand for equal kernels."""
    others = [
        BOX, BoxCopy(0), BoxCopy(1), BoxCopy(exact=True), BoxCopy(masked=True), BoxCopy(fill=128), BoxCopy(width=8),
        BoxCopy(convert=True), BoxCopy(multiple=4), BoxCopy(multiple=4, count=3), BoxCopy(inside=(1,)),
        WindowCopy(PIXELS, TERMS), WindowCopy(TERMS, PIXELS), WindowCopy(PIXELS, TERMS, True),
        WindowCopy(PIXELS, TERMS._replace(room=16)),
        TileCopy(("i",)), TileCopy(("i", "j")), OrderedCopy(), OrderedCopy((("i", 4),)), OrderedCopy((), ("i",)),
    ]  # fmt: skip
    assert len({str(Step(stage, "a", "n", x)) for x in others}) == len(others)
