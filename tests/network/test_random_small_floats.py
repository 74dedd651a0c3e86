"""Random graphs of f16, bf16 and f32 with casts: every result is exact."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from drawn_graphs import KINDS
from drawn_small import DTYPES, DrawnSmall

import convsmith as cs


def drawn_small(seed: int) -> tuple[Any, DrawnSmall]:
    """Return a random model of three to ten operators, and its graph; None if all that were drawn are illegal."""
    g = DrawnSmall(seed)
    g.draw(KINDS[:-1], Random(seed).randint(4, 14))
    return g.model(), g


@pytest.mark.sampled(200)
@pytest.mark.parametrize("seed", range(400))
def test_random_graphs_of_small_floats_are_exact(seed: int) -> None:
    """Sums of Winograd's transforms are exact to the rounding of f32, which none of these numbers shows but zeros."""
    model, g = drawn_small(seed)
    if model is None:
        return
    arrays = {name: g.arrays[name].astype(DTYPES[g.types[name]]) for name in g.inputs}
    results = cs.onnx.compile(model, threads=1).run(arrays)
    for output in model.graph.output:
        found, expected = results[output.name], g.arrays[output.name]
        assert (found.shape, found.dtype) == (expected.shape, DTYPES[g.types[output.name]])
        away = np.abs(found.astype(np.float32) - expected).max(initial=0)
        assert away <= 1e-6 * np.abs(expected).max(initial=0), output.name
