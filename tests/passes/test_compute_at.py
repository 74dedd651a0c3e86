"""`compute_at` on random nests: every value stays the same, or the rewrite refuses with the reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from draws import examples
from guarded import Array
from hypothesis import assume, example, given
from hypothesis import strategies as st
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.interp import InterpError, run
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.parse import parse_kernel
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store
from convsmith.ir.verify import verify
from convsmith.ir.walk import children, statements_of
from convsmith.passes.compute_at import compute_at


@dataclass(frozen=True)
class Nests:
    """Two nests: `t` is made of `a`, row by row, and read through windows of `taps` rows, some of them absent."""

    rows: int
    columns: int
    taps: int
    stride: int
    pad: int
    tile: int
    channels_outside: bool
    guarded: bool

    @property
    def results(self) -> int:
        """Rows of the result: as many as strides begin within the rows that there are."""
        return -(-self.rows // self.stride)

    def text(self) -> str:
        """The kernel; `c.o` walks over pairs of columns, `i.o` over tiles of rows."""
        row = f"(i.o * {self.tile} + i.i) * {self.stride} + k - {self.pad}"
        read = f"t[{row}, c.o * 2 + c.i]"
        if self.guarded:
            read = f"({read} if {row} >= 0 and {self.rows - 1} - ({row}) >= 0 else 0.0)"
        pairs, tiles = -(-self.columns // 2), -(-self.results // self.tile)
        loops = [f"for i.o in 0 .. {tiles}:", f"for c.o in 0 .. {pairs}:"]
        outer, inner = reversed(loops) if self.channels_outside else loops
        return f"""kernel k(a: f32[{self.rows}, 3], b: f32[{self.results}, {self.columns}])
  alloc t: f32[{self.rows}, {self.columns}] @cache:
    for y in 0 .. {self.rows}:
      for x in 0 .. {self.columns}:
        alloc acc: f32[] @register:
          acc[] = 1.0
          for r in 0 .. 3:
            acc[] = acc[] * 2.0 + a[y, r]
          t[y, x] = acc[]
    {outer}
      {inner}
        for i.i in 0 .. min({self.tile}, {self.results} - i.o * {self.tile}):
          for c.i in 0 .. min(2, {self.columns} - c.o * 2):
            alloc sum: f32[] @register:
              sum[] = 0.0
              for k in 0 .. {self.taps}:
                sum[] = sum[] * 3.0 + {read}
              b[i.o * {self.tile} + i.i, c.o * 2 + c.i] = sum[]
"""


def nests() -> st.SearchStrategy[Nests]:
    """Windows of all strides and pads; one without guards reads only what is there."""
    small = st.integers(1, 5)
    return st.builds(
        Nests, st.integers(1, 9), small, small, st.integers(1, 3), st.integers(0, 4), st.integers(1, 4), st.booleans(),
        st.booleans(),
    )  # fmt: skip


def result(kernel: Kernel) -> Array:
    """Return the interpreter's results for distinct whole numbers."""
    a, b = kernel.params
    arrays = {"a": np.arange(a.size, dtype=np.float32) % 7, "b": np.full(b.size, np.nan, np.float32)}
    run(kernel, arrays)
    return arrays["b"]


@examples(60)
@given(nests(), st.sampled_from(("i.o", "c.o", "i.i", "c.i", "k")), st.booleans())
@example(Nests(rows=2, columns=1, taps=2, stride=1, pad=0, tile=1, channels_outside=False, guarded=True), "i.o", True)
def test_random_nests_keep_every_value(case: Nests, loop: str, rolling: bool) -> None:
    before = parse_kernel(case.text())
    try:
        wanted = result(before)
    except InterpError:
        assume(False)
    after = compute_at(before, "t", loop, rolling)
    verify(after)
    np.testing.assert_array_equal(result(after), wanted)


def stores(s: Stmt, buffer: str, at: dict[Var, int]) -> int:
    """The number of times that a run stores to the buffer."""
    if isinstance(s, For):
        lo, hi = int(substitute(s.lo, places(at))), int(substitute(s.hi, places(at)))
        return sum(stores(s.body, buffer, {**at, s.var: n}) for n in range(lo, hi))
    if isinstance(s, Store):
        return s.buffer.name == buffer
    return sum(stores(x, buffer, at) for x in children(s) if isinstance(x, Stmt))


def places(at: dict[Var, int]) -> dict[Var, Index]:
    return {v: as_index(n) for v, n in at.items()}


@pytest.mark.parametrize("stride, tile, taps", [(1, 1, 3), (1, 4, 3), (2, 1, 3), (2, 2, 5), (1, 2, 2)])
def test_a_circular_buffer_holds_the_footprint_and_each_row_is_computed_once(stride: int, tile: int, taps: int) -> None:
    case = Nests(16, 2, taps, stride, taps // 2, tile, False, True)
    before = parse_kernel(case.text())
    after = compute_at(before, "t", "i.o")
    (buffer,) = {s.buffer for s in statements_of(after.body) if isinstance(s, Alloc) and s.buffer.name == "t"}
    footprint = (tile - 1) * stride + taps
    assert footprint <= buffer.shape[0] < 2 * footprint
    assert stores(after.body, "t", {}) <= 16 * 2
    again = compute_at(before, "t", "i.o", rolling=False)
    assert stores(again.body, "t", {}) > 16 * 2


WHOLE = """kernel k(a: f32[4], b: f32[4], c: f32[4])
  alloc t: f32[4] @cache:
    for x in 0 .. 4:
      t[x] = a[x]
    for i in 0 .. 4:
      b[i] = t[i]
"""


def test_the_nest_moves_over_writes_of_other_elements() -> None:
    before = parse_kernel(WHOLE.replace("a: f32[4]", "a: f32[8]").replace("b[i] = t[i]", "a[i + 4] = t[i]"))
    after = compute_at(before, "t", "i")
    assert_same_results(before, after)


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("t[x] = a[x]", "b[x] = a[x]", "t is written by 0 statements"),
        ("    for i in 0 .. 4:\n      b[i] = t[i]", "    for i in 0 .. 4:\n      b[i] = a[i]", "t is read by 0"),
        ("t[x] = a[x]", "t[x - 1 + 1] = t[x]", "t is read by 2 statements"),
        ("t[x] = a[x]", "t[x] = a[x]\n      t[3 - x] = a[x]", "t is written at t[x] and at t[-x + 3]"),
        ("b[i] = t[i]", "a[i] = t[i]", "... a[x] and a[i] = ...: the second writes what the first reads"),
        ("b[i] = t[i]", "for x in 0 .. 1:\n        b[i + x] = t[i + x]", "both nests is called x"),
        ("t[x] = a[x]", "t[x] = a[x]\n      c[x] = a[x]", "the nest that writes t writes c too"),
        ("b[i] = t[i]", "b[i] = t[i] + t[3 - i]", "the reads of t along dim 0 have no common place to start from"),
        ("t", "u", "kernel k allocates no t"),
    ],
)
def test_nests_without_what_the_rewrite_relies_on_are_refused(old: str, new: str, why: str) -> None:
    before = parse_kernel(WHOLE.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        compute_at(before, "t", "i")
    assert why in str(raised.value)
