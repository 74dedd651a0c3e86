"""Steps in s32 arithmetic against numbers from elsewhere, and the fixed-point tanh against its definition."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from convsmith.diag.errors import UsageError
from convsmith.problem import parse_problem, reference
from convsmith.problem.integer_steps import INTEGER_STEPS
from convsmith.problem.output_stages import staged
from convsmith.problem.post_ops import Integer, parse_post_ops, print_post_ops

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "gemmlowp_requantisation.json").read_text())
LOW, HIGH = -(2**31), 2**31 - 1


def test_rounding_shifts() -> None:
    x, bits, expected = np.array(VECTORS["rounding_divide_by_pot"]).T
    assert np.array_equal(INTEGER_STEPS["s32_rshift"].apply(x, bits), expected)


def test_high_products() -> None:
    a, b, expected = np.array(VECTORS["srdhm"]).T
    assert np.array_equal(INTEGER_STEPS["s32_mulh"].apply(a, b), expected)


def test_scale() -> None:
    """With ties away from zero: the column of ties up differs in some rows."""
    rows = np.array(VECTORS["quantize_down"]["rows"])
    found = [staged(np.array([[acc]]), [("scale", *numbers)])[0, 0] for acc, *numbers in rows[:, :4].tolist()]
    assert np.array_equal(found, rows[:, 4])
    assert not np.array_equal(found, rows[:, 5])


def test_fixed_point_with_exponent() -> None:
    rows = VECTORS["fixedpoint_exponent"]["rows"]
    stages = [("fixed_point_exponent", *numbers) for _, *numbers, _ in rows]
    found = [int(staged(np.array([[row[0]]]), [stage])[0, 0]) for row, stage in zip(rows, stages, strict=True)]
    assert found == [row[-1] for row in rows]
    plain = [row for row in rows if row[2] <= 0]
    for acc, mult, exponent, offset, expected in plain:
        assert staged(np.array([[acc]]), [("fixed_point", mult, -exponent, offset)])[0, 0] == expected


def high(a: int, b: int) -> int:
    return min((a * b + (1 << 30)) >> 31, HIGH)


def divided(x: int, e: int) -> int:
    away = (abs(x) + (1 << e >> 1)) >> e
    return away if x >= 0 else -away


def narrow(x: int) -> int:
    return (x - LOW) % 2**32 + LOW


def fixed(x: float, integer_bits: int) -> int:
    return min(math.floor(x * 2 ** (31 - integer_bits) + 0.5), HIGH)


def exponential(a: int) -> int:
    """exp(a) of Q4.27, a <= 0, as Q0.31: gemmlowp's polynomial, then squares of exp(-1/4)."""
    if a == 0:
        return HIGH
    part = a % (1 << 25) - (1 << 25)
    x = (part << 4) + (1 << 28)
    x2 = high(x, x)
    x3, x4 = high(x2, x), high(x2, x2)
    inner = divided(high(divided(x4, 2) + x3, fixed(1 / 3, 0)) + x2, 1)
    result = fixed(math.exp(-1 / 8), 0) + high(fixed(math.exp(-1 / 8), 0), x + inner)
    quarters = (part - a) >> 25
    for n in range(6):
        if quarters >> n & 1:
            result = high(result, fixed(math.exp(-(2.0 ** (n - 2))), 0))
    return result


def fixed_tanh(value: int, zero: int, amplitude: int) -> int:
    if value <= zero - 8 * amplitude:
        return zero - amplitude
    if value >= zero + 8 * amplitude:
        return zero + amplitude
    down = next(e for e in range(32) if 2**e / amplitude >= 0.5)
    up = next(e for e in range(32) if amplitude / 2**e < 1)
    a = narrow(high(narrow(value - zero), fixed(2**down / amplitude, 0)) << (28 - down))
    half = (exponential(narrow(-abs(a))) + HIGH + 1) // 2
    x = fixed(48 / 17, 2) + high(half, -fixed(32 / 17, 2))
    for _ in range(3):
        x += high(x, (1 << 29) - high(half, x)) << 2
    t = min((x - (1 << 29)) << 2, HIGH) if a else 0
    return zero + (high(-t if a < 0 else t, fixed(amplitude / 2**up, 0)) >> (31 - up))


@pytest.mark.parametrize(("zero", "amplitude"), [(0, 1), (3, 100), (-7, 127), (0, 32768), (1 << 20, 1 << 27)])
def test_tanh(zero: int, amplitude: int) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.arange(-20, 21), rng.integers(-9 * amplitude, 9 * amplitude, 500)]) + zero
    x = np.concatenate([x.clip(LOW, HIGH), [LOW, HIGH]])
    found = INTEGER_STEPS["s32_tanh"].apply(x, zero, amplitude)
    assert found.tolist() == [fixed_tanh(int(v), zero, amplitude) for v in x]
    # The last shift rounds down; fixed-point numbers have some 2**-26 of the amplitude.
    assert np.abs(found - zero - amplitude * np.tanh((x - zero) / amplitude)).max() < 2 + amplitude * 2**-21


def test_rescaling_is_exact() -> None:
    numerator = 255 * 255
    for lhs, rhs in ((1, 1), (3, 7), (15, 127), (255, 1)):
        x = np.array([0, 1, -1, 2, 12345, -4321, 255 * 255 * 30000 // numerator * lhs * rhs])
        found = INTEGER_STEPS["s32_rescale"].apply(x, numerator, lhs * rhs)
        exact = [math.floor(Fraction(int(v) * numerator, lhs * rhs) + Fraction(1, 2)) for v in x]
        assert found.tolist() == exact


def test_scales_round_as_their_names_say() -> None:
    """Ties to even of a product that f32 has rounded; ties up of the exact product."""
    x = np.array([1, 2, 3, 5, -1, -3, 0, 12345, -54321, 16777217, HIGH, LOW])
    for scale in (0.5, 0.5 + 2.0**-24, 1.0, 0.25, 1 / 3, 0.1, -0.7, 2.0**-31, 1e-40, 3.0, 1e9, 1e20):
        single = np.float32(scale)
        product = x.astype(np.float32) * single
        even = [min(max(round(Fraction(float(v))), LOW), HIGH) for v in product]
        assert INTEGER_STEPS["s32_scale"].apply(x, single).tolist() == even
        exact = [math.floor(int(v) * Fraction(float(single)) + Fraction(1, 2)) for v in x]
        assert INTEGER_STEPS["s32_scale_up"].apply(x, single).tolist() == [min(max(v, LOW), HIGH) for v in exact]


@pytest.mark.parametrize(
    "text",
    [
        "s32_add", "s32_add:per_dim_0", "s32_add:per_tensor", "s32_add:common:-5", "s32_rshift:common:31", "s32_max:3",
        "s32_rescale:65025:105", "s32_tanh:-3:100", "s32_shl+s32_mulh:per_oc+s32_rshift:per_oc+s32_add:common:128",
        "s32_scale:common:0.1", "s32_scale_up:per_oc",
    ],
)  # fmt: skip
def test_print_and_parse_are_inverse(text: str) -> None:
    steps = parse_post_ops(text)
    assert parse_post_ops(print_post_ops(steps)) == steps
    assert all(isinstance(step, Integer) for step in steps)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s32_rshift:common:32", "post-op s32_rshift: bits 32 is not legal; expected 0 to 31"),
        ("s32_add:common:2147483648", "addend 2147483648 is not legal; expected -2147483648 to 2147483647"),
        ("s32_add:common:1:2", r"expected s32_add\[:policy\[:addend\]\]"),
        ("s32_add:per_oc:1", r"expected s32_add\[:policy\[:addend\]\]"),
        ("s32_tanh:1", "expected s32_tanh:zero:amplitude"),
        ("s32_tanh:0:0", "amplitude 0 is not legal; expected 1 to"),
        ("s32_div:1", "'s32_div' is not available"),
        ("s32_mul:common:x", "post-op 's32_mul:common:x' is malformed"),
        ("s32_scale:common:inf", "post-op s32_scale: scale inf is not legal; expected -3.4"),
        ("s32_scale_up:common:nan", "post-op s32_scale_up: scale nan is not legal; expected -3.4"),
    ],
)
def test_malformed(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_post_ops(text)
    assert error.value.code == "bad-post-op"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--matmul 2x3:3x4", "with sums of type f32: legal is s32 arithmetic alone, on sums of type s32"),
        ("--matmul --dt=u8:s8:u8 --bia-dt=s32 2x3:3x4", "with bias"),
        ("--matmul --dt=u8:s8:u8 --attr-scales=src:common:2 2x3:3x4", "with scale of src"),
        ("--matmul --dt=u8:s8:u8 --attr-zero-points=dst:common:2 2x3:3x4", "with zero point of dst"),
    ],
)
def test_what_goes_with_whole_numbers(line: str, message: str) -> None:
    head, _, shape = line.rpartition(" ")
    with pytest.raises(UsageError, match=message) as error:
        parse_problem(f"{head} --attr-post-ops=s32_add:common:1 {shape}")
    assert error.value.code == "bad-post-op"
    with pytest.raises(UsageError, match="with relu"):
        parse_problem("--matmul --dt=u8:s8:u8 --attr-post-ops=s32_add+relu 2x3:3x4")


def test_reference_of_a_convolution() -> None:
    problem = parse_problem(
        "--dir=FWD_D --dt=u8:s8:u8 --attr-post-ops=s32_add:per_oc+s32_mulh:common:1073741824+s32_rshift:common:1"
        " mb1ic3iw4oc2ow4kw1pw0"
    )
    assert [(t.name, t.dtype, t.shape) for t in problem.inputs[2:]] == [("post_op_0", "s32", (1, 2, 1))]
    rng = np.random.default_rng(0)
    src = rng.integers(0, 256, (1, 3, 4)).astype(np.uint8)
    wei = rng.integers(-128, 128, (2, 3, 1)).astype(np.int8)
    addend = np.array([7, -300], np.int32).reshape(1, 2, 1)
    found = reference(problem, {"src": src, "wei": wei, "post_op_0": addend})["dst"]
    acc = np.einsum("ncw,oc->now", src.astype(int), wei[..., 0].astype(int)) + addend
    expected = [min(max(divided(high(int(v), 1 << 30), 1), 0), 255) for v in acc.ravel()]
    assert found.dtype == np.uint8
    assert found.ravel().tolist() == expected
