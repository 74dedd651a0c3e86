"""Random graphs of bytes, as conversions around operators and as operators on bytes, beside ONNX Runtime."""

from __future__ import annotations

from importlib import import_module
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from drawn_bytes import DrawnBytes, on_bytes
from drawn_graphs import KINDS

import convsmith as cs

runtime: Any = import_module("onnxruntime")
runtime.set_default_logger_severity(4)


def drawn_bytes(seed: int) -> Any:
    """Return a random model of three to nine operators; None if all that were drawn are illegal."""
    g = DrawnBytes(seed)
    g.draw((*KINDS, *[on_bytes] * 10), Random(seed).randint(3, 9))
    return g.model(g.returned)


def expected_of(model: Any, arrays: dict[str, Any]) -> list[Any]:
    """Return the results of ONNX Runtime with its rewrites and without them: it refuses some models in one form."""
    found: list[Any] = []
    levels = runtime.GraphOptimizationLevel
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
        options = runtime.SessionOptions()
        options.graph_optimization_level = level
        try:
            found.append(runtime.InferenceSession(model.SerializeToString(), options).run(None, arrays))
        except Exception as error:
            why = error
    if not found:
        pytest.skip(f"ONNX Runtime: {why}")
    return found


@pytest.mark.sampled(200)
@pytest.mark.parametrize("seed", range(400))
def test_random_bytes_compute_the_same_numbers(seed: int) -> None:
    """Scales are powers of two: conversions are exact, and so are sums, but for some means."""
    model = drawn_bytes(seed)
    if model is None:
        return
    rng = np.random.default_rng(seed)
    sizes = {x.name: [d.dim_value for d in x.type.tensor_type.shape.dim] for x in model.graph.input}
    arrays = {name: rng.integers(-20, 21, shape).astype(np.float32) for name, shape in sizes.items()}
    every = expected_of(model, arrays)
    results = cs.onnx.compile(model, threads=1).run(arrays)
    for output, *ys in zip(model.graph.output, *every):
        found = results[output.name]
        assert (found.shape, found.dtype) == (ys[0].shape, ys[0].dtype)
        away = [np.abs(found.astype(np.float64) - y).max(initial=0) for y in ys]
        assert min(away) <= 1e-6 * np.abs(ys[0].astype(np.float64)).max(initial=0), output.name
