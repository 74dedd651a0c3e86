"""Finds means and gates between the layers that run on our kernels, so that one segment contains them all."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx, nn
from torch.nn import functional

from convsmith.torch.chains import Chained
from convsmith.torch.channel_layers import TYPES, GateLayer, MeanLayer
from convsmith.torch.fold import Folded, class_of, form_of, module_of
from convsmith.torch.layouts import has_one_order

__all__ = ["LayerBetween", "Taken", "with_layers_between"]

_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_POOL_FUNCTIONS = (
    functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d,
)  # fmt: skip
_PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")


@dataclass(eq=False)
class LayerBetween:
    """A mean or a gate in a graph: `layer` computes the result of the last of `nodes` from `source` and, for a gate,
    `residual`.
    """

    layer: MeanLayer | GateLayer
    source: fx.Node
    residual: fx.Node | None
    nodes: list[fx.Node]

    @property
    def last(self) -> fx.Node:
        """The node whose value is the layer's result."""
        return self.nodes[-1]


Taken: TypeAlias = Folded | Chained | LayerBetween
"""A part of a graph that runs on our kernels."""


def with_layers_between(traced: fx.GraphModule, ours: Sequence[Folded | Chained]) -> list[Taken]:
    """Return `ours` extended by means of their results, and by products of their results with gates that they compute.
    """
    found: list[Taken] = list(ours)
    by_last: dict[object, Taken] = {x.last: x for x in ours}
    inner = {node for x in ours for node in x.nodes}
    for node in traced.graph.nodes:
        if node in inner:
            continue
        made = _mean(traced, node, by_last) or _gate(node, by_last)
        if made is not None:
            found.append(made)
            by_last[made.last] = made
    return found


def _mean(traced: fx.GraphModule, node: fx.Node, by_last: Mapping[object, Taken]) -> LayerBetween | None:
    """Return the layer of a node that is the mean over all pixels of a result, followed by a flattening."""
    module: Any = module_of(traced, node)
    if class_of(module) in _POOLS:
        size = module.output_size
    elif node.op == "call_function" and node.target in _POOL_FUNCTIONS:
        size = node.args[1] if len(node.args) > 1 else node.kwargs.get("output_size")
    else:
        return None
    source: Any = node.args[0] if node.args else None
    form = form_of(source)
    if set(size if isinstance(size, tuple | list) else (size,)) != {1} or form is None or form.dtype not in TYPES:
        return None
    if source not in by_last or not by_last[source].layer.orders[1] or len(form.shape) < 3:
        return None
    nodes = [node]
    if len(node.users) == 1 and _flattens(traced, user := next(iter(node.users))):
        nodes.append(user)
    layer = MeanLayer(str(node.target) if module is not None else node.name, form.dtype, len(nodes) == 1)
    return LayerBetween(layer, source, None, nodes)


def _flattens(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node joins all dims but the first one."""
    module: Any = module_of(traced, node)
    if class_of(module) is nn.Flatten:
        return (module.start_dim, module.end_dim) == (1, -1)
    is_call = node.target == "flatten" if node.op == "call_method" else node.target is torch.flatten
    return is_call and node.args[1:] == (1,) and not node.kwargs


def _gate(node: fx.Node, by_last: Mapping[object, Taken]) -> LayerBetween | None:
    """Return the layer of a node that multiplies each channel of a result by an element of another result."""
    if node.target not in _PRODUCTS or len(node.args) != 2 or node.kwargs:
        return None
    one_way: list[Any] = list(node.args)
    for source, gate in (one_way, one_way[::-1]):
        one, two, form = form_of(source), form_of(gate), form_of(node)
        if one is None or two is None or one != form or one.dtype not in TYPES or two.dtype != one.dtype:
            continue
        pixels = len(one.shape) - 2
        fits = pixels > 0 and two.shape == (*one.shape[:2], *[1] * pixels) != one.shape
        if fits and source in by_last and gate in by_last and by_last[source].layer.orders[1]:
            first = node.args[0] is source and len(by_last[source].last.users) == 1
            if (first or node.target not in (operator.imul, "mul_")) and has_one_order(two.shape):
                return LayerBetween(GateLayer(node.name, one.dtype), source, gate, [node])
    return None
