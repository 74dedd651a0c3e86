"""From loops over threads that end in joins to one nest with barriers: same results, no barrier too many or too few."""

from __future__ import annotations

import random

import pytest
from schedules import assert_each_is_needed, assert_same, results

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import THREAD_LOOPS, Barrier, Kernel
from convsmith.ir.threads import nest_of
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of, statements_of
from convsmith.passes.map_to_threads import map_to_threads

HEAD = "kernel k(a: f32[64], b: f32[64], c: f32[64])\n"

PRODUCT = HEAD + """\
  for x in 0 .. 2 #grid:
    alloc s: f32[16] @shared:
      alloc z: f32[16] @shared:
        alloc r: f32[8, 2] @register:
          for t in 0 .. 8 #group: for i in 0 .. 2: r[t, i] = 0.0
          for k in 0 .. 3:
            for t in 0 .. 8 #group: for i in 0 .. 2: s[i * 8 + t] = a[x * 8 + i * 8 + t + k]
            for t in 0 .. 8 #group: for i in 0 .. 2: z[t * 2 + i] = b[t + i + k]
            for t in 0 .. 8 #group: for i in 0 .. 2: for j in 0 .. 8: r[t, i] = r[t, i] + s[i * 8 + j] * z[j * 2 + i]
          for t in 0 .. 8 #group: for i in 0 .. 2: c[x * 16 + t * 2 + i] = r[t, i]
"""
"""Loads by all threads, then products."""

SLOTS = HEAD + """\
  alloc s: f32[24] @shared:
    for t in 0 .. 8 #group: s[t] = a[t]
    for k in 0 .. 5:
      for t in 0 .. 8 #group: if -k + 3 >= 0: s[(k + 1) % DEPTH * 8 + t] = a[t + k + 1]
      for t in 0 .. 8 #group: c[t] = c[t] + s[k % DEPTH * 8 + (t + 3) % 8]
"""
"""The copy for the next step goes to another slot."""

CASES = {
    "product": (PRODUCT, 2),
    "one slot": (SLOTS.replace("DEPTH", "1").replace("s[(k + 1) % 1 * 8 + t] = a[t + k + 1]", "s[t] = a[t + k]")
                 .replace("if -k + 3 >= 0: ", ""), 2),
    "two slots": (SLOTS.replace("DEPTH", "2"), 1),
    "three slots": (SLOTS.replace("DEPTH", "3"), 1),
    "own elements": (HEAD + """\
  alloc s: f32[8] @shared:
    for t in 0 .. 8 #group: s[t] = a[t]
    for k in 0 .. 3: for t in 0 .. 8 #group: s[t] = s[t] + b[t + k]
    for t in 0 .. 8 #group: c[t] = s[t]
""", 0),
    "neighbours": (HEAD + """\
  alloc s: f32[8] @shared:
    for t in 0 .. 8 #group: s[t] = a[t]
    for t in 0 .. 8 #group: b[t] = s[t]
    for t in 0 .. 7 #group: c[t] = s[t + 1]
    for t in 0 .. 8 #group: b[t + 8] = s[t]
    for t in 0 .. 8 #group: s[t] = a[t + 8]
    for t in 0 .. 8 #group: c[t + 8] = s[-t + 7]
""", 3),
    "other shapes": (HEAD + """\
  alloc s: f32[16] @shared:
    alloc r: f32[4, 4] @register:
      for t in 0 .. 16 #group: s[t] = a[t]
      for w in 2 .. 6 #warp: for l in 0 .. 4 #lane: r[w - 2, l] = s[l * 4 + w - 2]
      for y in 0 .. 3 #group: for z in 0 .. 4 #group: c[y * 4 + z] = r[y, z]
      for t in 0 .. 16 #group: c[t + 16] = r[t // 4, t % 4]
""", 1),
    "global memory": (HEAD + """\
  for t in 0 .. 4 #group: c[t] = a[t]
  for t in 0 .. 4 #group: b[t] = c[-t + 3]
""", 1),
    "atomics": (HEAD + """\
  for t in 0 .. 4 #group: atomic c[t // 2] += a[t]
  for t in 0 .. 4 #group: atomic c[t // 2] += b[t]
  for t in 0 .. 4 #group: b[t + 8] = c[t // 2]
""", 1),
    "shared memory of a step": (HEAD + """\
  for k in 0 .. 3:
    alloc s: f32[4] @shared:
      for t in 0 .. 4 #group: s[t] = a[k * 4 + t]
      for t in 0 .. 4 #group: c[k * 4 + t] = s[-t + 3]
    alloc s: f32[4] @shared:
      for t in 0 .. 4 #group: s[t] = b[k * 4 + t]
      for t in 0 .. 4 #group: c[k * 4 + t + 16] = s[-t + 3]
""", 2),
    "conditions of a group": (HEAD + """\
  for x in 0 .. 2 #grid:
    let y = x * 8:
      alloc s: f32[8] @shared:
        for k in 0 .. 3:
          if k - x >= 0:
            for t in 0 .. 4 #group: s[t] = a[y + k + t]
          let z = k * 2:
            for t in 0 .. 4 #group: if t + k - 3 >= 0: c[y * 2 + z * 2 + t] = 1.0
          if k - x >= 0:
            for t in 0 .. 4 #group: b[y + t] = s[-t + 3]
""", 2),
    "warps": (HEAD + """\
  alloc s: f32[16] @shared:
    alloc r: f32[2, 8] @fragment:
      for k in 0 .. 3:
        for t in 0 .. 16 #group: s[t] = a[k * 16 + t]
        for w in 0 .. 2 #warp: for i in 0 .. 8: r[w, i] = s[-w * 8 - i + 15]
        for v in 0 .. 2 #warp: for l in 0 .. 8 #lane: c[k * 16 + v * 8 + l] = r[v, l]
""", 2),
    "conditions of an iteration": (HEAD + """\
  alloc s: f32[24] @shared:
    for t in 0 .. 8 #group: for i in 0 .. 3: s[i * 8 + t] = b[t]
    for k in 0 .. 3:
      for t in 0 .. 8 #group: if k - 1 == 0: s[k * 8 + t - 8] = a[k * 8 + t]
      for t in 0 .. 8 #group: c[k * 8 + t] = s[-t + 7]
""", 2),
    "a loop that may not run": (HEAD + """\
  for x in 0 .. 2 #grid:
    alloc s: f32[8] @shared:
      for t in 0 .. 8 #group: s[t] = a[x * 8 + t]
      for k in 0 .. x:
        for t in 0 .. 8 #group: b[x * 8 + t] = s[-t + 7]
      for t in 0 .. 8 #group: c[x * 8 + t] = s[-t + 7]
""", 2),
    "nested loops": (HEAD + """\
  alloc s: f32[16] @shared:
    for n in 0 .. 2:
      for t in 0 .. 4 #group: s[t + 4] = a[n * 4 + t]
      for k in 0 .. 2:
        for t in 0 .. 4 #group: s[t] = b[n * 4 + k * 8 + t]
        for t in 0 .. 4 #group: c[n * 8 + k * 4 + t] = s[-t + 3] + s[-t + 7]
""", 3),
}  # fmt: skip


def barriers(kernel: Kernel) -> int:
    return sum(isinstance(x, Barrier) for x in statements_of(kernel.body))


@pytest.mark.parametrize("name", CASES)
def test_threads_compute_what_joined_loops_compute(name: str) -> None:
    text, count = CASES[name]
    old = parse_kernel(text)
    new = map_to_threads(old)
    verify(new, TENSORISED)
    assert_same(old, new)
    outer = [x for x in loops_of(new.body) if x.kind in THREAD_LOOPS]
    nest = nest_of(outer[0])
    assert [x for x in outer if x in nest or x.kind != "lane"] == nest, "one nest remains"
    assert barriers(new) == count, str(new)
    assert_each_is_needed(new)


def test_a_second_run_changes_nothing() -> None:
    new = map_to_threads(parse_kernel(PRODUCT))
    assert map_to_threads(new) is new
    cpu = parse_kernel("kernel k(a: f32[4])\n  for i in 0 .. 4: a[i] = 1.0")
    assert map_to_threads(cpu) is cpu


def test_names_that_a_serial_loop_has() -> None:
    old = parse_kernel(HEAD + "  for t in 0 .. 3: for i in 0 .. 4 #group: c[t * 4 + i] = a[i]\n"
                              "  for i in 0 .. 2: for u in 0 .. 4 #group: b[u * 4 + i] = a[i]\n")  # fmt: skip
    assert_same(old, map_to_threads(old))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for t in 0 .. 4 #group: c[t] = 0.0\n  c[9] = 1.0", "`c[9] = 1.0` stands outside of the loops over threads"),
        ("for x in 2 .. 4 #grid: for t in 0 .. x #group: c[t + x * 8] = 0.0", "the group loop t runs 0 .. x; legal"),
        ("alloc r: f32[4] @register:\n    for t in 0 .. 4 #group: r[t] = 0.0\n    for t in 0 .. 4 #group: c[t] = "
         "r[-t + 3]", "dims [0] of registers r do not number the threads"),
        ("alloc r: f32[4] @register: for t in 0 .. 4 #group: r[t // 2] = 0.0", "r[t // 2]: dims [0] of registers r"),
        ("alloc r: f32[8] @register: for t in 0 .. 4 #group: for i in 0 .. 2: r[t * 2 + i] = 0.0", "depend on i, too"),
    ],
)  # fmt: skip
def test_what_is_refused(body: str, message: str) -> None:
    kernel = parse_kernel(HEAD + "  " + body + "\n")
    verify(kernel)
    with pytest.raises(ConfigError) as error:
        map_to_threads(kernel)
    assert message in str(error.value) and error.value.code == "threads"


def random_kernel(numbers: random.Random) -> str:
    """Return a kernel of nests that write their own elements of shared memory, and read any."""

    def nest(pad: str, around: list[str]) -> str:
        kinds = numbers.choice(["t in 0 .. 8 #group", "t in 0 .. 6 #group", "u in 0 .. 4 #warp: for v in 0 .. 2 #lane"])
        own = "u * 2 + v" if "warp" in kinds else "t"
        serial = " + ".join([f"{v} * {numbers.randint(0, 2)}" for v in around] or ["0"])
        slot = f"({serial} + {numbers.randint(0, 2)}) % 3 * 8"
        read = numbers.choice([f"-({own}) + 7", own, f"({own} + {numbers.randint(1, 7)}) % 8"])
        other = f"({serial} + {numbers.randint(0, 2)}) % 3 * 8"
        target = numbers.choice(["s", "z"])
        source = "z" if target == "s" else "s"
        if numbers.random() < 0.3:
            source, other = target, slot
            read = own
        return f"{pad}for {kinds}: {target}[{slot} + {own}] = {target}[{slot} + {own}] + {source}[{other} + {read}]\n"

    def body(pad: str, around: list[str], depth: int) -> str:
        out = ""
        for _ in range(numbers.randint(1, 3)):
            kind = numbers.random() if depth else 0
            if kind < 0.6:
                out += nest(pad, around)
            elif kind < 0.85:
                var = "ijk"[len(around)]
                out += f"{pad}for {var} in 0 .. {numbers.randint(1, 3)}:\n"
                out += body(pad + "  ", [*around, var], depth - 1)
            elif around:
                out += f"{pad}if {around[-1]} - 1 >= 0:\n" + body(pad + "  ", around, depth - 1)
            else:
                out += nest(pad, around)
        return out

    start = "".join(f"      for t in 0 .. 8 #group: for i in 0 .. 3: {x}[i * 8 + t] = {y}[i * 8 + t]\n"
                    for x, y in (("s", "a"), ("z", "b")))  # fmt: skip
    end = "      for t in 0 .. 8 #group: for i in 0 .. 3: c[i * 8 + t] = s[i * 8 + t] - z[i * 8 + t] * 2.0\n"
    return (f"{HEAD}  alloc s: f32[24] @shared:\n    alloc z: f32[24] @shared:\n"
            f"{start}{body('      ', [], 3)}{end}")  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(30))
def test_random_nests(seed: int) -> None:
    old = parse_kernel(random_kernel(random.Random(seed)))
    results(old)
    assert_same(old, map_to_threads(old))
