"""Operators of aten, which programs of `torch.export` call, as the functions of torch that other networks call."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

__all__ = ["with_functions"]

_SAME = {
    "conv1d": functional.conv1d, "conv2d": functional.conv2d, "conv3d": functional.conv3d,
    "conv_transpose1d": functional.conv_transpose1d, "conv_transpose2d": functional.conv_transpose2d,
    "conv_transpose3d": functional.conv_transpose3d, "linear": functional.linear, "relu": functional.relu,
    "relu6": functional.relu6, "hardtanh": functional.hardtanh, "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid, "silu": functional.silu, "mish": functional.mish, "gelu": functional.gelu,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "leaky_relu": functional.leaky_relu, "add": torch.add,
    "mul": torch.mul, "flatten": torch.flatten, "dropout": functional.dropout, "view": torch.reshape,
    "adaptive_avg_pool1d": functional.adaptive_avg_pool1d, "adaptive_avg_pool2d": functional.adaptive_avg_pool2d,
    "adaptive_avg_pool3d": functional.adaptive_avg_pool3d,
}  # fmt: skip
"""Functions with the same arguments as the operator of that name."""
_IN_PLACE: dict[str, tuple[Any, dict[str, bool]]] = {
    **{
        name: (_SAME[name.rstrip("_")], {"inplace": True})
        for name in ("relu_", "relu6_", "hardtanh_", "hardswish_", "hardsigmoid_", "silu_", "mish_", "leaky_relu_")
    },
    "add_": (operator.iadd, {}),
    "mul_": (operator.imul, {}),
}
"""Functions, with arguments, that do what the operator of that name does to its first argument."""
_OVERLOADS = ("default", "input", "padding", "Tensor", "using_ints")
"""Overloads whose arguments are those of the functions."""


def with_functions(traced: fx.GraphModule) -> None:
    """Replace calls of aten operators in a graph by calls of equivalent functions of torch."""
    for node in traced.graph.nodes:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
            continue
        name = target._schema.name.partition("::")[2]
        if target._overloadname not in _OVERLOADS:
            continue
        if name in _SAME:
            node.target = _SAME[name]
        elif name in _IN_PLACE:
            node.target, more = _IN_PLACE[name]
            node.kwargs = {**node.kwargs, **more}
        elif name == "batch_norm" and len(node.args) == 9:
            x, weight, bias, mean, variance, *options = node.args[:8]
            node.target, node.args = functional.batch_norm, (x, mean, variance, weight, bias, *options)
