"""Asynchronous copies: same results under all schedules, and each wait is as late and as small as it can be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedules import SEEDS, assert_each_is_needed, assert_same, results

from convsmith.interp import InterpError
from convsmith.ir.parse import parse_kernel
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import AsyncCopy, Commit, Kernel, Stmt, Wait
from convsmith.ir.verify import verify
from convsmith.ir.walk import statements_of
from convsmith.passes.async_copies import async_copies
from convsmith.passes.flatten import flatten
from convsmith.passes.map_to_threads import map_to_threads
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.split_barriers import split_barriers

PRODUCT = """\
kernel k(a: f32[128], b: f32[64], c: f32[16])
  for x in 0 .. 2 #grid:
    alloc s: f32[8] @shared:
      alloc z: f32[8] @shared:
        alloc r: f32[8] @register:
          for t in 0 .. 8 #group: r[t] = 0.0
          for k in 0 .. TRIPS:
            for t in 0 .. 8 #group: s[t] = (a[x * 64 + k * 8 + t] if k + t - 2 >= 0 else 0.0)
            for t in 0 .. 4 #group: for i in 0 .. 2: z[t + i * 4] = b[k * 8 + t + i * 4]
            for t in 0 .. 8 #group: for i in 0 .. 8: r[t] = r[t] + s[i] * z[(i + t) % 8]
          for t in 0 .. 8 #group: c[x * 8 + t] = r[t]
"""


class _LessWaiting(Rewriter):
    """Lets one group more be pending."""

    def visit_Wait(self, s: Wait) -> Stmt:
        return Wait(s.pending + 1)


def waits(kernel: Kernel) -> list[int]:
    return [x.pending for x in statements_of(kernel.body) if isinstance(x, Wait)]


def product(trips: object = 8) -> Kernel:
    return parse_kernel(PRODUCT.replace("TRIPS", str(trips)))


@pytest.mark.sampled(4, "trips", "split")
@pytest.mark.parametrize("trips", [8, 1, "x + 2"])
@pytest.mark.parametrize(("count", "ahead"), [(1, 0), (2, 1), (3, 2), (4, 3), (4, 2)])
@pytest.mark.parametrize("split", [False, True])
def test_slots_filled_asynchronously(count: int, ahead: int, trips: object, split: bool) -> None:
    old = product(trips)
    threads = map_to_threads(flatten(multiple_buffers(old, "k", ("s", "z"), count, ahead)))
    new = async_copies(split_barriers(threads) if split else threads)
    verify(new, TENSORISED)
    assert_same(old, new)
    if trips == 8:
        assert sum(isinstance(x, AsyncCopy) for x in statements_of(new.body)) == 2 * ahead + 2
        late = count >= ahead + 2 and not split  # the barrier follows the copies of an iteration
        assert set(waits(new)) == {ahead if late else max(ahead - 1, 0)}, str(new)
        less = replace(new, body=_LessWaiting().stmt(new.body))
        with pytest.raises(InterpError):
            for seed in SEEDS:
                results(less, seed)
        for kind in (Wait, Commit):
            assert_each_is_needed(new, kind)


@pytest.mark.parametrize(("count", "ahead"), [(2, 1), (3, 2)])
def test_unrolled_slots(count: int, ahead: int) -> None:
    old = product()
    new = async_copies(map_to_threads(flatten(multiple_buffers(old, "k", ("s", "z"), count, ahead, rounds="k.r"))))
    assert_same(old, new)
    assert max(waits(new)) == ahead - 1


HEAD = "kernel k(a: f32[64], h: f16[64], c: f32[64])\n  alloc s: f32[16] @shared:\n    alloc g: f16[16] @shared:\n"


@pytest.mark.parametrize(
    ("body", "sizes", "copies"),
    [
        ("s[t] = a[t]\nbarrier\nc[t] = s[-t + 3]", (4,), 1),
        ("s[t] = a[t]\nbarrier\nc[t] = s[-t + 3]", (8, 16), 0),
        ("s[t * 4]{4} = a[t * 4]{4}\nbarrier\nc[t] = s[-t + 3]", (16,), 1),
        ("s[t * 4]{4} = (a[t * 4]{4} if t - 1 >= 0 else 0.0)\nbarrier\nc[t] = s[-t + 3]", (16,), 1),
        ("s[t * 4]{4} = (a[t * 4]{4} if t - 1 >= 0 else 1.0)\nbarrier\nc[t] = s[-t + 3]", (16,), 0),
        ("s[t * 4]{4} = a[t]{4:0}\nbarrier\nc[t] = s[-t + 3]", (16,), 0),
        ("s[t * 4]{4/3} = a[t * 4]{4/3}\nbarrier\nc[t] = s[t * 4]", (16,), 0),
        ("g[t] = h[t]\nbarrier\nc[t] = cast(f32, g[-t + 3])", (4, 8, 16), 0),
        ("g[t * 2]{2} = h[t * 2]{2}\nbarrier\nc[t] = cast(f32, g[-t + 3])", (4, 8, 16), 1),
        ("s[t] = a[t] + 1.0\nbarrier\nc[t] = s[-t + 3]", (4,), 0),
        ("c[t] = a[t]\ns[t] = c[t]\nbarrier\nc[t + 8] = s[-t + 3]", (4,), 0),
        # A thread that uses its own elements waits without a barrier.
        ("s[t] = a[t]\nc[t] = s[t]", (4,), 1),
        ("s[t] = a[t]\nfor i in 0 .. 2:\n  s[t] = s[t] + 1.0\nbarrier\nc[t] = s[-t + 3]", (4,), 1),
        # An element is copied twice: the second copy waits for the first.
        ("s[t] = a[t]\ns[t] = a[t + 8]\nbarrier\nc[t] = s[-t + 3]", (4,), 2),
    ],
)  # fmt: skip
def test_which_stores_are_copies(body: str, sizes: tuple[int, ...], copies: int) -> None:
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    old = parse_kernel(f"{HEAD}      for t in 0 .. 4 #group:\n{lines}")
    new = async_copies(old, sizes)
    assert sum(isinstance(x, AsyncCopy) for x in statements_of(new.body)) == copies
    assert_same(old, new)
    if copies:
        assert_each_is_needed(new, Wait)
    else:
        assert new is old
