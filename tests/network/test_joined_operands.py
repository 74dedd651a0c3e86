"""Operations on two values are part of the element-wise operator before them, and layouts follow the whole of it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network
from onnx_networks import NetworkBuilder

import convsmith as cs
from convsmith.machine.registry import target
from convsmith.network.operators.pool import Pool
from convsmith.network.placement.layout_choice import operator_cycles


def _pointwise(net: cs.Network) -> list[str]:
    return [step.work for step in net.image.steps if step.work.startswith("Pointwise")]


def test_a_response_is_normalised_in_one_pass() -> None:
    """Each pixel is scaled by a number of its channel that the image gives, scaled, moved, and added to itself."""
    b = NetworkBuilder(1)
    x = b.op("Relu", b.conv(b.input("x", 1, 16, 6, 5), 16, 32, 1))
    factor = b.op("ReduceMax", x, b.held(np.int64([2, 3])))
    y = b.op("Mul", b.op("Mul", x, factor), b.weights(32, 1, 1))
    y = b.op("Add", x, b.op("Add", y, b.weights(32, 1, 1)))
    net = exact_network(b.model(b.conv(y, 32, 16, 1)))
    (work,) = _pointwise(net)
    assert work.count("JoinedOperand") == 3 and "tags=('axb', 'axb', 'any', 'any', 'axb')" in work
    assert not any(step.work.startswith("Transpose") and "32" in step.work for step in net.image.steps)


def test_operands_keep_their_order() -> None:
    b = NetworkBuilder(2)
    x, y, z = (b.input(name, 2, 8, 5, 5) for name in "xyz")
    one = b.op("Sub", y, b.op("Abs", b.op("Sub", x, y)))
    two = b.op("Sub", b.op("Relu", one), z)
    (work,) = _pointwise(exact_network(b.model(two)))
    assert "is_first=True" in work and "source=2" in work and "shapes=((400,), (400,), (400,))" in work


def test_a_value_that_broadcasts_or_is_read_again_is_computed_once() -> None:
    b = NetworkBuilder(3)
    x, y = b.input("x", 2, 8, 1, 1), b.input("y", 2, 8, 5, 5)
    small = b.op("Add", x, b.weights(8, 1, 1))
    large = b.op("Mul", small, y)
    net = exact_network(b.model(b.op("Add", large, b.op("ReduceSum", large, b.held(np.int64([2, 3]))))))
    assert len(_pointwise(net)) == 3


def test_windows_that_reach_beyond_rows_are_no_vectors() -> None:
    shape, machine = (1, 32, 14, 14), target("avx2")
    pools = [
        Pool("max", "f32", shape, (14, 14), k=(3, 3), s=(1, 1), d=(1, 1), p=(1, 1), back=(1, 1), tags=(tag, tag))
        for tag in ("abx", "axb")
    ]  # fmt: skip
    first, last = (operator_cycles(pool, machine) for pool in pools)
    assert first > 4 * last


def test_pools_and_norms_between_convolutions_have_channels_last() -> None:
    """Layouts of neighbours change together."""
    b = NetworkBuilder(4)
    x = b.conv(b.input("x", 1, 16, 8, 8), 16, 32, 3)
    y = b.op("Abs", b.op("Mul", x, b.weights(32, 1, 1)))
    pooled = b.op("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4)
    z = b.op("Add", b.op("Mul", b.op("Sub", pooled, y), b.weights(32, 1, 1)), x)
    net = exact_network(b.model(b.conv(z, 32, 16, 1)))
    (pool,) = (step.work for step in net.image.steps if step.work.startswith("Pool"))
    assert "tags=('axb', 'axb')" in pool


def test_results_take_the_memory_of_what_no_later_node_reads() -> None:
    b = NetworkBuilder(5)
    x = b.op("MatMul", b.input("x", 1, 64, 16), b.weights(16, 64))
    y = b.op("Add", b.op("Softmax", b.op("Mul", x, b.op("ReduceMax", x, b.held(np.int64([2])))), axis=-1), x)
    net = cs.onnx.compile(b.model(b.op("MatMul", y, b.weights(64, 8))), threads=1)
    each = 64 * 64 * 4
    assert 2 * each <= net.image.workspace < 3 * each  # that of x, and one for all between x and the sum


def test_a_source_that_is_read_again_keeps_its_memory() -> None:
    b = NetworkBuilder(6)
    x = b.op("MatMul", b.input("x", 1, 64, 16), b.weights(16, 64))
    y = b.op("Abs", b.op("Mul", x, b.op("ReduceMax", x, b.held(np.int64([2])))))
    z = b.op("Max", b.op("Transpose", x, perm=[0, 2, 1]), y)
    exact_network(b.model(b.op("MatMul", b.op("Sub", z, x), b.weights(64, 8)), y))
