"""Scales, zero points, conversions and post-ops with operands: small results worked out by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem import Conv, parse_problem, reference
from convsmith.problem.attributes import Quantity
from convsmith.problem.types import convert

Array = np.ndarray[Any, Any]


def run(line: str, raw: bool = False, dtype: Any = np.float32, **arrays: Any) -> list[Any]:
    """The destination, its values in one list; arrays are given as nested lists of the right number of elements."""
    problem = parse_problem(line)
    shaped = {tensor.name: np.array(arrays[tensor.name]).reshape(tensor.shape) for tensor in problem.inputs
              if tensor.name in arrays}  # fmt: skip
    dst = reference(problem, shaped, dtype, raw)["dst"]
    if not raw:
        assert dst.shape == problem.dst_shape
        assert dst.dtype == convert(np.zeros(1), problem.tensor("dst").dtype).dtype
    return list(dst.reshape(-1).tolist())


POINT = "mb1ic1iw4oc1kw1"  # four products of one number each


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("u8", [-1, 0.5, 1.5, 2.5, 254.5, 255.5, np.nan, np.inf], [0, 0, 2, 2, 254, 255, 0, 255]),
        ("s8", [-129, -128.5, -0.5, 126.5, 127.5, np.nan, -np.inf], [-128, -128, 0, 126, 127, 0, -128]),
        ("s32", [2147483647.4, 3e9, -3e9, 1.5, np.nan], [2147483647, 2147483647, -2147483648, 2, 0]),
        ("f32", [0.1, 1e39], [float(np.float32(0.1)), np.inf]),
        ("f16", [65504, 65520, 2049], [65504, np.inf, 2048]),
        ("bf16", [257, 259, 1], [256, 260, 1]),
    ],
)
def test_conversions(name: str, numbers: list[float], expected: list[float]) -> None:
    converted = convert(np.array(numbers), name)
    np.testing.assert_array_equal(converted.astype(np.float64), expected)


def test_conversions_of_integers_and_of_single_precision_saturate() -> None:
    assert convert(np.array([-1, 300]), "u8").tolist() == [0, 255]
    assert convert(np.array([2.0**31, -(2.0**31)], np.float32), "s32").tolist() == [2**31 - 1, -(2**31)]


def test_every_step_in_order() -> None:
    """(src - 2) * 0.5 * (wei - 1) * 4 + 10, relu, / 8, + 3, to the nearest even, saturated."""
    line = (
        "--dir=FWD_B --dt=u8:s8:u8 --attr-scales=src:common:0.5+wei:common:4+dst:common:8 "
        f"--attr-zero-points=src:common:2+wei:common:1+dst:common:3 --attr-post-ops=relu {POINT}"
    )
    # (src - 2) * 3 is -6, 0, 6 and 759; v is -2, 10, 22 and 1528
    assert run(line, src=[0, 2, 4, 255], wei=4, bia=10) == [3, 4, 6, 194]
    assert run(line, raw=True, src=[0, 2, 4, 255], wei=4, bia=10) == [3, 4.25, 5.75, 194]


@pytest.mark.parametrize("descriptor", ["mb1ic2ih5oc2kh1", "--matmul 4x2:2x3", "--deconv mb1ic2iw5oc2kw1"])
@pytest.mark.parametrize("option", ["scales=src{}:common:0.5", "zero-points=dst:common:1+src{}:common:2"])
def test_the_source_has_two_names(option: str, descriptor: str) -> None:
    line = f"--dt=u8:s8:u8 --attr-{option} {descriptor}"
    problem = parse_problem(line.format("0"))
    assert problem == parse_problem(line.format("")) and "src0" not in str(problem)
    with pytest.raises(UsageError, match="src is given twice"):
        parse_problem(f"--dt=u8:s8:u8 --attr-{option.format('0')}+src:common:2 {descriptor}")


def test_one_for_each_channel() -> None:
    line = (
        "--dt=u8:s8:s8 --attr-scales=wei:per_oc+dst:per_dim_1 --attr-zero-points=src:per_dim_1+dst:per_dim_1 "
        "mb1ic2iw1oc2kw1"
    )
    problem = Conv.parse(line)
    names = ["src", "wei", "scales_wei", "scales_dst", "zero_points_src", "zero_points_dst", "dst"]
    assert [tensor.name for tensor in problem.tensors] == names
    # sums: (7 - 3) * 1 + (5 - 6) * 2 = 2 and 4 * 3 - 1 * 4 = 8; times 0.5 and 4; by 2 and 0.5; plus 1 and -1
    result = run(line, src=[7, 5], wei=[1, 2, 3, 4], scales_wei=[0.5, 4], scales_dst=[2, 0.5], zero_points_src=[3, 6],
                 zero_points_dst=[1, -1])  # fmt: skip
    assert result == [2, 63]  # 1.5 is rounded to 2


@pytest.mark.parametrize(
    ("policy", "scales", "expected"),
    [("per_oc", [1, 2, 4, 8], [1, 2, 4, 8]), ("per_dim_0", [2, 3], [2, 2, 3, 3]), ("common:5", [5], [5, 5, 5, 5])],
)
def test_scales_of_grouped_weights(policy: str, scales: list[float], expected: list[float]) -> None:
    line = f"--attr-scales=wei:{policy} g2mb1ic2iw1oc4kw1"
    given = {} if ":" in policy else {"scales_wei": scales}
    assert Conv.parse(line).tensor("scales_wei").shape == (len(scales),)
    assert run(line, src=[1, 1], wei=[1, 1, 1, 1], **given) == expected


def test_zero_points_of_grouped_weights() -> None:
    line = "--dt=s8:s8:s32 --attr-zero-points=wei:{} g2mb1ic2iw1oc4kw1"
    assert run(line.format("per_oc"), src=[1, 10], wei=[1, 1, 1, 1], zero_points_wei=[0, 1, 2, 3]) == [1, 0, -10, -20]
    assert run(line.format("per_dim_0"), src=[1, 10], wei=[1, 1, 1, 1], zero_points_wei=[3, 1]) == [-2, -2, 0, 0]


def test_a_source_zero_point_counts_inside_the_image_only() -> None:
    line = "--dt=u8:s8:s32 --attr-zero-points=src:common:7 mb1ic1iw1oc1ow5kw3pw3"
    assert run(line, src=[9], wei=[1, 10, 100]) == [0, 200, 20, 2, 0]


def test_integers_stay_whole_where_nothing_is_scaled() -> None:
    line = "--dt=u8:s8:s32 mb1ic1031iw1oc1kw1"
    src, wei = np.full(1031, 255), np.full(1031, 127)
    src[0] = 1
    exact = 255 * 127 * 1030 + 127  # is above 2**24 and odd
    assert run(line, src=src, wei=wei) == [exact]
    assert run("--attr-scales=src:common:1 " + line, src=src, wei=wei) == [int(np.float32(exact))] != [exact]


def test_sums_of_integers_wrap_as_32_bits() -> None:
    count = 70000
    line = f"--dt=u8:u8:s32 mb1ic{count}iw1oc1kw1"
    total = 255 * 255 * count
    assert run(line, src=np.full(count, 255), wei=np.full(count, 255)) == [total - 2**32] and total > 2**32


def test_weights_are_widened() -> None:
    wei = np.array([1.5], ml_dtypes.bfloat16)
    assert run(f"--dt=f32:bf16:f32 {POINT}", src=[1, 2, 3, 0.25], wei=wei) == [1.5, 3, 4.5, 0.375]
    assert run(f"--dt=bf16 {POINT}", src=[1, 2, 3, 171], wei=wei) == [1.5, 3, 4.5, 256]  # 256.5


def test_sum_reads_the_destination() -> None:
    line = f"--dt=s8:s8:s8 --attr-post-ops=sum:0.5:3+relu:2+sum:1:0:u8 {POINT}"
    assert Conv.parse(line).tensor("dst").role == "inout"
    # old as s8 is 5, -1, 3, -128; as u8 5, 255, 3, 128
    result = run(line, raw=True, src=[1, 1, 1, 1], wei=[1], dst=[5, -1, 3, -128])
    assert result == [1 + 1 + 5, 2 * (1 - 2) + 255, 1 + 3, 2 * (1 - 65.5) + 128]
    assert run(line, src=[1, 1, 1, 1], wei=[1], dst=[5, -1, 3, -128]) == [7, 127, 4, -1]


def test_operands_are_broadcast_by_their_masks() -> None:
    line = (
        "--attr-post-ops=add:s32:per_oc+mul:f32:per_dim_0+sub:u8:per_tensor+max:s8+add:bf16:5+prelu:per_oc "
        "mb2ic1iw2oc2kw1"
    )
    problem = Conv.parse(line)
    shapes = [tensor.shape for tensor in problem.tensors if tensor.name.startswith("post_op")]
    assert shapes == [(1, 2, 1), (2, 1, 1), (2, 2, 2), (1, 1, 1), (2, 1, 2), (1, 2, 1)]
    assert [t.dtype for t in problem.tensors][2:8] == ["s32", "f32", "u8", "s8", "bf16", "f32"]
    result = run(line, src=[0, 1, 2, 3], wei=[1, 2], post_op_0=[10, 20], post_op_1=[1, 2],
                 post_op_2=[1, 2, 3, 4, 5, 6, 7, 100], post_op_3=-40, post_op_4=[0, -30, 0, 4],
                 post_op_5=[0.5, 10])  # fmt: skip
    x = np.array([[[0, 1], [0, 2]], [[2, 3], [4, 6]]]) + np.array([[[10], [20]]])
    y = np.maximum(x * np.array([[[1]], [[2]]]) - [[[1, 2], [3, 4]], [[5, 6], [7, 100]]], -40)
    y = y + np.array([[[0, -30]], [[0, 4]]])
    assert result == np.where(y > 0, y, y * np.array([[[0.5], [10]]])).reshape(-1).tolist()
    assert min(result) < 0


def test_a_depthwise_convolution_of_the_result() -> None:
    """The middle is rounded to s8 with the first one's scale; what follows is in the second one's type."""
    line = (
        "--dt=u8:s8:s8 --attr-scales=src:common:0.5+dst:common:2+attr_post_op_dw_wei:per_oc+"
        "attr_post_op_dw_dst:common:4 --attr-post-ops=linear:1:1+dw:k3s2p1:u8+linear:1:8 mb1ic1ih3iw1oc2oh3ow1kh1kw1"
    )
    problem = Conv.parse(line)
    assert [t.name for t in problem.tensors] == [
        "src", "wei", "scales_src", "scales_dst", "scales_post_op_1_wei", "scales_post_op_1_dst", "post_op_1", "dst"
    ]  # fmt: skip
    dw = problem.tensor("post_op_1")
    assert (dw.shape, dw.dtype) == ((2, 1, 1, 3, 3), "s8")
    assert problem.dst_shape == (1, 2, 2, 1) and problem.tensor("dst").dtype == "u8"
    weights = np.zeros((2, 1, 1, 3, 3), int)
    weights[0, 0, 0, :, 1] = [1, 10, 100]
    weights[1, 0, 0, :, 1] = [0, 1, 0]
    # src * wei * 0.5 + 1 is 3.5, 1, 7 and -0.5, 1, -2; halved and rounded 2, 0, 4 and 0, 0, -1
    # rows 0 and 2: sums 20, 40 and 0, -1; times 2 and the scales 1, 8; plus 8; a quarter
    result = run(line, src=[5, 0, 12], wei=[1, -1], scales_post_op_1_wei=[1, 8], post_op_1=weights)
    middle = [round((5 * w * 0.5 + 1) / 2) for w in (1, -1)]
    assert middle == [2, -1]
    assert result == [12, 22, 0, 0]


def test_a_depthwise_convolution_in_floating_point() -> None:
    line = "--attr-post-ops=relu+dw:k3s1p0:bf16 --dt=bf16 mb1ic1ih3iw3oc1kh1kw1"
    src = np.arange(-1, 8).reshape(3, 3)
    dst = np.array(run(line, src=src, wei=[1], post_op_1=np.ones((3, 3)))).reshape(3, 3)
    padded = np.pad(np.maximum(src, 0), (0, 2))
    assert (dst == [[padded[h : h + 3, w : w + 3].sum() for w in range(3)] for h in range(3)]).all()


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ("--attr-scales=src:common:0", "bad-scale", "the scale 0 is not legal; expected a finite number other than 0"),
        ("--attr-scales=src:common:nan", "bad-scale", "the scale nan is not legal"),
        ("--attr-scales=src:common:1e39", "bad-scale", "not legal; expected a finite number other than 0"),
        ("--attr-scales=src:common", "bad-scale", "the policy common needs one value, such as common:2"),
        ("--attr-scales=src:common:1x", "bad-scale", "'1x' is not a number"),
        ("--attr-scales=src:common:x", "bad-option", "--attr-scales: 'x' is unknown; legal: f32"),
        ("--attr-scales=src:common:1:s8", "bad-scale", "type s8: expected one of floating-point numbers"),
        ("--attr-scales=img:common:1", "bad-scale", "expected argument:policy[:value[:type]], the argument one of src"),
        ("--attr-scales=src:per_row:1", "bad-scale", "the policy one of common, per_oc"),
        ("--attr-scales=src:common:1+src:common:2", "bad-scale", "src is given twice"),
        ("--attr-scales=attr_post_op_dw_wei:per_oc", "bad-scale", "there is no post-op dw"),
        ("--attr-zero-points=src:common:1", "bad-zero-point", "f32 has no zero point; legal are u8 and s8"),
        ("--attr-zero-points=wei:common:1", "bad-zero-point", "f32 has no zero point; legal are u8 and s8"),
        ("--attr-zero-points=dst:common:1.5", "bad-zero-point", "expected a whole number from -2147483648 to"),
        ("--attr-zero-points=dst:common:200:s8", "bad-zero-point", "expected a whole number from -128 to 127"),
        ("--attr-zero-points=dst:common:2:f32", "bad-zero-point", "type f32: expected one of whole numbers"),
        ("--dir=BWD_D --attr-post-ops=relu", "bad-post-op", "with --dir=BWD_D: legal are FWD_B, FWD_D, FWD_I"),
        ("--dir=BWD_W --attr-scales=src:common:2", "bad-scale", "with --dir=BWD_W: gradients have no quantisation"),
        ("--dir=BWD_WB --attr-scales=wei:per_oc", "bad-scale", "legal with them are scales of BWD_D"),
        ("--dir=BWD_D --attr-zero-points=dst:common:2", "bad-zero-point", "with --dir=BWD_D: gradients have no"),
        ("--attr-post-ops=add:f32:16", "bad-post-op", "mask 16 names axes that a result of 4 axes lacks"),
        ("--attr-post-ops=sum:1:0:u8", "bad-post-op", "u8 and the destination's f32 differ in size; legal are f32,"),
        ("--attr-post-ops=dw:k3s1p1", "bad-post-op", "behind a convolution with a 1x1 kernel in two dimensions"),
    ],
)
def test_what_is_not_legal(options: str, code: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        Conv.parse(f"{options} mb1ic2ih4oc3kh3")
    assert text in str(error.value)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ("dw:k3s1p1+dw:k3s1p1", UsageError, "legal is one dw, behind a convolution with a 1x1 kernel"),
        ("dw:k1s1p3", UsageError, "imply a back pad of -3, which is not above -1; legal is p up to 0"),
        ("sum+dw:k3s1p1", UsageError, "the array between the two convolutions is internal and holds no addend"),
        ("dw:k3s1p1:s32", UnsupportedError, "--dt=f32:f32:s32 with --dir=FWD_D is not available; the nearest"),
    ],
)
def test_depthwise_that_is_not_legal(options: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        Conv.parse(f"--attr-post-ops={options} mb1ic2ih4oc3kh1")
    assert text in str(error.value)


def test_values_for_each_channel_as_fields() -> None:
    scale = Quantity("wei", "per_oc", (1.0, 2.0, 4.0))
    fields = {"mb": 1, "ic": 1, "oc": 3, "i": (1,), "o": (1,), "k": (1,), "s": (1,), "d": (0,), "p": (0,)}
    problem = Conv(**fields, scales=(scale,))  # type: ignore[arg-type]
    assert problem.tensor("scales_wei").default == (1, 2, 4)
    assert Conv.parse(str(problem)) == problem
    with pytest.raises(UsageError, match="2 values; legal are 1 or 3"):
        Conv(**fields, scales=(Quantity("wei", "per_oc", (1.0, 2.0)),))  # type: ignore[arg-type]
