"""`compile`: an ONNX model as one native function."""

from __future__ import annotations

import os
from typing import Any

from convsmith.frontend.numpy_api import thread_count
from convsmith.network.compile import program_of
from convsmith.network.driver import image_of
from convsmith.network.graph import Graph
from convsmith.network.network import Network
from convsmith.onnx.graph import read_graph
from convsmith.onnx.models import Shapes

__all__ = ["compile", "network_of"]


def compile(
    model: str | os.PathLike[str] | bytes | Any, inputs: Shapes | None = None, *, threads: int | None = None
) -> Network:
    """Return the function of the ONNX `model`: a file, the bytes of one, or an `onnx.ModelProto`.

    `inputs` are shapes of inputs by name, for sizes that the model leaves open; an open batch is 1. `threads` defaults
    to CONVSMITH_THREADS, else to the CPUs of this process. UsageError if it is no model, or a size is missing;
    UnsupportedError names the nodes that no kernel computes.
    """
    return network_of(read_graph(model, inputs), threads)


def network_of(graph: Graph, threads: int | None = None) -> Network:
    """Return the function of a graph, compiled for this machine."""
    program = program_of(graph, thread_count(threads))
    return Network(image_of(program), program)
