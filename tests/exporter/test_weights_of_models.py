"""`convsmith export MODEL.onnx --built-in`: each node's kernel holds the arrays that the model holds for the node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from exported import check_called, shared_library

from convsmith.cli.main import main
from convsmith.exporter import library as exporter
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
FLOAT, BYTE = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8
RNG = np.random.default_rng(5)


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(np.float32)


CONSTANTS = {"a": integers(8, 3, 3, 3), "b": integers(8), "c": integers(8, 8, 3, 3), "d": integers(8, 8, 3, 3)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three convolutions, two of them of one size, and a product of two inputs."""
    nodes = [
        helper.make_node("Conv", ["x", "a", "b"], ["one"], "stem", pads=[1] * 4),
        helper.make_node("Conv", ["one", "c"], ["two"], "left", pads=[1] * 4),
        helper.make_node("Conv", ["two", "d"], ["y"], "right", pads=[1] * 4),
        helper.make_node("MatMulInteger", ["p", "q"], ["z"], "product"),
    ]
    inputs = {"x": (FLOAT, [1, 3, 6, 7]), "p": (BYTE, [5, 6]), "q": (BYTE, [6, 4])}
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info(n, t, shape) for n, (t, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in ("y", "z")],
        [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    made.ir_version = 9
    file = tmp_path / "net.onnx"
    onnx.save(made, file)
    return file


def test_each_node_has_its_own_weights(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[exporter.ExportedLibrary] = []
    write = exporter.written
    monkeypatch.setattr(exporter, "written", lambda *given: made.append(write(*given)) or made[-1])
    done = CliRunner().invoke(main, ["export", str(model), "--built-in", "--threads", "1", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    (library,) = made
    loaded = shared_library(library)
    held = {"stem": {"wei": "a", "bia": "b"}, "left": {"wei": "c"}, "right": {"wei": "d"}, "product": {}}
    assert [kernel.name for kernel in library.kernels] == [f"net_{name}" for name in held]
    assert [kernel.nodes for kernel in library.kernels] == [(name,) for name in held]
    for kernel, names in zip(library.kernels, held.values()):
        parameters = {p.of or p.tensor.name for p in kernel.interface.parameters if p.of or p.tensor is not None}
        assert not parameters & names.keys() and ("wei" in parameters) == (not names)
        problem = parse_problem(kernel.problem)
        arrays = random_arrays(problem)
        arrays |= {name: CONSTANTS[of].reshape(arrays[name].shape) for name, of in names.items()}
        check_called(kernel, loaded, problem, arrays, False)


@pytest.mark.parametrize(
    ("source", "more", "text"),
    [
        ("mb1ic8ih8oc8kh3", ("--built-in",), "--built-in is legal with a model only"),
        ("net.onnx", ("--built-in", "--weights", "w.npy"), "--built-in takes all from the model"),
    ],
)
def test_weights_that_are_refused(source: str, more: tuple[str, ...], text: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["export", source, *more, "-o", str(tmp_path)])
    assert done.exit_code and text in done.output + str(done.exception)
