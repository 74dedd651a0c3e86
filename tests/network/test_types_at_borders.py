"""Inputs and outputs of whole numbers and truth values, and reads at numbers that a run gives."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto
from onnx_networks import NetworkBuilder

import convsmith as cs

runtime: Any = import_module("onnxruntime")
I64, I32, BOOL = TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL


def typed(b: NetworkBuilder, type_: int, *outputs: str) -> Any:
    """Return the model of a builder whose outputs have a type."""
    model = b.model(*outputs)
    for x in model.graph.output:
        x.type.tensor_type.elem_type = type_
    return model


def check(model: Any, **arrays: Any) -> cs.Network:
    net = cs.onnx.compile(model, threads=1)
    expected = runtime.InferenceSession(model.SerializeToString()).run(None, arrays)
    for y, (name, found) in zip(expected, net.run(arrays).items()):
        assert (found.dtype, found.shape) == (y.dtype, y.shape), name
        np.testing.assert_array_equal(found, y, err_msg=name)
    return net


@pytest.mark.parametrize(("type_", "dtype"), [(I64, np.int64), (I32, np.int32)])
def test_token_numbers_select_rows(type_: int, dtype: Any) -> None:
    b = NetworkBuilder()
    table = b.held(np.random.default_rng(0).standard_normal((100, 24)).astype(np.float32))
    model = b.model(b.op("Gather", table, b.input("ids", 2, 9, type_=type_)))
    ids = np.random.default_rng(1).integers(-100, 100, (2, 9)).astype(dtype)
    net = check(model, ids=ids)
    assert net.image.weights.size < 100 * 24 * 4 + 512  # the table is held once


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_numbers_select_along_any_axis(axis: int) -> None:
    b = NetworkBuilder()
    y = b.op("Gather", b.input("x", 3, 4, 5), b.input("ids", 2, type_=I64), axis=axis)
    check(b.model(y), x=np.arange(60, dtype=np.float32).reshape(3, 4, 5), ids=np.array([2, -1]))


def test_a_scalar_number_selects_a_row() -> None:
    b = NetworkBuilder()
    model = b.model(b.op("Gather", b.input("x", 3, 4), b.input("at", type_=I64)))
    check(model, x=np.arange(12, dtype=np.float32).reshape(3, 4), at=np.array(1))


def test_many_constant_numbers_select_rows() -> None:
    b = NetworkBuilder()
    numbers = np.random.default_rng(2).permutation(300)
    model = b.model(b.op("Gather", b.input("x", 300, 3), b.held(numbers)))
    check(model, x=np.arange(900, dtype=np.float32).reshape(300, 3))


def test_elements_and_coordinates() -> None:
    b = NetworkBuilder()
    x, ids = b.input("x", 3, 4), b.input("ids", 2, 4, type_=I64)
    places = b.input("places", 5, 2, type_=I64)
    model = b.model(b.op("GatherElements", x, ids), b.op("GatherND", x, places))
    rng = np.random.default_rng(3)
    check(
        model, x=rng.standard_normal((3, 4)).astype(np.float32), ids=rng.integers(-3, 3, (2, 4)),
        places=np.array([[0, 0], [2, 3], [-1, -1], [1, -4], [-3, 2]]),
    )  # fmt: skip


def test_numbers_beyond_the_array_read_zeros() -> None:
    b = NetworkBuilder()
    net = cs.onnx.compile(b.model(b.op("Gather", b.input("x", 3, 2), b.input("ids", 4, type_=I64))), threads=1)
    found = net(np.ones((3, 2), np.float32), np.array([3, -4, 2**31 - 1, 0]))
    np.testing.assert_array_equal(found[:, 0], [0, 0, 0, 1])


def test_masks_and_numbers_are_inputs_and_outputs() -> None:
    b = NetworkBuilder()
    ids, mask = b.input("ids", 2, 6, type_=I64), b.input("mask", 2, 6, type_=BOOL)
    known = b.op("Less", ids, b.held(np.array(5)))
    model = typed(b, BOOL, b.op("And", known, b.op("Not", mask)), b.op("Equal", ids, b.held(np.array(3))))
    rng = np.random.default_rng(4)
    check(model, ids=rng.integers(0, 9, (2, 6)), mask=rng.random((2, 6)) < 0.5)
    b = NetworkBuilder()
    ids, mask = b.input("ids", 2, 6, type_=I64), b.input("mask", 2, 6, type_=BOOL)
    model = typed(b, I64, b.op("Where", mask, ids, b.op("Cast", b.op("Add", ids, ids), to=I64)))
    net = check(model, ids=rng.integers(-9, 9, (2, 6)), mask=rng.random((2, 6)) < 0.5)
    out = np.zeros((2, 6), np.int64)
    arrays = {"ids": np.arange(12).reshape(2, 6), "mask": np.ones((2, 6), bool)}
    assert net.run({**arrays, next(iter(net.outputs)): out})
    np.testing.assert_array_equal(out, arrays["ids"])


def _ids() -> Any:
    b = NetworkBuilder()
    return typed(b, I64, b.op("Add", b.input("ids", 3, type_=I64), b.held(np.array([1, 2, 3]))))


def test_numbers_beyond_32_bits_are_refused() -> None:
    net = cs.onnx.compile(_ids(), threads=1)
    with pytest.raises(cs.UsageError, match="ids: has the number 4294967296; legal are numbers of 32 bits"):
        net(np.array([1, 1 << 32, 3]))
    with pytest.raises(cs.UsageError, match="ids: dtype is float32"):
        net(np.zeros(3, np.float32))
    with pytest.raises(cs.UsageError, match="legal is a writeable array, int64"):
        net.run({"ids": np.arange(3), next(iter(net.outputs)): np.zeros(3, np.int32)})


def test_types_outside_are_saved_and_numbers_of_32_bits_are_taken(tmp_path: Path) -> None:
    net = cs.onnx.compile(_ids(), threads=1)
    net.save(tmp_path / "net.cs")
    for one in (net, cs.load(tmp_path / "net.cs")):
        for dtype in (np.int64, np.int32):
            found = one(np.array([1, 2, 3], dtype))
            assert found.dtype == np.int64 and found.tolist() == [2, 4, 6]


def test_tensors_of_torch_are_taken() -> None:
    torch = pytest.importorskip("torch")
    found = cs.onnx.compile(_ids(), threads=1)(torch.tensor([1, 2, 3]))
    assert found.dtype == torch.int64 and found.tolist() == [2, 4, 6]
