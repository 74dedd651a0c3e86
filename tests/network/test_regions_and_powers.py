"""Powers of two arrays, places of maxima, and means and maxima over regions: drawn cases beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from test_composed_operators import check, model

import convsmith as cs

ENDS = np.array(
    [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, 16777217, 1e-45], np.float32
)


def test_powers_at_the_ends_of_both_arrays() -> None:
    x, y = (a.ravel() for a in np.meshgrid(ENDS, ENDS))
    inputs = {"x": x, "y": y}
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    (found,) = cs.onnx.compile(model("Pow", inputs, {}, 18), threads=1).run(inputs).values()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.signbit(found)[~np.isnan(found)], np.signbit(expected)[~np.isnan(found)])
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=2e-45)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(6))
def test_drawn_powers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = [((3, 17), (3, 17)), ((2, 3, 5), (5,)), ((7,), (4, 1)), ((2, 33), (1,))][seed % 4]
    x = np.abs(rng.standard_normal(shapes[0])).astype(np.float32) * 3
    exponents = rng.standard_normal(shapes[1]).astype(np.float32) * 4
    check("Pow", {"x": x, "y": exponents})
    whole = np.round(exponents).astype([np.float32, np.int32, np.int64][seed % 3])
    check("Pow", {"x": np.where(rng.random(shapes[0]) < 0.5, x, -x), "y": whole})
    check("Pow", {"x": x}, {"y": exponents})


def test_powers_of_doubles_are_refused() -> None:
    inputs = {"x": np.ones(3), "y": np.ones(3)}
    with pytest.raises(cs.UnsupportedError, match="powers of f64 with several exponents; available is f32"):
        cs.onnx.compile(model("Pow", inputs, {}, 18), threads=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(9))
def test_drawn_places_of_maxima(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = 1 + seed % 3
    kernel = rng.integers(1, 4, rank)
    sizes = kernel * 2 + rng.integers(1, 5, rank)
    pads = [int(rng.integers(0, k)) for k in kernel]
    more: dict[str, Any] = {"kernel_shape": kernel.tolist(), "strides": rng.integers(1, 4, rank).tolist()}
    if seed % 2:
        more |= {"pads": pads * 2}
    else:
        more |= {"dilations": rng.integers(1, 3, rank).tolist(), "ceil_mode": int(rng.integers(0, 2))}
    shape = (2, 3, *(int(x) for x in sizes))
    for x in (rng.standard_normal(shape), rng.integers(-2, 3, shape)):  # the second has equal maxima
        check("MaxPool", {"x": x.astype(np.float32)}, outputs=2, **more)


def test_places_of_other_orders_are_refused() -> None:
    inputs = {"x": np.ones((1, 1, 4, 4), np.float32)}
    made = model("MaxPool", inputs, {}, 18, outputs=2, kernel_shape=[2, 2], storage_order=1)
    with pytest.raises(cs.UnsupportedError, match="with storage_order 0"):
        cs.onnx.compile(made, threads=1)


def _regions(rng: np.random.Generator, count: int, images: int) -> dict[str, Any]:
    """Return corners, some beyond the image and some in the wrong order, and numbers of images."""
    low = rng.uniform(-9, 20, (count, 2))
    corners = np.concatenate([low, low + rng.uniform(-3, 30, (count, 2))], 1).astype(np.float32)
    return {"r": corners, "b": rng.integers(0, images, count)}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(8))
def test_drawn_regions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, c, h, w = (int(rng.integers(1, 4)), int(rng.integers(1, 6)), *(int(x) for x in rng.integers(3, 17, 2)))
    inputs = {"x": rng.standard_normal((n, c, h, w)).astype(np.float32), **_regions(rng, int(rng.integers(1, 6)), n)}
    more: dict[str, Any] = {"coordinate_transformation_mode": "output_half_pixel"} if seed % 2 else {}
    check(
        "RoiAlign", inputs, output_height=int(rng.integers(1, 8)), output_width=int(rng.integers(1, 8)),
        sampling_ratio=int(rng.integers(1, 4)), spatial_scale=float(rng.choice([0.25, 0.5, 1.0])), **more,
    )  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(8))
def test_drawn_maxima_of_regions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, c, h, w = (int(rng.integers(1, 4)), int(rng.integers(1, 6)), *(int(x) for x in rng.integers(3, 17, 2)))
    regions = _regions(rng, int(rng.integers(1, 6)), n)
    corners = regions["r"] if seed % 2 else np.round(regions["r"] * 2) / 2  # halves
    inputs = {
        "x": rng.standard_normal((n, c, h, w)).astype(np.float32),
        "r": np.concatenate([regions["b"][:, None], corners], 1).astype(np.float32),
    }
    sizes = [int(x) for x in rng.integers(1, 8, 2)]
    check("MaxRoiPool", inputs, tolerance=0, pooled_shape=sizes, spatial_scale=float(rng.choice([0.25, 0.5, 1.0])))


def test_maxima_of_regions_without_sizes_are_refused() -> None:
    inputs = {"x": np.ones((1, 2, 9, 9), np.float32), "r": np.ones((3, 5), np.float32)}
    with pytest.raises(cs.ConvsmithError, match=r"legal are images, \(regions, 5\) and two sizes"):
        cs.onnx.compile(model("MaxRoiPool", inputs, {}, 18, pooled_shape=[2]), threads=1)


def test_regions_before_opset_16_have_no_offset() -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((1, 2, 9, 9)).astype(np.float32), **_regions(rng, 4, 1)}
    check("RoiAlign", inputs, opset=10, output_height=2, output_width=3, sampling_ratio=2)


@pytest.mark.parametrize("more", [{"sampling_ratio": 0}, {"sampling_ratio": 2, "mode": "max"}], ids=str)
def test_regions_that_are_refused(more: Any) -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((1, 2, 9, 9)).astype(np.float32), **_regions(rng, 4, 1)}
    with pytest.raises(cs.UnsupportedError, match="available are means with a sampling_ratio from 1 on"):
        cs.onnx.compile(model("RoiAlign", inputs, {}, 18, **more), threads=1)
