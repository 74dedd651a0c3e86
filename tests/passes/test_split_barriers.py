"""Split barriers: threads do the longest work that leaves no new pair of accesses without order."""

from __future__ import annotations

import pytest
from schedules import assert_each_is_needed, assert_same

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Barrier, For, Kernel
from convsmith.ir.verify import verify
from convsmith.ir.walk import statements_of
from convsmith.passes.flatten import flatten
from convsmith.passes.map_to_threads import map_to_threads
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.split_barriers import split_barriers

LOOP = """\
kernel k(a: f32[64], c: f32[8])
  alloc s: f32[8] @shared:
    for k in 0 .. 6:
      for t in 0 .. 8 #group: s[t] = a[k * 8 + t]
      for t in 0 .. 8 #group: for i in 0 .. 8: c[t] = c[t] + s[i]
"""


def parts(kernel: Kernel) -> list[str]:
    return [x.part for x in statements_of(kernel.body) if isinstance(x, Barrier)]


@pytest.mark.parametrize(("count", "ahead"), [(2, 1), (3, 1), (3, 2), (4, 1), (4, 2)])
def test_slots_and_split_barriers(count: int, ahead: int) -> None:
    """With two slots more than iterations ahead, products run between arrival and wait."""
    old = parse_kernel(LOOP)
    threads = map_to_threads(flatten(multiple_buffers(old, "k", ("s",), count, ahead)))
    new = split_barriers(threads)
    verify(new)
    assert_same(old, new)
    between = str(new).partition("barrier arrive")[2].partition("barrier wait")[0]
    assert ("for i in" in between) == (count >= ahead + 2), str(new)
    if count >= ahead + 2:
        assert parts(new) == ["whole", "arrive", "wait"]
        assert_each_is_needed(new)


@pytest.mark.parametrize(
    ("body", "between"),
    [
        # Statements before the barrier that nobody waits for, and statements after it that wait for nobody.
        ("s[t] = a[k]\nb[t + k * 8] = 1.0\nbarrier\nc[t] = c[t] + s[-t + 7]\nbarrier", "b[k * 8 + t] = 1.0"),
        ("s[t] = a[k]\nbarrier\nb[t + k * 8] = 1.0\nc[t] = c[t] + s[-t + 7]\nbarrier", "b[k * 8 + t] = 1.0"),
        # Nothing can stand between: all statements use what others write.
        ("s[t] = a[k]\nbarrier\nc[t] = c[t] + s[-t + 7]\nbarrier", ""),
        # Statements that copy or meet others stay where they are.
        ("async s[t] = a[k]\ncommit\nwait 0\nbarrier\nc[t] = c[t] + s[-t + 7]\nbarrier", ""),
    ],
)
def test_statements_that_run_between(body: str, between: str) -> None:
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    old = parse_kernel("kernel k(a: f32[8], b: f32[64], c: f32[8])\n  alloc s: f32[8] @shared:\n"
                       f"    for t in 0 .. 8 #group:\n      for k in 0 .. 4:\n{lines}")  # fmt: skip
    new = split_barriers(old)
    assert_same(old, new)
    if not between:
        assert new is old
    else:
        found = str(new).partition("barrier arrive")[2].partition("barrier wait")[0]
        assert [x.strip() for x in found.strip().split("\n")] == [str(between)], str(new)


def test_kernels_without_threads_or_barriers_stay() -> None:
    for text in ("for i in 0 .. 4: a[i] = 1.0", "for t in 0 .. 4 #group: for k in 0 .. 2: a[t] = 1.0"):
        kernel = parse_kernel(f"kernel k(a: f32[4])\n  {text}\n")
        assert split_barriers(kernel) is kernel


def test_a_loop_of_a_split_barrier_keeps_its_kind() -> None:
    threads = map_to_threads(flatten(multiple_buffers(parse_kernel(LOOP), "k", ("s",), 3, 1)))
    new = split_barriers(threads)
    loops = [x for x in statements_of(new.body) if isinstance(x, For)]
    assert [x.kind for x in loops] == ["group", "serial", "serial"]
