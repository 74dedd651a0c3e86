"""Caches of keys and values, into which a step writes rows: results beside numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto
from onnx_networks import NetworkBuilder

import convsmith as cs


def _expected(cache: Any, update: Any, at: Any, axis: int) -> Any:
    found = np.moveaxis(cache.copy(), axis, 1)
    for sample, (start, rows) in enumerate(zip(at, np.moveaxis(update, axis, 1))):
        for n, row in enumerate(rows):
            found[sample, (start + n) % found.shape[1]] = row
    return np.moveaxis(found, 1, axis)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_rows_are_written_where_a_run_says(mode: str, axis: int) -> None:
    b = NetworkBuilder(1)
    shape, new = [3, 5, 6, 4], [3, 5, 6, 4]
    new[axis] = 2
    names = b.input("cache", *shape), b.input("update", *new), b.input("at", 3, type_=TensorProto.INT64)
    net = cs.onnx.compile(b.model(b.op("TensorScatter", *names, axis=axis, mode=mode), opset=24), threads=1)
    rng = np.random.default_rng(axis + 1)
    at = np.int64([0, shape[axis] - 2, 1] if mode == "linear" else [shape[axis] - 1, 2, 3 * shape[axis] + 1])
    arrays = {name: rng.standard_normal(size).astype(np.float32) for name, size in (("cache", shape), ("update", new))}
    (found,) = net.run({**arrays, "at": at}).values()
    np.testing.assert_array_equal(found, _expected(arrays["cache"], arrays["update"], at, axis))


def test_without_places_rows_are_the_first() -> None:
    b = NetworkBuilder(2)
    net = cs.onnx.compile(b.model(b.op("TensorScatter", b.input("x", 2, 5, 3), b.input("y", 2, 2, 3)), opset=24))
    x, y = np.zeros((2, 5, 3), np.float32), np.ones((2, 2, 3), np.float32)
    np.testing.assert_array_equal(net(x, y), _expected(x, y, [0, 0], 1))


@pytest.mark.parametrize(
    ("new", "axis", "words"),
    [((2, 6, 3), -2, "up to 5 rows"), ((1, 2, 3), -2, "up to 5 rows"), ((2, 2, 3), 0, "axes after the first one")],
)
def test_updates_that_do_not_fit_are_named(new: tuple[int, ...], axis: int, words: str) -> None:
    b = NetworkBuilder(3)
    y = b.op("TensorScatter", b.input("x", 2, 5, 3), b.input("y", *new), axis=axis)
    with pytest.raises(cs.UnsupportedError, match=words):
        cs.onnx.compile(b.model(y, opset=24))
