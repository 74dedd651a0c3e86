"""`compile`: an ONNX model as one native function."""

from __future__ import annotations

import os
from typing import Any

from convsmith.frontend.numpy_api import thread_count
from convsmith.network.compile import program_of
from convsmith.network.driver import image_of
from convsmith.network.network import Network
from convsmith.onnx.graph import read_graph
from convsmith.onnx.models import Shapes

__all__ = ["compile"]


def compile(
    model: str | os.PathLike[str] | bytes | Any, inputs: Shapes | None = None, *, threads: int | None = None
) -> Network:
    """Return the function of the ONNX `model`: a file, the bytes of one, or an `onnx.ModelProto`.

    `inputs` are shapes of inputs by name, for sizes that the model leaves open; an open batch is 1. `threads` defaults
    to CONVSMITH_THREADS, else to the CPUs of this process. UsageError if it is no model, or a size is missing;
    UnsupportedError names the nodes that no kernel computes.
    """
    program = program_of(read_graph(model, inputs), thread_count(threads))
    return Network(image_of(program), program)
