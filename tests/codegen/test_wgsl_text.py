"""The text of WGSL: a browser computes what the interpreter computes, and refuses none of it."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import skip_without_emulator

from convsmith.codegen.geometry import geometry
from convsmith.codegen.wgsl_text import wgsl_text
from convsmith.diag.errors import InternalError
from convsmith.emulate.browser import dispatch
from convsmith.interp import run
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.machine.registry import target
from convsmith.runtime.arrays import numpy_dtype

HEAD = "kernel k(a: f32[64], c: f32[64], d: s32[64])\n"
KERNELS = {
    "quotients of negative numbers": """
  for x in 0 .. 2 #grid:
    for t in 0 .. 32 #group:
      c[x * 32 + t] = a[(x * 7 - t) // 3 + 11]
      d[x * 32 + t] = cast(s32, a[(x * 7 - t) % 3 + (x - t) // 4 + (x - t) % 4 + 8])
""",
    "a name that is bound again": """
  for t in 0 .. 8 #group:
    let i = t * 2:
      c[i] = a[i]
      for k in 0 .. 2:
        let j = t + k * 8:
          c[j + 16] = a[i + 1]
    let i = t + 40:
      c[i] = a[i]
      d[i] = cast(s32, a[t])
""",
    "names that WGSL reserves": """
  for loop in 0 .. 4 #grid:
    for let in 0 .. 8 #group:
      alloc var: f32[2] @register:
        var[0] = a[loop * 8 + let]
        var[1] = sqrt(var[0] * var[0])
        c[loop * 8 + let] = var[1]
        d[loop * 8 + let] = cast(s32, var[0])
""",
    "registers that a loop numbers": """
  for t in 0 .. 8 #group:
    alloc r: f32[2, 4] @register:
      for i in 0 .. 4:
        r[0, i] = a[t * 4 + i]
        r[1, i] = a[t * 4 + i + 32]
      for i in 0 .. 4:
        c[t * 4 + i] = r[0, -i + 3] + r[1, i]
      d[t] = cast(s32, r[1, 2])
""",
    "an array that no statement reads": """
  for t in 0 .. 8 #group:
    c[t] = 1.0
    d[t] = s32(2)
""",
    "lanes that move": """
  for t in 0 .. 8 #group:
    alloc r: f32[4] @register:
      r[0]{4} = a[t * 4]{4}
      r[0]{4} = r[0]{4} * 2.0 + r[1]{4:0}
      c[t * 4]{4} = r[0]{4}
      c[t * 4 + 32]{4/3} = a[t]{4:0} + r[0]{4}
      d[t] = s32(1)
""",
    "conversions that saturate": """
  for t in 0 .. 64 #group:
    c[t] = max(a[t], neg(a[t])) * 0.5 + min(a[t], 3.0)
    d[t] = cast(s32, cast(s8, a[t] * 10.5)) + cast(s32, a[t] * 1000000000.0)
""",
}
NARROW = "kernel k(a: f32[64], c: s8[64], d: u8[64], e: f16[64], f: bf16[64], s: s32[64])\n"
NARROW_KERNELS = {
    "words of elements": """
  for t in 0 .. 16 #group:
    c[t * 4]{4} = cast(s8, a[t * 4]{4})
    d[t * 4]{4} = cast(u8, a[t * 4]{4} * 2.0)
    e[t * 4]{4} = cast(f16, a[t * 4]{4})
    f[t * 4]{4} = cast(bf16, a[t * 4]{4})
    s[t * 4]{4} = s32(0)
""",
    "elements of words that other threads change": """
  for t in 0 .. 64 #group:
    c[t] = cast(s8, a[t])
    d[-t + 63] = cast(u8, a[t] * 2.0)
    e[t] = cast(f16, a[t])
    f[-t + 63] = cast(bf16, a[t])
    s[t] = s32(0)
""",
    "lanes that fill no word": """
  for t in 0 .. 15 #group:
    c[t * 4 + 1]{4} = cast(s8, a[t * 4]{4})
    d[t * 4]{4/3} = cast(u8, a[t * 4]{4})
    e[t * 4 + 1]{2} = cast(f16, a[t * 4]{2})
    f[t]{2:32} = cast(bf16, a[t]{2})
    s[t] = s32(0)
""",
    "shared bytes": """
  alloc x: s8[64] @shared:
    alloc y: bf16[64] @shared:
      for t in 0 .. 64 #group:
        x[t] = cast(s8, a[t])
        y[t] = cast(bf16, a[t])
        barrier
        c[t] = x[-t + 63]
        f[t] = y[-t + 63]
        d[t] = cast(u8, cast(s32, x[-t + 63]))
        e[t] = cast(f16, cast(f32, y[-t + 63]))
        s[t] = cast(s32, x[-t + 63])
""",
    "products of 64 bits": """
  for t in 0 .. 64 #group:
    s[t] = mulh(cast(s32, a[t] * 67108864.0), cast(s32, a[-t + 63] * 67108864.0))
    c[t] = s8(1)
    d[t] = u8(1)
    e[t] = cast(f16, cast(f32, cast(f16, a[t] * 0.0000003)))
    f[t] = cast(bf16, cast(f32, cast(f16, a[t] * 3000.0)))
""",
}


def narrow_arrays() -> dict[str, np.ndarray]:
    a = (np.arange(64, dtype=np.float32) - 32) * np.float32(1.37)
    a[[0, 1, 63]] = -32
    halves = np.full(64, 9, numpy_dtype("bf16"))
    return {"a": a, "c": np.full(64, 9, np.int8), "d": np.full(64, 9, np.uint8), "e": np.full(64, 9, np.float16),
            "f": halves, "s": np.full(64, 9, np.int32)}  # fmt: skip


@pytest.mark.parametrize("name", NARROW_KERNELS)
def test_elements_share_words(name: str) -> None:
    skip_without_emulator(target("webgpu"))
    memory = narrow_arrays()
    with interning():
        kernel = parse_kernel(NARROW + NARROW_KERNELS[name].strip("\n"))
        code, groups = wgsl_text({"k": kernel}, {}), geometry(kernel).grid
        run(kernel, memory)
    found = dispatch(code, "k", groups, [x.tobytes() for x in narrow_arrays().values()], [1, 2, 3, 4, 5])
    for x, wanted in zip(found, [*memory.values()][1:], strict=True):
        np.testing.assert_array_equal(np.frombuffer(x, wanted.dtype), wanted)


def test_halves_are_rounded_to_even() -> None:
    """All f16 numbers, those halfway between two of them, and their neighbours, and limits."""
    skip_without_emulator(target("webgpu"))
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.sort(halves[np.isfinite(halves)].astype(np.float32))
    middle = (finite[1:] + finite[:-1]) / 2
    above, limits = np.nextafter(middle, np.float32(9e9)), [65519.0, 65520.0, 1e38, -1e38, 1e-30]
    given = np.concatenate([finite, middle, above, limits])
    given = np.concatenate([given, np.zeros(-len(given) % 64)]).astype(np.float32)
    size = len(given)
    text = f"""
kernel k(a: f32[{size}], e: f16[{size}], f: bf16[{size}], b: f32[{size}])
  for x in 0 .. {size // 64} #grid:
    for t in 0 .. 64 #group:
      e[x * 64 + t] = cast(f16, a[x * 64 + t])
      f[x * 64 + t] = cast(bf16, a[x * 64 + t])
      b[x * 64 + t] = cast(f32, cast(f16, a[x * 64 + t]))
"""
    with interning():
        kernel = parse_kernel(text.strip())
        code, groups = wgsl_text({"k": kernel}, {}), geometry(kernel).grid
    found = dispatch(code, "k", groups, [given.tobytes(), *(bytes(size * n) for n in (2, 2, 4))], [1, 2, 3])
    with np.errstate(over="ignore"):
        f16 = given.astype(np.float16)
    for x, wanted in zip(found, (f16, given.astype(numpy_dtype("bf16")), f16.astype(np.float32)), strict=True):
        np.testing.assert_array_equal(np.frombuffer(x, wanted.dtype), wanted)


def test_whole_words_are_written_at_once() -> None:
    with interning():
        text = wgsl_text({"k": parse_kernel(NARROW + NARROW_KERNELS["words of elements"].strip("\n"))}, {})
    assert "atomic" not in text
    assert "k_c: array<u32>" in text


def arrays() -> dict[str, np.ndarray]:
    a = (np.arange(64, dtype=np.float32) - 31) / 2
    return {"a": a, "c": np.full(64, 9, np.float32), "d": np.full(64, 9, np.int32)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", KERNELS)
def test_a_browser_computes_what_the_interpreter_computes(name: str) -> None:
    skip_without_emulator(target("webgpu"))
    memory = arrays()
    with interning():
        kernel = parse_kernel(HEAD + KERNELS[name].strip("\n"))
        code, groups = wgsl_text({"k": kernel}, {}), geometry(kernel).grid
        run(kernel, memory)
    found = dispatch(code, "k", groups, [x.tobytes() for x in arrays().values()], [1, 2])
    for x, wanted in zip(found, (memory["c"], memory["d"]), strict=True):
        np.testing.assert_array_equal(np.frombuffer(x, wanted.dtype), wanted)


def text_of(body: str) -> list[str]:
    with interning():
        return [line.strip() for line in wgsl_text({"k": parse_kernel(HEAD + body.strip("\n"))}, {}).splitlines()]


def test_numbers_that_are_not_negative_are_divided_by_operators() -> None:
    lines = text_of("""
  for t in 0 .. 64 #group:
    c[t] = a[t // 8 + t % 8 + (t // 3) * 2 + (t - 1) // 4]
    d[t] = s32(0)
""")
    assert "k_c[t] = k_a[((t + 3) >> 2u) + (t & 7) + (t / 3) * 2 + (t >> 3u) - 1];" in lines
    assert not any(line.startswith("fn quotient") for line in lines)


def test_elements_with_constant_numbers_are_variables() -> None:
    lines = text_of("""
  for t in 0 .. 8 #group:
    alloc r: f32[2] @register:
      r[0]{2} = a[t * 2]{2}
      c[t * 2]{2} = r[0]{2}
      d[t] = s32(0)
""")
    assert {"var r_0: f32;", "var r_1: f32;", "k_c[t * 2 + 1] = r_1;"} <= {*lines}


def test_what_wgsl_lacks_is_a_fault() -> None:
    with pytest.raises(InternalError, match="WGSL has no values of f64"):
        text_of("""
  for t in 0 .. 8 #group:
    alloc r: f64[2] @register:
      r[0] = 1.0
      c[t] = 0.0
""")
