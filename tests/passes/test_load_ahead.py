"""Factors in two sets of registers: same results under all schedules, and copies that are on their way at a barrier."""

from __future__ import annotations

import pytest
from schedules import assert_same, results, without_one

from convsmith.diag.errors import ConfigError
from convsmith.interp import InterpError
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import Barrier, Kernel, Stmt, Wait
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of, statements_of
from convsmith.passes.async_copies import async_copies
from convsmith.passes.delay_barriers import delay_barriers
from convsmith.passes.flatten import flatten
from convsmith.passes.load_ahead import load_ahead
from convsmith.passes.map_to_threads import map_to_threads
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.simplify import simplify
from convsmith.passes.unroll import unroll

PRODUCT = """\
kernel k(a: f32[2, 16, 4], b: f32[16, 4], c: f32[8, 4])
  for x in 0 .. 2 #grid:
    alloc r: f32[4, 2, 2] @register:
      for t in 0 .. 4 #group: for i in 0 .. 2: for j in 0 .. 2: r[t, i, j] = 0.0
      for k in 0 .. STEPS:
        alloc s: f32[2, 4] @shared:
          alloc z: f32[2, 4] @shared:
            for t in 0 .. 8 #group: s[t // 4, t % 4] = a[x, k * 2 + t // 4, t % 4]
            for t in 0 .. 8 #group: z[t // 4, t % 4] = b[k * 2 + t // 4, t % 4]
            for t in 0 .. 4 #group:
              for kk in 0 .. TERMS:
                alloc p: f32[2] @register:
                  for i in 0 .. 2: p[i] = s[kk, t // 2 * 2 + i]
                  alloc q: f32[2] @register:
                    for j in 0 .. 2: q[j] = z[kk, t % 2 * 2 + j]
                    for i in 0 .. 2: for j in 0 .. 2: r[t, i, j] = r[t, i, j] + p[i] * q[j]
      for t in 0 .. 4 #group:
        for i in 0 .. 2: for j in 0 .. 2: c[x * 4 + t // 2 * 2 + i, t % 2 * 2 + j] = r[t, i, j]
"""


def product(steps: int = 8, terms: int = 2) -> Kernel:
    return parse_kernel(PRODUCT.replace("STEPS", str(steps)).replace("TERMS", str(terms)))


def waits_in(kernel: Kernel, loop: str) -> list[int]:
    """The number of groups of copies that may be on their way after each wait in a loop."""
    found = [x for x in loops_of(kernel.body) if x.var.name == loop]
    return [x.pending for loop in found for x in statements_of(loop.body) if isinstance(x, Wait)]


def assert_needed(kernel: Kernel, dropped: type[Stmt]) -> None:
    """Require that the interpreter raises where a statement of a class is missing; one behind the loop may be too many,
    because its analysis knows no number of iterations.
    """
    missed = 0
    for less in without_one(kernel, dropped):
        try:
            for seed in range(3):
                results(less, seed)
            missed += 1
        except InterpError:
            pass
    assert missed <= 1


@pytest.mark.sampled(3, "steps")
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize(("count", "rounds"), [(1, ""), (2, ""), (3, ""), (3, "k.o")])
def test_two_sets_of_registers(count: int, rounds: str, steps: int) -> None:
    old = product(steps)
    slots = multiple_buffers(old, "k", ("s", "z"), count, max(count - 1, 1), *([rounds] if rounds else []))
    new = load_ahead(slots)
    assert_same(old, new)
    assert "p: f32[4, 2, 2] @register" in str(new) and "q: f32[4, 2, 2] @register" in str(new)
    threads = map_to_threads(simplify(flatten(new)))
    delayed = delay_barriers(threads)
    for kernel in (threads, unroll(delayed), async_copies(delayed)):
        verify(kernel, TENSORISED)
        assert_same(old, kernel)
    if steps == 7 and count > 1:
        assert_needed(threads, Barrier)


@pytest.mark.parametrize(("rounds", "loop", "times"), [("", "k", 1), ("k.o", "k.o", 3)])
def test_copies_of_a_step_are_on_their_way_at_a_delayed_barrier(rounds: str, loop: str, times: int) -> None:
    """Three slots are filled two steps ahead. A barrier in front of a step's copies waits for those of the next step; a
    barrier behind them leaves a group on its way.
    """
    slots = multiple_buffers(product(), "k", ("s", "z"), 3, 2, *([rounds] if rounds else []))
    threads = map_to_threads(simplify(flatten(load_ahead(slots))))
    assert waits_in(async_copies(threads), loop) == [0] * times
    late = async_copies(delay_barriers(threads))
    assert waits_in(late, loop) == [1] * times
    assert_needed(late, Wait)


def test_a_barrier_that_orders_copies_stays() -> None:
    """Without factors in registers, a step's copies fill the slot that other threads have just read."""
    threads = map_to_threads(simplify(flatten(multiple_buffers(product(), "k", ("s", "z"), 3, 2))))
    assert delay_barriers(threads) is threads
    assert sum(isinstance(x, Barrier) for x in statements_of(threads.body)) == 1


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (product(terms=1), "an iteration of k has 1 products, which use 2 sets of registers in turn; legal is"),
        (parse_kernel("kernel k(a: f32[4])\n  for t in 0 .. 4 #group: a[t] = 0.0\n"),
         "no loop over threads of k loads factors from shared memory for each product"),
    ],
)  # fmt: skip
def test_what_is_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_ahead(multiple_buffers(kernel, "k", ("s", "z"), 2) if "alloc" in str(kernel) else kernel)
    assert message in str(error.value) and error.value.code == "load_ahead"
