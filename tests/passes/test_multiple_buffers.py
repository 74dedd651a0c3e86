"""Slots for copies of shared memory and of registers: same results under all schedules, one barrier an iteration."""

from __future__ import annotations

import pytest
from schedules import assert_each_is_needed, assert_same

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import Barrier, Kernel
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of, statements_of
from convsmith.passes.flatten import flatten
from convsmith.passes.map_to_threads import map_to_threads
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.simplify import simplify
from convsmith.passes.stage import stage
from convsmith.passes.unroll import unroll

PRODUCT = """\
kernel k(a: f32[2, 16, 4], b: f32[16, 4], c: f32[8, 4])
  for x in 0 .. 2 #grid:
    alloc r: f32[4, 2, 2] @register:
      for t in 0 .. 4 #group: for i in 0 .. 2: for j in 0 .. 2: r[t, i, j] = 0.0
      for k in LO .. HI:
        alloc s: f32[2, 4] @shared:
          alloc z: f32[2, 4] = 1:4:3 0:2:1 @shared:
            for t in 0 .. 8 #group: s[t // 4, t % 4] = (a[x, k * 2 + t // 4, t % 4] if k + t - 3 >= 0 else 0.0)
            for t in 0 .. 8 #group: z[t // 4, t % 4] = b[k * 2 + t // 4, t % 4]
            for t in 0 .. 4 #group:
              for kk in 0 .. 2:
                for i in 0 .. 2 #unrolled:
                  for j in 0 .. 2 #unrolled:
                    r[t, i, j] = r[t, i, j] + s[kk, t // 2 * 2 + i] * z[kk, t % 2 * 2 + j]
      for t in 0 .. 4 #group:
        for i in 0 .. 2: for j in 0 .. 2: c[x * 4 + t // 2 * 2 + i, t % 2 * 2 + j] = r[t, i, j]
"""


def product(lo: object = 0, hi: object = 8) -> Kernel:
    return parse_kernel(PRODUCT.replace("LO", str(lo)).replace("HI", str(hi)))


def barriers_in(kernel: Kernel, loop: str) -> int:
    (found,) = (x for x in loops_of(kernel.body) if x.var.name == loop)
    return sum(isinstance(x, Barrier) for x in statements_of(found.body))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bounds", [(0, 8), (2, 3), (1, 6), (0, "x + 4"), (3, 3)])
@pytest.mark.parametrize(("count", "ahead"), [(2, 1), (3, 1), (3, 2), (4, 3)])
def test_slots(count: int, ahead: int, bounds: tuple[object, object]) -> None:
    old = product(*bounds)
    new = multiple_buffers(old, "k", ("s", "z"), count, ahead)
    assert_same(old, new)
    threads = map_to_threads(flatten(new))
    verify(threads, TENSORISED)
    assert_same(old, threads)
    assert barriers_in(threads, "k") == (1 if bounds != (3, 3) else 0)


@pytest.mark.sampled(2, "count", "ahead", "bounds")
@pytest.mark.parametrize("bounds", [(0, 8), (2, 3), (1, 6), (3, 3)])
@pytest.mark.parametrize(("count", "ahead"), [(2, 1), (3, 1), (3, 2)])
def test_unrolled_slots(count: int, ahead: int, bounds: tuple[int, int]) -> None:
    old = product(*bounds)
    new = multiple_buffers(old, "k", ("s", "z"), count, ahead, "k.o")
    assert_same(old, new)
    threads = map_to_threads(flatten(new))
    assert_same(old, threads)
    if bounds == (0, 8):
        assert barriers_in(threads, "k.o") == {(2, 1): 2, (3, 1): 2, (3, 2): 3}[count, ahead]
        assert "%" not in str(new).replace("t % 4", "").replace("t % 2", "")
        assert_each_is_needed(threads)


def in_registers(kernel: Kernel, count: int) -> Kernel:
    """The kernel with what it reads of shared memory in registers, each an iteration before its use."""
    for buffer in ("z", "s"):
        kernel = stage(kernel, buffer, "kk", scope="register")
    return multiple_buffers(kernel, "kk", ("s_s", "z_s"), count, 1, "kk.o")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_registers_for_loads_of_shared_memory(count: int) -> None:
    old = product()
    new = in_registers(old, count)
    assert_same(old, new)
    assert str(new).count("@register") == 3 and "s_s" in str(new) and "z_s" in str(new)
    buffered = in_registers(multiple_buffers(old, "k", ("s", "z"), 3, 2), count)
    both = map_to_threads(simplify(flatten(buffered)))
    assert_same(old, both)
    assert barriers_in(both, "k") == 1
    assert_same(old, unroll(both))


def test_one_slot_changes_nothing() -> None:
    old = product()
    assert multiple_buffers(old, "k", ("s", "z"), 1) is old


LOOP = "kernel k(a: f32[64], b: f32[64], c: f32[64])\n  alloc s: f32[8] @shared:\n    "
COPY = "for t in 0 .. 8 #group: s[t] = a[k * 8 + t]"
USE = "for t in 0 .. 8 #group: c[t] = c[t] + s[-t + 7]"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"for k in 0 .. 4:\n      {USE}\n      {COPY}", "loop k uses s before it fills them"),
        (f"for t in 0 .. 8 #group: s[t] = 0.0\n    for k in 0 .. 4:\n      {COPY}\n      {USE}",
         "s is used outside of loop k, too"),
        (f"for k in 0 .. 4:\n      {COPY.replace('s[t]', 's[(t + k) % 8]')}\n      {USE}", "another iteration of k"),
        (f"for k in 0 .. 4:\n      if k - 1 >= 0: {COPY}\n      {USE}", "`if k - 1 >= 0:` writes other elements of s"),
        (f"for n in 0 .. 2: for k in 0 .. 4:\n      if n == 0: {COPY}\n      {USE}", "`if n == 0:` writes other"),
        (f"for k in 0 .. 4:\n      {COPY.replace('a[', 'c[')}\n      {USE}", "reads c, which loop k writes"),
        (f"for k in 0 .. 4:\n      for t in 0 .. 8 #group:\n        s[t] = a[t]\n        c[t + 8] = 1.0\n      {USE}",
         "does more than to write s"),
        (f"for k in 0 .. 4:\n      {COPY}\n      {USE.replace('s[', 'b[')}\n    {USE}", "s is used outside of loop k"),
        (f"for t in 0 .. 1 #grid: for k in 0 .. 4 #grid:\n      {COPY}\n      {USE}", "loop k is grid"),
    ],
)  # fmt: skip
def test_what_is_refused(body: str, message: str) -> None:
    kernel = parse_kernel(f"{LOOP}{body}\n")
    with pytest.raises(ConfigError) as error:
        multiple_buffers(kernel, "k", ("s",), 2)
    assert message in str(error.value) and error.value.code == "buffering"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("k", ("s",), 2, 2), "2 slots are filled 2 iterations ahead; legal is 1 to 1"),
        (("k", ("s",), 3, 0), "3 slots are filled 0 iterations ahead; legal is 1 to 2"),
        (("k", ("s",), 0), "0 slots of 1 buffers; legal is at least 1 of each"),
        (("k", (), 2), "2 slots of 0 buffers"),
        (("k", ("q",), 2), "q: not all are allocated around loop k or within it"),
        (("j", ("s",), 2), "no loop 'j'"),
    ],
)
def test_bad_arguments(arguments: tuple[str, tuple[str, ...], int], message: str) -> None:
    kernel = parse_kernel(f"{LOOP}for k in 0 .. 4:\n      {COPY}\n      {USE}\n")
    with pytest.raises(ConfigError) as error:
        multiple_buffers(kernel, *arguments)
    assert message in str(error.value)


def test_a_loop_that_ends_at_a_size_is_not_unrolled() -> None:
    kernel = parse_kernel(f"{LOOP}for x in 0 .. 2 #grid: for k in 0 .. x:\n      {COPY}\n      {USE}\n")
    with pytest.raises(ConfigError, match=r"loop k runs 0 .. x; unrolling needs a constant number"):
        multiple_buffers(kernel, "k", ("s",), 2, rounds="k.o")
