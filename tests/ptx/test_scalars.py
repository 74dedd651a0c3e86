"""Arithmetic of PTX, one instruction at a time, beside Python's own numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from convsmith.emulate.ptx.launch import Blank, run

NUMBERS = [0, 1, 2, 3, 7, 8, 31, 32, 33, 100, 127, 128, 255, 256, 65535, 1 << 20, (1 << 31) - 1]
SIGNED = np.array([*NUMBERS, *(-x for x in NUMBERS[1:16])], np.int32)
FLOATS = np.array([0.0, -0.0, 1.5, -2.5, 0.5, 3.5, 1e-3, -7.25, 255.5, 300.0, -1000.0, 65519.0, 1e9, -1e9, 3e9, np.inf,
                   -np.inf, np.nan, *(n / 8 - 0.8125 for n in range(14))], np.float32)  # fmt: skip


def template(line: str, kind: str) -> str:
    """Return a kernel that loads %a and %b of a type, executes a line, and stores %c and the predicate %p."""
    return f""".version 8.6
.target sm_80
.address_size 64
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1, .param .u64 k_param_2)
{{
  .reg .pred %p<2>;
  .reg .b16 %h<4>;
  .reg .b32 %a, %b, %c, %t, %o;
  .reg .b64 %rd<9>, %w;
  mov.u32 %t, %tid.x;
  ld.param.b64 %rd1, [k_param_0];
  ld.param.b64 %rd2, [k_param_1];
  ld.param.b64 %rd3, [k_param_2];
  mul.wide.u32 %rd4, %t, 4;
  add.s64 %rd5, %rd1, %rd4;
  add.s64 %rd6, %rd2, %rd4;
  add.s64 %rd7, %rd3, %rd4;
  ld.global.{kind} %a, [%rd5];
  ld.global.{kind} %b, [%rd6];
  mov.b32 %c, 0;
  setp.eq.u32 %p1, %t, %t;
  {line}
  selp.b32 %o, %c, 0xABCD, %p1;
  st.global.b32 [%rd7], %o;
  ret;
}}
"""


def wrap(x: int) -> int:
    return (x + (1 << 31)) % (1 << 32) - (1 << 31)


def unsigned(x: int) -> int:
    return x % (1 << 32)


def quotient(a: int, b: int) -> int:
    return math.trunc(a / b) if b else 0


INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add.s32 %c, %a, %b;": lambda a, b: a + b,
    "sub.s32 %c, %a, %b;": lambda a, b: a - b,
    "mul.lo.s32 %c, %a, %b;": lambda a, b: a * b,
    "mul.hi.s32 %c, %a, %b;": lambda a, b: a * b >> 32,
    "mul.hi.u32 %c, %a, %b;": lambda a, b: unsigned(a) * unsigned(b) >> 32,
    "mad.lo.s32 %c, %a, %b, 5;": lambda a, b: a * b + 5,
    "mul.wide.s32 %w, %a, %b; cvt.u32.u64 %c, %w;": lambda a, b: a * b,
    "mul.wide.s32 %w, %a, %b; shr.s64 %w, %w, 8; cvt.u32.u64 %c, %w;": lambda a, b: a * b >> 8,
    "div.s32 %c, %a, 7;": lambda a, b: quotient(a, 7),
    "rem.s32 %c, %a, 7;": lambda a, b: a - 7 * quotient(a, 7),
    "min.s32 %c, %a, %b;": min,
    "max.u32 %c, %a, %b;": lambda a, b: max(unsigned(a), unsigned(b)),
    "shl.b32 %c, %a, %b;": lambda a, b: a << b if 0 <= b < 32 else 0,
    "shr.s32 %c, %a, %b;": lambda a, b: a >> (b if 0 <= b < 31 else 31),
    "shr.u32 %c, %a, %b;": lambda a, b: unsigned(a) >> b if 0 <= b < 32 else 0,
    "shf.l.wrap.b32 %c, %a, %b, 5;": lambda a, b: b << 5 | unsigned(a) >> 27,
    "and.b32 %c, %a, %b;": lambda a, b: a & b,
    "not.b32 %c, %a;": lambda a, b: ~a,
    "lop3.b32 %c, %a, %b, %t, 0xC0;": lambda a, b: a & b,
    "prmt.b32 %c, %a, %b, 0x3214;": lambda a, b: unsigned(a) & 0xFFFFFF00 | b & 255,
    "bfe.u32 %c, %a, 4, 9;": lambda a, b: unsigned(a) >> 4 & 511,
    "bfe.s32 %c, %a, 4, 9;": lambda a, b: ((a >> 4 & 511) ^ 256) - 256,
    "bfi.b32 %c, %a, %b, 4, 9;": lambda a, b: unsigned(b) & ~(511 << 4) | (a & 511) << 4,
    "bfi.b32 %c, %a, %b, 24, 16;": lambda a, b: unsigned(b) & 0xFFFFFF | a << 24,
    "popc.b32 %c, %a;": lambda a, b: unsigned(a).bit_count(),
    "clz.b32 %c, %a;": lambda a, b: 32 - unsigned(a).bit_length(),
    "abs.s32 %c, %a;": lambda a, b: abs(a),
    "cvt.s32.s8 %c, %a;": lambda a, b: (a + 128) % 256 - 128,
    "cvt.sat.u8.s32 %c, %a;": lambda a, b: min(max(a, 0), 255),
    "setp.lt.s32 %p1, %a, %b; mov.b32 %c, %a;": lambda a, b: a if a < b else 0xABCD,
    "setp.lt.and.u32 %p1, %a, %b, %p1; mov.b32 %c, %a;": lambda a, b: a if unsigned(a) < unsigned(b) else 0xABCD,
    "setp.ge.s32 %p1, %a, %b; @%p1 add.s32 %c, %a, 1; setp.eq.u32 %p1, %t, %t;": lambda a, b: a + 1 if a >= b else 0,
    "dp4a.s32.s32 %c, %a, %b, 3;": lambda a, b: 3 + sum(x * y for x, y in zip(signed_bytes(a), signed_bytes(b))),
    "dp4a.u32.s32 %c, %a, %b, %t;": lambda a, b: sum(
        x % 256 * y for x, y in zip(signed_bytes(a), signed_bytes(b))) + int(np.flatnonzero(SIGNED == a)[0]),
    "mov.b32 {%h0, %h1}, %a; mov.b32 %c, {%h1, %h0};": lambda a, b: a << 16 | unsigned(a) >> 16,
}  # fmt: skip


def signed_bytes(a: int) -> list[int]:
    return [((a >> 8 * n) + 128) % 256 - 128 for n in range(4)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", INTEGERS)
def test_integers(line: str) -> None:
    others = np.roll(SIGNED, 5)
    found = run(template(line, "b32"), "k", 1, [SIGNED, others, Blank(32, np.int32)], 32)[2]
    wanted = [wrap(INTEGERS[line](a, b)) for a, b in zip(SIGNED.tolist(), others.tolist())]
    assert found.tolist() == wanted


def half(x: float) -> float:
    return float(np.float32(x).astype(np.float16))


def saturated(x: float, low: int, high: int, rounded: Callable[[float], float]) -> int:
    return 0 if x != x else int(min(max(x if math.isinf(x) else rounded(x), low), high))


INT = (-(1 << 31), (1 << 31) - 1)
REALS: dict[str, Callable[[Any, Any], Any]] = {
    "add.rn.f32 %c, %a, %b;": lambda a, b: a + b,
    "mul.rn.f32 %c, %a, %b;": lambda a, b: a * b,
    "fma.rn.f32 %c, %a, %b, %a;": lambda a, b: np.float32(float(a) * float(b) + float(a)),
    "max.f32 %c, %a, %b;": lambda a, b: b if a != a else a if b != b else max(a, b),
    "min.NaN.f32 %c, %a, %b;": lambda a, b: np.float32(np.nan) if a != a or b != b else min(a, b),
    "neg.f32 %c, %a;": lambda a, b: -a,
    "cvt.rni.f32.f32 %c, %a;": lambda a, b: np.rint(a),
    "cvt.rn.f16.f32 %h0, %a; cvt.f32.f16 %c, %h0;": lambda a, b: np.float32(half(a)),
    "cvt.rn.bf16.f32 %h0, %a; cvt.u32.u16 %c, %h0; shl.b32 %c, %c, 16;": lambda a, b: bfloat(a),
    "setp.lt.f32 %p1, %a, %b; @!%p1 mov.b32 %a, 0f3F800000; mov.b32 %c, %a; setp.eq.u32 %p1, %t, %t;":
        lambda a, b: a if a < b else np.float32(1),
    "setp.leu.f32 %p1, %a, %b; selp.f32 %c, %a, %b, %p1; setp.eq.u32 %p1, %t, %t;":
        lambda a, b: a if not a > b else b,
    "add.sat.f32 %c, %a, %b;": lambda a, b: np.float32(0) if a + b != a + b else np.clip(a + b, 0, 1),
}  # fmt: skip
WHOLE: dict[str, Callable[[float], int]] = {
    "cvt.rni.s32.f32 %c, %a;": lambda a: saturated(a, *INT, round),
    "cvt.rzi.s32.f32 %c, %a;": lambda a: saturated(a, *INT, math.trunc),
    "cvt.rmi.s32.f32 %c, %a;": lambda a: saturated(a, *INT, math.floor),
    "cvt.rni.sat.s8.f32 %h0, %a; cvt.s32.s16 %c, %h0;": lambda a: saturated(a, -128, 127, round),
}


def bfloat(x: Any) -> Any:
    bits = int(np.float32(x).view(np.uint32))
    if x != x:
        return np.float32(np.nan)
    return np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", REALS)
def test_reals(line: str) -> None:
    others = np.roll(FLOATS, 7)
    found = run(template(line, "b32"), "k", 1, [FLOATS, others, Blank(32, np.float32)], 32)[2]
    np.testing.assert_array_equal(found, np.array([REALS[line](a, b) for a, b in zip(FLOATS, others)], np.float32))


@pytest.mark.parametrize("line", WHOLE)
def test_reals_become_integers(line: str) -> None:
    found = run(template(line, "b32"), "k", 1, [FLOATS, FLOATS, Blank(32, np.int32)], 32)[2]
    assert found.tolist() == [WHOLE[line](float(a)) for a in FLOATS]
