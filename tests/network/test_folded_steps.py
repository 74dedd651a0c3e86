"""Norms, activations, residuals and gates of a network that become steps of its convolutions and products."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import check, lines
from onnx_networks import NetworkBuilder, residual_net


def test_norms_activations_and_residuals_are_part_of_convolutions() -> None:
    net = check(residual_net())
    assert len(net.image.steps) == 10
    assert not any("Pointwise" in line for line in lines(net))
    assert sum("post-ops=sum+relu" in line for line in lines(net)) == 2


def test_constants_that_follow_one_another_multiply_the_same_weights() -> None:
    b = NetworkBuilder(4)
    y = b.conv(b.input("x", 1, 4, 6, 6), 4, 4, 3)
    for n in range(3):
        y = b.op("Mul", y, b.held(np.float32([1, 2, 3, 1 + n]).reshape(4, 1, 1)))
    net = check(b.model(b.op("Div", y, b.held(np.float32([1, 2, 0.5, 4]).reshape(4, 1, 1)))), exact=True)
    assert len(net.image.steps) == 1


def test_a_value_that_another_node_reads_is_not_folded() -> None:
    b = NetworkBuilder(4)
    x = b.input("x", 1, 4, 6, 6)
    y = b.conv(x, 4, 4, 3)
    z = b.op("Relu", y)
    check(b.model(b.op("Add", z, y), z), exact=True)


def test_an_addend_that_is_read_later_or_by_the_caller_stays() -> None:
    b = NetworkBuilder(5)
    given = b.input("x", 1, 4, 6, 6)
    x = b.conv(given, 4, 4, 1)
    y = b.op("Add", b.conv(given, 4, 4, 3), x)
    net = check(b.model(b.op("Mul", y, x)), exact=True)
    assert any("add:f32:per_tensor" in line for line in lines(net))
    b = NetworkBuilder(5)
    x = b.input("x", 1, 4, 6, 6)
    check(b.model(b.op("Add", b.conv(x, 4, 4, 1), x)), exact=True)
    b = NetworkBuilder(5)
    x = b.conv(b.input("x", 1, 4, 6, 6), 4, 4, 1)
    check(b.model(b.op("Add", b.conv(x, 4, 4, 1), x), x), exact=True)


def test_an_addend_in_another_layout_stays() -> None:
    b = NetworkBuilder(6)
    given = b.input("x", 1, 4, 6, 6)
    product = b.op("MatMul", b.op("Flatten", given), b.weights(144, 144))
    turned = b.op("Reshape", product, b.held(np.int64([1, 4, 6, 6])))
    y = b.op("Add", b.conv(given, 4, 4, 3), turned)
    check(b.model(b.op("Relu", b.conv(y, 4, 4, 3))), exact=True)


def test_a_sum_of_a_value_with_itself() -> None:
    b = NetworkBuilder(6)
    x = b.conv(b.input("x", 1, 4, 6, 6), 4, 4, 1)
    check(b.model(b.op("Add", x, x)), exact=True)


def test_steps_follow_the_operand_that_is_computed_last() -> None:
    b = NetworkBuilder(7)
    x = b.input("x", 1, 4, 6, 6)
    one, two = b.conv(x, 4, 4, 1), b.op("MaxPool", x, kernel_shape=[1, 1])
    later = b.op("Relu", b.conv(two, 4, 4, 3))
    net = check(b.model(b.op("Relu", b.op("Add", one, later))), exact=True)
    assert sum("copy of" not in step.names[0] for step in net.image.steps) == 3


def test_constants_on_either_side_of_convolutions() -> None:
    b = NetworkBuilder(8)
    x = b.input("x", 1, 4, 6, 6)
    scaled = b.op("Mul", b.held(np.float32([[[2]], [[1]], [[4]], [[1]]])), b.conv(x, 4, 4, 1))
    moved = b.op("Sub", scaled, b.held(np.float32(3)))
    net = check(b.model(b.op("Div", moved, b.held(np.float32(2)))), exact=True)
    assert len(net.image.steps) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gate", ["Sigmoid", "HardSigmoid"])
def test_products_with_a_function_of_a_value_are_steps(gate: str) -> None:
    b = NetworkBuilder(9)
    x = b.conv(b.input("x", 1, 4, 6, 6), 4, 4, 1)
    net = check(b.model(b.op("Mul", x, b.op(gate, x))))
    assert len(net.image.steps) == 1 and "swish" in net.image.steps[0].work
    # The function is an output, or of another value.
    b = NetworkBuilder(9)
    x = b.conv(b.input("x", 1, 4, 6, 6), 4, 4, 1)
    y = b.op(gate, x)
    check(b.model(b.op("Mul", x, y), y))
    check(b.model(b.op("Mul", b.op("Relu", x), b.op(gate, x))))


def _gelu(b: NetworkBuilder, x: str, form: int, root: float = 2**0.5, half: float = 0.5) -> str:
    """The forms of GELU that exporters write."""
    half, one, inverse = (b.held(np.float32(n)) for n in (half, 1, 1 / root))
    inner = b.op("Mul", x, inverse) if form == 1 else b.op("Div", x, b.held(np.float32([root])))
    total = b.op("Add", one, b.op("Erf", inner)) if form == 2 else b.op("Add", b.op("Erf", inner), one)
    if form == 0:
        return str(b.op("Mul", b.op("Mul", x, total), half))
    if form == 1:
        return str(b.op("Mul", b.op("Mul", x, half), total))
    return str(b.op("Mul", b.op("Mul", half, total), x))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", range(4))
def test_gelu_is_one_step_of_convolutions_and_products(form: int) -> None:
    b = NetworkBuilder(10, real=True)
    gelu = (lambda x: str(b.op("Gelu", x))) if form == 3 else (lambda x: _gelu(b, x, form))
    image = gelu(b.conv(b.input("x", 1, 4, 6, 6), 4, 8, 3))
    sums = b.op("Add", b.op("MatMul", b.op("Flatten", image), b.weights(288, 16)), b.weights(16))
    net = check(b.model(gelu(sums), opset=20))
    assert len(net.image.steps) == 2 and all("--attr-post-ops=gelu_erf" in line for line in lines(net))
    assert sum("Erf" in name or "Gelu" in name for step in net.image.steps for name in step.names) == 2
    b = NetworkBuilder(10)
    net = check(b.model(gelu(b.input("x", 2, 3, 40)), opset=20))
    assert len(net.image.steps) == 1 and "gelu_erf" in lines(net)[0]


def test_products_that_are_almost_gelu_stay() -> None:
    changes: list[dict[str, float]] = [{"root": 1.5}, {"half": 0.25}]
    for change in changes:
        b = NetworkBuilder(10)
        net = check(b.model(_gelu(b, b.input("x", 2, 40), 0, **change)))
        assert not any("gelu_erf" in line for line in lines(net))
    # Another node, or the caller, reads the error function; it is of another value; x is broadcast to its result.
    for build in (
        lambda b, x, e: (b.op("Mul", b.op("Mul", x, e), b.held(np.float32(0.5))), e),
        lambda b, x, e: (b.op("Mul", b.op("Mul", b.op("Relu", x), e), b.held(np.float32(0.5))),),
        lambda b, x, e: (b.op("Mul", b.op("Mul", x, e), b.held(np.float32([[[0.5]]]))),),
    ):
        b = NetworkBuilder(10)
        x = b.input("x", 2, 40)
        e = b.op("Add", b.op("Erf", b.op("Div", x, b.held(np.float32(2**0.5)))), b.held(np.float32(1)))
        net = check(b.model(*build(b, x, e)))
        assert not any("gelu_erf" in line for line in lines(net))
