"""The verifier: legal kernels pass, each rule is broken once, and each stage refuses what comes later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import UNKNOWN, Buffer, make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.parse import parse_kernel, parse_stmt
from convsmith.ir.stages import FLAT, NAIVE, REALISED, SCHEDULED, STAGES, TENSORISED, UNROLLED, Stage
from convsmith.ir.stmt import Alloc, Call, Carried, For, Kernel, Store
from convsmith.ir.types import F32, S32
from convsmith.ir.value import Binary, Fma, Lanes, Load, Select, Sum, Unary, Where, const, strided
from convsmith.ir.verify import verify
from convsmith.layout.block import LayoutBlock

NAIVE_TEXT = """\
kernel conv(src: f32[8, 4], dst: f32[8])
  for i in 0 .. 8:
    alloc acc: f32[] @register:
      acc[] = 0.0
      for k in 0 .. 4:
        acc[] = acc[] + (src[i - 1, k] if i - 1 >= 0 else 0.0) * 2.0
      if i - 3 >= 0:
        dst[i] = max(acc[], 0.0)
"""

SCHEDULED_TEXT = NAIVE_TEXT.replace("0 .. 8:", "0 .. 8 #parallel:").replace("0 .. 4:", "0 .. min(4, i) #unrolled:")

REALISED_TEXT = """\
kernel conv(src: f32[8, 4], dst: f32[8])
  for i in 1 .. 8:
    dst[i] = (src[i - 1, 0] if i - 3 >= 0 else 0.0)
"""

FLAT_TEXT = """\
kernel conv(src: f32[32], dst: f32[8])
  alloc tmp: f32[8] @cache:
    for i in 0 .. 8:
      alloc acc: f32[2, 4] @register:
        acc[0, i % 4] = src[i * 4]
        tmp[i] = acc[0, i % 4]
"""

TENSORISED_TEXT = """\
function tile(p: src, q: dst, n)
  alloc acc: f32[2, 4] @register:
    for m in 0 .. 2 #unrolled:
      acc[m, 0]{4} = 0.0
    for k in 0 .. n carrying r: src = p + 1 step 4:
      for m in 0 .. 2 #unrolled:
        fma4(acc[m, 0]{4}, src[r + m]{4:0/3}, src[r]{4})
    for j in 0 .. 2 carrying s: dst = q step 4, t: src = p step 1:
      dst[s]{4/3} = sum(src[t]{4}) + src[p + 1]
kernel conv(src: f32[32], dst: f32[8])
  for i in 0 .. 4 #parallel:
    for g in 0 .. 2 #parallel:
      let h = i // 2:
        call tile(src @ i * 4, dst @ h, h + 1)
"""

UNROLLED_TEXT = """\
kernel conv(src: f32[32], dst: f32[8])
  for i in 0 .. 2 #parallel:
    alloc acc: f32[2, 4] @register:
      acc[0, 0]{4} = 0.0
      for k in 0 .. 4 carrying p: src = i * 16 step 4:
        fma4(acc[0, 0]{4}, src[p]{4}, src[p]{4:0})
      dst[i * 4]{4} = acc[0, 0]{4}
"""

LEGAL = [
    (NAIVE_TEXT, NAIVE),
    (SCHEDULED_TEXT, SCHEDULED),
    (REALISED_TEXT, REALISED),
    (FLAT_TEXT, FLAT),
    (TENSORISED_TEXT, TENSORISED),
    (UNROLLED_TEXT, UNROLLED),
]


@pytest.mark.parametrize(("text", "stage"), LEGAL, ids=lambda x: str(x) if isinstance(x, Stage) else "")
def test_legal_kernels_pass(text: str, stage: Stage) -> None:
    kernel = parse_kernel(text)
    verify(kernel)
    verify(kernel, stage)
    assert STAGES[stage.name] is stage


@pytest.mark.parametrize(
    ("text", "stage", "message"),
    [
        (SCHEDULED_TEXT, NAIVE, "`for i in 0 .. 8 #parallel:`: a loop is serial, not parallel"),
        (NAIVE_TEXT, REALISED, "the mask i - 1 >= 0 stands inside of arithmetic"),
        (REALISED_TEXT, FLAT, "parameter src: memory must have one dim, stored without gaps, not [8, 4]"),
        (FLAT_TEXT.replace("f32[8] @", "f32[8] = 0:8:2 @"), FLAT, "`alloc tmp: f32[8] = 0:8:2 @cache:`: memory must"),
        (TENSORISED_TEXT, FLAT, "function tile: functions come later"),
        (UNROLLED_TEXT, FLAT, "`acc[0, 0]{4} = 0.0`: acc[0, 0]{4} has lanes"),
        (UNROLLED_TEXT, FLAT, ""),
        (TENSORISED_TEXT, UNROLLED, "`for m in 0 .. 2 #unrolled:`: a loop is cluster or grid or group or lane or"),
        (FLAT_TEXT, UNROLLED, "register acc[0, i % 4] has coordinates that are not constant"),
        ("kernel k(d: f32[4])\n  let a = 2: d[a] = 0.0", FLAT, "a statement Let is not allowed"),
        ("kernel k(d: f32[4])\n  d[0] = sum(d[0]{4})", FLAT, "a value Sum is not allowed"),
        ("kernel k(d: f32[4])\n  for i in 0 .. 2 carrying p: d = 0 step 1: pass", FLAT, "loops carry no pointers yet"),
        ("kernel k(d: f32[4])\n  fma4(d[0]{4})", NAIVE, "a statement Invoke is not allowed"),
    ],
)
def test_stages_refuse_what_comes_later(text: str, stage: Stage, message: str) -> None:
    kernel = parse_kernel(text)
    verify(kernel)
    with pytest.raises(InternalError) as error:
        verify(kernel, stage)
    assert message in str(error.value) and f"is not {stage}: " in str(error.value)
    assert error.value.code == "verify"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a[i] = 0.0", "kernel k: an index of a is i: variable i is not bound"),
        ("for i in 0 .. 2: for i in 0 .. 2: pass", "for i > for i: variable i is bound again inside of its own scope"),
        ("for i in 0 .. 2: let i = 1: pass", "variable i is bound again"),
        ("for i in 0 .. i: pass", "kernel k > for i: a bound is i: variable i is not bound"),
        ("if j >= 0: pass", "a condition is j >= 0: variable j is not bound"),
        ("a[0] = (0.0 if j >= 0 else 1.0)", "a condition is j >= 0: variable j is not bound"),
        ("let j = n: pass", "the value of j is n: variable n is not bound"),
        ("a[0, 0] = 0.0", "a[0, 0] has 2 indices for 1 dims"),
        ("alloc a: f32[2] @cache: pass", "alloc a: two buffers in scope have the name a"),
        ("alloc t: f32[2] @global: pass", "alloc t: only cache, shared, register and fragment are allocated"),
        ("a[0]{4/5} = 0.0", "lanes 0 to 5 of 4 lanes of a are active"),
        ("a[0]{4} = b[0]{4/3:2}", "lanes 3 to 2 of 4 lanes of b are active"),
        ("a[0]{4/1:3} = 0.0", "a store to a begins at lane 1; legal is lane 0"),
        ("a[0]{4:0} = 0.0", "two lanes of a store to a touch the same element: (0, 0, 0, 0)"),
        ("a[0] = b[0]{4}", "a value of 4 lanes is stored to no lanes of a: b[0]{4}"),
        ("a[0]{8} = b[0]{4}", "a value of 4 lanes is stored to 8 lanes of a"),
        ("a[0]{4} = b[0]{4} + b[0]{8}", "b[0]{4} + b[0]{8}: operands have 4 and 8 lanes"),
        ("a[0] = sum(b[0])", "sum(b[0]): a sum is over 2**n lanes, not 0"),
        ("a[0] = sum(b[0]{6})", "a sum is over 2**n lanes, not 6"),
        ("a[0] = s32(1)", "a value of type s32 is stored to a, which holds f32"),
        ("a[0] = bf16(1.0) + bf16(2.0)", "bf16(1.0) + bf16(2.0): there is no arithmetic on bf16; cast it first"),
        ("a[0] = cast(f32, u4(1) + u4(2))", "u4(1) + u4(2): there is no arithmetic on u4; cast it first"),
        ("s[0] = cast(s32, bits(s8, s4(1)))", "bits(s8, s4(1)): s4 is of no whole bytes; cast instead"),
        ("s[0] = cast(s32, bits(u4, s8(1)))", "bits(u4, s8(1)): u4 is of no whole bytes; cast instead"),
        ("a[0]{2} = sum(b[0]{8}, 3)", "a sum is over 2**n lanes, not 3 in each of the groups of 8"),
        ("a[0] = sum(b[0]{4}, 8)", "a sum is over 2**n lanes, not 8 in each of the groups of 4"),
        ("a[0]{4} = sum(b[0]{8}, 4)", "a value of 2 lanes is stored to 4 lanes of a"),
        ("a[0]{4} = repeat(b[0]{4}, 0)", "repeat(b[0]{4}, 0): a vector is repeated at least once, not 0 times"),
        ("a[0] = lookup(b[0], b[1])", "a lookup is of a number of u8, from one element of an array on"),
        ("a[0] = repeat(b[0], 1)", "a value of 1 lanes is stored to no lanes of a"),
        ("a[0] = where(b[0] < s32(1), b[0], 0.0)", "operands have the types f32, s32, f32, f32"),
        ("a[0] = where(s[0] < s32(1), b[0], s[0])", "operands have the types s32, s32, f32, s32"),
        ("a[0] = where(bf16(1.0) < bf16(2.0), b[0], 1.0)", "there is no arithmetic on bf16"),
        ("a[0] = and(b[0], b[0])", "and(b[0], b[0]): and is for integers only"),
        ("s[0] = sqrt(s[0])", "sqrt(s[0]): sqrt is for floating point only"),
        ("s[0] = shl(s[0], s32(32))", "a shift is by 0 to 31"),
        ("s[0] = shr(s[0], s32(-1))", "a shift is by 0 to 31"),
        ("a[0] = mulh(a[0], b[0])", "mulh is for s32 only"),
        ("s[0] = bits(s32, s8(1))", "bits(s32, s8(1)): s8 has 8 bits and s32 has 32"),
        ("a[0] = cast(s8, b[0])", "a value of type s8 is stored to a, which holds f32"),
        ("a[0]{4} = cast(f32, s[0]{8})", "a value of 8 lanes is stored to 4 lanes of a"),
        ("a[0] = b[0] + s32(1)", "b[0] + s32(1): operands have the types f32, s32"),
        (
            "for i in 0 .. 2: for j in 0 .. 2 #parallel: pass",
            "for i > for j: a parallel loop stands inside of parallel",
        ),
        ("for i in 0 .. 2 #parallel carrying p: a = 0 step 1: pass", "for i: a parallel loop carries no pointers"),
        (
            "alloc t: f32[2] @register: for i in 0 .. 2 #parallel: t[0] = 0.0",
            "register t is allocated outside of the parallel loop that uses it",
        ),
        ("for i in 0 .. 2 carrying i: a = 0 step 1: pass", "two variables of the loop have the same name"),
        ("for i in 0 .. 2 carrying p: a = 0 step 1: b[p] = 0.0", "an index of b is p: p points into a"),
        ("for i in 0 .. 2 carrying p: a = 0 step 1: a[p * 2] = 0.0", "a is p * 2: a position adds one pointer once"),
        ("for i in 0 .. 2 carrying p: a = 0 step 1: a[p // 2] = 0.0", "an index of a is p // 2: p is a pointer into a"),
        ("for i in 0 .. 2 carrying p: a = 0 step 1: a[p + p % 2] = 0.0", "p is a pointer into a"),
        ("for i in 0 .. 2 carrying p: a = 0 step 1: for j in 0 .. p: pass", "a bound is p: p is a pointer into a"),
        ("for i in 0 .. 2 carrying p: a = 0 step 1: if p >= 0: pass", "a condition is p >= 0: p is a pointer into a"),
        ("for i in 0 .. 2 carrying p: a = 0 step 1: for j in 0 .. 2 carrying q: b = p step 1: pass", "p points into a"),
        ("for i in 0 .. 2 carrying p: m = 0 step 1: pass", "p points to m, which is not memory of one dim"),
        (
            "for i in 0 .. 2 carrying p: a = 0 step 1, q: a = 0 step 1: a[p + q] = 0.0",
            "an index of a is p + q: a position adds one pointer once",
        ),
        ("call f(a @ 0, 1)", "function f is not defined before it is called"),
        ("call g(a @ 0)", "g takes (pointers, indices) (1, 1), not (1, 0)"),
        ("call g(m @ 0, 1)", "p of g points to m, which is not memory of one dim"),
        ("call g(s @ 0, 1)", "p of g points to f32 @global, but s is s32 @global"),
        ("for i in 0 .. 2 carrying p: a = 0 step 1: call g(b @ p, 1)", "the start of p is p: p points into a"),
        ("for i in 0 .. 2 carrying p: a = 0 step 1: call g(a @ 0, p)", "an argument of g is p: p is a pointer into a"),
        ("fma4(a[0]{4:0}, b[0]{4})", "two lanes of a store to a touch the same element"),
        ("fma4(a[i]{4}, b[0]{4})", "an index of a is i: variable i is not bound"),
        ("fma4(a[0]{4}, b[0]{4}, b[i + 4]{4})", "an index of b is i + 4: variable i is not bound"),
        ("fma4(a[0]{4}, m[0]{4})", "m[0] has 1 indices for 2 dims"),
        ("a[0] = max(1.0, b[i])", "an index of b is i: variable i is not bound"),
        ("a[0]{4} = sum(b[i]{8}, 2)", "an index of b is i: variable i is not bound"),
        ("alloc t: f32[64] @cache: call g(t @ 0, 1)", "p of g points to f32 @global, but t is f32 @cache"),
        ("alloc t: f32[64] @register: call g(t @ 0, 1)", "p of g points to t, which is not memory of one dim"),
        ("call g(a @ i, 1)", "the start of p is i: variable i is not bound"),
        ("call g(a @ 0, i)", "an argument of g is i: variable i is not bound"),
        ("for i in 0 .. 2 carrying p: a = j step 1: pass", "the start of p is j: variable j is not bound"),
        ("alloc t: f32[4] = 0:-2:1 @cache: pass", "buffer t has blocks [(0, -2, 1)] for 1 dims"),
        ("alloc t: f32[4] = 0:2:2 0:-2:1 @cache: pass", "buffer t has blocks [(0, 2, 2), (0, -2, 1)] for 1 dims"),
    ],
)
def test_each_rule(body: str, message: str) -> None:
    params = {
        "a": make_buffer("a", F32, (64,)),
        "b": make_buffer("b", F32, (64,)),
        "m": make_buffer("m", F32, (4, 4)),
        "s": make_buffer("s", S32, (64,)),
    }
    g = parse_kernel("function g(p: a, n)\n  a[p + n] = 0.0\nkernel k(a: f32[64])\n  pass").functions[0]
    g = replace(g, pointers=((Var("p"), params["a"]),), body=parse_stmt("a[p + n] = 0.0", params))
    kernel = Kernel("k", tuple(params.values()), parse_stmt(body, params), (g,))
    with pytest.raises(InternalError) as error:
        verify(kernel)
    assert message in str(error.value)
    assert str(error.value).startswith("kernel k")


POINTERS = """\
kernel k(t: ptr[3], n: s32[3], a: f32[64], z: f32[4], b: s32[8], d: f32[4])
  for i in 0 .. 3:
    at t[i] + i in a or z[i] as p: f32[4]:
      d[i] = p[i]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a: f32[64], ", "", "buffer a is not in scope"),
        ("z: f32[4], ", "", "buffer z is not in scope"),
        ("t: ptr[3], ", "", "buffer t is not in scope"),
        ("at t[i] + i", "at t[j] + i", "an index of t is j: variable j is not bound"),
        ("at t[i] + i", "at t[i] + j", "the offset is j: variable j is not bound"),
        ("or z[i]", "or z[j]", "an index of z is j: variable j is not bound"),
        ("or z[i]", "or z[i, i]", "z[i, i] has 2 indices for 1 dims"),
        ("at t[i] + i", "at t[i, 0] + i", "t[i, 0] has 2 indices for 1 dims"),
        ("at t[i]", "at n[i]", "n holds s32, no pointers"),
        ("in a or", "in b or", "p is f32, b s32 and z f32"),
        ("p: f32[4]:", "p: f32[4] @cache:", "p is cache; a table points to global memory"),
        ("d[i] = p[i]", "p[i] = 0.0", "p, which a table points to, is written"),
        ("d[i] = p[i]", "d[i] = p[i] + p[j]", "an index of p is j: variable j is not bound"),
        ("p: f32[4]:\n      d[i] = p[i]", "d: f32[4]:\n      pass", "two buffers in scope have the name d"),
    ],
)
def test_tables_of_pointers(old: str, new: str, message: str) -> None:
    """A variable that leaves scope here is a parameter where the text is parsed."""
    verify(parse_kernel(POINTERS))
    assert old in POINTERS
    if new:
        kernel = parse_kernel(POINTERS.replace(old, new))
    else:
        whole = parse_kernel(POINTERS)
        kernel = replace(whole, params=tuple(b for b in whole.params if b.name != old[0]))
    with pytest.raises(InternalError) as error:
        verify(kernel)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("shape", "blocks", "legal"),
    [
        ((UNKNOWN, 4), (LayoutBlock(0, UNKNOWN, 4), LayoutBlock(1, 4, 1)), True),
        ((4, UNKNOWN), (LayoutBlock(1, UNKNOWN, 4), LayoutBlock(0, 4, 1)), True),
        ((4, UNKNOWN), (LayoutBlock(0, 4, 8), LayoutBlock(1, UNKNOWN, 1)), False),
        ((UNKNOWN, 4), (LayoutBlock(1, 4, 16), LayoutBlock(0, UNKNOWN, 4)), False),
        ((2, UNKNOWN, 4), (LayoutBlock(0, 2, 99), LayoutBlock(1, UNKNOWN, 4), LayoutBlock(2, 4, 1)), False),
    ],
)
def test_an_extent_that_is_not_known_is_outermost(
    shape: tuple[int, ...], blocks: tuple[LayoutBlock, ...], legal: bool
) -> None:
    kernel = Kernel("k", (Buffer("a", F32, shape, blocks),), parse_stmt("pass", {}))
    if legal:
        verify(kernel)
        return
    with pytest.raises(InternalError, match="buffer a: an extent that is not known is the outermost in memory"):
        verify(kernel)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("function g(p: a)\n  a[0] = 0.0", "function g: an index of a is 0: a function knows a by its pointers only"),
        ("function g(p: a)\n  b[0] = 0.0", "function g: buffer b is not in scope"),
        ("function g(p: a)\n  for i in 0 .. 2 #parallel: pass", "for i: a parallel loop stands inside of parallel"),
        ("function g(p: a, p)\n  pass", "function g: two parameters have the same name"),
        ("function g(p: a)\n  call g(a @ p)", "function g: function g is not defined before it is called"),
        ("function g(p: a)\n  pass\nfunction g(p: a)\n  pass", "function g: there are two functions of that name"),
        ("function g(p: m)\n  pass", "function g: a parameter points to m, which is not memory of one dim"),
    ],
)
def test_functions(function: str, message: str) -> None:
    kernel = parse_kernel(f"{function}\nkernel k(a: f32[8], b: f32[8], m: f32[2, 2])\n  pass\n")
    with pytest.raises(InternalError) as error:
        verify(kernel)
    assert message in str(error.value)


def test_what_text_cannot_say() -> None:
    a = make_buffer("a", F32, (8,))
    i = as_index(0)
    load = Load(a, (i,), None)
    empty = parse_stmt("pass", {})

    def fails(kernel: Kernel, message: str) -> None:
        with pytest.raises(InternalError) as error:
            verify(kernel)
        assert message in str(error.value)

    fails(Kernel("k", (a,), empty, index_bits=16), "indices have 32 or 64 bits, not 16")
    fails(Kernel("k", (make_buffer("t", F32, (), "cache"),), empty), "parameter t is cache, not global")
    fails(Kernel("k", (a, a), empty), "two buffers in scope have the name a")
    fails(Kernel("k", (), Alloc(Buffer("t", F32, (), (), "heap"), empty)), "buffer t has the scope heap")
    wrong = Buffer("t", F32, (2,), (LayoutBlock(1, 2, 1),))
    fails(Kernel("k", (wrong,), empty), "buffer t has blocks [(1, 2, 1)] for 1 dims")
    fails(Kernel("k", (a,), For(Var("i"), i, i, empty, "quick")), "the loop is quick; there are serial")
    fails(Kernel("k", (a,), Store(a, (i,), Binary("pow", load, load))), "pow is no operation")
    fails(Kernel("k", (a,), Store(a, (i,), load, Lanes((), 0))), "lanes 0 to 0 of 0 lanes of a are active")
    s = make_buffer("s", S32, (8,))
    one = const(S32, 1)
    fails(Kernel("k", (s,), Store(s, (i,), Binary("div", one, one))), "division is for floating point only")
    fails(Kernel("k", (a,), Store(a, (i,), Unary("sin", load))), "sin is no operation; there are round, floor")
    fails(Kernel("k", (a,), Store(a, (i,), Where("is", load, load, load, load))), "is is no operation; there are lt")
    fails(Kernel("k", (), Store(a, (i,), load)), "buffer a is not in scope")
    fails(
        Kernel("k", (), For(Var("i"), i, i, empty, "serial", (Carried(Var("p"), a, i, 1),))), "p points to a, which is"
    )
    fails(Kernel("k", (), Call("f", (), ())), "function f is not defined")
    inner = Kernel("p", (a,), empty)
    wrong = Kernel("q", (), Store(a, (i,), load))
    fails(Kernel("k", (a,), empty, packs=(replace(inner, packs=(wrong,)),)), "kernel q: buffer a is not in scope")
    fails(
        Kernel("k", (a,), empty, packs=(Kernel("p", (), Store(a, (i,), load)),)), "kernel p: buffer a is not in scope"
    )


def test_siblings_may_share_names_and_buffers() -> None:
    a = make_buffer("a", F32, (8,))
    t = make_buffer("t", F32, (4,), "register")
    vector = Load(t, (as_index(0),), strided(4, 1))
    body = parse_stmt("for i in 0 .. 2: a[i] = 0.0\nfor i in 0 .. 2: a[i] = 0.0", {"a": a})
    piece = Alloc(t, Store(a, (as_index(0),), Sum(Fma(vector, Select(Var("i") >= 0, vector, vector), vector), 4)))
    loop = For(Var("i"), as_index(0), as_index(2), piece)
    kernel = Kernel("k", (a,), parse_stmt("pass", {}))
    verify(replace(kernel, body=body))
    verify(replace(kernel, body=For(Var("n"), as_index(0), as_index(2), loop)))
