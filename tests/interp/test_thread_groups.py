"""Groups and threads in the interpreter: legal kernels agree under all schedules, each fault raises."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.interp import InterpError, run
from convsmith.ir.parse import parse_kernel

SEEDS = range(6)


def execute(body: str, seed: int = 0, size: int = 16) -> np.ndarray:
    """Run statements over a = 1 .. size and c = zeros; return c."""
    text = "\n".join("  " + line for line in body.strip("\n").split("\n"))
    kernel = parse_kernel(f"kernel k(a: f32[{size}], c: f32[{size}])\n{text}")
    arrays = {"a": np.arange(1, size + 1, dtype=np.float32), "c": np.zeros(size, np.float32)}
    run(kernel, arrays, seed=seed)
    return arrays["c"]


REVERSED = """\
for x in 0 .. 2 #grid:
  alloc s: f32[8] @shared:
    for t in 0 .. 8 #group:
      s[t] = a[x * 8 + t]
      barrier
      c[x * 8 + t] = s[-t + 7]
"""
"""Each thread reads an element that another thread wrote before the barrier."""

ROTATED = """\
alloc s: f32[16] @shared:
  for t in 0 .. 8 #group:
    alloc r: f32[1] @register:
      r[0] = 0.0
      for k in 0 .. 4:
        s[t] = a[t + k]
        barrier
        r[0] = r[0] + s[(t + 1) % 8]
        barrier
      c[t] = r[0]
"""
"""Two barriers a step: one before the reads, and one before the next step overwrites the elements."""

SPLIT = ROTATED.replace(
    "        barrier\n      c[t]", "        barrier arrive\n        c[t + 8] = 1.0\n        barrier wait\n      c[t]"
)

COPIED = """\
alloc s: f32[16] @shared:
  for w in 0 .. 2 #warp:
    for l in 0 .. 4 #lane:
      async s[w * 8 + l * 2]{2} = a[w * 8 + l * 2]{2} if w >= 1
      commit
      wait 0
      barrier
      c[w * 4 + l] = s[-w * 4 - l + 15]
"""

PIPELINED = """\
alloc s: f32[16] @shared:
  for t in 0 .. 8 #group:
    alloc r: f32[1] @register:
      r[0] = 0.0
      async s[t] = a[t]
      commit
      for k in 0 .. 4:
        async s[(k + 1) % 2 * 8 + t] = a[t + k + 1] if -k + 2 >= 0
        commit
        wait 1
        barrier
        r[0] = r[0] + s[k % 2 * 8 + (t + 1) % 8]
        barrier
      wait 0
      c[t] = r[0]
"""
"""Two buffers: the copy for step k + 1 starts before the wait for that of step k."""


def numbers(*x: float) -> list[float]:
    return [*x, *[0.0] * (16 - len(x))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (REVERSED, [*range(8, 0, -1), *range(16, 8, -1)]),
        (ROTATED, numbers(*[4 * ((t + 1) % 8) + 10 for t in range(8)])),
        (SPLIT, [*[4 * ((t + 1) % 8) + 10 for t in range(8)], *[1] * 8]),
        (COPIED, numbers(*range(16, 8, -1))),
        (COPIED.replace("if w >= 1", "if w == 0"), numbers()),
        (PIPELINED, numbers(*[4 * ((t + 1) % 8) + 10 for t in range(8)])),
    ],
    ids=["reversed", "rotated", "split", "copied", "zeroed", "pipelined"],
)
def test_schedules_agree(body: str, expected: list[float], seed: int) -> None:
    np.testing.assert_array_equal(execute(body, seed), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_joined_nests(seed: int) -> None:
    """A join ends each nest; registers around the nests belong to the thread of the same number."""
    body = """\
for x in 0 .. 2 #grid:
  alloc s: f32[8] @shared:
    alloc r: f32[4, 2] @register:
      for t in 0 .. 8 #group: s[t] = a[x * 8 + t]
      for u in 0 .. 4 #warp: for l in 0 .. 2 #lane: r[u, l] = s[-u * 2 - l + 7]
      for v in 0 .. 8 #group: c[x * 8 + v] = r[v // 2, v % 2]
"""
    np.testing.assert_array_equal(execute(body, seed), [*range(8, 0, -1), *range(16, 8, -1)])


@pytest.mark.parametrize("seed", SEEDS)
def test_atomic_additions_of_groups_and_threads(seed: int) -> None:
    body = "for x in 0 .. 4 #grid: for t in 0 .. 4 #group: atomic c[t // 2]{2} += a[x * 4 + t]{2:0}"
    expected = [0.0] * 16
    for x in range(4):
        for t in range(4):
            for lane in range(2):
                expected[t // 2 + lane] += x * 4 + t + 1
    np.testing.assert_array_equal(execute(body, seed), expected)


@pytest.mark.parametrize("kind", ["grid", "group", "group with barriers"])
def test_the_seed_orders_threads_and_groups(kind: str) -> None:
    """Sums of floats round in the order of the schedule, so that some two schedules differ."""
    body = f"for t in 0 .. 16 #{kind.split()[0]}:\n  atomic c[0] += a[t] * 16777216.0 / 3.0"
    body += "\n  barrier" if "barriers" in kind else ""
    sums = [execute(body, seed)[0] for seed in range(20)]
    assert len(set(sums)) > 1
    assert execute(body, 3)[0] == execute(body, 3)[0]


GROUP = "for t in 0 .. 4 #group:"
SHARED = "alloc s: f32[8] @shared: "


def fails(body: str, *messages: str) -> None:
    for seed in SEEDS:
        with pytest.raises(InterpError) as error:
            execute(body, seed)
        assert any(message in str(error.value) for message in messages), str(error.value)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (REVERSED.replace("      barrier\n", ""), "read"),
        (ROTATED.replace("        barrier\n        r", "        r"), "s: thread t = |is read before it is written"),
        (ROTATED.replace("        barrier\n      c", "      c"), "with no barrier between"),
        (SPLIT.replace("barrier wait", "pass"), "arrives at a barrier twice without a wait between"),
        (SPLIT.replace("barrier arrive", "pass"), "waits at a barrier at which it has not arrived"),
        (COPIED.replace("      barrier\n", ""), "s: thread w = |is read before it is written"),
        (COPIED.replace("wait 0", "pass"), "before that thread waits for the copy"),
        (COPIED.replace("wait 0", "wait 1"), "before that thread waits for the copy"),
        (COPIED.replace("commit", "pass"), "before that thread waits for the copy"),
        (COPIED.replace("      wait 0\n      barrier", "      barrier\n      wait 0"), "s: thread w = "),
        (PIPELINED.replace("wait 1", "wait 2"), "before that thread waits for the copy"),
        (PIPELINED.replace("        barrier\n      wait", "      wait"), "s: thread t = "),
        (PIPELINED.replace("      wait 0\n", "").replace("if -k + 2 >= 0", ""), "ends before it waits for its asynch"),
    ],
)
def test_a_missing_statement_raises(without: str, message: str) -> None:
    fails(without, *message.split("|"))


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (GROUP + " c[0] = 1.0", ["c: thread t = ", "writes element 0, which thread t = "]),
        (GROUP + " c[t] = c[(t + 1) % 4]", ["reads element", "writes element"]),
        (GROUP + "\n  c[0] = 1.0\n  barrier", ["writes with no barrier between"]),
        (GROUP + "\n  c[t] = c[15]\n  barrier\n  if t == 2: c[15] = 1.0\n  c[t] = c[15]",
         ["which thread t = 2 writes with no barrier", "thread t = 2 writes element 15, which thread t = "]),
        (GROUP + "\n  atomic c[0] += 1.0\n  c[t + 1] = c[0]", ["adds to", "reads with no barrier between"]),
        (GROUP + "\n  if t == 0: c[0] = 1.0\n  atomic c[0] += 1.0", ["adds to element 0", "adds to with no barrier"]),
        ("alloc r: f32[4] @register: " + GROUP + " r[t // 2] = 0.0", ["uses element", "a register of thread t = "]),
        ("alloc r: f32[4] @register:\n  " + GROUP + " r[t] = 0.0\n  for u in 0 .. 4 #lane: c[u] = r[3 - u]",
         ["a register of thread t = "]),
        ("alloc r: f32[8] @fragment:\n  for w in 0 .. 2 #warp: r[w * 4] = 0.0\n"
         "  for v in 0 .. 2 #warp: for l in 0 .. 2 #lane: c[v * 2 + l] = r[-v * 4 + 4]", ["a register of thread w = "]),
        (GROUP + "\n  if t - 1 >= 0: barrier", ["waits at a barrier that thread t = 0 does not reach"]),
        (GROUP + "\n  for i in 0 .. t: barrier", ["does not reach"]),
        (GROUP + "\n  if t == 0: barrier\n  if t - 1 >= 0: barrier", ["arrives at a barrier while thread t = "]),
        (GROUP + "\n  barrier arrive", ["arrives at a barrier and ends without a wait"]),
        (GROUP + "\n  barrier arrive\n  c[0] = 1.0\n  barrier wait", ["writes with no barrier between"]),
        (GROUP + "\n  barrier arrive\n  c[t] = a[15]\n  barrier wait\n  if t == 2: a[15] = 1.0",
         ["reads with no barrier between"]),
        ("for w in 0 .. 2 #warp:\n  pass\n  for l in 0 .. 2 #lane: barrier", ["a barrier stands within `for l in"]),
        ("barrier", ["`barrier` stands outside of a nest"]),
        ("commit", ["`commit` stands outside of a nest"]),
        (SHARED + GROUP + "\n  async s[t] = a[t]\n  c[t] = s[t]", ["reads element", "which an asynchronous copy of"]),
        (SHARED + GROUP + "\n  async s[t] = a[t]\n  s[t] = 1.0", ["writes element", "an asynchronous copy of thread"]),
        (SHARED + GROUP + "\n  async s[t] = a[t]\n  a[t] = 1.0", ["an asynchronous copy of thread t = "]),
        (SHARED + GROUP + "\n  async s[0] = a[t]\n  commit\n  wait 0", ["s: thread t = "]),
        (SHARED + GROUP + " async s[t] = a[t + 16]", ["a[16] is outside of the shape", "is outside of the shape"]),
        (SHARED + GROUP + "\n  s[t] = 1.0\n  c[t] = s[t + 4]", ["of s is read before it is written"]),
        (SHARED + GROUP + " atomic s[t] += 1.0", ["of s is added to before it is written"]),
        ("for x in 0 .. 2 #grid: c[0] = 1.0", ["c: iteration 1 of grid loop x writes element 0, which iteration 0",
                                                "c: iteration 0 of grid loop x writes element 0, which iteration 1"]),
        ("for x in 0 .. 3 #grid:\n  atomic c[0] += 1.0\n  c[x + 1] = c[0]", ["which iteration", "which another"]),
        ("for x in 0 .. 3 #grid:\n  if x == 1: c[0] = 1.0\n  atomic c[0] += 1.0", ["adds to", "adds to element 0"]),
        ("for x in 0 .. 2 #grid: for t in 0 .. 2 #group: for x in 0 .. 2: pass", ["variable x is bound twice"]),
    ],
)  # fmt: skip
def test_each_fault_raises(body: str, messages: list[str]) -> None:
    fails(body, *messages)


def test_the_message_names_the_place() -> None:
    with pytest.raises(InterpError) as error:
        execute("for x in 0 .. 1 #grid: for t in 0 .. 2 #group: c[5] = 1.0", 0)
    text = str(error.value)
    first, second = ("0", "1") if "t = 1: c" in text else ("1", "0")
    assert text == (
        f"kernel k at x = 0, t = {second}: c: thread t = {second} writes element 5, "
        f"which thread t = {first} writes with no barrier between"
    )
