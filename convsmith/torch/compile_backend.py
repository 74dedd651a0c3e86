"""A backend of `torch.compile`: convolutions of a graph run on our operators, everything else is left to inductor.

    torch.compile(model, backend="convsmith")

The installed package names the backend to torch by an entry point; importing this module does so too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.registry import list_backends, register_backend

from convsmith.torch import devices, functional
from convsmith.torch.layers import DTYPES

__all__ = ["NAME", "compile_graph"]

NAME = "convsmith"
"""The name of the backend."""
_OURS = {
    getattr(torch, name): getattr(functional, name)
    for name in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
}
"""Our functions by torch's function; the functions of `torch.nn.functional` are the same objects as those of `torch`.
"""


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Return the compiled graph, whose convolutions of floats on the CPU or the GPU run on our kernels.

    `options` are passed to inductor.
    """
    from torch._inductor.compile_fx import compile_fx

    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in _OURS and all(map(_suits, node.all_input_nodes)):
            node.target = _OURS[node.target]
    graph.recompile()
    compiled: Any = compile_fx(graph, list(inputs), **options)
    return compiled  # type: ignore[no-any-return]


def _suits(node: fx.Node) -> bool:
    """Return whether the value of `node` is a floating-point tensor on a device of kernels, or not a tensor."""
    value = node.meta.get("example_value")
    return not isinstance(value, torch.Tensor) or (devices.runs_kernels(value.device) and value.dtype in DTYPES)


if NAME not in list_backends(exclude_tags=()):
    register_backend(compile_graph, name=NAME)  # type: ignore[no-untyped-call,unused-ignore]
