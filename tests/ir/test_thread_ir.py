"""Loops over groups and threads, shared memory, barriers, copies and atomics as text and under the verifier."""

from __future__ import annotations

import pytest

from convsmith.diag.errors import InternalError, UsageError
from convsmith.ir.equal import first_mismatch, structural_equal
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stages import FLAT, SCHEDULED, STAGES, TENSORISED, UNROLLED
from convsmith.ir.stmt import AsyncCopy, Commit, For, Wait
from convsmith.ir.threads import has_effects, nest_of
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of, statements_of

THREADS = """\
kernel k(a: f32[64], c: f32[64])
  for x in 0 .. 2 #grid:
    for y in 0 .. 2 #grid:
      alloc s: f32[32] @shared:
        for w in 0 .. 2 #warp:
          for l in 0 .. 4 #lane:
            alloc r: f32[2] @register:
              r[0] = 0.0
              async s[l * 4 + w * 16]{4} = a[l * 4]{4} if x - 1 >= 0
              async s[l * 4 + w * 16]{4} = a[l * 4]{4}
              commit
              wait 1
              barrier
              for k in 0 .. 3:
                let z = k * 2:
                  if z - 2 >= 0:
                    barrier arrive
                    r[0] = r[0] + s[l]
                    barrier wait
              atomic c[l + w * 8 + x * 32 + y * 16] += r[0] * 2.0
              atomic c[l * 2]{2} += 1.0
"""
"""One nest of threads with each of the statements."""

JOINED = """\
kernel k(a: f32[8], c: f32[4])
  for x in 0 .. 2 #grid:
    alloc s: f32[4] @shared:
      alloc r: f32[4] @register:
        for t in 0 .. 4 #group:
          s[t] = a[t + x * 4]
        for u in 0 .. 4 #group:
          r[u] = s[-u + 3]
        for v in 0 .. 4 #group:
          atomic c[v] += r[v]
"""
"""Nests that follow each other; a join ends each."""


@pytest.mark.parametrize("text", [THREADS, JOINED], ids=["threads", "joined"])
def test_text_parses_back(text: str) -> None:
    kernel = parse_kernel(text)
    assert str(kernel) == text
    assert structural_equal(kernel, parse_kernel(text.replace("x", "i").replace("s[", "shared_tile[")
                                                 .replace("s:", "shared_tile:")))  # fmt: skip
    assert has_effects(kernel.body)


def test_a_kernel_that_adds_atomically_writes_the_buffer() -> None:
    assert [str(b) for b in parse_kernel(THREADS).written] == ["c"]


def test_a_nest_is_a_chain_of_thread_loops() -> None:
    loops: dict[str, For] = {x.var.name: x for x in loops_of(parse_kernel(THREADS).body)}
    assert [str(x.var) for x in nest_of(loops["w"])] == ["w", "l"]
    copy, *_ = (x for x in statements_of(loops["w"]) if isinstance(x, AsyncCopy))
    assert copy.dst.lanes is not None and str(copy.cond) == "x - 1 >= 0"
    assert any(isinstance(x, Commit) for x in statements_of(loops["w"]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("#warp", "#group", "kind: `warp` is not `group`"),
        ("barrier arrive", "barrier", "`barrier arrive` is not `barrier`"),
        ("wait 1", "wait 0", "`wait 1` is not `wait 0`"),
        ("commit", "barrier", "`commit` is not `barrier`"),
        (" if x - 1 >= 0", "", "`async s[l * 4 + w * 16]{4} = a[l * 4]{4} if x - 1 >= 0` is not `async s"),
        ("x - 1 >= 0", "y - 1 >= 0", "copy to s > if: `"),
        ("= a[l * 4]{4} if", "= a[l * 8]{4} if", "copy to s: `l * 4` is not `l * 8`"),
        ("r[0] * 2.0", "r[0] * 3.0", "store to c: `2.0` is not `3.0`"),
        ("atomic c[l * 2]{2} += 1.0", "c[l * 2]{2} = 1.0", "`atomic c[l * 2]{2} += 1.0` is not `c[l * 2]{2} = 1.0`"),
        ("@shared", "@cache", "@shared` is not"),
    ],
)
def test_what_differs_is_named(old: str, new: str, message: str) -> None:
    assert old in THREADS
    found = first_mismatch(parse_kernel(THREADS), parse_kernel(THREADS.replace(old, new)))
    assert found is not None
    assert message in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("async c[0] = 1.0", "expected the name of a buffer"),
        ("async c[0] = a[0] if", "expected an index"),
        ("wait", "expected the number of groups that may be pending"),
        ("barrier both", "expected the end of the statement"),
        ("atomic c[0] = 1.0", "expected '+'"),
    ],
)
def test_text_that_does_not_parse(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_kernel(f"kernel k(a: f32[4], c: f32[4])\n  {text}\n")
    assert message in str(error.value)


def test_words_of_statements_may_name_buffers() -> None:
    text = "kernel k(wait: f32[4], barrier: f32[4])\n  wait[0] = barrier[1]\n"
    assert str(parse_kernel(text)) == text


def test_stages() -> None:
    verify(parse_kernel(JOINED), SCHEDULED)
    verify(parse_kernel(JOINED), FLAT)
    verify(parse_kernel(THREADS), TENSORISED)
    verify(parse_kernel(THREADS), UNROLLED)
    for stage in ("naive", "scheduled", "realised", "flat"):
        with pytest.raises(InternalError, match=r"is not allowed|a loop is serial, not grid"):
            verify(parse_kernel(THREADS), STAGES[stage])


GROUP = "for t in 0 .. 4 #group: "


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for i in 0 .. 2: for x in 0 .. 2 #grid: pass", "for i > for x: a grid loop stands inside of grid loops only"),
        (GROUP + "for x in 0 .. 2 #grid: pass", "a grid loop stands inside of grid loops only"),
        ("for x in 0 .. 2 #grid carrying p: a = 0 step 1: pass", "a grid loop carries no pointers"),
        ("for i in 0 .. 2 #parallel: " + GROUP + "pass", "a group loop stands in a parallel or scalable loop"),
        ("for l in 0 .. 2 #lane: for w in 0 .. 2 #warp: pass", "a warp loop stands in a lane loop"),
        (GROUP + "for u in 0 .. t #group: pass", "the bounds 0 .. t of the group loop differ between threads"),
        (GROUP + "let h = t // 2: for u in 0 .. h #group: pass", "the bounds 0 .. h of the group loop differ"),
        (GROUP + "alloc s: f32[4] @shared: pass", "shared memory is allocated around the loops over threads"),
        ("alloc s: f32[4] @shared: for x in 0 .. 2 #grid: pass", "a loop over groups stands within an allocation of"),
        ("alloc r: f32[4] @register: for x in 0 .. 2 #grid: r[0] = 0.0", "outside of the grid loop that uses it"),
        ("barrier", "`barrier` stands outside of the loops over threads"),
        ("commit", "`commit` stands outside of the loops over threads"),
        (GROUP + "if t - 1 >= 0: barrier", "`barrier` stands under the condition t - 1 >= 0, which differs between"),
        (GROUP + "for i in 0 .. t: barrier", "`barrier` stands under the loop i, which differs between threads"),
        (GROUP + "for i in t .. t + 2: if i >= 0: barrier", "`barrier` stands under the condition i >= 0"),
        (GROUP + "let h = t // 2: if h == 0: barrier", "`barrier` stands under the condition h == 0"),
        ("for w in 0 .. 2 #warp:\n  pass\n  for l in 0 .. 2 #lane: barrier", "over threads that are not one nest"),
        (GROUP + "wait -1", "`wait -1`: at least 0 groups may be pending"),
        (GROUP + "async a[t] = c[t]", "an asynchronous copy is from memory to shared memory"),
        ("alloc s: f32[8] @shared: " + GROUP + "async s[t * 2]{2} = a[t]", "copies 0 lanes of f32 to 2 of f32"),
        ("alloc s: s32[8] @shared: " + GROUP + "async s[t] = a[t]", "copies 0 lanes of f32 to 0 of s32"),
        ("alloc s: f32[8] @shared: " + GROUP + "async s[t] = a[t] if j >= 0", "variable j is not bound"),
        ("alloc s: f32[8] @shared: " + GROUP + "async s[j] = a[t]", "variable j is not bound"),
        ("alloc r: f32[8] @register: " + GROUP + "atomic r[t] += 1.0", "an atomic addition is to memory"),
        ("atomic a[j] += 1.0", "variable j is not bound"),
        ("atomic a[0] += s32(1)", "a value of type s32 is stored to a"),
    ],
)
def test_each_rule(body: str, message: str) -> None:
    text = "\n".join("  " + line for line in body.split("\n"))
    with pytest.raises(InternalError) as error:
        verify(parse_kernel(f"kernel k(a: f32[8], c: f32[8])\n{text}\n"))
    assert message in str(error.value)


@pytest.mark.parametrize(
    "body",
    [
        GROUP + "for i in 0 .. 3: if i - 1 >= 0: barrier",
        "for w in 0 .. 2 #warp:\n  barrier\n  for l in 0 .. 2 #lane: a[w * 2 + l] = 0.0",
        "for x in 0 .. 2 #grid: for i in x .. 2: for t in x .. 2 #group: barrier",
        "for t in 0 .. 2 #group:\n  if t == 0: commit\n  wait 0",
    ],
)
def test_legal_nests(body: str) -> None:
    text = "\n".join("  " + line for line in body.split("\n"))
    verify(parse_kernel(f"kernel k(a: f32[8])\n{text}\n"))


def test_a_wait_prints_its_number() -> None:
    assert str(Wait()) == "wait 0" and str(Commit()) == "commit"
