"""Conversions of PTX by the interpreter: all numbers of small types, and f32 at every edge, beside exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from convsmith.emulate.ptx.launch import Blank, run
from convsmith.emulate.ptx.parser import PtxError

LANES = 32
ALL_16 = np.arange(1 << 16, dtype=np.uint32)
ALL_8 = np.arange(1 << 8, dtype=np.uint32)
FORMS = {"f16": (10, 15, np.float16), "bf16": (7, 127, ml_dtypes.bfloat16), "e4m3": (3, 7, ml_dtypes.float8_e4m3fn),
         "e5m2": (2, 15, ml_dtypes.float8_e5m2)}  # fmt: skip
"""The bits of the fraction, the bias of the exponent, and numpy's type."""


def bits_of(name: str) -> int:
    return np.dtype(FORMS[name][2]).itemsize * 8


def converted(line: str, words: np.ndarray) -> np.ndarray:
    """Return the 32 bits of %c after a line that reads the 32 bits %a and %b, which are the next word."""
    text = f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1, .param .u64 k_param_2)
{{
  .reg .b16 %h<4>;
  .reg .b32 %a, %b, %c, %t, %g;
  .reg .b64 %rd<9>;
  mov.u32 %t, %tid.x;
  mov.u32 %g, %ctaid.x;
  mad.lo.s32 %t, %g, {LANES}, %t;
  ld.param.b64 %rd1, [k_param_0];
  ld.param.b64 %rd2, [k_param_1];
  ld.param.b64 %rd3, [k_param_2];
  mul.wide.u32 %rd4, %t, 4;
  add.s64 %rd5, %rd1, %rd4;
  add.s64 %rd6, %rd2, %rd4;
  add.s64 %rd7, %rd3, %rd4;
  ld.global.b32 %a, [%rd5];
  ld.global.b32 %b, [%rd6];
  {line}
  st.global.b32 [%rd7], %c;
  ret;
}}
"""
    whole = np.resize(words, -(-len(words) // LANES) * LANES)
    out = run(text, "k", len(whole) // LANES, [whole, np.roll(whole, -1), Blank(len(whole), np.uint32)], LANES)[2]
    assert out is not None
    return out[: len(words)]


def edges(name: str) -> np.ndarray:
    """Return the bits of f32 numbers: those of a type, the middles between two, their neighbours, and random bits."""
    small = np.arange(1 << bits_of(name) - 1, dtype=f"u{bits_of(name) // 8}").view(FORMS[name][2]).astype(np.float32)
    small = small[np.isfinite(small)]
    small = small[:: max(len(small) // 1200, 1)]
    with np.errstate(all="ignore"):
        middles = (small[1:].astype(np.float64) / 2 + small[:-1].astype(np.float64) / 2).astype(np.float32)
        beyond = np.float32([464, 480, 512, 57344, 61440, 65504, 65519.9, 65520, 65536, 3.39e38, 3.4e38])
        near = np.concatenate([small, middles, beyond]).astype(np.float32).view(np.uint32).astype(np.int64)
    near = np.concatenate([near - 1, near, near + 1]).clip(0, 0x7F800000)
    odd = [0, 1, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x007FFFFF, 0x00800000]
    found = np.concatenate([near, np.array(odd)]).astype(np.uint32)
    rng = np.random.default_rng(3)
    return np.concatenate([found, found | np.uint32(1 << 31), rng.integers(0, 1 << 32, 500, np.uint32)])


def nearest(name: str, word: int, saturates: bool = False) -> int:
    """Return the bits of an f32 rounded to a type, to nearest even, by whole numbers alone."""
    fraction, bias, _ = FORMS[name]
    sign, size = word >> 31, word & 0x7FFFFFFF
    top = bits_of(name) - 1
    if size > 0x7F800000:
        return (1 << top) - 1
    most = {"e4m3": 0x7E, "e5m2": 0x7B, "f16": 0x7BFF, "bf16": 0x7F7F}[name]
    if size == 0x7F800000:
        return sign << top | (most if saturates else most + 1)
    exponent = max(size >> 23, 1) - 127
    value = Fraction(size & 0x7FFFFF | (0x800000 if size >> 23 else 0)) * Fraction(2) ** (exponent - 23)
    unit = Fraction(2) ** (max(exponent, 1 - bias) - fraction)
    whole = round(value / unit)  # a tie to even
    if whole >= 2 << fraction:  # the next power of two
        whole, unit = whole >> 1, unit * 2
    field = 0 if whole < 1 << fraction else round(math.log2(unit)) + fraction + bias
    bits = (field << fraction) + (whole & (1 << fraction) - 1)
    return sign << top | (min(bits, most) if saturates else min(bits, most + 1))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_f32_is_rounded_once(name: str) -> None:
    words = edges(name)
    found = converted(f"cvt.rn.{name}.f32 %h0, %a; cvt.u32.u16 %c, %h0;", words)
    assert found.tolist() == [nearest(name, x) for x in words.tolist()]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_a_pair_has_the_first_operand_above(name: str) -> None:
    words = edges(name)
    found = converted(f"cvt.rn.{name}x2.f32 %c, %a, %b;", words)
    one = [nearest(name, x) for x in words.tolist()]
    assert (found >> 16).tolist() == one and (found & 0xFFFF).tolist()[:-1] == one[1:]


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_pairs_of_8_bit_floats_are_saturated_to_finite_ones(name: str) -> None:
    words = edges(name)
    found = converted(f"cvt.rn.satfinite.{name}x2.f32 %h0, %a, %b; cvt.u32.u16 %c, %h0;", words)
    one = [nearest(name, x, saturates=True) for x in words.tolist()]
    assert (found >> 8).tolist() == one and (found & 0xFF).tolist()[:-1] == one[1:]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_number_of_16_bits_is_an_f32(name: str) -> None:
    fraction, bias, _ = FORMS[name]
    found = converted(f"mov.b32 {{%h0, %h1}}, %a; cvt.f32.{name} %c, %h0;", ALL_16).view(np.float32)
    for word, x in zip(ALL_16.tolist(), found.tolist()):
        field, rest = word >> fraction & (1 << 15 - fraction) - 1, word & (1 << fraction) - 1
        if field == (1 << 15 - fraction) - 1:
            assert x != x if rest else x == (-math.inf if word >> 15 else math.inf)
            continue
        size = math.ldexp(rest + ((1 << fraction) if field else 0), max(field, 1) - bias - fraction)
        assert math.copysign(1, x) == (-1 if word >> 15 else 1) and abs(x) == size
    assert {*found[found != found].view(np.uint32).tolist()} == {0x7FFFFFFF}


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_every_pair_of_8_bit_floats_is_a_pair_of_f16(name: str) -> None:
    line = f"mov.b32 {{%h0, %h1}}, %a; cvt.rn.f16x2.{name}x2 %c, %h0;"
    found = converted(line, ALL_8 | (255 - ALL_8) << 8)
    wanted = ALL_8.astype(np.uint8).view(FORMS[name][2]).astype(np.float16)
    np.testing.assert_array_equal((found & 0xFFFF).astype(np.uint16).view(np.float16), wanted)
    np.testing.assert_array_equal((found >> 16).astype(np.uint16).view(np.float16), wanted[::-1])


@pytest.mark.parametrize(("to", "low", "high"), [("s8", -128, 127), ("u8", 0, 255)])
def test_two_integers_are_saturated_below_the_rest(to: str, low: int, high: int) -> None:
    rng = np.random.default_rng(4)
    words = np.concatenate([np.arange(-300, 300), rng.integers(-(1 << 31), 1 << 31, 200), [-(1 << 31), (1 << 31) - 1]])
    bits = words.astype(np.int32).view(np.uint32)
    found = converted(f"cvt.pack.sat.{to}.s32.b32 %c, %a, %b, %b;", bits)
    one = words.clip(low, high) & 255
    wanted = (bits[1:].astype(np.int64) << 16 | one[:-1] << 8 | one[1:]) & 0xFFFFFFFF
    assert found.tolist()[:-1] == wanted.tolist()


def test_an_unknown_modifier_is_refused() -> None:
    with pytest.raises(PtxError, match="the modifier rp is not understood"):
        converted("cvt.rp.f16.f32 %h0, %a; cvt.u32.u16 %c, %h0;", ALL_8)
