"""Networks beside ONNX Runtime, on whole numbers, whose results are exact."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

import convsmith as cs

__all__ = ["exact_network"]


def exact_network(model: Any) -> cs.Network:
    """Return the network of a model, whose results equal ONNX Runtime's, in its own memory and in the caller's."""
    runtime: Any = import_module("onnxruntime")
    net = cs.onnx.compile(model, threads=1)
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in net.inputs.items()}
    expected = runtime.InferenceSession(model.SerializeToString()).run(None, arrays)
    given = {name: np.full(shape, 7, np.float32) for name, shape in net.outputs.items()}
    for results in (net.run(arrays), net.run({**arrays, **given})):
        for name, y in zip(net.outputs, expected):
            np.testing.assert_array_equal(results[name], y)
    return net
