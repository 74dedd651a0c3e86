"""Whether other libraries add up products of bytes exactly: without VNNI, x86 adds pairs of them with saturation."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest

__all__ = ["skip_unless_exact"]


@cache
def _are_exact() -> bool:
    """Whether ONNX Runtime's sums of eight products of the largest bytes are right on this CPU."""
    runtime, networks = import_module("onnxruntime"), import_module("onnx_networks")
    a, b = np.full((4, 8), 255, np.uint8), np.full((8, 16), 127, np.int8)
    net: Any = networks.NetworkBuilder(0)
    model = net.model(net.op("Cast", net.op("MatMulInteger", net.held(a), net.held(b)), to=1))
    (y,) = runtime.InferenceSession(model.SerializeToString()).run(None, {})
    return bool((y == 8 * 255 * 127).all())


def skip_unless_exact() -> None:
    """Skip the test of a library whose sums of bytes saturate on this CPU."""
    if not _are_exact():
        pytest.skip("without VNNI, libraries add up pairs of products of bytes with saturation")
