"""The convolutions of an ONNX model are the problems that `convsmith.onnx` compiles for its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convsmith.diag.errors import UsageError
from convsmith.onnx.models import node_problems

onnx = pytest.importorskip("onnx")
FLOAT, BYTE, SIGNED = 1, 2, 3


def saved(
    path: Path, nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], **weights: np.ndarray[Any, Any]
) -> Path:
    helper = onnx.helper
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info(n, t, shape) for n, (t, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    versions = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=versions), str(path))
    return path


def weights(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def test_a_chain_of_convolutions_has_the_shapes_that_follow_from_its_input(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "a", "b"], ["one"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["one"], ["two"]),
        node("Conv", ["two", "c"], ["three"], group=8, auto_pad="SAME_UPPER"),
        node("Conv", ["three", "c"], ["four"], group=8, auto_pad="SAME_UPPER"),
        node("ConvTranspose", ["four", "d"], ["y"], strides=[2, 2]),
    ]
    path = saved(
        tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["N", 3, 16, 16])}, a=weights(8, 3, 3, 3), b=weights(8),
        c=weights(8, 1, 3, 3), d=weights(8, 4, 2, 2),
    )  # fmt: skip
    assert {name: str(p) for name, p in node_problems(path).items()} == {
        "Conv": "--dir=FWD_B mb1ic3ih16oc8oh8kh3sh2ph1",
        "Conv#2": "g8mb1ic8ih8oc8oh8kh3ph1",
        "Conv#3": "g8mb1ic8ih8oc8oh8kh3ph1",
        "ConvTranspose": "--deconv --wtag=bax mb1ic8ih8oc4oh16kh2sh2ph0",
    }
    assert str(node_problems(path, {"x": (5, 3, 16, 16)})["Conv"]) == "--dir=FWD_B mb5ic3ih16oc8oh8kh3sh2ph1"


def test_integer_convolutions_have_integer_sums(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("ConvInteger", ["x", "w"], ["y"])]
    w = weights(4, 8, 1, 1, dtype=np.int8)
    path = saved(tmp_path / "m.onnx", nodes, {"x": (BYTE, [1, 8, 5, 5])}, w=w)
    assert [str(p) for p in node_problems(path).values()] == ["--dt=u8:s8:s32 mb1ic8ih5oc4oh5kh1ph0"]


def test_a_source_of_unknown_shape_is_named(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [node("Unknown", ["x"], ["z"], domain="own"), node("Conv", ["z", "w"], ["y"])]
    path = saved(tmp_path / "m.onnx", nodes, {"x": (FLOAT, [1, 8, 5, 5])}, w=weights(4, 8, 1, 1))
    with pytest.raises(UsageError, match=r"m\.onnx: node Conv: the shape of z is unknown"):
        node_problems(path)


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(UsageError, match=r"m\.onnx: is no ONNX model: "):
        node_problems(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="cannot be read: No such file or directory"):
        node_problems(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    ("shape", "given", "why"),
    [
        (["N", 3, "H", None], {}, r"leaves sizes of x open, 1 x 3 x H x any; legal .* x=1x3x224x224 or inputs=\{'x'"),
        (["N", 3, "H", "W"], {"x": (1, 4, 9, 9)}, r"the shape of x is \(1, 4, 9, 9\); legal is N x 3 x H x W"),
        (["N", 3, 9, 9], {"x": (1, 3, 9)}, r"the shape of x is \(1, 3, 9\); legal is N x 3 x 9 x 9"),
        (["N", 3, 9, 9], {"z": (1, 3, 9, 9)}, r"m\.onnx has no 'z'; legal are x"),
        (["N", 3, 9, 9], {"a": (8, 3, 1, 1)}, r"m\.onnx has no 'a'; legal are x"),
    ],
)  # fmt: skip
def test_sizes_that_a_model_leaves_open(
    shape: list[Any], given: dict[str, tuple[int, ...]], why: str, tmp_path: Path
) -> None:
    nodes = [onnx.helper.make_node("Conv", ["x", "a"], ["y"])]
    path = saved(tmp_path / "m.onnx", nodes, {"x": (FLOAT, shape)}, a=weights(8, 3, 1, 1))
    with pytest.raises(UsageError, match=why) as error:
        node_problems(path, given)
    assert error.value.code == "inputs"


def test_weights_in_a_file_that_is_lost(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Conv", ["x", "a"], ["y"])]
    path = saved(tmp_path / "m.onnx", nodes, {"x": (FLOAT, [1, 3, 9, 9])}, a=weights(8, 3, 1, 1))
    onnx.save(
        onnx.load(str(path)), str(path), save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert len(node_problems(path)) == 1
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UsageError, match=r"m\.onnx: the file of its weights cannot be read: .*weights\.bin"):
        node_problems(path)
