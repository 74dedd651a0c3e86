"""Products whose second operand several matrices share: results, steps, and products that stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network, lines
from onnx_networks import NetworkBuilder

import convsmith as cs

ROWS, DEPTH, KEYS = 3, 8, 20
Build = Callable[[NetworkBuilder], str]


def _repeated(b: NetworkBuilder, x: str, shape: tuple[int, ...], axis: int, times: int = 3) -> str:
    """Each element of a value of `shape` along `axis` so many times, one after the other."""
    before, size, after = shape[:axis], shape[axis], shape[axis + 1 :]
    apart = b.op("Reshape", x, b.held(np.int64([*before, size, 1, *after])))
    wide = b.op("Expand", apart, b.held(np.int64([*before, size, times, *after])))
    return b.op("Reshape", wide, b.held(np.int64([*before, size * times, *after])))


def _values(b: NetworkBuilder) -> str:
    return _repeated(b, b.input("v", 2, 2, DEPTH, KEYS), (2, 2, DEPTH, KEYS), 1)


def _product(b: NetworkBuilder, wei: str) -> str:
    return b.op("MatMul", b.input("x", 2, 6, ROWS, DEPTH), wei)


def _keys(b: NetworkBuilder) -> str:
    """Keys of two heads, as columns."""
    keys = _repeated(b, b.input("v", 2, 2, KEYS, DEPTH), (2, 2, KEYS, DEPTH), 1)
    return _product(b, b.op("Transpose", keys, perm=(0, 1, 3, 2)))


def _of_one_head(b: NetworkBuilder) -> str:
    wide = b.op("Expand", b.input("v", 2, 1, DEPTH, KEYS), b.held(np.int64([2, 6, DEPTH, KEYS])))
    return _product(b, wide)


SHARED: dict[str, tuple[Build, str]] = {
    "values": (lambda b: _product(b, _values(b)), "--matmul 2x2x9x8:2x2x8x20"),
    "keys": (_keys, "--matmul 2x2x9x8:2x2x8x20"),
    "one head": (_of_one_head, "--matmul 2x1x18x8:2x1x8x20"),
    "a step": (
        lambda b: b.op("Relu", _product(b, _values(b))), "--matmul --attr-post-ops=relu 2x2x9x8:2x2x8x20"
    ),
    "a sum": (
        lambda b: b.op("Add", _product(b, _values(b)), b.op("Abs", b.input("y", 2, 6, ROWS, KEYS))),
        "--matmul --attr-post-ops=sum 2x2x9x8:2x2x8x20",
    ),
    "a bias": (
        lambda b: b.op("Add", _product(b, _values(b)), b.weights(KEYS)),
        "--matmul --attr-post-ops=add:f32:8 2x2x9x8:2x2x8x20",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_matrices_with_one_operand_are_one(name: str) -> None:
    build, line = SHARED[name]
    b = NetworkBuilder(2)
    net = exact_network(b.model(build(b)))
    assert [str(p) for p, _ in net.problems()] == [line]
    assert not any(x.startswith("Expand") for x in lines(net))


def _along_the_batch(b: NetworkBuilder) -> str:
    return _product(b, _repeated(b, b.input("v", 1, 6, DEPTH, KEYS), (1, 6, DEPTH, KEYS), 0, 2))


def _along_columns(b: NetworkBuilder) -> str:
    return _product(b, _repeated(b, b.input("v", 2, 6, DEPTH, 5), (2, 6, DEPTH, 5), 3, 4))


def _tiled(b: NetworkBuilder) -> str:
    """The heads of queries that share keys are apart."""
    wide = b.op("Expand", b.input("v", 2, 1, 2, DEPTH, KEYS), b.held(np.int64([2, 3, 2, DEPTH, KEYS])))
    return _product(b, b.op("Reshape", wide, b.held(np.int64([2, 6, DEPTH, KEYS]))))


STAYS: dict[str, Build] = {"along the batch": _along_the_batch, "along columns": _along_columns, "apart": _tiled}


@pytest.mark.parametrize("name", STAYS)
def test_other_operands_are_repeated(name: str) -> None:
    b = NetworkBuilder(2)
    net = exact_network(b.model(STAYS[name](b)))
    (problem,) = (p for p, _ in net.problems())
    assert str(problem) == "--matmul 2x6x3x8:2x6x8x20" and any(x.startswith("Expand") for x in lines(net))


def test_a_broadcast_that_another_node_reads_stays() -> None:
    b = NetworkBuilder(2)
    values = _values(b)
    net = exact_network(b.model(_product(b, values), b.op("Abs", values)))
    assert [str(p) for p, _ in net.problems()] == [SHARED["values"][1]]


def test_one_row_of_each_query_reads_the_keys_of_its_group() -> None:
    """A step of a language model that keeps its keys."""
    b = NetworkBuilder(2)
    keys = _repeated(b, b.input("k", 1, 2, KEYS, DEPTH), (1, 2, KEYS, DEPTH), 1)
    values = _repeated(b, b.input("v", 1, 2, KEYS, DEPTH), (1, 2, KEYS, DEPTH), 1)
    scores = b.op("MatMul", b.input("q", 1, 6, 1, DEPTH), b.op("Transpose", keys, perm=(0, 1, 3, 2)))
    y: Any = b.op("MatMul", b.op("Softmax", scores, axis=-1), values)
    net = cs.onnx.compile(b.model(y), threads=1)
    assert [str(p) for p, _ in net.problems()] == ["--matmul 1x2x3x8:1x2x8x20", "--matmul 1x2x3x20:1x2x20x8"]
