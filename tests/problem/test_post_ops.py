from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.eltwise import ALGORITHMS
from convsmith.problem.post_ops import (
    OPERATORS,
    PER_TENSOR,
    BinaryPostOp,
    Depthwise,
    Eltwise,
    Integer,
    PostOp,
    Prelu,
    SumPostOp,
    parse_post_ops,
    print_post_ops,
)

X = np.array([-np.inf, -2.0, -0.5, 0.0, 0.5, 7.0, np.inf, np.nan])


NUMBERS = st.floats(width=32, allow_nan=False)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
MASKS = st.sampled_from([PER_TENSOR, 0, 1, 2, 3, 12])
TYPES = st.sampled_from(["f32", "bf16", "f16", "u8", "s8", "s32"])


@st.composite
def eltwise(draw: st.DrawFn) -> Eltwise:
    alg = draw(st.sampled_from(sorted(ALGORITHMS)))
    row = ALGORITHMS[alg]
    low, high = sorted([draw(NUMBERS.filter(bool)), draw(NUMBERS.filter(bool))])
    return Eltwise(alg, *(low, high)[: len(row.parameters)], scale=draw(NUMBERS))


POST_OPS: st.SearchStrategy[PostOp] = st.one_of(
    eltwise(),
    st.builds(SumPostOp, FINITE, st.integers(-9, 9) | st.integers(-(2**31), 2**31 - 1), st.none() | TYPES,
              st.sampled_from(["", "src"])),
    st.builds(BinaryPostOp, st.sampled_from(sorted(OPERATORS)), TYPES, MASKS, st.sampled_from(["any", "axb"])),
    st.builds(Prelu, MASKS),
    st.builds(Depthwise, st.integers(1, 9), st.integers(1, 3), st.integers(0, 3), TYPES),
)


@given(st.lists(POST_OPS, max_size=4))
def test_print_and_parse_are_inverse(post_ops: list[PostOp]) -> None:
    assert parse_post_ops(print_post_ops(tuple(post_ops))) == tuple(post_ops)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum", SumPostOp()),
        ("sum:0.5:3:U8", SumPostOp(0.5, 3, "u8")),
        ("sum:0.5:3:U8:src", SumPostOp(0.5, 3, "u8", "src")),
        ("sum:src", SumPostOp(array="src")),
        ("add:f32", BinaryPostOp("add", "f32", 0)),
        ("binary_mul:s8:per_oc", BinaryPostOp("mul", "s8", 2)),
        ("max:bf16:per_dim_0", BinaryPostOp("max", "bf16", 1)),
        ("min:u8:per_dim_01", BinaryPostOp("min", "u8", 3)),
        ("ge:f16:per_tensor:axb", BinaryPostOp("ge", "f16", PER_TENSOR, "axb")),
        ("lt:s32:13", BinaryPostOp("lt", "s32", 13)),
        ("prelu", Prelu(0)),
        ("prelu:per_oc", Prelu(2)),
        ("dw:k3s2p1", Depthwise(3, 2, 1, "f32")),
        ("dw:k5s1p0:s8", Depthwise(5, 1, 0, "s8")),
        ("tanh:1:1:2.5", Eltwise("tanh", 0, 0, 2.5)),
        ("relu:0.5:7:0.75", Eltwise("relu", 0.5, 0, 0.75)),
        ("bounded_relu:6", Eltwise("clip", 0, 6)),
        ("logsigmoid", Eltwise("soft_relu", -1)),
    ],
)
def test_fields(text: str, expected: PostOp) -> None:
    assert parse_post_ops(text) == (expected,)


def test_per_oc_is_the_axis_of_the_channels() -> None:
    assert parse_post_ops("add:f32:per_oc+prelu:per_oc", channels=2) == (BinaryPostOp("add", "f32", 4), Prelu(4))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("relu", [0, 0, 0, 0, 0.5, 7, np.inf, np.nan]),
        ("relu:0.5", [-np.inf, -1, -0.25, 0, 0.5, 7, np.inf, np.nan]),
        ("eltwise_relu:0:0:1", [0, 0, 0, 0, 0.5, 7, np.inf, np.nan]),
        ("clip:-1:6", [-1, -1, -0.5, 0, 0.5, 6, 6, np.nan]),
        ("clip_v2:-1:6", [-1, -1, -0.5, 0, 0.5, 6, 6, np.nan]),
        ("clip:-inf:6", [-np.inf, -2, -0.5, 0, 0.5, 6, 6, np.nan]),
    ],
)
def test_meaning(text: str, expected: list[float]) -> None:
    (post_op,) = parse_post_ops(text)
    assert isinstance(post_op, Eltwise)
    np.testing.assert_array_equal(post_op.apply(X), expected)


def test_steps_apply_in_order_and_numbers_are_single_precision() -> None:
    relu, clip = parse_post_ops("relu:0.1+clip:-1e+30:1e+2")
    assert isinstance(relu, Eltwise) and isinstance(clip, Eltwise)
    assert relu.alpha == float(np.float32(0.1))
    assert (str(relu), clip.alpha, clip.beta) == ("relu:0.1", float(np.float32(-1e30)), 100)
    assert parse_post_ops("") == ()


XS = np.linspace(-6, 6, 49)


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("tanh", "tanh"),
        ("logistic", "sigmoid"),
        ("gelu_erf", "gelu"),
        ("swish:1", "silu"),
        ("hardswish:0.16666667:0.5", "hardswish"),
        ("hardsigmoid:0.16666667:0.5", "hardsigmoid"),
        ("elu:1", "elu"),
        ("soft_relu:1", "softplus"),
        ("logsigmoid", "logsigmoid"),
        ("mish", "mish"),
        ("abs", "abs"),
        ("bounded_relu:6", "relu6"),
        ("round", "round"),
        ("square", "square"),
    ],
)
def test_equals_torch(text: str, function: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(XS)
    f = getattr(torch.nn.functional, function, None) or getattr(torch, function)
    (post_op,) = parse_post_ops(text)
    assert isinstance(post_op, Eltwise)
    np.testing.assert_allclose(post_op.apply(XS), f(x).numpy(), rtol=1e-6, atol=1e-7)


def test_gelu_with_tanh_equals_torch() -> None:
    torch = pytest.importorskip("torch")
    expected = torch.nn.functional.gelu(torch.from_numpy(XS), approximate="tanh")
    np.testing.assert_allclose(Eltwise("gelu_tanh").apply(XS), expected.numpy(), rtol=1e-7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("linear:2:1", [-3.0, 1.0, 1.5, 9.0]),
        ("linear:2:1:0.5", [-1.5, 0.5, 0.75, 4.5]),
        ("pow:2:3", [-16.0, 0.0, 0.03125, 128.0]),
        ("pow:1:-1", [-0.5, np.inf, 4.0, 0.25]),
        ("pow:1:0.5", [np.nan, 0.0, 0.5, 2.0]),
        ("sqrt", [np.nan, 0.0, 0.5, 2.0]),
        ("log", [np.nan, -np.inf, np.log(0.25), np.log(4)]),
        ("exp", [np.exp(-2), 1.0, np.exp(0.25), np.exp(4)]),
        ("soft_relu:2", [np.log1p(np.exp(-4)) / 2, np.log(2) / 2, np.log1p(np.exp(0.5)) / 2, np.log1p(np.exp(8)) / 2]),
        ("swish", [-1.0, 0.0, 0.125, 2.0]),
        ("elu:3", [3 * np.expm1(-2), 0.0, 0.25, 4.0]),
        ("round:0:0:2", [-4.0, 0.0, 0.0, 8.0]),
    ],
)
def test_closed_forms(text: str, expected: list[float]) -> None:
    (post_op,) = parse_post_ops(text)
    assert isinstance(post_op, Eltwise)
    np.testing.assert_allclose(post_op.apply(np.array([-2.0, 0.0, 0.25, 4.0])), expected, rtol=1e-14)


@pytest.mark.parametrize("alg", sorted(ALGORITHMS))
def test_each_keeps_single_precision_and_nan(alg: str) -> None:
    row = ALGORITHMS[alg]
    y = Eltwise(alg, *(0.5, 0.75)[: len(row.parameters)], scale=2).apply(np.array([0.5, np.nan], np.float32))
    assert y.dtype == np.float32 and y[0] == y[0] and np.isnan(y[1])


def test_operands() -> None:
    x, y = np.array([-2.0, 3.0, np.nan], np.float32), np.array([2, 2, 2], np.int8)
    expected = {
        "add": [0, 5, np.nan], "sub": [-4, 1, np.nan], "mul": [-4, 6, np.nan], "div": [-1, 1.5, np.nan],
        "max": [2, 3, np.nan], "min": [-2, 2, np.nan], "ge": [0, 1, 0], "gt": [0, 1, 0], "le": [1, 0, 0],
        "lt": [1, 0, 0], "eq": [0, 0, 0], "ne": [1, 1, 1],
    }  # fmt: skip
    assert set(expected) == set(OPERATORS)
    for alg, values in expected.items():
        result = BinaryPostOp(alg, "s8", 1).apply(x, y)
        np.testing.assert_array_equal(result, values)
        assert result.dtype == np.float32
    np.testing.assert_array_equal(Prelu().apply(x, np.float32([0.5])), [-1, 3, np.nan])
    np.testing.assert_array_equal(SumPostOp(0.5, 2).apply(x, np.array([4, 0, 0], np.uint8)), [-1, 2, np.nan])


@pytest.mark.parametrize("rank", [1, 2, 4, 5])
def test_masks_name_axes_that_are_there(rank: int) -> None:
    for op in (BinaryPostOp("add"), Prelu(), Integer("s32_add")):
        for mask in (PER_TENSOR, 0, 1, (1 << rank) - 1):
            replace(op, mask=mask).check_operand(rank)
        for mask in (-2, 1 << rank, (1 << rank) + 1):
            with pytest.raises(UsageError, match=f"mask {mask} names axes that a result of {rank} axes lacks"):
                replace(op, mask=mask).check_operand(rank)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("tanh_dst", UnsupportedError, "the nearest is tanh; available are relu[:slope], clip[:low][:high], clip_v2"),
        ("select:f32", UnsupportedError, "'select' is not available"),
        ("rellu", UsageError, "'rellu' is not available; available are relu[:slope]"),
        ("reluu_dst", UsageError, "'reluu_dst' is not available; available are relu[:slope]"),
        ("relu:0.1:0.2", UsageError, "expected relu[:slope]"),
        ("relu:x", UsageError, "'relu:x' is malformed; expected relu[:slope]"),
        ("relu:nan", UsageError, "are not legal"),
        ("tanh:1", UsageError, "numbers (1.0, 0.0) are not legal; expected tanh"),
        ("clip:0:6:1:1", UsageError, "expected clip[:low][:high]"),
        ("clip:6:0", UsageError, "low 6 is above high 0; legal is low <= high"),
        ("soft_relu", UsageError, "alpha is 0, and it divides; legal is another, such as soft_relu:1"),
        ("relu+", UsageError, "post-op '' is not available"),
        ("sum:inf", UsageError, "the scale inf is not legal"),
        ("sum:1:0.5", UsageError, "expected sum[:scale[:zero_point[:dt]]]"),
        ("sum:2:9223372036854775807", UsageError, "the zero point 9223372036854775807 is not legal; expected a whole"),
        ("sum:1:-2147483649", UsageError, "the zero point -2147483649 is not legal"),
        ("sum:1:0:u9", UsageError, "--attr-post-ops: 'u9' is unknown; legal: f32"),
        ("sum:1:0:f4_e2m1", UnsupportedError, "f4_e2m1 is not available; available: f32"),
        ("add", UsageError, "post-op 'add' is malformed; expected add:dt[:policy[:tag]]"),
        ("add:f32:per_row", UsageError, "'per_row' is not a mask; legal are common, per_dim_0"),
        ("add:f32:-2", UsageError, "'-2' is not a mask"),
        ("prelu:per_oc:1", UsageError, "expected prelu[:policy]"),
        ("dw:k3", UsageError, "'dw:k3' is malformed; expected dw:k3s1p1[:dt]"),
        ("dw:k0s1p0", UsageError, "k=0, s=1, p=0 is not legal; expected k >= 1"),
    ],
)
def test_errors(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        parse_post_ops(text)
    assert message in str(raised.value)


def test_a_sum_adds_the_source_or_what_the_result_held() -> None:
    with pytest.raises(UsageError, match="the array 'wei' is unknown; legal is src, or none"):
        SumPostOp(array="wei")
