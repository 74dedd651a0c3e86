"""Structural equality: bound names do not count, everything else does, and the first difference is named."""

from __future__ import annotations

import pytest

from convsmith.ir.buffer import make_buffer
from convsmith.ir.equal import first_mismatch, structural_equal
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_index, parse_kernel, parse_stmt
from convsmith.ir.stmt import Block, Kernel
from convsmith.ir.types import F32

TEXT = """\
function tile(p: src, n)
  for z in 0 .. n carrying q: src = p step 4:
    fma4(src[q]{4}, src[p]{4})
kernel k(src: f32[64], dst: f32[64])
  for a in 0 .. 8:
    let c = a // 2:
      alloc acc: f32[] @register:
        for b in 0 .. 2:
          acc[] = src[a + b * 2] * 2.0 + 1.0
        if a - 1 >= 0 and c - 1 >= 0:
          dst[a]{4} = max(acc[], src[c])
        call tile(src @ a, c)
pack prepare(src: f32[64])
  pass
"""

RENAMED = """\
function tile(ptr: x, count)
  for z2 in 0 .. count carrying r: x = ptr step 4:
    fma4(x[r]{4}, x[ptr]{4})
kernel k(x: f32[64], out: f32[64])
  for i in 0 .. 8:
    let h = i // 2:
      alloc t: f32[] @register:
        for aa in 0 .. 2:
          t[] = x[i + aa * 2] * 2.0 + 1.0
        if i - 1 >= 0 and h - 1 >= 0:
          out[i]{4} = max(t[], x[h])
        call tile(x @ i, h)
pack prepare(y: f32[64])
  pass
"""


def kernel(text: str = TEXT) -> Kernel:
    return parse_kernel(text)


def test_bound_names_do_not_count() -> None:
    assert first_mismatch(kernel(), kernel(RENAMED)) is None
    assert structural_equal(kernel(), kernel())


def test_tables_do_not_count() -> None:
    with interning():
        other = kernel(RENAMED)
    assert first_mismatch(kernel(), other) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel k(", "kernel m(", "top: `kernel k` is not `kernel m`"),
        (", dst: f32[64])", ", dst: f32[64], e: f32[2])", "kernel k: `2 parameters` is not `3 parameters`"),
        ("dst: f32[64])", "dst: f32[64]) #i32", "kernel k: `#i0` is not `#i32`"),
        (
            "(src: f32[64],",
            "(src: f32[65],",
            "kernel k > parameters: `src: f32[64] @global` is not `src: f32[65] @global`",
        ),
        (
            "(src: f32[64],",
            "(src: f32[64] = 0:64:2,",
            "kernel k > parameters: `src: f32[64] @global` is not `src: f32[64] = 0:64:2 @global`",
        ),
        ("for a in 0", "for a in 1", "kernel k > for a > from: `0` is not `1`"),
        (".. 8", ".. 9", "kernel k > for a > to: `8` is not `9`"),
        (".. 8:", ".. 8 #parallel:", "kernel k > for a > kind: `serial` is not `parallel`"),
        ("a // 2", "a // 3", "kernel k > for a > let c: `a // 2` is not `a // 3`"),
        ("acc: f32[]", "acc: f32[1]", "alloc acc: `acc: f32[] @register` is not `acc: f32[1] @register`"),
        ("src[a + b * 2]", "src[b + a * 2]", "store to acc: `a + b * 2` is not `a * 2 + b`"),
        ("* 2.0", "* 3.0", "statement 1 > for b > store to acc: `2.0` is not `3.0`"),
        ("+ 1.0", "- 1.0", "store to acc: `src[a + b * 2] * 2.0 + 1.0` is not `src[a + b * 2] * 2.0 - 1.0`"),
        ("a - 1 >= 0 and", "a - 2 >= 0 and", "statement 2 > if: `a - 1` is not `a - 2`"),
        ("dst[a]{4}", "dst[a]{8}", "store to dst > lanes: `{4}` is not `{8}`"),
        ("dst[a]{4}", "dst[c]{4}", "store to dst > index: `a` is not `c`"),
        ("dst[a]{4} =", "src[a]{4} =", "store to dst: `dst: f32[64]` is not `src: f32[64]`"),
        ("max(acc[], src[c])", "max(acc[], dst[c])", "store to dst: `src[c]` is not `dst[c]`"),
        ("call tile(src @ a, c)", "call tile(src @ c, c)", "call tile: `a` is not `c`"),
        ("call tile(src @ a, c)", "call tile(dst @ a, c)", "call tile: `src: f32[64]` is not `dst: f32[64]`"),
        (
            "call tile(src @ a, c)",
            "call tile(src @ a, c, c)",
            "`call tile(src @ a, c)` is not `call tile(src @ a, c, c)`",
        ),
        ("call tile(src @ a, c)", "pass", "statement 3: `call tile(src @ a, c)` is not `nothing`"),
        ("call tile(src @ a, c)", "dst[a] = 0.0", "statement 3: `call tile(src @ a, c)` is not `dst[a] = 0.0`"),
        ("step 4", "step 5", "function tile > for z > carrying q: `step 4` is not `step 5`"),
        ("= p step", "= p + 1 step", "function tile > for z > carrying q: `p` is not `p + 1`"),
        ("(p: src, n)", "(p: src, n, m)", "function tile: `1 pointers, 1 indices` is not `1 pointers, 2 indices`"),
        ("(p: src, n)", "(p: dst, n)", "function tile > parameters: `src: f32[64]` is not `dst: f32[64]`"),
        ("fma4(src[q]{4}, src[p]{4})", "fma4(src[q]{4}, src[q]{4})", "for z > fma4: `p` is not `q`"),
        ("fma4(src[q]", "fma5(src[q]", "`fma4(src[q]{4}, src[p]{4})` is not `fma5(src[q]{4}, src[p]{4})`"),
        ("pack prepare", "pack prep", "kernel k: `kernel prepare` is not `kernel prep`"),
        ("pack prepare(src: f32[64])\n  pass\n", "", "kernel k: `1 packs` is not `0 packs`"),
    ],
)
def test_every_difference_is_named(old: str, new: str, message: str) -> None:
    assert old in TEXT
    found = first_mismatch(kernel(), kernel(TEXT.replace(old, new)))
    assert found is not None and found.endswith(message)


def test_free_names_count() -> None:
    src = {"src": make_buffer("src", F32, (8,))}
    same = {"src": make_buffer("src", F32, (8,))}
    longer = {"src": make_buffer("src", F32, (9,))}
    assert structural_equal(parse_stmt("src[i] = 0.0", src), parse_stmt("src[i] = 0.0", same))
    assert first_mismatch(parse_stmt("src[i] = 0.0", src), parse_stmt("src[j] = 0.0", src)) is not None
    assert first_mismatch(parse_stmt("src[i] = 0.0", src), parse_stmt("src[i] = 0.0", longer)) is not None
    captured = parse_stmt("for i in 0 .. 2: src[j] = 0.0", src), parse_stmt("for j in 0 .. 2: src[j] = 0.0", src)
    assert first_mismatch(*captured) == "for i > store to src > index: `j` is not `j` (the names are bound elsewhere)"


def test_rebinding_does_not_confuse() -> None:
    src = {"src": make_buffer("src", F32, (8,))}
    a = parse_stmt("for i in 0 .. 2: for j in 0 .. 2: for i in 0 .. 3: for k in 0 .. 2: src[i] = 0.0", src)
    b = parse_stmt("for i in 0 .. 2: for j in 0 .. 2: for i in 0 .. 3: for k in 0 .. 2: src[k] = 0.0", src)
    assert structural_equal(a, a)
    assert not structural_equal(a, b)


def test_blocks_and_other_things() -> None:
    src = {"src": make_buffer("src", F32, (8,))}
    s = parse_stmt("src[0] = 0.0\nsrc[1] = 0.0", src)
    assert isinstance(s, Block)
    assert structural_equal(Block((Block((s.stmts[0],)), Block(()), s.stmts[1])), s)
    assert first_mismatch(parse_index("a + 1"), parse_index("a + 2")) == "top: `a + 1` is not `a + 2`"
    assert first_mismatch(kernel().functions[0], kernel().functions[0]) is None
    assert first_mismatch(kernel(), kernel().body) == "top: `Kernel` is not `For`"
