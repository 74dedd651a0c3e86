"""Pieces of a loop cover it once; within each, tests have one outcome; a loop of too many pieces stays whole."""

from __future__ import annotations

import importlib

import pytest
from oracles import assert_same_results

from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.walk import loops_of
from convsmith.passes.partition import partition

partition_module = importlib.import_module("convsmith.passes.partition")


def padded(pixels: int, taps: int, step: int, pad: int, size: int) -> Kernel:
    """Taps that are there, of a row of pixels."""
    return parse_kernel(f"""kernel k(a: f32[{size}], d: f32[{pixels}])
  for o in 0 .. {pixels}:
    d[o] = d[o] + 1.0
    for k in 0 .. {taps}:
      if o * {step} + k - {pad} >= 0 and -k - o * {step} + {pad + size - 1} >= 0:
        d[o] = d[o] + a[o * {step} + k - {pad}]
""")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("pad", [0, 1, 4, 7])
@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize(("taps", "size"), [(1, 1), (3, 1), (3, 6), (2, 9)])
def test_windows(taps: int, size: int, step: int, pad: int) -> None:
    """Pads and steps beyond the taps, single taps and pixels; pixels that see padding alone have no loop."""
    kernel = padded(9, taps, step, pad, size)
    made = partition(kernel, ("o",), 100)
    pieces = [loop for loop in loops_of(made.body) if loop.var.name == "o"]
    assert [x.lo.const for x in pieces[1:]] == [x.hi.const for x in pieces[:-1]]
    assert (pieces[0].lo.const, pieces[-1].hi.const) == (0, 9)
    assert_same_results(kernel, made)


def test_a_loop_of_many_pieces_stays() -> None:
    kernel = padded(9, 3, 1, 3, 4)
    made = partition(kernel, ("o",), 9)
    count = sum(loop.var.name == "o" for loop in loops_of(made.body))
    assert count > 3 and str(partition(kernel, ("o",), count)) == str(made)
    assert partition(kernel, ("o",), count - 1) is kernel


def test_extrema_are_constant_within_a_piece() -> None:
    kernel = parse_kernel("""kernel k(a: f32[16], d: f32[16])
  for o in 0 .. 9:
    for k in max(-o + 2, 0) .. min(-o + 8, 3):
      d[o] = d[o] + a[o + k]
""")
    made = partition(kernel, ("o",), 9)
    assert "max(" in str(kernel) and "max(" not in str(made) and "min(" not in str(made)
    assert_same_results(kernel, made)


@pytest.mark.parametrize("few", [16, 1 << 10])
@pytest.mark.parametrize(
    "head", ["for k in 0 .. 3:\n      if o + k - 6 >= 0:", "for k in max(-o + 2, 0) .. min(-o + 8, 3):"]
)
def test_numbers_and_arrays_cut_alike(head: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small boxes are evaluated with numbers, large ones with arrays."""
    text = f"kernel k(a: f32[32], d: f32[16])\n  for o in 0 .. 9:\n    {head}\n        d[o] = a[o + k]\n"
    made = []
    for points in (0, few):
        monkeypatch.setattr(partition_module, "MAX_SCALAR_POINTS", points)
        with interning():  # tables of nodes keep outcomes
            made.append(str(partition(parse_kernel(text), ("o", "k"), 9, ("k",))))
    assert made[0] == made[1] != str(parse_kernel(text))


@pytest.mark.parametrize("size", [80, 64, 50, 48, 33, 16, 5])
def test_bounds_of_exact_loops_are_constant_within_a_piece(size: int) -> None:
    """The last tile of three vectors has one, two or three of them, the last full or not."""
    tiles = -(-size // 48)
    kernel = parse_kernel(f"""kernel k(a: f32[{size}], d: f32[{size}])
  for t in 0 .. {tiles}:
    for v in 0 .. 3:
      for l in 0 .. min(-v * 16 + min(-t * 48 + {size}, 48), 16):
        d[l + t * 48 + v * 16] = a[l + t * 48 + v * 16]
""")
    made = partition(kernel, ("t", "v"), 9, ("l",))
    lanes = [loop for loop in loops_of(made.body) if loop.var.name == "l"]
    assert all(x.lo.is_const and x.hi.is_const for x in lanes)
    assert len(lanes) <= 1 + 3
    assert_same_results(kernel, made)


MANY = 1 << 40
TAIL = "min(-i * 4 + 4398046511103, 4)"


@pytest.mark.parametrize("inner", ["4", TAIL])
def test_a_loop_of_very_many_iterations_stays_whole(inner: str) -> None:
    with interning():
        kernel = parse_kernel(
            f"kernel k(a: f32[{4 * MANY}])\n  for i in 0 .. {MANY}:\n    for l in 0 .. {inner}:\n"
            "      a[l + i * 4] = 1.0\n"
        )
        assert str(partition(kernel, ("i",))) == str(kernel)


def test_pieces_add_up_where_only_the_interior_is_split() -> None:
    """Nine pieces of two loops with two borders each become five, and all of them but one have the body of the nest;
    the nest after them is split again.
    """
    nest = """  for i in 0 .. 7:
    for j in 0 .. 7:
      d[i, j] = a[max(min(i, 5), 1), max(min(j, 5), 1)]
"""
    kernel = parse_kernel(f"kernel k(a: f32[7, 7], d: f32[7, 7])\n{nest}{nest.replace('d[i, j]', 'd[j, i]')}")
    starts = []
    for interior in (False, True):
        made = partition(kernel, ("i", "j"), 9, (), interior)
        assert_same_results(kernel, made)
        starts.append([loop.lo.const for loop in loops_of(made.body) if loop.var.name == "j"])
        bodies = [str(loop.body) for loop in loops_of(made.body) if loop.var.name == "j"]
    assert starts == [[0, 1, 5] * 6, [0, 0, 1, 5, 0] * 2]
    assert len(set(bodies)) == 4 and set(bodies) >= {str(x.body) for x in loops_of(kernel.body) if x.var.name == "j"}


@pytest.mark.parametrize("bounds", ["min(-i * 4 + 16, 4)", "4 - max(4 * i - 12, 0)", "min(4, -4 * i + 16)"])
def test_a_last_tile_that_is_whole_is_no_piece_of_its_own(bounds: str) -> None:
    kernel = parse_kernel(f"""kernel k(a: f32[16], d: f32[16])
  for i in 0 .. 4:
    for j in 0 .. {bounds}:
      d[i * 4 + j] = a[i * 4 + j]
""")
    made = partition(kernel, ("i",))
    assert [(int(x.lo), int(x.hi)) for x in loops_of(made.body)] == [(0, 4), (0, 4)]
    assert_same_results(kernel, made)


def test_a_loop_of_unknown_bounds_hides_no_other() -> None:
    kernel = parse_kernel("""kernel k(a: f32[6], d: f32[9])
  for o in 0 .. 9:
    let t = o // 3:
      for j in t .. t + 2:
        d[o] = d[o] + 1.0
    for k in 0 .. 3:
      if o + k - 1 >= 0 and -k - o + 6 >= 0:
        d[o] = d[o] + a[o + k - 1]
""")
    made = partition(kernel, ("o",), 100)
    assert len([loop for loop in loops_of(made.body) if loop.var.name == "o"]) > 1
    assert_same_results(kernel, made)


@pytest.mark.parametrize("tile", [5, 7, 12, 13])
def test_tiles_of_residue_classes_of_different_sizes_have_constant_bounds(tile: int) -> None:
    """Three classes of 38 pixels have 13, 13 and 12; the number of tiles, or the size of the last one, differs."""
    kernel = parse_kernel(f"""kernel k(d: f32[38])
  for r in 0 .. 3:
    for i.o in 0 .. {-(-13 // tile)}:
      for i.i in 0 .. min(-i.o * {tile} + (-r + 1) // 3 + 13, {tile}):
        d[r + i.i * 3 + i.o * {3 * tile}] = d[r + i.i * 3 + i.o * {3 * tile}] + 1.0
""")
    made = partition(kernel, ("r", "i.o"))
    assert all(loop.hi.is_const for loop in loops_of(made.body))
    assert_same_results(kernel, made)
