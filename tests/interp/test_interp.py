"""The effect of each statement, and every way in which a kernel may go wrong."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from convsmith.diag.errors import InternalError
from convsmith.interp import InterpError, run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel

FMA4 = parse_kernel("kernel fma4(c: f32[4], a: f32[4], b: f32[4])\n  for l in 0 .. 4: c[l] = fma(a[l], b[l], c[l])")
COPY4 = parse_kernel("kernel copy4(c: f32[4], a: f32[4])\n  for l in 0 .. 4: c[l] = a[l]")
ADD1 = parse_kernel("kernel add1(c: f32[1], a: f32[1])\n  c[0] = c[0] + a[0]")
BROKEN = parse_kernel("kernel broken(c: f32[4], a: f32[4])\n  c[4] = a[0]")
INSTRUCTIONS: Mapping[str, Kernel] = {k.name: k for k in (FMA4, COPY4, ADD1, BROKEN)}


def execute(body: str, size: int = 8, functions: str = "") -> np.ndarray:
    """Run statements over src = 1 .. size and dst = zeros; what dst holds then."""
    text = "\n".join("  " + line for line in body.strip("\n").split("\n"))
    kernel = parse_kernel(f"{functions}kernel k(src: f32[{size}], dst: f32[{size}])\n{text}")
    arrays = {"src": np.arange(1, size + 1, dtype=np.float32), "dst": np.zeros(size, np.float32)}
    run(kernel, arrays, INSTRUCTIONS)
    return arrays["dst"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pass", (0, 0)),
        ("dst[0] = 1.0\ndst[0] = 2.0", (2, 0)),
        ("for i in 1 .. 3: dst[i] = src[i]", (0, 2, 3, 0)),
        ("for i in 3 .. 1: dst[i] = src[i]", (0, 0, 0, 0)),
        ("for i in 0 .. 4: for j in max(i, 2) .. min(i + 2, 4): dst[j] = dst[j] + 1.0", (0, 0, 2, 2, 0)),
        ("for i in 0 .. 4: if i - 1 >= 0 and i % 2 == 0: dst[i] = 5.0", (0, 0, 5, 0, 0)),
        ("if 0 > 1: dst[0] = 1.0", (0,)),
        ("for i in 0 .. 3: let j = i * 2: dst[j] = src[i]", (1, 0, 2, 0, 3, 0)),
        ("for i in 0 .. 3 #unrolled: dst[i] = src[i // 2]", (1, 1, 2)),
        ("for i in 0 .. 4 #parallel: dst[3 - i] = src[i]", (4, 3, 2, 1)),
        ("for i in 1 .. 4 carrying p: src = 0 step 2, q: dst = 4 step -1: dst[q] = src[p + 1]", (0, 0, 6, 4, 2, 0)),
        (
            "for i in 0 .. 2 carrying p: dst = 0 step 4: for j in 0 .. 2 carrying q: dst = p step 1: dst[q + 1] = 1.0",
            (0, 1, 1, 0, 0, 1, 1, 0),
        ),
        ("alloc t: f32[2, 3] @cache:\n  t[1, 2] = 4.0\n  dst[0] = t[1, 2]", (4, 0)),
        ("alloc t: f32[] @register:\n  t[] = 4.0\n  t[] = t[] + t[]\n  dst[0] = t[]", (8, 0)),
        ("dst[0]{4} = src[0]{4}\nfma4(dst[0]{4}, src[0]{4}, src[1]{4:0})", (3, 6, 9, 12, 0)),
        ("dst[0]{4} = src[0]{4}\nfma4(dst[0]{4/2}, src[0]{4}, src[1]{4:0})", (3, 6, 3, 4, 0)),
        ("fma4(dst[0]{(0, 2, 4, 6)}, src[0]{4}, src[0]{4/2})", (1, 0, 4, 0, 0, 0, 0)),
        ("add1(dst[1], src[4])\nadd1(dst[1], src[4])", (0, 10, 0)),
        ("alloc t: f32[4] @register:\n  copy4(t[0]{4}, src[2]{4})\n  dst[0]{4} = t[0]{4}", (3, 4, 5, 6, 0)),
    ],
)
def test_statements(body: str, expected: tuple[float, ...]) -> None:
    np.testing.assert_array_equal(execute(body)[: len(expected)], expected)


def test_functions_get_positions_and_indices() -> None:
    functions = """\
function row(p: src, q: dst, n)
  for i in 0 .. n carrying r: src = p step 1: dst[q + i] = src[r]
function twice(q: dst)
  call row(dst @ q, dst @ q + 2, 2)
"""
    calls = "for i in 0 .. 2: call row(src @ i, dst @ i * 4, i + 1)\ncall twice(dst @ 0)"
    np.testing.assert_array_equal(execute(calls, functions=functions), (1, 0, 1, 0, 2, 3, 0, 0))


def test_blocks_say_where_an_element_lies() -> None:
    text = """\
kernel k(src: f32[2, 5] = 1:2:8 0:2:4 1:4:1, dst: f32[10])
  for c in 0 .. 2: for x in 0 .. 5: dst[c * 5 + x] = src[c, x]
"""
    src = np.arange(16, dtype=np.float32)
    dst = np.zeros(10, np.float32)
    run(parse_kernel(text), {"src": src, "dst": dst})
    np.testing.assert_array_equal(dst, [0, 1, 2, 3, 8, 4, 5, 6, 7, 12])


def test_three_blocks_of_one_dim() -> None:
    text = "kernel k(src: f32[12] = 0:2:1 0:3:4 0:2:2, dst: f32[12])\n  for x in 0 .. 12: dst[x] = src[x]"
    dst = np.zeros(12, np.float32)
    run(parse_kernel(text), {"src": np.arange(12, dtype=np.float32), "dst": dst})
    np.testing.assert_array_equal(dst, [x // 6 + x // 2 % 3 * 4 + x % 2 * 2 for x in range(12)])


def test_a_convolution_is_what_numpy_says() -> None:
    text = """\
kernel conv(src: f32[1, 5, 5, 2], wei: f32[3, 2, 3, 3], dst: f32[1, 3, 3, 3])
  for oc in 0 .. 3 #parallel:
    for oh in 0 .. 3:
      for ow in 0 .. 3:
        alloc acc: f32[] @register:
          acc[] = 0.0
          for ic in 0 .. 2:
            for kh in 0 .. 3:
              for kw in 0 .. 3:
                acc[] = acc[] + (src[0, oh * 2 + kh - 1, ow * 2 + kw - 1, ic] if oh * 2 + kh >= 1 \
and oh * 2 + kh < 6 and ow * 2 + kw >= 1 and ow * 2 + kw < 6 else 0.0) * wei[oc, ic, kh, kw]
          dst[0, oh, ow, oc] = max(acc[], 0.0)
"""
    random = np.random.default_rng(1)
    src = random.integers(-4, 5, (5, 5, 2)).astype(np.float32)
    wei = random.integers(-4, 5, (3, 2, 3, 3)).astype(np.float32)
    dst = np.full(27, np.nan, np.float32)
    run(parse_kernel(text), {"src": src.ravel(), "wei": wei.ravel(), "dst": dst})
    padded = np.pad(src, ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))[::2, ::2]
    expected = np.maximum(np.einsum("hwixy,oixy->hwo", windows, wei), 0)
    np.testing.assert_array_equal(dst.reshape(3, 3, 3), expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("dst[8] = 0.0", "kernel k: dst[8] is outside of the shape [8]"),
        ("dst[-1] = 0.0", "kernel k: dst[-1] is outside of the shape [8]"),
        ("for i in 0 .. 9: dst[i] = src[0]", "kernel k at i = 8: dst[8] is outside of the shape [8]"),
        ("for i in 0 .. 2: for j in 0 .. 5: dst[0] = src[i * 4 + j]", "kernel k at i = 1, j = 4: src[8] is outside"),
        ("dst[0]{4} = src[6]{4}", "src[6] touches element 8 of the 8 elements of src"),
        ("dst[1]{2:-2} = 0.0", "dst[1] touches element -1 of the 8 elements of dst"),
        ("alloc t: f32[2, 2] @cache: dst[0] = t[0, 2]", "t[0, 2] is outside of the shape [2, 2]"),
        ("alloc t: f32[4] @register: dst[0] = t[1]", "element 1 of t is read before it is written"),
        ("alloc t: f32[4] @register:\n  t[0]{4/3} = 0.0\n  dst[0]{4} = t[0]{4}", "element 3 of t is read before"),
        (
            "for i in 0 .. 2: alloc t: f32[] @cache:\n    if i == 0: t[] = 1.0\n    dst[i] = t[]",
            "at i = 1: element 0 of t",
        ),
        ("dst[0, 0] = 1.0", "dst[0, 0] has 2 coordinates for 1 dims"),
        ("dst[i] = 1.0", "variable i in i is not bound"),
        ("for i in 0 .. i + 1: pass", "variable i in i + 1 is not bound"),
        ("if n >= 0: pass", "variable n in n >= 0 is not bound"),
        ("for i in 0 .. 2: for i in 0 .. 2: pass", "at i = 0: variable i is bound twice"),
        ("let i = 1: let i = 2: pass", "at i = 1: variable i is bound twice"),
        ("for i in 0 .. 2: pass\ndst[i] = 1.0", "kernel k: variable i in i is not bound"),
        ("call g()", "function g is not defined"),
        ("fma8(dst[0]{4})", "instruction fma8 has no specification; known: fma4, copy4, add1, broken"),
        ("fma4(dst[0]{4}, src[0]{4})", "fma4 takes 3 operands, not 2"),
        ("copy4(dst[0]{4}, src[0]{2})", "operand a of copy4 is f32 in 4 lanes, not f32 in 2"),
        ("copy4(dst[0]{4}, src[0])", "operand a of copy4 is f32 in 4 lanes, not f32 in 1"),
        ("broken(dst[0]{4}, src[0]{4})", "broken(dst[0]{4}, ...): kernel broken: c[4] is outside of the shape [4]"),
        (
            "alloc t: f32[4] @register: fma4(t[0]{4}, src[0]{4}, src[0]{4})",
            "element 0 of c is read before it is written",
        ),
        (
            "alloc t: f32[4] @register: fma4(dst[0]{4}, t[0]{4}, src[0]{4})",
            "element 0 of t is read before it is written",
        ),
        ("add1(dst[8], src[0])", "dst[8] is outside of the shape [8]"),
    ],
)
def test_errors(body: str, message: str) -> None:
    with pytest.raises(InterpError) as error:
        execute(body)
    assert message in str(error.value)
    assert isinstance(error.value, InternalError) and error.value.code == "interp"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("call f(src @ 0)", "f takes (pointers, indices) (1, 1), not (1, 0)"),
        ("call f(src @ 5, 4)", "src[9] is outside of the shape [8]"),
        ("call two(src @ 0, dst @ 0)", "two gets two different buffers for src"),
        ("call other(src @ 0)", "buffer dst is not in scope"),
        ("let i = 1: call free(src @ 0)", "variable i in i is not bound"),
    ],
)
def test_errors_of_calls(call: str, message: str) -> None:
    functions = """\
function f(p: src, n)
  src[p + n] = 0.0
function two(p: src, q: src)
  pass
function other(p: src)
  dst[0] = 0.0
function free(p: src)
  src[i] = 0.0
"""
    with pytest.raises(InterpError) as error:
        execute(call, functions=functions)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "for i in 0 .. 2 #parallel: dst[0] = 1.0",
            "iteration 1 of parallel loop i writes element 0, which iteration 0 writes",
        ),
        (
            "for i in 0 .. 2 #parallel: dst[i] = dst[0]",
            "iteration 1 of parallel loop i reads element 0, which iteration 0 writes",
        ),
        (
            "for i in 0 .. 2 #parallel:\n  if i == 0: src[0] = dst[0]\n  if i == 1: dst[0] = 1.0",
            "iteration 1 of parallel loop i writes element 0, which iteration 0 reads",
        ),
        (
            "for i in 0 .. 3 #parallel:\n  if i <= 1: src[7] = dst[0] - dst[0]\n  if i == 2: dst[0] = 1.0",
            "iteration 1 of parallel loop i writes element 7, which iteration 0 writes",
        ),
        (
            "for i in 0 .. 3 #parallel:\n  if i <= 1: src[i] = dst[0]\n  if i == 2: dst[0] = 1.0",
            "iteration 2 of parallel loop i writes element 0, which another iteration reads",
        ),
        ("for i in 0 .. 2 #parallel: dst[i]{4} = 0.0", "writes element 1, which iteration 0 writes"),
        ("for i in 0 .. 2 #parallel: for j in 0 .. 2 #parallel: dst[i] = 1.0", "iteration 1 of parallel loop j writes"),
        ("for i in 0 .. 2 #parallel: for j in 0 .. 2 #parallel: dst[j] = 1.0", "iteration 1 of parallel loop i writes"),
        ("for i in 0 .. 2 #parallel: fma4(dst[i]{4}, src[0]{4}, src[0]{4})", "writes element 1, which iteration 0"),
        ("alloc t: f32[4] @cache: for i in 0 .. 2 #parallel: t[0] = 1.0", "t: iteration 1 of parallel loop i writes"),
        ("for i in 0 .. 2 #parallel: call f(dst @ 0)", "dst: iteration 1 of parallel loop i writes element 0"),
    ],
)
def test_parallel_iterations_must_not_meet(body: str, message: str) -> None:
    with pytest.raises(InterpError) as error:
        execute(body, functions="function f(p: dst)\n  dst[p] = 1.0\n")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "body",
    [
        "for i in 0 .. 4 #parallel: dst[i] = src[0]",
        "for i in 0 .. 4 #parallel:\n  dst[i] = 1.0\n  dst[i] = dst[i] + 1.0",
        "for i in 0 .. 4 #parallel: alloc t: f32[1] @cache:\n    t[0] = 1.0\n    dst[i] = t[0]",
        "for i in 0 .. 2 #parallel: for j in 0 .. 2 #parallel: dst[i * 2 + j] = 1.0",
        "for i in 0 .. 2 #parallel: alloc t: f32[2] @cache: for j in 0 .. 2 #parallel: t[j] = 1.0",
        "for j in 0 .. 2: for i in 0 .. 2 #parallel: dst[i] = 1.0",
        "for i in 0 .. 2 #parallel: dst[i * 4]{4/2} = src[0]{4}",
    ],
)
def test_parallel_iterations_that_do_not_meet(body: str) -> None:
    execute(body)


def test_a_buffer_is_not_allocated_within_its_own_life() -> None:
    kernel = parse_kernel("kernel k(a: f32[1])\n  alloc t: f32[1] @cache: a[0] = 1.0")
    nested = type(kernel.body)(kernel.body.buffer, kernel.body)  # type: ignore[call-arg,attr-defined]
    with pytest.raises(InterpError, match="buffer t is allocated within its own life"):
        run(Kernel("k", kernel.params, nested), {"a": np.zeros(1, np.float32)})


def test_arrays_must_be_the_memory_of_the_parameters() -> None:
    kernel = parse_kernel("kernel k(a: f32[2, 3])\n  pass")
    run(kernel, {"a": np.zeros(6, np.float32)})
    with pytest.raises(InterpError, match="kernel k: no array for parameter a"):
        run(kernel, {})
    for wrong in (np.zeros(5, np.float32), np.zeros((2, 3), np.float32), np.zeros(6)):
        with pytest.raises(InterpError, match=r"parameter a needs an array of shape \(6,\) and type float32, not"):
            run(kernel, {"a": wrong})
