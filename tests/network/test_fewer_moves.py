"""Moves that follow each other become fewer, or come where layouts make them free, and results stay."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network
from onnx_networks import NetworkBuilder

import convsmith as cs


def _works(net: cs.Network) -> list[str]:
    return [step.work for step in net.image.steps]


def _shape(b: NetworkBuilder, *sizes: int) -> str:
    return b.held(np.int64(sizes))


def test_rows_of_pixels_become_an_image_without_a_move() -> None:
    """As in vision transformers: rows of channels are an image for a convolution, and rows again for a product."""
    b = NetworkBuilder(1)
    rows = b.op("MatMul", b.input("x", 2, 30, 16), b.weights(16, 32))
    image = b.op("Reshape", b.op("Transpose", rows, perm=[0, 2, 1]), _shape(b, 2, 32, 6, 5))
    y = b.op("Reshape", b.conv(image, 32, 16, 3), _shape(b, 2, 16, 30))
    rows = b.op("Relu", b.op("Transpose", y, perm=[0, 2, 1]))
    works = _works(exact_network(b.model(b.op("MatMul", rows, b.weights(16, 8)))))
    assert len(works) == 3 and "--attr-post-ops=relu" in works[1] and "--stag=axb --dtag=axb" in works[1]


def test_a_view_of_the_same_shape_hides_no_step() -> None:
    b = NetworkBuilder(2)
    x = b.conv(b.input("x", 1, 16, 6, 5), 16, 16, 3)
    same = b.op("Reshape", b.op("Reshape", x, _shape(b, 1, 16, 30)), _shape(b, 1, 16, 6, 5))
    y = b.op("Mul", b.op("Relu", b.op("Identity", same)), b.weights(16, 1, 1))
    works = _works(exact_network(b.model(b.conv(y, 16, 8, 1))))
    assert "--attr-post-ops=relu+mul:f32:per_dim_1" in works[0]


def test_two_transposes_are_one() -> None:
    b = NetworkBuilder(3)
    x = b.op("Transpose", b.input("x", 2, 3, 4, 5), perm=[2, 0, 3, 1])
    (work,) = _works(exact_network(b.model(b.op("Transpose", x, perm=[3, 1, 0, 2]))))
    assert "axes=(1, 0, 2, 3)" in work


def test_a_view_that_others_read_stays() -> None:
    """The source of a view that becomes the source itself has more readers than before."""
    b = NetworkBuilder(4)
    x = b.conv(b.input("x", 1, 16, 4, 4), 16, 16, 1)
    same = b.op("Identity", x)
    rows = b.op("Transpose", b.op("Reshape", same, _shape(b, 1, 16, 16)), perm=[0, 2, 1])
    y = b.op("Add", b.op("Relu", rows), rows)
    exact_network(b.model(b.op("Add", b.op("Relu", same), x), b.op("MatMul", y, b.weights(16, 8)), same))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("shape", "perm", "after"),
    [
        ((2, 12, 6), (0, 2, 1), (2, 6, 4, 3)),
        ((2, 12, 6), (2, 0, 1), (6, 2, 3, 4)),
        ((1, 6, 1, 4), (0, 3, 2, 1), (4, 6)),
        ((4, 6), (1, 0), (1, 6, 4)),
        ((4, 6), (1, 0), (3, 8)),
        ((1, 1, 6, 4), (3, 1, 0, 2), (2, 2, 1, 6)),
    ],
)
def test_a_transpose_before_a_reshape(shape: tuple[int, ...], perm: tuple[int, ...], after: tuple[int, ...]) -> None:
    b = NetworkBuilder(5)
    x = b.op("Neg", b.input("x", *shape))
    y = b.op("Reshape", b.op("Transpose", x, perm=list(perm)), _shape(b, *after))
    z = b.op("Transpose", y, perm=[*range(1, len(after)), 0])
    exact_network(b.model(b.op("Relu", z)))


def test_operators_that_keep_all_elements_disappear() -> None:
    """As in SegFormer, which resizes all scales to the largest, and in Swin, which pads images to whole windows."""
    b = NetworkBuilder(8)
    x = b.conv(b.input("x", 1, 16, 6, 5), 16, 16, 3)
    sizes = b.held(np.int64([1, 16, 6, 5]))
    same = b.op("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode="half_pixel")
    padded = b.op("Pad", same, b.held(np.int64([0] * 8)))
    whole = b.op("Slice", padded, *(b.held(np.int64([n])) for n in (0, 16, 1, 1)))
    works = _works(exact_network(b.model(b.conv(whole, 16, 8, 1))))
    # Which CPU it is decides whether the last convolution stores in the layout of the result.
    assert len([work for work in works if not work.startswith("Transpose(")]) == 2
    turned = b.op("Slice", x, *(b.held(np.int64([n])) for n in (-1, -17, 1, -1)))
    assert any("steps=(1, -1, 1, 1)" in work for work in _works(exact_network(b.model(b.conv(turned, 16, 8, 1)))))


def test_norms_of_rows_become_weights_and_sums_post_ops() -> None:
    """As in LeViT: a norm takes the rows of all images, so that a reshape separates it from the product."""
    b = NetworkBuilder(6)
    x = b.input("x", 2, 10, 16)
    flat = b.op("Reshape", b.op("MatMul", x, b.weights(16, 16)), _shape(b, 20, 16))
    norm = b.op("Add", b.op("Mul", flat, b.weights(1, 16)), b.weights(16))
    y = b.op("Relu", b.op("Reshape", b.op("Add", norm, b.op("Reshape", x, _shape(b, 20, 16))), _shape(b, 2, 10, 16)))
    (work,) = _works(exact_network(b.model(y)))
    assert work.startswith("--matmul --bia-dt=f32") and "--attr-post-ops=add:f32:per_tensor+relu" in work


@pytest.mark.sampled(2, "first", "shape")
@pytest.mark.parametrize("shape", [(4,), (4, 1), (1, 1), (3, 1, 1), (3, 4, 1), (2, 1, 1, 1), (2, 3, 4, 4)])
@pytest.mark.parametrize("first", [False, True])
def test_an_operation_with_another_value_around_a_reshape(shape: tuple[int, ...], first: bool) -> None:
    """The other value broadcasts over some dims of the result, which may be parts of dims of the source."""
    b = NetworkBuilder(7)
    x = b.op("Relu", b.op("MatMul", b.input("x", 6, 4, 8), b.weights(8, 4)))
    y = b.op("Reshape", x, _shape(b, 2, 3, 4, 4))
    other = b.input("z", *shape)
    pair = (other, y) if first else (y, other)
    exact_network(b.model(b.op("Neg", b.op("Sub", *pair)), b.op("Neg", x)))
    exact_network(b.model(b.op("Neg", b.op("Mul", *pair))))
