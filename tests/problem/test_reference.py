from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.signal import correlate

from convsmith.diag.errors import UsageError
from convsmith.problem import Conv, conv_reference

Array = np.ndarray[Any, Any]

LINES = [
    "mb2ic3iw7oc4kw3pw1",
    "mb2ic3iw9oc2ow3kw2sw4pw3dw1",
    "mb1ic4ih5iw6oc6kh3kw2ph1pw0",
    "g2mb2ic4ih5oc6kh3ph1sh2",
    "g4mb1ic4ih6oc8kh3ph2dh1",
    "g1mb1ic2ih4oc3kh1",
    "mb1ic2ih2oc3oh7kh3ph3",
    "mb1ic2ih9iw7oc3oh3ow2kh1kw1sh3sw4ph0pw0",
    "mb1ic2id3ih4iw5oc2kd2kh3kw1pd1ph1sw2",
    "mb1ic1ih1oc2oh5kh3ph3",
    "mb0ic2ih4oc3kh3ph1",
    "mb2ic2ih0iw4oc3oh2ow4kh1kw3ph1pw1",
    "--dir=FWD_B mb2ic3ih4oc5kh3ph1",
    "--dir=FWD_B --attr-post-ops=relu:0.5+clip:-3:4 g2mb2ic4ih4oc6kh2",
]


def naive(problem: Conv, src: Array, wei: Array, bias: Array | None) -> Array:
    """One multiplication after another; a term whose input does not exist is skipped."""
    dst = np.zeros(problem.dst_shape)
    ocg, icg = problem.oc // problem.g, problem.ic // problem.g
    wei = wei.reshape(problem.g, ocg, icg, *problem.k)
    for n, oc, *out in itertools.product(*map(range, problem.dst_shape)):
        total = 0.0
        for ic, *tap in itertools.product(range(icg), *map(range, problem.k)):
            at = [
                o * s + t * (d + 1) - p for o, s, t, d, p in zip(out, problem.s, tap, problem.d, problem.p, strict=True)
            ]
            if all(0 <= a < i for a, i in zip(at, problem.i, strict=True)):
                total += src[n, oc // ocg * icg + ic, *at] * wei[oc // ocg, oc % ocg, ic, *tap]
        dst[n, oc, *out] = total + (bias[oc] if bias is not None else 0.0)
    for post_op in problem.post_ops:
        dst = post_op.apply(dst)
    return dst


def operands(problem: Conv, seed: int = 0) -> tuple[Array, Array, Array | None]:
    """Whole numbers as float32."""
    rng = np.random.default_rng(seed)
    shapes = (problem.src_shape, problem.wei_shape, problem.bias_shape)
    src, wei, bias = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    return src, wei, bias if problem.bias else None


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_equals_the_loops(line: str, dtype: Any) -> None:
    problem = Conv.parse(line)
    src, wei, bias = operands(problem)
    dst = conv_reference(problem, src, wei, bias, dtype)
    assert dst.shape == problem.dst_shape
    assert dst.dtype == dtype
    np.testing.assert_array_equal(dst, naive(problem, src, wei, bias))


@pytest.mark.parametrize(
    "line", ["mb1ic3iw9oc2kw4pw2", "mb1ic3ih9iw8oc2kh3kw4", "mb1ic2id4ih5iw6oc2kd3pd1kh2kw3ph1pw1"]
)
def test_equals_scipy_on_a_dense_unit_stride(line: str) -> None:
    problem = Conv.parse(line)
    src, wei, _ = operands(problem)
    pads = [(0, 0), *zip(problem.p, problem.pr, strict=True)]
    expected = np.stack([correlate(np.pad(src[0], pads), w, mode="valid")[0] for w in wei])
    np.testing.assert_array_equal(conv_reference(problem, src, wei)[0], np.rint(expected))


@pytest.mark.parametrize(
    "line",
    [
        "--dir=FWD_B g2mb2ic4ih9iw7oc6kh3kw2ph1pw1sh2sw1",
        "g3mb2ic6iw19oc6kw3pw2dw1sw2",
        "mb2ic2id4ih5iw6oc4kd2pd0kh3ph1kw1pw0",
    ],
)
def test_equals_torch(line: str) -> None:
    torch = pytest.importorskip("torch")
    problem = Conv.parse(line)
    src, wei, bias = operands(problem)
    conv = getattr(torch.nn.functional, f"conv{problem.rank}d")
    expected = conv(
        torch.from_numpy(src), torch.from_numpy(wei.reshape(problem.oc, -1, *problem.k)),
        None if bias is None else torch.from_numpy(bias), stride=problem.s, padding=problem.p,
        dilation=tuple(d + 1 for d in problem.d), groups=problem.g,
    )  # fmt: skip
    np.testing.assert_array_equal(conv_reference(problem, src, wei, bias), expected.numpy())


def test_an_infinite_weight_never_meets_padding() -> None:
    problem = Conv.parse("mb1ic1iw3oc1ow5kw3pw2")
    wei = np.array([[[1, 1, np.inf]]], np.float32)
    dst = conv_reference(problem, np.ones((1, 1, 3), np.float32), wei)
    np.testing.assert_array_equal(dst, [[[np.inf, np.inf, np.inf, 2, 1]]])


def test_nan_and_zero_times_infinity_propagate() -> None:
    problem = Conv.parse("--attr-post-ops=relu+clip:0:6 mb1ic2iw4oc1kw1")
    src = np.array([[[0, 1, -1, np.nan], [1, 1, 1, 1]]], np.float32)
    dst = conv_reference(problem, src, np.array([[[np.inf], [1]]], np.float32))
    np.testing.assert_array_equal(dst, [[[np.nan, 6, 0, np.nan]]])


def test_output_beyond_the_input_is_the_bias() -> None:
    problem = Conv.parse("--dir=FWD_B mb1ic1iw1oc2ow5kw3pw3")
    dst = conv_reference(problem, np.ones((1, 1, 1)), np.ones((2, 1, 3)), np.array([5, 7]))
    np.testing.assert_array_equal(dst[0], [[5, 6, 6, 6, 5], [7, 8, 8, 8, 7]])


def test_real_list_against_the_loops() -> None:
    """The smallest problems of the list taken from oneDNN."""
    data = json.loads((Path(__file__).parents[1] / "data" / "oneDNN_problems.json").read_text())
    rows = [row for row in data["rows"] if row[-1] <= 3000]
    assert len(rows) >= 20
    for row in rows:
        problem = Conv.parse(row[0])
        if problem.flops_dense < 40000:
            src, wei, bias = operands(problem)
            np.testing.assert_array_equal(conv_reference(problem, src, wei, bias), naive(problem, src, wei, bias))


@pytest.mark.parametrize(
    ("line", "shapes", "text"),
    [
        ("mb1ic2iw4oc3kw1", [(1, 2, 5), (3, 2, 1), None], "src has shape (1, 2, 5)"),
        ("mb1ic2iw4oc3kw1", [(1, 2, 4), (1, 3, 2, 1), None], "wei has shape (1, 3, 2, 1)"),
        (
            "mb1ic2iw4oc3kw1",
            [(1, 2, 4), (3, 2, 1), (3,)],
            "bia is not an input of mb1ic2iw4",
        ),
        (
            "--dir=FWD_B mb1ic2iw4oc3kw1",
            [(1, 2, 4), (3, 2, 1), None],
            "bia is missing; --dir=FWD_B ",
        ),
        ("--dir=FWD_B mb1ic2iw4oc3kw1", [(1, 2, 4), (3, 2, 1), (2,)], "bia has shape (2,)"),
    ],
)
def test_wrong_operands(line: str, shapes: list[tuple[int, ...] | None], text: str) -> None:
    src, wei, bias = (None if shape is None else np.zeros(shape) for shape in shapes)
    assert src is not None and wei is not None
    with pytest.raises(UsageError) as error:
        conv_reference(Conv.parse(line), src, wei, bias)
    assert text in str(error.value)
