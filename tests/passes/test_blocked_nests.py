"""The rewrites of nests over blocked layouts refuse where a value would change, and keep conditions that are needed."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.passes.box_copy import BoxCopy
from convsmith.passes.buffer_layouts import BlockDims
from convsmith.passes.fission import fission
from convsmith.passes.set_layout import set_layout
from convsmith.passes.sink_guards import sink_guards
from convsmith.passes.stage import stage
from convsmith.passes.sum_in_place import sum_in_place

SUMS = """kernel k(a: f32[6, 3], b: f32[12])
  alloc acc: f32[6] @cache:
    for i in 0 .. 6:
      acc[i] = 0.0
    for k in 0 .. 3:
      for i in 0 .. 6:
        acc[i] = acc[i] + a[i, k]
    for i in 0 .. 6:
      b[i] = acc[i]
"""


def values(k: Kernel) -> dict[str, np.ndarray]:
    """The arrays after a run on whole numbers."""
    verify(k)
    arrays = {b.name: np.arange(1, b.size + 1, dtype=np.float32) for b in k.params}
    run(k, arrays)
    return arrays


def require_same_values(old: Kernel, new: Kernel) -> None:
    for name, x in values(old).items():
        np.testing.assert_array_equal(values(new)[name], x, err_msg=name)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("b[i] = acc[i]", "b[i] = acc[i] * 2.0", "copies none of its elements"),
        ("b[i] = acc[i]", "b[i] = acc[-i + 5]", "is no element for each iteration of the loops that copy it"),
        ("b[i] = acc[i]", "b[i // 2] = acc[i]", "must come after it"),
        ("+ a[i, k]", "+ a[i, k] * b[i]", "b is accessed while the sums are made"),
        ("for i in 0 .. 6:\n      b", "for i in 0 .. 5:\n      b", "loop i runs 0 .. 6, and 0 .. 5 in the copy"),
        ("acc[i] = 0.0", "acc[-i + 5] = 0.0", "acc is accessed at -i + 5, and copied at i"),
    ],
)
def test_sums_that_cannot_be_made_in_place(old: str, new: str, reason: str) -> None:
    assert old in SUMS
    with pytest.raises(ConfigError, match=r"^sum_in_place") as caught:
        sum_in_place(parse_kernel(SUMS.replace(old, new)), "acc")
    assert reason in str(caught.value)


def test_sums_are_made_where_a_stride_puts_them() -> None:
    k = parse_kernel(SUMS.replace("b[i] = acc[i]", "b[i * 2 + 1] = acc[i]"))
    made = sum_in_place(k, "acc")
    assert "acc" not in str(made)
    require_same_values(k, made)


def test_only_the_result_gets_loops_of_its_own() -> None:
    k = parse_kernel("""kernel k(a: f32[5, 3], b: f32[5])
  for i in 0 .. 5:
    alloc acc: f32[] @register:
      acc[] = 0.0
      for k in 0 .. 3:
        acc[] = acc[] + a[i, k]
      b[i] = acc[]
""")
    made = fission(k, ("i",), scope="cache", result=True)
    assert str(made).count("for i in") == 2 and "acc: f32[5] @cache" in str(made)
    require_same_values(k, made)


def test_blocks_are_parts_of_one_block_of_the_layout() -> None:
    """Columns lie in two blocks of four, which lie apart in memory."""
    k = parse_kernel("""kernel k(a: f32[6, 8] = 1:2:24 0:6:4 1:4:1, b: f32[6, 8])
  for i in 0 .. 6:
    for j in 0 .. 8:
      b[i, j] = a[i, j]
""")
    made = set_layout(k, "a", BlockDims(((1, 2), (0, 6), (1, 2), (1, 2))))
    assert made.params[0].shape == (2, 6, 2, 2)
    require_same_values(k, made)
    with pytest.raises(ConfigError, match="8 blocks of 1 along dim 1 of a are no part of one block"):
        set_layout(k, "a", BlockDims(((0, 6), (1, 8))))
    with pytest.raises(ConfigError, match=r"hold \[4, 8\] elements; legal are those that hold \[6, 8\]"):
        set_layout(k, "a", BlockDims(((0, 2), (1, 8), (0, 2))))


GUARDS = """kernel k(a: f32[5, 3], b: f32[5])
  alloc t: f32[6] @cache:
    for i in 0 .. 6:
      if -i + 4 >= 0:
        t[i] = 0.0
        for k in 0 .. 3:
          t[i] = t[i] + a[i, k]
    for j in 0 .. 5:
      b[j] = t[j]
"""


def test_a_guard_stays_where_memory_has_no_room() -> None:
    k = parse_kernel(GUARDS.replace("t: f32[6]", "t: f32[5]"))
    made = sink_guards(k)
    assert str(made).count("if -i + 4 >= 0:") == 2
    require_same_values(k, made)


def test_a_guard_stays_where_an_element_has_another_value_first() -> None:
    """The sixth iteration would set the fifth element to zero again."""
    text = GUARDS.replace("t[i] = 0.0", "t[min(i, 4)] = 0.0").replace("t[i] = t[i] +", "t[min(i, 4)] = t[min(i, 4)] +")
    k = parse_kernel(text)
    made = sink_guards(k)
    assert str(made).count("if -i + 4 >= 0:") == 2
    require_same_values(k, made)


def test_a_guard_stays_where_another_statement_writes_too() -> None:
    """A copy gives the sixth element its value, which a constant would replace."""
    text = GUARDS.replace("    for i in 0 .. 6:\n", "    t[5] = a[0, 0]\n    for i in 0 .. 6:\n")
    k = parse_kernel(text.replace("b[j] = t[j]", "b[j] = t[j] + t[5]"))
    made = sink_guards(k)
    assert str(made).count("if -i + 4 >= 0:") == 2
    require_same_values(k, made)


def test_a_bound_on_a_minimum_is_two_conditions() -> None:
    text = GUARDS.replace("if -i + 4 >= 0", "if min(-i + 4, -i * 2 + 9) >= 0")
    made = sink_guards(parse_kernel(text))
    assert "min" not in str(made)
    require_same_values(parse_kernel(text), made)


def test_an_exact_copy_holds_only_what_exists() -> None:
    k = parse_kernel("""kernel k(a: f32[7], b: f32[4, 2])
  for i in 0 .. 4:
    for k in 0 .. 2:
      b[i, k] = (a[i * 2 + k] if -i * 2 - k + 6 >= 0 else 0.0)
""")
    made = stage(k, "a", "i", BoxCopy(exact=True))
    assert "for a_s0 in 0 .. min(-i * 2 + 7, 2):" in str(made)
    require_same_values(k, made)


def test_an_exact_copy_runs_before_the_statement_that_reads_it() -> None:
    k = parse_kernel("""kernel k(a: f32[4], b: f32[4], c: f32[4])
  for i in 0 .. 4:
    c[i] = b[i]
    b[i] = a[i]
    c[i] = c[i] + a[i]
""")
    made = stage(k, "a", "i", BoxCopy(exact=True))
    lines = [line.strip() for line in str(made).splitlines()]
    assert lines.index("c[i] = b[i]") < lines.index("alloc a_s: f32[1] @cache:") < lines.index("b[i] = a_s[0]")
    require_same_values(k, made)
