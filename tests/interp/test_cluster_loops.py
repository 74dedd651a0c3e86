"""Clusters in the interpreter: groups run side by side and bring parts of copies to each other, and every statement
that orders them is missed.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError, InternalError
from convsmith.interp import run
from convsmith.interp.memory import InterpError
from convsmith.ir.equal import first_mismatch
from convsmith.ir.parse import parse_kernel
from convsmith.ir.verify import verify
from convsmith.passes.multicast import multicast

GRID = """\
kernel k(a: f32[32], b: f32[16], c: f32[48])
  for r in 0 .. 3 #grid:
    for g in 0 .. 2 #grid:
      alloc s: f32[8] @shared:
        alloc t: f32[4] @shared:
          for x in 0 .. 2:
            fence barriers
            for i in 0 .. 2 #signalled:
              tensor s[i % 2 * 4] = a[0] dims(2:1, 16:2) box(2, 2) at(0, i * 2 + r * 4 + x * 2)
              tensor t[i % 2 * 2] = b[0] dims(2:1, 8:2) box(2, 1) at(0, g * 4 + i + x * 2)
              receive
              for w in 0 .. 1 #warp:
                for l in 0 .. 4 #lane:
                  c[g * 8 + l + r * 16 + x * 4] = s[l + i % 2 * 4] + t[i % 2 * 2 + l % 2]
              release step i
"""
"""Groups that compute two tiles; both groups of a pair read the same elements of `a`."""
CLUSTER = """\
kernel k(a: f32[32], b: f32[16], c: f32[48])
  for r in 0 .. 3 #grid:
    for g in 0 .. 2 #cluster:
      fence barriers
      meet
      alloc s: f32[8] @shared:
        alloc t: f32[4] @shared:
          for x in 0 .. 2:
            for i in 0 .. 2 #signalled:
              tensor s[g * 2 + i % 2 * 4] = a[0] dims(2:1, 16:2) box(2, 1) at(0, g + i * 2 + r * 4 + x * 2) to 2 groups
              tensor t[i % 2 * 2] = b[0] dims(2:1, 8:2) box(2, 1) at(0, g * 4 + i + x * 2)
              receive
              for w in 0 .. 1 #warp:
                for l in 0 .. 4 #lane:
                  c[g * 8 + l + r * 16 + x * 4] = s[l + i % 2 * 4] + t[i % 2 * 2 + l % 2]
              release step i to cluster
      meet
"""


def results(text: str, seed: int) -> np.ndarray:
    kernel = parse_kernel(text)
    verify(kernel)
    arrays = {"a": np.arange(32, dtype=np.float32), "b": np.arange(16, dtype=np.float32) * 100,
              "c": np.zeros(48, np.float32)}  # fmt: skip
    run(kernel, arrays, {}, seed=seed)
    return arrays["c"]


def test_the_pass_makes_clusters_whose_text_is_parsed_to_the_same_kernel() -> None:
    made = multicast(parse_kernel(GRID), "g")
    assert str(made) == CLUSTER and first_mismatch(made, parse_kernel(CLUSTER)) is None
    for old, new in ((" to cluster", ""), (" to 2 groups", ""), ("#cluster", "#grid")):
        assert first_mismatch(made, parse_kernel(CLUSTER.replace(old, new))) is not None


def test_results_are_those_of_groups_alone_in_any_order() -> None:
    wanted = results(GRID, 0)
    for seed in range(12):
        np.testing.assert_array_equal(results(CLUSTER, seed), wanted)


FENCE, MEET = "      fence barriers\n", "      meet\n"
FLAWS = {
    "no fence": (CLUSTER.replace(FENCE, ""), "no fence of barriers stands before the loop"),
    "no meeting before": (CLUSTER.replace(MEET, "", 1), "brought to a group that has met no others since its fence"),
    "no meeting at the end": (CLUSTER.removesuffix(MEET), "the group ends, and has not met the others since"),
    "no release to the cluster": (CLUSTER.replace(" to cluster", ""), "of a cluster waits for .*; none can go on"),
    "released before its use": (
        CLUSTER.replace("              release step i to cluster\n", "")
        .replace("receive\n", "receive\n              release step i to cluster\n"),
        "is accessed after step",
    ),
    "a part for one group": (CLUSTER.replace(" to 2 groups", ""), "before it is written|waits for|slot"),
    "not received": (CLUSTER.replace("              receive\n", ""), "before step . is received"),
    "one meets": (CLUSTER.replace(MEET, MEET + "      if g == 0:\n        meet\n", 1), "for the others at meeting"),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_of_a_cluster_is_missed(name: str) -> None:
    text, message = FLAWS[name]
    with pytest.raises(InterpError, match=message):
        for seed in range(6):
            results(text, seed)


def test_parts_reach_as_many_groups_as_the_cluster_has() -> None:
    with pytest.raises(InterpError, match="reaches 4 groups; the cluster has 2"):
        results(CLUSTER.replace("to 2 groups", "to 4 groups").replace("s: f32[8]", "s: f32[16]"), 0)


ILLEGAL = {
    "meet": ("kernel k(a: f32[2])\n  for g in 0 .. 2 #grid:\n    meet\n    a[g] = 1.0\n", "outside of a cluster loop"),
    "cluster": (
        "kernel k(a: f32[2])\n  for g in 0 .. 2 #cluster:\n    for i in 0 .. 1 #grid:\n      a[g] = 1.0\n",
        "a grid loop stands inside of grid loops only",
    ),
    "copy": (CLUSTER.replace("#cluster", "#grid").replace(" to cluster", "").replace("      meet\n", ""),
             "a multicast stands in a signalled loop of a group of a cluster"),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_the_verifier_refuses(name: str) -> None:
    text, message = ILLEGAL[name]
    with pytest.raises(InternalError, match=message):
        verify(parse_kernel(text))


REFUSED = {
    "no copy of the same elements": GRID.replace("at(0, i * 2 + r * 4 + x * 2)", "at(0, i * 2 + g * 4 + x * 2)"),
    "groups of g run the loop i differently": GRID.replace("i in 0 .. 2 #sig", "i in 0 .. g + 1 #sig"),
    "legal is the innermost loop over groups": GRID.replace("for r ", "for y ").replace("for g ", "for r ")
    .replace("for y ", "for g "),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_the_pass_refuses(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        partial(multicast, loop="g")(parse_kernel(REFUSED[message]))
