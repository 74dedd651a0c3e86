"""Elements of a model's large tensors are held beside its protocol buffer, from whatever field or file they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.onnx.models import read_model
from convsmith.onnx.sources import model_source

onnx = pytest.importorskip("onnx")
from small_models import saved_model  # noqa: E402

inliner = pytest.importorskip("onnx.inliner")
helper, FLOAT = onnx.helper, 1


def _table(dtype: Any, size: int = 1600) -> Any:
    return (np.arange(size) % 7).astype(dtype).reshape(-1, 40)


def _held_in_fields(name: str, kind: int, array: Any) -> Any:
    return helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())


def _product(*extra: Any) -> Any:
    """A product of `x` and a large matrix, reshaped by a small constant; `extra` are further initializers."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"], "product"),
        helper.make_node("Reshape", ["z", "form"], ["y"], "reshape"),
    ]
    inputs = {"x": (FLOAT, ["N", 40])}
    made = saved_model(nodes, inputs, ["y"], w=_table(np.float32), form=np.array([-1, 8, 5], np.int64))
    made.graph.initializer.extend(extra)
    return made


def _x(rows: int) -> Any:
    return np.arange(rows * 40, dtype=np.float32).reshape(rows, 40) % 5


def _expected(rows: int) -> Any:
    return (_x(rows) @ _table(np.float32)).reshape(-1, 8, 5)


def test_inference_gets_shapes_and_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with 2 GB cannot be written: of a model with more, what `onnx` reads and writes is small."""
    sizes = []
    for package, name in ((onnx.shape_inference, "infer_shapes"), (inliner, "inline_local_functions")):
        real = getattr(package, name)
        monkeypatch.setattr(
            package, name, lambda proto, real=real: (sizes.append(len(proto.SerializeToString())), real(proto))[1]
        )
    made = _product()
    body = [helper.make_node("Identity", ["a"], ["b"])]
    made.functions.append(helper.make_function("own", "same", ["a"], ["b"], body, [helper.make_opsetid("", 19)]))
    made.graph.node.insert(0, helper.make_node("same", ["x"], ["x2"], domain="own"))
    made.graph.node[1].input[0] = "x2"
    np.testing.assert_array_equal(cs.onnx.compile(made, threads=1)(_x(1)), _expected(1))
    assert len(sizes) == 2 and max(sizes) < 1000 < made.ByteSize()


@pytest.mark.parametrize(
    "kind", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT64", "UINT64", "INT8", "BOOL", "INT4", "FLOAT8E4M3FN"]
)
@pytest.mark.parametrize("is_raw", [False, True])
def test_elements_of_every_type_are_those_of_the_model(kind: str, is_raw: bool) -> None:
    number = onnx.TensorProto.DataType.Value(kind)
    array = _table(helper.tensor_dtype_to_np_dtype(number))
    tensor = onnx.numpy_helper.from_array(array, "t") if is_raw else _held_in_fields("t", number, array)
    model = _product(tensor)
    before = model.SerializeToString()
    read = read_model(model)
    np.testing.assert_array_equal(read.initializers["t"], array)
    assert read.initializers["t"].dtype == array.dtype
    found = {t.name: onnx.numpy_helper.to_array(t) for t in read.whole.graph.initializer}
    np.testing.assert_array_equal(found["t"], array)
    np.testing.assert_array_equal(found["w"], _table(np.float32))
    assert model.SerializeToString() == before


def test_texts_stay_in_the_model() -> None:
    words = np.array([b"a"] * 600, object)
    read = read_model(_product(onnx.numpy_helper.from_array(words, "words")))
    assert "words" not in model_source(_product()).held and read.initializers["words"].shape == (600,)


def test_plans_of_several_sizes_need_the_file_once(tmp_path: Path) -> None:
    """Small and large elements lie in another file, which is gone when the second plan is made."""
    path = tmp_path / "m.onnx"
    onnx.save(_product(), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    net = cs.onnx.compile(path, batch="any", threads=1)
    np.testing.assert_array_equal(net(_x(2)), _expected(2))
    path.unlink()
    (tmp_path / "w.bin").unlink()
    np.testing.assert_array_equal(net(_x(3)), _expected(3))
    assert {len(model_source(_product()).held), len(net.plans)} == {1, 2}


def test_large_elements_of_a_file_that_is_lost_or_short(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_product(), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").write_bytes(b"\0" * 64)
    with pytest.raises(cs.UsageError, match=r"m\.onnx: the file of its weights cannot be read: "):
        cs.onnx.compile(path, threads=1)
    with pytest.raises(cs.UsageError, match="tensor w: its elements lie in another file"):
        cs.onnx.compile(path.read_bytes(), threads=1)
