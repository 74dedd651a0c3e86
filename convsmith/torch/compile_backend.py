"""A backend of `torch.compile`: a graph without gradients runs as native functions, as `optimize` makes them.

In a graph with gradients or symbolic sizes, convolutions run on our operators, and everything else is left to inductor.

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
from convsmith.torch.bound_graph import BoundGraph

__all__ = ["NAME", "compile_graph"]

NAME = "convsmith"
"""The name of the backend."""
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Types of the tensors that convolutions of ours take."""
_STATIC = "_dynamo_static_input_type"
"""The mark of parameters and buffers of modules among the inputs of a graph."""
_OURS = {
    getattr(torch, name): getattr(functional, name)
    for name in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
}
"""Our functions by torch's function; the functions of `torch.nn.functional` are the same objects as those of `torch`.
"""


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Return the compiled graph: native functions, and PyTorch's operators between them, if it records no gradients and
    has known sizes; otherwise its convolutions of floats on the CPU or the GPU run on our kernels.

    `options` are passed to inductor.
    """
    if (made := _as_functions(graph, inputs)) is not None:
        return made
    from torch._inductor.compile_fx import compile_fx

    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in _OURS and all(map(_suits, node.all_input_nodes)):
            node.target = _OURS[node.target]
    graph.recompile()
    compiled: Any = compile_fx(graph, list(inputs), **options)
    return compiled  # type: ignore[no-any-return]


def _as_functions(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """Return the native functions of a graph; None if it has none, records gradients, or has symbolic sizes."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if len(tensors) < len(inputs) or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return None
    placed = [node for node in graph.graph.nodes if node.op == "placeholder"]
    fixed = [n for n, node in enumerate(placed) if _STATIC in node.meta.get("tensor_dict", {})]
    if len(fixed) == len(inputs) or any(not all(isinstance(n, int) for n in x.shape) for x in tensors):
        return None
    made = BoundGraph(graph, tensors, fixed)
    return None if made.is_no_function else made


def _suits(node: fx.Node) -> bool:
    """Return whether the value of `node` is a floating-point tensor on a device of kernels, or not a tensor."""
    value = node.meta.get("example_value")
    return not isinstance(value, torch.Tensor) or (devices.runs_kernels(value.device) and value.dtype in _FLOATS)


if NAME not in list_backends(exclude_tags=()):
    register_backend(compile_graph, name=NAME)  # type: ignore[no-untyped-call,unused-ignore]
