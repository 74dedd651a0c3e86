"""Concatenations whose parts are written in place: results, steps, and what must stay a copy."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network
from onnx_networks import NetworkBuilder

import convsmith as cs
from convsmith.network.placement.concat_in_place import with_parts
from convsmith.network.placement.layouts import FIRST, LAST, Layouts
from convsmith.network.placement.parts import Part
from convsmith.onnx.graph import read_graph

Build = Callable[[NetworkBuilder, str], Any]


def _copied(net: cs.Network) -> list[str]:
    """The steps that run for the concatenations of a network: "part" for each part that is copied, or "whole"."""
    steps = [step for step in net.image.steps if step.names[-1].startswith("Concat")]
    return ["whole" if step.work.startswith("Concat") else "part" for step in steps]


def _built(build: Build, batch: int = 2) -> cs.Network:
    b = NetworkBuilder(3)
    found = build(b, b.input("x", batch, 32, 6, 5))
    return exact_network(b.model(*(found if isinstance(found, tuple) else (found,))))


def _after(b: NetworkBuilder, x: str, channels: int) -> str:
    """A convolution, so that the value before it has its channels last."""
    return b.conv(x, channels, 8, 3)


def _dense(b: NetworkBuilder, x: str) -> str:
    """Each layer reads all results before it, as in DenseNet."""
    x = b.conv(x, 32, 32, 1)
    for n in range(1, 4):
        x = b.op("Concat", x, b.conv(b.op("Relu", x), 32 * n, 32, 3), axis=1)
    return _after(b, x, 128)


def _dense_lists(b: NetworkBuilder, x: str) -> str:
    """The same, where each layer joins all results before it anew."""
    found = [b.conv(x, 32, 32, 1)]
    for n in range(1, 4):
        whole = b.op("Concat", *found, axis=1) if n > 1 else found[0]
        found.append(b.conv(b.op("Relu", whole), 32 * n, 32, 3))
    return _after(b, b.op("Concat", *found, axis=1), 128)


def _tokens(b: NetworkBuilder, x: str) -> str:
    """The pixels of a convolution's result as rows."""
    rows = b.op("Reshape", b.conv(x, 32, 24, 1), b.held(np.int64([2, 24, 30])))
    return b.op("Transpose", rows, perm=[0, 2, 1])


def _joined_rows(b: NetworkBuilder, x: str, columns: int) -> str:
    """Products of all pixels, as images that are concatenated, as in the decoder of SegFormer."""
    parts = []
    for n in range(2):
        rows = b.op("MatMul", _tokens(b, x), b.weights(24, columns + n))
        image = b.op("Reshape", b.op("Transpose", rows, perm=[0, 2, 1]), b.held(np.int64([2, columns + n, 6, 5])))
        parts.append(image)
    return b.conv(b.op("Concat", *parts, axis=1), 2 * columns + 1, 8, 1)


IN_PLACE: dict[str, Build] = {
    "two convolutions": lambda b, x: _after(b, b.op("Concat", b.conv(x, 32, 64, 3), b.conv(x, 32, 32, 1), axis=1), 96),
    "kept for later": lambda b, x: _after(
        b, b.op("Concat", y := b.conv(x, 32, 32, 3), b.op("Relu", b.conv(b.op("Relu", y), 32, 32, 3)), axis=1), 64
    ),
    "a pool and a step": lambda b, x: _after(
        b, b.op("Concat", b.op("MaxPool", y := b.conv(x, 32, 32, 1), kernel_shape=[1, 1]), b.op("Abs", y), axis=1), 64
    ),
    "a sum": lambda b, x: _after(
        b, b.op("Concat", y := b.conv(x, 32, 32, 1), b.op("Add", b.conv(y, 32, 32, 3), y), axis=1), 64
    ),
    "along the batch": lambda b, x: _after(b, b.op("Concat", b.conv(x, 32, 32, 1), b.conv(x, 32, 32, 3), axis=0), 32),
    "along rows": lambda b, x: _after(b, b.op("Concat", b.conv(x, 32, 32, 1), b.conv(x, 32, 32, 3), axis=2), 32),
    "any channels": lambda b, x: _after(
        b, b.op("Concat", b.conv(x, 32, 5, 1), b.op("Relu", y := b.conv(x, 32, 8, 3)), y, axis=1), 21
    ),
    "dense": _dense, "dense lists": _dense_lists,
    "reshaped": lambda b, x: b.op("Concat", *(b.op("Flatten", b.op("Relu", x)) for _ in range(2)), axis=1),
    "rows of pixels": lambda b, x: _joined_rows(b, x, 16),
    "tokens of an image": lambda b, x: b.op("Concat", _tokens(b, x), b.op("Abs", _tokens(b, x)), axis=1),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", IN_PLACE)
def test_kernels_write_their_part(name: str) -> None:
    assert _copied(_built(IN_PLACE[name])) == []


def test_matrices_are_parts_of_rows() -> None:
    b = NetworkBuilder(4)
    x = b.input("x", 4, 32)
    y = b.op("Concat", b.op("MatMul", x, b.weights(32, 32)), b.op("MatMul", x, b.weights(32, 32)), axis=0)
    assert _copied(exact_network(b.model(y))) == []


def test_products_write_columns_of_a_whole() -> None:
    b = NetworkBuilder(8)
    x = b.input("x", 4, 32)
    y = b.op("Concat", *(b.op("Relu", b.op("MatMul", x, b.weights(32, n))) for n in (24, 9, 16)), axis=1)
    net = exact_network(b.model(b.op("MatMul", y, b.weights(49, 8))))
    assert _copied(net) == [] and [str(p) for p, _ in net.problems()][1].startswith("--matmul --dtag=a:4:49_b:9:1")


def test_rows_that_another_node_reads_are_copied() -> None:
    b = NetworkBuilder(9)
    x = b.input("x", 2, 32, 6, 5)
    rows = b.op("MatMul", _tokens(b, x), b.weights(24, 16))
    image = b.op("Reshape", b.op("Transpose", rows, perm=[0, 2, 1]), b.held(np.int64([2, 16, 6, 5])))
    y = b.conv(b.op("Concat", image, b.conv(x, 32, 8, 1), axis=1), 24, 8, 1)
    net = exact_network(b.model(y, b.op("MatMul", rows, b.weights(16, 4))))
    assert [str(p) for p, _ in net.problems()][1:3] == ["--matmul 60x24:24x16", "--matmul 60x16:16x4"]


COPIED: dict[str, Build] = {
    "an input": lambda b, x: _after(b, b.op("Concat", b.conv(x, 32, 32, 1), x, axis=1), 64),
    "twice": lambda b, x: _after(b, b.op("Concat", y := b.conv(x, 32, 32, 1), b.op("Abs", y), y, axis=1), 96),
    "an output": lambda b, x: (
        _after(b, b.op("Concat", y := b.conv(x, 32, 32, 1), b.conv(x, 32, 32, 3), axis=1), 64), y
    ),
    "of two": lambda b, x: (
        _after(b, b.op("Concat", y := b.conv(x, 32, 32, 1), z := b.conv(x, 32, 32, 3), axis=1), 64),
        _after(b, b.op("Concat", z, b.op("Abs", y), axis=1), 64),
    ),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COPIED)
def test_other_parts_are_copied(name: str) -> None:
    copies = _copied(_built(COPIED[name]))
    assert copies and {*copies} == {"part"}


STAYS: dict[str, Build] = {
    "inputs alone": lambda b, x: b.op("Concat", x, x, axis=1),
    "reshaped inputs": lambda b, x: b.op("Concat", b.op("Flatten", x), b.op("Flatten", x), axis=1),
}


@pytest.mark.parametrize("name", STAYS)
def test_concatenations_that_stay(name: str) -> None:
    assert _copied(_built(STAYS[name])) == ["whole"]


def test_a_whole_whose_part_is_read_later_is_not_overwritten() -> None:
    b = NetworkBuilder(5)
    x = b.input("x", 2, 32, 6, 6)
    y, other = b.conv(x, 32, 32, 1), b.conv(x, 32, 64, 3)
    whole = b.op("Concat", y, b.op("Relu", b.conv(y, 32, 32, 3)), axis=1)
    added = b.op("Add", b.conv(other, 64, 64, 3), whole)
    exact_network(b.model(b.conv(added, 64, 8, 3), b.conv(y, 32, 8, 3)))


def test_a_whole_that_is_read_for_the_last_time_is_overwritten() -> None:
    def summed(b: NetworkBuilder, x: str) -> str:
        whole = b.op("Concat", b.conv(x, 32, 32, 1), b.conv(b.op("Abs", x), 32, 64, 1), axis=1)
        return b.conv(b.op("Mul", b.op("Add", whole, b.held(np.float32(1))), b.weights(6, 5)), 96, 8, 1)

    net = _built(summed)
    assert _copied(net) == [] and net.image.workspace < 2 * (2 * 96 * 6 * 5 * 4)


@pytest.mark.parametrize(("channels", "layers", "copies"), [(32, 18, ["part"]), (32, 3, []), (96, 18, [])])
def test_an_early_part_is_copied_if_it_is_the_smaller_one(channels: int, layers: int, copies: list[str]) -> None:
    """A long skip connection leaves the memory of the other part to the layers between."""

    def skipped(b: NetworkBuilder, x: str) -> str:
        y = first = b.conv(x, 32, channels, 3)
        for _ in range(layers):
            y = b.op("MaxPool", y, kernel_shape=[2, 2], pads=[0, 0, 1, 1])
        return _after(b, b.op("Concat", first, b.conv(y, channels, 64, 1), axis=1), channels + 64)

    assert _copied(_built(skipped)) == copies


def test_a_part_may_be_a_constant() -> None:
    net = _built(lambda b, x: _after(b, b.op("Concat", b.conv(x, 32, 32, 3), b.weights(2, 32, 6, 5), axis=1), 64))
    assert _copied(net) == ["part"]


def test_a_part_may_have_another_shape_too() -> None:
    b = NetworkBuilder(6)
    x = b.input("x", 4, 32)
    y, z = (b.op("MatMul", x, b.weights(32, 32)) for _ in range(2))
    turned = b.op("Abs", b.op("Reshape", z, b.held(np.int64([2, 64]))))
    exact_network(b.model(b.op("Concat", y, z, axis=0), turned))


def test_parts_keep_the_order_of_their_dims() -> None:
    b = NetworkBuilder(7)
    x = b.input("x", 2, 32, 6, 6)
    one, two = b.conv(x, 32, 32, 1), b.conv(x, 32, 32, 3)
    whole = b.op("Concat", one, two, axis=1)
    graph = read_graph(b.model(b.op("Relu", whole)).SerializeToString())
    _, layouts, parts = with_parts(graph, Layouts({one: FIRST, two: LAST, whole: LAST}))
    assert one not in parts and parts[two] == Part(whole, 128) and layouts.values[one] == FIRST
    assert layouts.values[two] == "a:2:2304_c:6:384_d:6:64_b:32:1"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(12))
def test_random_concatenations(seed: int) -> None:
    r, b = Random(seed), NetworkBuilder(seed)
    values = [(b.input("x", r.choice((1, 2)), 32, 4, 6), 32)]
    for _ in range(r.randint(5, 9)):
        (x, channels), (y, more) = r.choice(values[-3:]), r.choice(values)
        kind = r.choice(("conv", "conv", "Concat", "Concat", "Relu", "Add", "Transpose"))
        if kind == "conv":
            made = b.conv(x, channels, count := r.choice((32, 32, 7, 12)), r.choice((1, 3))), count
        elif kind == "Concat" and channels + more <= 256:
            made = b.op("Concat", x, y, axis=1), channels + more
        elif kind == "Add" and channels == more:
            made = b.op("Add", x, y), channels
        elif kind == "Transpose":
            made = b.op("Transpose", b.op("Transpose", x, perm=[0, 1, 3, 2]), perm=[0, 1, 3, 2]), channels
        else:
            made = b.op("Clip", x, b.held(np.float32(-1)), b.held(np.float32(1))), channels
        values.append(made)
    exact_network(b.model(*dict.fromkeys([values[-1][0], r.choice(values[1:])[0]])))
