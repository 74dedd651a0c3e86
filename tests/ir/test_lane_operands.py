"""The layouts of fragments that no instruction computes with, by the fragments that a store accesses beside them."""

from __future__ import annotations

from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import Operand, vector
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
