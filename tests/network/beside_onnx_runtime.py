"""Networks of float32 beside ONNX Runtime, on small whole numbers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

import convsmith as cs

__all__ = ["check", "exact_network", "expected", "inputs", "lines"]


def inputs(net: cs.Network, seed: int = 0, low: int = -3) -> dict[str, Any]:
    """Return whole numbers from `low` to 3 for every input of the network, by name."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(low, 4, shape).astype(np.float32) for name, shape in net.inputs.items()}


def expected(model: Any, arrays: dict[str, Any]) -> list[Any]:
    """Return what ONNX Runtime computes, on one thread: it waits for those that it starts."""
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    found: list[Any] = runtime.InferenceSession(model.SerializeToString(), options).run(None, arrays)
    return found


def check(model: Any, exact: bool = False, seed: int = 0, **options: Any) -> cs.Network:
    """Compile a model, and compare its outputs with ONNX Runtime's: equal, or within 1e-5 of the largest."""
    net = cs.onnx.compile(model, **{"threads": 1, **options})
    arrays = inputs(net, seed)
    results = net.run(arrays)
    for name, y in zip(net.outputs, expected(model, arrays)):
        assert results[name].shape == y.shape and results[name].dtype == y.dtype
        if exact:
            np.testing.assert_array_equal(results[name], y)
        else:
            assert np.abs(results[name] - y).max() <= 1e-5 * np.abs(y).max(), name
    return net


def exact_network(model: Any) -> cs.Network:
    """Return the network of a model, whose results equal ONNX Runtime's, in its own memory and in the caller's."""
    net = cs.onnx.compile(model, threads=1)
    arrays = inputs(net)
    given = {name: np.full(shape, 7, np.float32) for name, shape in net.outputs.items()}
    wanted = expected(model, arrays)
    for results in (net.run(arrays), net.run({**arrays, **given})):
        for name, y in zip(net.outputs, wanted):
            np.testing.assert_array_equal(results[name], y)
    return net


def lines(net: cs.Network) -> list[str]:
    """Return what each step of the network computes."""
    return [step.work for step in net.image.steps]
