"""Networks of f32 whose inner values are bf16: types, results, and nodes that keep f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from click.testing import CliRunner
from onnx_networks import NetworkBuilder, mobile_net, residual_net, u_net

import convsmith as cs
from convsmith.cli.main import main
from convsmith.network.graph import Graph
from convsmith.network.operators.choice import ChangeType
from convsmith.network.rewrites.fold import folded
from convsmith.network.rewrites.small_floats import with_small_floats
from convsmith.onnx.graph import read_graph
from convsmith.problem.problem import Problem

NETWORKS: dict[str, Callable[..., Any]] = {"residual": residual_net, "mobile": mobile_net, "u_net": u_net}


def _narrowed(model: Any) -> Graph:
    return with_small_floats(folded(read_graph(model)), "bf16")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_close_to_those_of_f32(name: str) -> None:
    model = NETWORKS[name](real=True)
    plain, small = (cs.onnx.compile(model, threads=1, dtype=dtype) for dtype in ("f32", "bf16"))
    x = np.random.default_rng(1).standard_normal(plain.inputs["x"]).astype(np.float32)
    results = small.run({"x": x})
    for output, y in plain.run({"x": x}).items():
        z = results[output]
        assert z.dtype == np.float32 and z.shape == y.shape
        assert 0 < np.square(z - y).sum() < 0.05**2 * np.square(y).sum()


@pytest.mark.parametrize("name", NETWORKS)
def test_inner_values_and_products_are_of_bf16(name: str) -> None:
    graph = _narrowed(NETWORKS[name]())
    products = [node.work for node in graph.nodes if isinstance(node.work, Problem)]
    assert {p.dt[:2] for p in products} == {("bf16", "bf16")}
    types = {graph.values[node.output].type for node in graph.nodes if node.output not in graph.outputs}
    assert types == {"bf16"}
    assert {graph.values[name].type for name in (*graph.outputs, *(x.name for x in graph.inputs))} == {"f32"}


def test_numbers_that_bf16_holds_are_exact() -> None:
    b = NetworkBuilder(2)
    x = b.input("x", 1, 4, 6, 6)
    weights, bias = b.held(np.eye(4)[:, :, None, None] * 3), b.held(np.arange(4))
    y = b.op("Relu", b.op("Conv", x, weights, bias, kernel_shape=[1, 1]))
    y = b.op("Concat", y, b.op("Transpose", b.op("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2]), axis=1)
    y = b.op("Add", b.op("MaxPool", y, kernel_shape=[2, 2]), b.held(np.float32(5)))
    model = b.model(b.op("Softmax", b.op("Reshape", y, b.held(np.int64([8, 25]))), axis=-1), y)
    nets = [cs.onnx.compile(model, threads=1, dtype=dtype) for dtype in ("f32", "bf16")]
    arrays = {"x": np.random.default_rng(0).integers(-9, 10, (1, 4, 6, 6)).astype(np.float32)}
    (shares, sums), (close, equal) = ([*net.run(arrays).values()] for net in nets)
    np.testing.assert_array_equal(equal, sums)
    np.testing.assert_allclose(close, shares, 1e-2)


def test_nodes_of_other_types_read_f32() -> None:
    b = NetworkBuilder(3)
    x = b.op("Conv", b.input("x", 1, 4, 6, 6), b.weights(4, 4, 1, 1), kernel_shape=[1, 1])
    y = b.op("Where", b.op("Greater", x, b.held(np.float32(0))), x, b.held(np.float32(2)))
    model = b.model(b.op("Relu", b.op("Conv", y, b.weights(4, 4, 1, 1), kernel_shape=[1, 1])))
    conversions = [n.work for n in _narrowed(model).nodes if isinstance(n.work, ChangeType)]
    assert [(w.type, w.to) for w in conversions] == [("f32", "bf16"), ("bf16", "f32"), ("f32", "bf16")]
    arrays = {"x": np.random.default_rng(0).integers(-3, 4, (1, 4, 6, 6)).astype(np.float32)}
    plain, small = (cs.onnx.compile(model, threads=1, dtype=d).run(arrays) for d in ("f32", "bf16"))
    for name, y in plain.items():
        np.testing.assert_allclose(small[name], y, 2e-2, 0.1)


def test_other_types_are_refused() -> None:
    with pytest.raises(cs.UsageError, match="dtype 'f8'; legal are"):
        cs.onnx.compile(residual_net(), dtype="f8")


def test_the_command_states_the_distance_from_the_model(tmp_path: Any) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "net.onnx"
    file.write_bytes(residual_net(real=True).SerializeToString())
    options = ["--threads", "1", "--rounds", "1", "--dtype", "bf16"]
    made = CliRunner().invoke(main, ["network", "bench", str(file), *options])
    assert made.exit_code == 0, made.output
    assert "e-03 of the largest element" in made.output or "e-02 of the largest element" in made.output
