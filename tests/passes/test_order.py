"""Rewrites that would change a value by another order are refused, and name both accesses; legal orders are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.reorder import reorder
from convsmith.passes.sink import sink

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
    "sink": (
        SKEWED,
        lambda k: sink(k, ("i",)),
        "sink(i): b[i, j] = ... and ... b[i - 1, j + 1]: iteration (i, j) = (2, 0) reads what (1, 1) writes, "
        "and must come after it",
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
