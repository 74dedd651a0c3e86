"""The meaning of each value: types, lanes, rounding, and what is not a number."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from draws import examples
from hypothesis import given
from hypothesis import strategies as st
from natives import run_native

from convsmith.interp import InterpError, run
from convsmith.interp.arithmetic import cast, fma, sum_groups
from convsmith.ir.parse import parse_kernel
from convsmith.ir.types import DTYPES
from convsmith.ir.value import const
from convsmith.ir.verify import verify
from convsmith.machine.registry import host_targets

INF, NAN = math.inf, math.nan


def value_of(text: str, a: Any, b: Any = (0.0,), dtype: str = "f32", lanes: str = "", out: int = 1) -> np.ndarray:
    """The value of an expression over the memories a and b."""
    np_type = {"f32": np.float32, "f64": np.float64, "s32": np.int32}[dtype]
    arrays = {"a": np.array(a, np_type), "b": np.array(b, np_type), "out": np.zeros(out, np_type)}
    params = ", ".join(f"{n}: {dtype}[{len(x)}]" for n, x in arrays.items())
    run(parse_kernel(f"kernel k({params})\n  out[0]{lanes} = {text}"), arrays)
    return arrays["out"]


@pytest.mark.parametrize(
    ("text", "a", "expected"),
    [
        ("a[0] + a[1]", (1.5, 2.0), 3.5),
        ("a[0] - a[1]", (1.5, 2.0), -0.5),
        ("a[0] * a[1]", (1.5, 2.0), 3.0),
        ("a[0] / a[1]", (1.0, 3.0), np.float32(1) / np.float32(3)),
        ("a[0] / a[1]", (1.0, 0.0), INF),
        ("max(a[0], a[1])", (1.0, 2.0), 2.0),
        ("min(a[0], a[1])", (1.0, 2.0), 1.0),
        ("max(a[0], a[1])", (NAN, 2.0), NAN),
        ("max(a[1], a[0])", (NAN, 2.0), NAN),
        ("min(a[0], a[1])", (NAN, 2.0), NAN),
        ("a[0] + a[1]", (3e38, 3e38), INF),
        ("fma(a[0], a[1], a[2])", (2.0, 3.0, 4.0), 10.0),
        ("where(a[0] < 0.0, a[1], a[2])", (-1.0, 2.0, 3.0), 2.0),
        ("where(a[0] < 0.0, a[1], a[2])", (0.0, 2.0, 3.0), 3.0),
        ("where(a[0] < 0.0, a[1], a[2])", (NAN, 2.0, 3.0), 3.0),
        ("(a[0] if 1 >= 0 else a[100])", (7.0,), 7.0),
        ("(a[100] if 0 > 1 else a[0])", (7.0,), 7.0),
        ("sum(a[0]{4})", (1.0, 2.0, 3.0, 4.0), 10.0),
        ("sum(a[0]{4/2})", (1.0, 2.0, 3.0, 4.0), 3.0),
        ("sum((2.0 if 1 >= 0 else a[0]{4}))", (1.0,), 8.0),
        ("-0.0", (1.0,), -0.0),
    ],
)
def test_scalars(text: str, a: Any, expected: float) -> None:
    out = value_of(text, a)
    np.testing.assert_array_equal(out, np.array([expected], np.float32))
    assert np.signbit(out[0]) == np.signbit(np.float32(expected))


@pytest.mark.parametrize(
    ("text", "lanes", "expected"),
    [
        ("a[0]{4}", "{4}", (1, 2, 3, 4)),
        ("a[0]{4:2}", "{4}", (1, 3, 5, 7)),
        ("a[3]{4:0}", "{4}", (4, 4, 4, 4)),
        ("a[3]{4:-1}", "{4}", (4, 3, 2, 1)),
        ("a[0]{(0, 0, 1, 1)}", "{4}", (1, 1, 2, 2)),
        ("a[6]{4/2}", "{4}", (7, 8, 0, 0)),
        ("a[0]{4} + a[0]", "{4}", (2, 3, 4, 5)),
        ("10.0 * a[0]{4}", "{4}", (10, 20, 30, 40)),
        ("a[0]", "{4}", (1, 1, 1, 1)),
        ("a[0]{4}", "{4/2}", (1, 2, 0, 0)),
        ("a[0]{4}", "{4:2}", (1, 0, 2, 0, 3, 0, 4)),
        ("a[0]{4}", "{(3, 1, 0, 2)}", (3, 2, 4, 1)),
        ("fma(a[0]{4}, a[0], a[0]{4})", "{4}", (2, 4, 6, 8)),
        ("where(a[0]{4} < 2.5, 0.0, a[0]{4})", "{4}", (0, 0, 3, 4)),
        ("(a[0]{4} if 1 >= 0 else 0.0)", "{4}", (1, 2, 3, 4)),
        ("max(a[0]{4}, 2.0)", "{4}", (2, 2, 3, 4)),
        ("lookup(a[1], cast(u8, a[0]{4}))", "{4}", (3, 4, 5, 6)),
        ("repeat(a[0]{2}, 3)", "{6}", (1, 2, 1, 2, 1, 2)),
        ("repeat(a[3], 3)", "{3}", (4, 4, 4)),
        ("repeat(a[0]{4/3}, 2)", "{8}", (1, 2, 3, 0, 1, 2, 3, 0)),
        ("sum(a[0]{8}, 4)", "{2}", (10, 26)),
        ("sum(a[0]{8}, 1)", "{8}", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("sum(repeat(a[0]{4}, 2), 2)", "{4}", (3, 7, 3, 7)),
        ("where(a[0]{4} >= 3.0, 1.0, 0.0)", "{4}", (0, 0, 1, 1)),
        ("where(s32(1) != s32(2), a[0]{4}, 0.0)", "{4}", (1, 2, 3, 4)),
        ("cast(f32, and(cast(s32, a[0]{4}), s32(2)))", "{4}", (0, 2, 2, 0)),
        ("neg(sqrt(a[0]{4} * a[0]{4}))", "{4}", (-1, -2, -3, -4)),
        ("bits(f32, shl(cast(s32, a[0]{2}) + s32(126), s32(23)))", "{2}", (1, 2)),
    ],
)
def test_lanes(text: str, lanes: str, expected: tuple[float, ...]) -> None:
    out = value_of(text, range(1, 9), lanes=lanes, out=8)
    np.testing.assert_array_equal(out[: len(expected)], expected)
    assert not out[len(expected) :].any()


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("round(a[0])", 2.5, 2.0), ("round(a[0])", -3.5, -4.0), ("round(a[0])", -0.5, -0.0),
        ("round(a[0])", 1e30, 1e30),
        ("floor(a[0])", -0.5, -1.0), ("floor(a[0])", 2.9, 2.0), ("floor(a[0])", -0.0, -0.0), ("sqrt(a[0])", 2.25, 1.5),
        ("sqrt(a[0])", -1.0, NAN), ("sqrt(a[0])", -0.0, -0.0), ("abs(a[0])", -0.0, 0.0), ("abs(a[0])", -INF, INF),
        ("neg(a[0])", 0.0, -0.0), ("neg(a[0])", NAN, NAN),
        ("where(a[0] == a[0], 1.0, 0.0)", NAN, 0.0), ("where(a[0] != a[0], 1.0, 0.0)", NAN, 1.0),
        ("where(a[0] >= 0.0, 1.0, 0.0)", -0.0, 1.0), ("where(a[0] <= 0.0, 1.0, 0.0)", 0.0, 1.0),
        ("cast(f32, shr(bits(s32, a[0]), s32(31)))", -1.0, -1.0),
        ("cast(f32, shr(u8(200), u8(3)))", 0.0, 25.0), ("cast(f32, shr(s8(-100), s8(3)))", 0.0, -13.0),
        ("cast(f32, xor(or(s16(5), s16(10)), s16(-1)))", 0.0, -16.0), ("cast(f32, shl(s8(3), s8(7)))", 0.0, -128.0),
    ],
)  # fmt: skip
def test_operations(text: str, value: float, expected: float) -> None:
    out = value_of(text, (value,))
    np.testing.assert_array_equal(out, np.array([expected], np.float32))
    assert np.signbit(out[0]) == np.signbit(np.float32(expected)) or math.isnan(expected)


def test_an_instruction_on_groups_of_bytes() -> None:
    """Four products of bytes are added to each accumulator; the second operand repeats what four bytes hold."""
    spec = parse_kernel(
        "kernel dot(c: s32[4], a: u8[16], b: s8[16])\n"
        "  for l in 0 .. 4:\n    for r in 0 .. 4:\n"
        "      c[l] = c[l] + cast(s32, a[l * 4 + r]) * cast(s32, b[l * 4 + r])"
    )
    text = "kernel k(a: u8[16], b: s8[4], out: s32[4])\n  dot(out[0]{4}, a[0]{16}, repeat(b[0]{4/3}, 4))"
    a, b = np.arange(240, 256, dtype=np.uint8), np.array([-128, 127, 3, 99], np.int8)
    arrays = {"a": a, "b": b, "out": np.arange(4, dtype=np.int32)}
    run(parse_kernel(text), arrays, {"dot": spec})
    wide = a.reshape(4, 4)[:, :3].astype(np.int64) @ b[:3].astype(np.int64)
    np.testing.assert_array_equal(arrays["out"], wide + np.arange(4))
    with pytest.raises(InterpError, match=r"operand b of dot is s8 in 16 lanes, not s8 in 4"):
        run(parse_kernel(text.replace("repeat(b[0]{4/3}, 4)", "b[0]{4}")), arrays, {"dot": spec})


def test_integers_wrap() -> None:
    assert value_of("a[0] + a[1]", (2**31 - 1, 1), dtype="s32")[0] == -(2**31)
    assert value_of("a[0] * a[1]", (2**20, 2**12), dtype="s32")[0] == 0
    assert value_of("fma(a[0], a[1], s32(-3))", (5, 2), dtype="s32")[0] == 7
    with pytest.raises(InterpError, match=r"a\[0\] / a\[1\] divides integers"):
        value_of("a[0] / a[1]", (4, 2), dtype="s32")


def test_doubles() -> None:
    assert value_of("a[0] + f64(0.1)", (0.2,), dtype="f64")[0] == 0.1 + 0.2


def test_single_precision_rounds_every_operation() -> None:
    tiny = np.float32(2.0**-24)
    out = value_of("a[0] + a[1] + a[1]", (1.0, tiny))
    assert out[0] == 1.0
    assert value_of("a[0] * a[0] - a[1]", (1 + 2.0**-12, 1 + 2.0**-11))[0] == 0.0
    assert value_of("fma(a[0], a[0], -1.0 * a[1])", (1 + 2.0**-12, 1 + 2.0**-11))[0] == np.float32(2.0**-24)


def floats(width: int) -> st.SearchStrategy[tuple[float, ...]]:
    return st.tuples(*[st.floats(width=width, allow_nan=False, allow_infinity=False)] * 3)


@examples(300)
@given(floats(32))
def test_fma_rounds_once(numbers: tuple[float, float, float]) -> None:
    check_fma(np.float32, *numbers)


@examples(300)
@given(floats(16))
def test_fma_of_halves_rounds_once(numbers: tuple[float, float, float]) -> None:
    check_fma(np.float16, *numbers)


def check_fma(number: type[np.floating], a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    with np.errstate(all="ignore"):
        out = fma(number(a), number(b), number(c))
        vector = fma(np.full(2, a, number), number(b), np.full(2, c, number))
        neighbours = [np.nextafter(out, number(towards)) for towards in (-np.inf, np.inf)]
    assert type(out) is number and vector.dtype == number
    np.testing.assert_array_equal(vector, out)
    if not np.isfinite(out):
        row = np.finfo(number)
        assert abs(exact) >= Fraction(2) ** row.maxexp - Fraction(2) ** (row.maxexp - row.nmant - 2)
        return
    error = abs(Fraction(float(out)) - exact)
    for neighbour in neighbours:
        if np.isfinite(neighbour):
            assert error <= abs(Fraction(float(neighbour)) - exact)


def test_fma_where_rounding_twice_goes_wrong() -> None:
    a, b, c = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12), np.float32(2.0**-60)
    once = np.float32(1 + 2.0**-11 + 2.0**-23)
    assert np.float32(np.float64(a) * np.float64(b) + np.float64(c)) != once
    assert fma(a, b, c) == once
    x, y, z = np.float16(48), np.float16(683), np.float16(2.0**-24)  # x * y lies in the middle of 32768 and 32800
    assert np.float16(np.float32(x) * np.float32(y) + np.float32(z)) == 32768
    assert fma(x, y, z) == 32800


def test_fma_of_doubles_and_of_what_is_not_finite() -> None:
    a = np.float64(1 + 2.0**-30)
    assert fma(a, a, np.float64(-1 - 2.0**-29)) == 2.0**-60
    assert fma(np.float64(1e300), np.float64(1e300), np.float64(0)) == INF
    assert fma(np.float64(-1e300), np.float64(1e300), np.float64(0)) == -INF
    assert fma(np.float64(2), np.float64(3), np.float64(-6)) == 0
    assert np.signbit(fma(np.float64(-0.0), np.float64(1), np.float64(-0.0)))
    with np.errstate(all="ignore"):
        assert math.isnan(fma(np.float64(INF), np.float64(0), np.float64(1)))
        assert math.isnan(fma(np.float32(INF), np.float32(0), np.float32(1)))
        assert fma(np.float32(INF), np.float32(1), np.float32(1)) == INF
        assert np.signbit(fma(np.float32(-0.0), np.float32(1), np.float32(-0.0)))


def test_a_sum_adds_the_halves() -> None:
    big = np.float32(2**24)
    assert sum_groups(np.array([big, 1, -big, 1], np.float32), 4) == 2
    assert sum_groups(np.array([big, -big, 1, 1], np.float32), 4) == 1
    assert sum_groups(np.array([3], np.float32), 1) == 3


@pytest.mark.parametrize(
    ("text", "lanes", "message"),
    [
        ("a[0]{4} + a[0]{2}", "{4}", r"the operands of a\[0\]\{4\} \+ a\[0\]\{2\} differ: float32\[4\], float32\[2\]"),
        ("a[0] + f64(1.0)", "", r"the operands of a\[0\] \+ f64\(1.0\) differ: float32, float64"),
        ("f64(1.0)", "", "a value of type float64 is stored to out, which holds float32"),
        ("a[0]{4}", "", "a value of 4 lanes is stored to no lanes of out"),
        ("a[0]{4}", "{2}", "a value of 4 lanes is stored to 2 lanes of out"),
        ("a[0]", "{4:0}", r"two lanes write the same element of out: elements \[0, 0, 0, 0\]"),
        ("sum(a[0])", "", r"sum\(a\[0\]\) needs groups of 2\*\*n lanes, not 0 of a scalar"),
        ("sum(a[0]{6})", "", r"sum\(a\[0\]\{6\}\) needs groups of 2\*\*n lanes, not 6 of 6"),
        ("sum(a[0]{8}, 3)", "", "needs groups of 2\\*\\*n lanes, not 3 of 8"),
        ("where(a[0] < s32(1), a[0], a[1])", "", "differ: float32, int32"),
        ("where(a[0] < 1.0, a[0], s32(1))", "", "differ: float32, int32"),
        ("and(a[0], a[1])", "", r"and\(a\[0\], a\[1\]\) takes floats for integers"),
        ("cast(f32, shl(s32(1), s32(32)))", "", "shifts int32 by 32"),
        ("cast(f32, sqrt(s32(1)))", "", "is not for int32"),
        ("cast(f32, bits(f64, a[0]))", "", "reads float32 as f64"),
    ],
)
def test_what_values_refuse(text: str, lanes: str, message: str) -> None:
    with pytest.raises(InterpError, match=message):
        value_of(text, range(8), lanes=lanes, out=8)


def nearest(value: Fraction, name: str) -> float:
    """The small float nearest to a number, by search among all of them; NaN for what f8_e4m3 cannot hold."""
    word = np.dtype(f"u{DTYPES[name].bytes}")
    table = np.sort(np.arange(2 ** DTYPES[name].bits, dtype=word).view(DTYPES[name].numpy).astype(np.float64))
    table = np.unique(table[np.isfinite(table)])
    end = Fraction(table[-1]) + Fraction(table[-1] - table[-2]) / 2
    if name == "f8_e4m3" and abs(value) > end:
        return NAN
    if name != "f8_e4m3" and abs(value) >= end:
        return math.copysign(INF, value)
    at = int(np.searchsorted(table, float(value)))
    near = [float(x) for x in table[max(at - 2, 0) : at + 2]]
    best = min(abs(Fraction(x) - value) for x in near)
    ties = [x for x in near if abs(Fraction(x) - value) == best]
    return next(x for x in ties if len(ties) == 1 or not int(np.array(x, DTYPES[name].numpy).view(word)) & 1)


@examples(200)
@given(
    st.one_of(st.floats(-1e5, 1e5), st.floats(-500, 500), st.floats(allow_nan=False, allow_infinity=False)),
    st.sampled_from(["f16", "bf16", "f8_e4m3", "f8_e5m2"]),
)
def test_casts_to_small_floats(x: float, name: str) -> None:
    with np.errstate(all="ignore"):
        found = cast(np.float64(x), DTYPES[name])
        wanted = nearest(Fraction(x), name)
        np.testing.assert_array_equal([float(const(DTYPES[name], x).value), float(found)], [wanted] * 2)
        single = np.float32(x)
        if np.isfinite(single):
            np.testing.assert_array_equal(float(cast(single, DTYPES[name])), nearest(Fraction(float(single)), name))


@pytest.mark.parametrize(
    ("value", "of", "to", "expected"),
    [
        (2.5, "f32", "s32", 2), (3.5, "f32", "s8", 4), (-0.5, "f64", "s8", 0), (-1.5, "f32", "u8", 0),
        (NAN, "f32", "s32", 0), (NAN, "f16", "u8", 0), (INF, "f32", "s32", 2**31 - 1), (-INF, "f64", "s16", -(2**15)),
        (127.5, "f32", "s8", 127), (255.4, "bf16", "u8", 255), (2.0**31, "f32", "s32", 2**31 - 1),
        (300, "s32", "u8", 255), (-300, "s32", "s8", -128), (-1, "s8", "u8", 0), (200, "u8", "s8", 127),
        (-7, "s8", "s32", -7), (200, "u8", "s16", 200), (2**24 + 1, "s32", "f32", 2**24),
        (2**24 + 3, "s32", "f32", 2**24 + 4), (2**31 - 1, "s32", "f16", INF),
        (2**16 + 2**8 + 1, "s32", "bf16", 2**16 + 2**9), (255, "u8", "f16", 255),
    ],
)  # fmt: skip
def test_casts(value: float, of: str, to: str, expected: float) -> None:
    source, target = DTYPES[of], DTYPES[to]
    arrays = {"a": np.array([value], source.numpy), "out": np.zeros(1, target.numpy)}
    run(parse_kernel(f"kernel k(a: {of}[1], out: {to}[1])\n  out[0] = cast({to}, a[0])"), arrays)
    assert arrays["out"][0] == expected


def test_small_floats_are_for_memory() -> None:
    arrays = {"a": np.ones(2, "bfloat16"), "out": np.zeros(1, "bfloat16")}
    with pytest.raises(InterpError, match=r"a\[0\] \+ a\[1\] computes on bfloat16, which is for memory only"):
        run(parse_kernel("kernel k(a: bf16[2], out: bf16[1])\n  out[0] = a[0] + a[1]"), arrays)


def test_bits_of_a_vector_make_as_many_lanes_as_they_can() -> None:
    kernel = parse_kernel(
        "kernel k(a: u8[8], words: s32[2], one: s32[1], back: u8[4])\n"
        "  words[0]{2} = bits(s32, a[0]{8})\n  one[0] = bits(s32, a[4]{4})\n  back[0]{4} = bits(u8, words[0])\n"
    )
    bytes_ = np.arange(1, 9, dtype=np.uint8)
    for target in (None, *host_targets()):
        arrays = {"a": bytes_.copy(), "words": np.zeros(2, np.int32), "one": np.zeros(1, np.int32),
                  "back": np.zeros(4, np.uint8)}  # fmt: skip
        if target is None:
            verify(kernel)
            run(kernel, arrays)
        else:
            run_native(kernel, arrays, target)
        assert arrays["words"].tolist() == bytes_.view(np.int32).tolist()
        assert arrays["one"][0] == bytes_.view(np.int32)[1] and arrays["back"].tolist() == [1, 2, 3, 4]
