"""The layouts of fragments that no instruction computes with, by the fragments that a store accesses beside them."""

from __future__ import annotations

from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import FragmentLayout, Operand, vector
from convsmith.ir.lane_operands import operands_beside
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Alloc
from convsmith.ir.walk import statements_of

TEXT = """
kernel k(src: f32[8], out: f32[8])
  alloc c: f32[8] @fragment:
    alloc d: f32[8] @fragment:
      alloc e: f32[8] @fragment:
        alloc f: f32[8] @fragment:
          alloc g: f32[8] @register:
            for i in 0 .. 8:
              c[i] = d[i] + src[i]
            for i in 0 .. 8:
              c[i] = c[i] + e[i]
            for i in 0 .. 8:
              c[i] = f[7 - i] + g[i]
            for i in 0 .. 8:
              out[i] = c[i]
"""


def test_a_fragment_has_the_layout_of_the_one_with_its_index() -> None:
    body = parse_kernel(TEXT).body
    fragments = {s.buffer.name: s.buffer for s in statements_of(body) if isinstance(s, Alloc)}
    sums, other = vector("c", "f32", 8), vector("d", "f32", 8)
    known: dict[Buffer, Operand] = {fragments["c"]: sums}
    assert operands_beside(body, known) == {fragments["d"]: sums, fragments["e"]: sums}
    known[fragments["d"]] = other
    assert operands_beside(body, known) == {fragments["e"]: sums}
    assert operands_beside(body, {}) == {}


def test_a_slice_of_columns_has_the_first_registers() -> None:
    text = (
        "kernel k(out: f32[8])\n  alloc c: f32[2, 8] @fragment:\n    alloc d: f32[2, 4] @fragment:\n"
        "      alloc e: f32[2, 3] @fragment:\n        for m in 0 .. 2:\n          for l in 0 .. 4:\n"
        "            d[m, l] = c[m, l + 4]\n        for m in 0 .. 2:\n          for l in 0 .. 3:\n"
        "            e[m, l] = c[m, l + 4]\n"
    )
    body = parse_kernel(text).body
    fragments = {s.buffer.name: s.buffer for s in statements_of(body) if isinstance(s, Alloc)}
    coords = ("r % 2", "l + r // 2 * 2")
    whole = Operand("c", "f32", (2, 8), FragmentLayout(coords, 2, registers=8), "lane", "fragment")
    part = Operand("c", "f32", (2, 4), FragmentLayout(coords, 2, registers=4), "lane", "fragment")
    assert operands_beside(body, {fragments["c"]: whole}) == {fragments["d"]: part}
