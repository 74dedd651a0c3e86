"""Random graphs on arrays of up to five dims beside ONNX Runtime: convolutions of every kind, computed weights and
biases, values that are outputs and are read, values that several nodes read, operands that occur twice.
"""

from __future__ import annotations

from importlib import import_module
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from drawn_graphs import KINDS, DrawnGraph

import convsmith as cs

runtime: Any = import_module("onnxruntime")
runtime.set_default_logger_severity(4)


def drawn_images(seed: int) -> Any:
    """Return a random model of three to ten operators; None if all that were drawn are illegal."""
    g = DrawnGraph(seed)
    g.draw(KINDS, Random(seed).randint(3, 10))
    return g.model()


@pytest.mark.sampled(200)
@pytest.mark.parametrize("seed", range(400))
def test_random_images_compute_the_same_numbers(seed: int) -> None:
    """Operands are whole numbers. Sums are exact below 2**24, but for those of Winograd's transforms."""
    model = drawn_images(seed)
    if model is None:
        return
    rng = np.random.default_rng(seed)
    sizes = {x.name: [d.dim_value for d in x.type.tensor_type.shape.dim] for x in model.graph.input}
    arrays = {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in sizes.items()}
    try:
        expected = runtime.InferenceSession(model.SerializeToString()).run(None, arrays)
    except Exception as error:  # what ONNX's inference takes and the runtime does not
        pytest.skip(f"ONNX Runtime: {error}")
    results = cs.onnx.compile(model, threads=1).run(arrays)
    for output, y in zip(model.graph.output, expected):
        found = results[output.name]
        assert found.shape == y.shape
        assert np.abs(found - y).max(initial=0) <= 1e-5 * np.abs(y).max(initial=0), output.name
