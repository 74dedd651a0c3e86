"""Norms of groups of channels, which models state by reshapes, are one operator on the image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_networks import NetworkBuilder

import convsmith as cs
from convsmith.network.reference import reference_outputs
from convsmith.onnx.graph import read_graph

SHAPE, GROUPS = (2, 12, 6, 5), 3


def _norm(b: NetworkBuilder, x: str, *shape: int, first: tuple[int, ...] = (2, GROUPS, -1)) -> str:
    """The norm of `x` behind a reshape to `first`, reshaped to `shape`."""
    groups = b.op("Reshape", x, b.held(np.int64(first)))
    y = b.op("InstanceNormalization", groups, b.weights(first[1]), b.weights(first[1]), epsilon=1e-3)
    return b.op("Reshape", y, b.held(np.int64(shape)))


def _scaled(b: NetworkBuilder, x: str, *shape: int) -> str:
    return b.op("Add", b.op("Mul", x, b.weights(*shape)), b.weights(*shape))


FORMS: dict[str, tuple[int, Callable[[NetworkBuilder, str], str]]] = {
    "scaled channels": (0, lambda b, x: _scaled(b, _norm(b, x, *SHAPE), 12, 1, 1)),
    "a step behind": (0, lambda b, x: b.op("Sigmoid", _scaled(b, _norm(b, x, *SHAPE), 1, 12, 1, 1))),
    "no factors": (0, lambda b, x: _norm(b, x, *SHAPE)),
    "rows of pixels": (0, lambda b, x: _scaled(b, _norm(b, x, 2, 12, 30), 12, 1)),
    "factors of pixels": (1, lambda b, x: b.op("Mul", _norm(b, x, *SHAPE), b.weights(6, 5))),
}
"""By form: the number of element-wise operators that stay."""


def _checked(b: NetworkBuilder, *outputs: str) -> list[str]:
    """The works of a network, whose outputs are close to the references of the nodes of its model."""
    model = b.model(*outputs)
    net, graph = cs.onnx.compile(model, threads=1), read_graph(model)
    arrays = {x.name: np.random.default_rng(0).standard_normal(x.shape).astype(np.float32) for x in graph.inputs}
    found = net.run(arrays)
    for name, y in reference_outputs(graph, arrays).items():
        np.testing.assert_allclose(found[name], y, rtol=1e-5, atol=1e-5)
    return [step.work for step in net.image.steps]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_one_operator_on_the_image(form: str) -> None:
    b = NetworkBuilder(1)
    left, state = FORMS[form]
    works = _checked(b, state(b, b.input("x", *SHAPE)))
    (norm,) = (work for work in works if work.startswith("GroupNorm"))
    assert "shape=(2, 12, " in norm and "groups=3" in norm
    assert sum(work.startswith("Pointwise") for work in works) == left and len(works) == 1 + left


def test_a_norm_between_convolutions_reads_channels_last() -> None:
    b = NetworkBuilder(2)
    x = b.op("Relu", b.conv(b.input("x", 2, 16, 6, 5), 16, 12, 1))
    y = b.op("Sigmoid", _scaled(b, _norm(b, x, *SHAPE), 12, 1, 1))
    works = _checked(b, b.conv(y, 12, 16, 1))
    (norm,) = (work for work in works if work.startswith("GroupNorm"))
    assert "tags=('axb', 'axb')" in norm
    assert not any(work.startswith("Transpose") and "12" in work for work in works)


def test_a_result_that_is_an_output_and_other_batches_stay() -> None:
    b = NetworkBuilder(3)
    x = b.input("x", *SHAPE)
    y = _norm(b, x, *SHAPE)
    works = _checked(b, y, b.op("Mul", y, b.weights(12, 1, 1)))
    assert sum(work.startswith("Pointwise") for work in works) == 1
    b = NetworkBuilder(3)
    works = _checked(b, _norm(b, b.input("x", *SHAPE), *SHAPE, first=(1, 4, -1)))
    assert any("shape=(1, 4, 180)" in work for work in works)
