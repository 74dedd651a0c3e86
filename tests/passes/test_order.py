"""Rewrites that would change a value by another order are refused, and name both accesses; legal orders are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import F32
from convsmith.ir.walk import loops_of
from convsmith.passes.bind import bind
from convsmith.passes.block_reduction import block_reduction
from convsmith.passes.collapse import collapse
from convsmith.passes.cut import cut
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.fission import fission
from convsmith.passes.fuse import fuse
from convsmith.passes.ordered_copy import OrderedCopy
from convsmith.passes.partition import partition
from convsmith.passes.reorder import reorder
from convsmith.passes.residue import residue
from convsmith.passes.rfactor import rfactor
from convsmith.passes.solve import solve
from convsmith.passes.stage import stage
from convsmith.passes.tile import tile
from convsmith.passes.transpose import transpose
from convsmith.passes.unroll import unroll
from convsmith.passes.vectorise import vectorise

SUMS = make_buffer("sums", F32, (5,))
Rewrite = Callable[[Kernel], Kernel]

SKEWED = """\
kernel k(b: f32[5, 5])
  for i in 1 .. 5:
    for j in 0 .. 4:
      b[i, j] = b[i - 1, j + 1]
"""
ILLEGAL: dict[str, tuple[str, Rewrite, str]] = {
    "reads-what-was-written": (
        SKEWED,
        lambda k: reorder(k, ("j", "i")),
        "reorder(j, i): b[i, j] = ... and ... b[i - 1, j + 1]: iteration (i, j) = (2, 0) reads what (1, 1) writes, "
        "and must come after it",
    ),
    "innermost": (
        SKEWED,
        lambda k: reorder(k, ("i",), "innermost"),
        "reorder(i, innermost): b[i, j] = ... and ... b[i - 1, j + 1]: iteration (i, j) = (2, 0) reads what (1, 1) "
        "writes, and must come after it",
    ),
    "writes-what-was-read": (
        "kernel k(b: f32[5, 5])\n  for i in 0 .. 4:\n    for j in 1 .. 5:\n      b[i, j] = b[i + 1, j - 1]\n",
        lambda k: reorder(k, ("j", "i")),
        "reorder(j, i): ... b[i + 1, j - 1] and b[i, j] = ...: iteration (i, j) = (1, 1) writes what (0, 2) reads, "
        "and must come after it",
    ),
    "writes-twice": (
        "kernel k(a: f32[3, 3], b: f32[5])\n  for i in 0 .. 3:\n    for j in 0 .. 3:\n      b[i + j] = a[i, j]\n",
        lambda k: reorder(k, ("j", "i")),
        "reorder(j, i): b[i + j] = ... and b[i + j] = ...: iteration (i, j) = (1, 0) writes what (0, 1) writes, "
        "and must come after it",
    ),
    "a-size-known-at-the-call": (
        "kernel k(b: f32[?], n)\n  for i in 1 .. n:\n    for j in 0 .. 9:\n      b[i * 10 + j] = b[i * 10 + j - 9]\n",
        lambda k: reorder(k, ("j", "i")),
        "reorder(j, i): b[i * 10 + j] = ... and ... b[i * 10 + j - 9]: an iteration reads what another writes, "
        "and must come after it",
    ),
    "through-an-inner-loop": (
        "kernel k(b: f32[5, 5, 2])\n  for i in 1 .. 5:\n    for j in 0 .. 4:\n      for c in 0 .. 2:\n"
        "        if c >= 0:\n          b[i, j, c] = b[i - 1, j + 1, 0]\n",
        lambda k: reorder(k, ("j", "i")),
        "reorder(j, i): b[i, j, c] = ... and ... b[i - 1, j + 1, 0]: iteration (i, j, c) = (2, 0, 0) reads what "
        "(1, 1, 0) writes, and must come after it",
    ),
    "fission": (
        "kernel k(a: f32[5], b: f32[6])\n  for i in 0 .. 5:\n    alloc t: f32[] @register:\n      t[] = b[i]\n"
        "      b[i + 1] = t[] + a[i]\n",
        lambda k: fission(k, ("i",)),
        "fission(i): b[i + 1] = ... and ... b[i]: iteration (i) = (1) reads what (0) writes, and must come after it",
    ),
    "residue": (
        "kernel k(b: f32[8])\n  for i in 0 .. 7:\n    b[i + 1] = b[i]\n",
        lambda k: residue(k, "i", 2, "r"),
        "residue(i): b[i * 2 + r + 1] = ... and ... b[i * 2 + r]: iteration (i, r) = (1, 0) reads what (0, 1) writes, "
        "and must come after it",
    ),
    "parallel": (
        "kernel k(b: f32[8])\n  for i in 0 .. 7:\n    b[i] = b[i + 1]\n",
        lambda k: bind(k, ("i",), "parallel"),
        "bind(i, parallel): ... b[i + 1] and b[i] = ...: iteration (i) = (1) writes what (0) reads, "
        "and must come after it",
    ),
    "parallel-sum": (
        "kernel k(a: f32[8], b: f32[1])\n  for i in 0 .. 7:\n    b[0] = b[0] + a[i]\n",
        lambda k: bind(k, ("i",), "parallel"),
        "bind(i, parallel): ... b[0] and b[0] = ...: iteration (i) = (1) writes what (0) reads, and must come after it",
    ),
    "vectors": (
        "kernel k(b: f32[8])\n  for i in 0 .. 7:\n    b[i + 1] = b[i]\n",
        lambda k: vectorise(k, "i", 8),
        "vectorise: loop i: b[i + 1] = ... and ... b[i]: iteration (i) = (1) reads what (0) writes, "
        "and must come after it",
    ),
    "vectors-of-two-statements": (
        "kernel k(a: f32[8], b: f32[8], c: f32[8])\n  for i in 0 .. 7:\n    b[i] = c[i]\n    c[i + 1] = a[i]\n",
        lambda k: vectorise(k, "i", 8),
        "vectorise: loop i: c[i + 1] = ... and ... c[i]: iteration (i) = (1) reads what (0) writes, "
        "and must come after it",
    ),
    "vectors-of-a-sum-in-use": (
        "kernel k(a: f32[8], b: f32[8], c: f32[1])\n  for i in 0 .. 8:\n    c[0] = c[0] + a[i]\n    b[i] = c[0]\n",
        lambda k: vectorise(k, "i", 8),
        "vectorise: loop i: ... c[0] and c[0] = ...: iteration (i) = (1) writes what (0) reads, and must come after it",
    ),
    "transpose": (
        "kernel k(b: f32[4, 4])\n  for k in 0 .. 4:\n    for n in 0 .. 4:\n      b[k, n] = b[n, k]\n",
        lambda k: transpose(k, ("k", "n"), (4, 4)),
        "transpose(k, n): b[k, n] = ... and ... b[n, k]: iteration (k, n) = (1, 0) reads what (0, 1) writes, "
        "and must come after it",
    ),
    "stage": (
        "kernel k(b: f32[8])\n  for n in 0 .. 1:\n    for i in 0 .. 7:\n      b[i + 1] = b[i]\n",
        lambda k: stage(k, "b", "n"),
        "stage: b[...] = ... and ... b[i]: a copy at the start of an iteration of n lacks what the iteration writes; "
        "legal are buffers that it only reads",
    ),
    "packing": (
        "kernel k(b: f32[8])\n  for i in 0 .. 7:\n    b[i + 1] = b[i]\n",
        lambda k: derive_packing(k, ("b",), "p"),
        "derive_packing: kernel k writes b, which is packed before it runs; legal are operands that it only reads",
    ),
    "packing-of-an-iteration": (
        "kernel k(b: f32[8])\n  for n in 0 .. 1:\n    for i in 0 .. 7:\n      b[i + 1] = b[i]\n",
        lambda k: stage(k, "b", "n", OrderedCopy()),
        "stage: b[...] = ... and ... b[i]: a copy at the start of an iteration of n lacks what the iteration writes; "
        "legal are buffers that it only reads",
    ),
    "sums-in-memory": (
        "kernel k(a: f32[9, 6], b: f32[5])\n  for i in 0 .. 4:\n    alloc acc: f32[] @register:\n      acc[] = b[i]\n"
        "      for k in 0 .. 3:\n        acc[] = acc[] + a[i, k]\n      b[i + 1] = acc[]\n",
        lambda k: block_reduction(k, "k", ("i",)),
        "block_reduction(k): b[i + 1] = ... and ... b[i]: iteration (i) = (1) reads what (0) writes, and must come "
        "after it",
    ),
    "sums-in-passes": (
        "kernel k(a: f32[9, 7], b: f32[5])\n  for i in 0 .. 4:\n    alloc acc: f32[] @register:\n      acc[] = 1.0\n"
        "      for k in 0 .. 7:\n        acc[] = acc[] + a[i, k] * b[i]\n      b[i + 1] = acc[]\n",
        lambda k: block_reduction(tile(k, "k", 2, "p", "k", (3, 2)), "p", ("i",), SUMS),
        "block_reduction(p): b[i + 1] = ... and ... b[i]: iteration (i) = (1) reads what (0) writes, and must come "
        "after it",
    ),
    "terms-in-passes": (
        "kernel k(a: f32[4, 3], b: f32[4], c: f32[9])\n  for i in 0 .. 4:\n    alloc acc: f32[] @register:\n"
        "      acc[] = 1.0\n      for k in 0 .. 3:\n        acc[] = acc[] + a[i, k]\n        c[i + k] = a[i, k]\n"
        "      b[i] = acc[]\n",
        lambda k: block_reduction(tile(k, "k", 1, "p", "k", (1, 1)), "p", ("i",), SUMS),
        "block_reduction(p): c[i + k + p + 1] = ... and c[i + k] = ...: iteration (i) = (1) writes what (0) writes, "
        "and must come after it",
    ),
    "sums-at-one-place": (
        "kernel k(a: f32[4, 4, 4], b: f32[4, 4])\n  for i in 0 .. 4:\n    for j in 0 .. 3:\n"
        "      alloc acc: f32[] @register:\n        acc[] = 1.0\n        for k in 0 .. 4:\n"
        "          acc[] = acc[] + a[i, j, k]\n        b[i, j] = acc[]\n",
        lambda k: block_reduction(k, "k", ("i", "j"), SUMS, (Var("i") * 2 + Var("j"),)),
        "block_reduction(k): sums[i * 2 + j] = ... and sums[i * 2 + j] = ...: iteration (i, j) = (1, 0) writes what "
        "(0, 2) writes, and must come after it",
    ),
}
LEGAL: dict[str, tuple[str, Rewrite]] = {
    "reads-the-row-above": (SKEWED.replace("j + 1", "j"), lambda k: reorder(k, ("j", "i"))),
    "reads-the-column-before": (
        "kernel k(b: f32[5, 5])\n  for i in 1 .. 5:\n    for j in 1 .. 5:\n      b[i, j] = b[i - 1, j - 1]\n",
        lambda k: reorder(k, ("j", "i")),
    ),
    "a-sum": (
        "kernel k(a: f32[4, 5], b: f32[1])\n  for i in 0 .. 4:\n    for j in 0 .. 5:\n      b[0] = b[0] + a[i, j]\n",
        lambda k: reorder(k, ("j", "i")),
    ),
    "other-elements": (
        "kernel k(b: f32[12, 5])\n  for i in 1 .. 5:\n    for j in 0 .. 4:\n      b[i * 2, j] = b[i * 2 - 1, j + 1]\n",
        lambda k: reorder(k, ("j", "i")),
    ),
    "a-condition-keeps-them-apart": (
        "kernel k(b: f32[5, 5])\n  for i in 1 .. 5:\n    for j in 0 .. 4:\n      if j - 3 >= 0:\n"
        "        b[i, j] = b[i - 1, j + 1]\n",
        lambda k: reorder(k, ("j", "i")),
    ),
    "a-bound-keeps-them-apart": (
        "kernel k(b: f32[5, 9])\n  for n in 0 .. 2:\n    for i in 1 .. 5:\n      for j in 4 .. min(n + 4, 8):\n"
        "        b[i, j] = b[i - 1, j + 1]\n",
        lambda k: reorder(k, ("j", "i")),
    ),
    "parallel-rows": (
        "kernel k(b: f32[5, 5])\n  for i in 0 .. 5:\n    for j in 1 .. 5:\n      b[i, j] = b[i, j - 1]\n",
        lambda k: bind(k, ("i",), "parallel"),
    ),
    "vectors-read-before-they-write": (
        "kernel k(b: f32[8])\n  for i in 0 .. 7:\n    b[i] = b[i + 1]\n",
        lambda k: vectorise(k, "i", 8),
    ),
    "residue-of-distances": (
        "kernel k(b: f32[9])\n  for i in 0 .. 7:\n    b[i + 2] = b[i]\n",
        lambda k: residue(k, "i", 2, "r"),
    ),
    "transpose-in-other-rows": (
        "kernel k(b: f32[8, 4])\n  for k in 0 .. 4:\n    for n in 0 .. 4:\n      b[k, n] = b[n + 4, k]\n",
        lambda k: transpose(k, ("k", "n"), (4, 4)),
    ),
    "memory-of-its-own": (
        "kernel k(a: f32[4, 5], b: f32[4, 5])\n  for i in 0 .. 4:\n    for j in 0 .. 5:\n"
        "      alloc t: f32[1] @cache:\n        t[0] = a[i, j]\n        b[i, j] = t[0] * t[0]\n",
        lambda k: reorder(k, ("j", "i")),
    ),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_order_that_changes_a_value_is_refused(name: str) -> None:
    text, rewrite, message = ILLEGAL[name]
    with interning(), pytest.raises(ConfigError) as error:
        rewrite(parse_kernel(text))
    assert str(error.value) == message
    assert error.value.code == "dependence"


@pytest.mark.parametrize("name", LEGAL)
def test_an_order_that_changes_no_value_is_legal(name: str) -> None:
    text, rewrite = LEGAL[name]
    with interning():
        kernel = parse_kernel(text)
        new = rewrite(kernel)
        assert new is not kernel
        assert_same_results(kernel, new)


SUM = """\
kernel k(a: f32[2, 4], b: f32[2])
  for i in 0 .. 2:
    alloc acc: f32[1] @register:
      acc[0] = 0.0
      for k in 0 .. 4:
        acc[0] = acc[0] + a[i, k]
      b[i] = acc[0]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("= 0.0", "= 1.0", "acc must start at zero, for each lane has a sum of its own"),
        ("acc[0] + a", "acc[0] * a", "acc must start at 1.0, for each lane has a sum of its own"),
        ("acc[0] + a", "acc[0] - a", "or compare it, and no other statement of its nest use acc"),
        ("a[i, k]\n", "a[i, k] * acc[0]\n", "or compare it, and no other statement of its nest use acc"),
        ("b[i] = acc[0]", "acc[0] = b[i]", "acc is written after the sum; legal is to read it"),
        ("= acc[0]\n", "= acc[i] - acc[0]\n", "a statement after the sum reads several elements of acc"),
        ("0 .. 4", "-1 .. 3", "starts at -1; legal is 0 or more"),
    ],
)
def test_what_is_no_plain_sum_has_no_partial_sums(old: str, new: str, message: str) -> None:
    with interning():
        rfactor(parse_kernel(SUM), "k")
        with pytest.raises(ConfigError) as error:
            rfactor(parse_kernel(SUM.replace(old, new)), "k")
    assert str(error.value).startswith("rfactor: loop k") and str(error.value).endswith(message)


APART = """\
kernel k(a: f32[2, 4], b: f32[2])
  for i in 0 .. 2:
    alloc acc: f32[4, 1] @register:
      for k in 0 .. 4:
        acc[k, 0] = 0.0
      for k in 0 .. 4:
        acc[k, 0] = acc[k, 0] + a[i, k]
      b[i] = acc[0, 0] + acc[1, 0] + (acc[2, 0] + acc[3, 0])
"""


@pytest.mark.parametrize(
    ("start", "step", "whole"),
    [
        ("0.0", "acc[k, 0] + a[i, k]", "acc[0, 0] + acc[1, 0] + (acc[2, 0] + acc[3, 0])"),
        ("1.0", "acc[k, 0] * a[i, k]", "acc[0, 0] * acc[1, 0] * (acc[2, 0] * acc[3, 0])"),
        ("-inf", "max(acc[k, 0], a[i, k])", "max(max(acc[0, 0], acc[1, 0]), max(acc[2, 0], acc[3, 0]))"),
        ("inf", "min(acc[k, 0], a[i, k])", "min(min(acc[0, 0], acc[1, 0]), min(acc[2, 0], acc[3, 0]))"),
    ],
)
def test_partial_results_apart_are_combined_in_pairs(start: str, step: str, whole: str) -> None:
    made = SUM.replace("0.0", start).replace("acc[0] + a[i, k]", step.replace("acc[k, 0]", "acc[0]"))
    apart = APART.replace("0.0", start).replace("acc[k, 0] + a[i, k]", step)
    with interning():
        kernel = parse_kernel(made)
        new = rfactor(kernel, "k", apart=True)
        assert str(new) == apart.replace("acc[0, 0] + acc[1, 0] + (acc[2, 0] + acc[3, 0])", whole)
        assert_same_results(kernel, new)
        assert_same_results(kernel, rfactor(kernel, "k", 8))


def test_a_loop_over_sums_has_no_partial_sums() -> None:
    with interning(), pytest.raises(ConfigError, match="rfactor: loop i: its name is that of a loop before or after"):
        rfactor(fission(parse_kernel(SUM), ("i",)), "i")


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda k: reorder(k, ("j", "i")), lambda k: tile(k, "i", 2, "i.o", "i.i"), lambda k: fuse(k, "i", "j", "i_j"),
        lambda k: residue(k, "i", 2, "i.r"), lambda k: cut(k, "i", (1,)), lambda k: fission(k, ("i",)),
        lambda k: rfactor(k, "i"), lambda k: block_reduction(k, "j", ("i",)), lambda k: solve(k, "i"),
        lambda k: stage(k, "a", "i"), lambda k: tile(k, "i", 1, "p", "q", (1, 1)),
    ],
)  # fmt: skip
def test_all_loops_of_a_name_are_rewritten(rewrite: Rewrite) -> None:
    """A pass that does not serve one of them raises, and the kernel stays as it was."""
    text = (
        "kernel k(a: f32[4, 4], b: f32[4, 4])\n  for i in 0 .. 4:\n    for j in 0 .. 4:\n      b[i, j] = a[i, j]\n"
        "  for i in 0 .. 2:\n    b[i, 0] = a[0, i]\n"
    )
    with interning():
        kernel = parse_kernel(text)
        with suppress(ConfigError):
            assert_same_results(kernel, rewrite(kernel))


TWICE = """\
kernel k(a: f32[9, 9], b: f32[9, 9])
  for i in 0 .. 9:
    for j in 0 .. 9:
      b[i, j] = a[i, j]
"""
COPIES: dict[str, tuple[str, Rewrite]] = {
    "cut": (TWICE, lambda k: cut(k, "i", (4,))),
    "tile-of-copies": (TWICE, lambda k: tile(cut(k, "j", (4,)), "j", 2, "o", "i.i")),
    "partition": (
        TWICE.replace("j in 0 .. 9", "j in 0 .. min(i + 1, 5)"), lambda k: partition(k, ("i",), 8),
    ),
    "fission": (SUM.replace("k in", "j in").replace("k]", "j]"), lambda k: fission(k, ("i",))),
    "unroll": (TWICE.replace("j", "l"), lambda k: unroll(bind(k, ("i",), "unrolled"))),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_a_loop_are_one_loop(name: str) -> None:
    text, rewrite = COPIES[name]
    with interning():
        kernel = rewrite(parse_kernel(text))
        several = Counter(x.var.name for x in loops_of(kernel.body))
        copied = {n for n, count in several.items() if count > 1}
        assert copied
        for n in copied:
            assert_same_results(kernel, tile(kernel, n, 2, "x", "y"))


def test_a_parallel_loop_does_not_stand_in_a_serial_one() -> None:
    with interning():
        kernel = parse_kernel(TWICE)
        with pytest.raises(ConfigError, match="bind: loop j cannot be parallel within i, which is not"):
            bind(kernel, ("j",), "parallel")
        with pytest.raises(ConfigError, match=r"reorder\(j, i\): a parallel loop would stand within one that is not"):
            reorder(bind(kernel, ("i",), "parallel"), ("j", "i"))
        with pytest.raises(ConfigError, match="fuse: loops i and j are parallel and serial; legal is one kind"):
            fuse(bind(kernel, ("i",), "parallel"), "i", "j", "i_j")


def test_pieces_of_a_parallel_loop_run_at_once() -> None:
    text = "kernel k(b: f32[9])\n  for i in 0 .. 3:\n    b[i] = 1.0\n  for i in 3 .. 6:\n    b[i] = b[i - 3]\n"
    with interning():
        with pytest.raises(ConfigError, match=r"the second reads what the first writes") as error:
            bind(parse_kernel(text), ("i",), "parallel")
        assert error.value.code == "dependence"
        bind(parse_kernel(text.replace("b[i - 3]", "b[i + 1]").replace("3 .. 6", "4 .. 7")), ("i",), "serial")
        apart = parse_kernel(text.replace("b[i - 3]", "b[i] * 2.0"))
        assert_same_results(apart, bind(apart, ("i",), "parallel"))


def test_a_statement_beside_a_parallel_loop_is_refused() -> None:
    text = TWICE.replace("    for j", "    c[i] = 1.0\n    for j").replace("b: f32[9, 9]", "b: f32[9, 9], c: f32[9]")
    with interning():
        with pytest.raises(ConfigError, match="stand beside parallel loop j; legal is a parallel loop alone"):
            collapse(bind(parse_kernel(text), ("i", "j"), "parallel"))
