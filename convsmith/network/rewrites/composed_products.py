"""Products of products: a convolution without taps behind another product becomes one product with composed weights.

Decoders project the channels of an image twice without a function in between, where the first product has few inputs:
one product of both matrices of weights has fewer multiply-adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from convsmith.machine.base import Machine
from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.placement.layouts import LAST
from convsmith.network.rewrites.added_moves import add_transposed
from convsmith.network.rewrites.resized_products import is_product_of_pixels
from convsmith.network.rewrites.strided_views import StridedView, after_move
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.tune.compile import default_cycles

__all__ = ["with_composed_products"]


def _are_held(node: NetworkNode, constants: Mapping[str, Any]) -> bool:
    """Return whether the weights and the bias of a node are constants."""
    return all(x in constants for array, x in node.arguments.items() if array in ("wei", "bia"))


class _InnerProduct(NamedTuple):
    """A product whose result, moved to an image, a convolution reads; ``weights`` of shape (inputs, channels)."""

    node: NetworkNode
    weights: Any
    bias: Any


def with_composed_products(graph: Graph, machine: Machine, threads: int = 1) -> Graph:
    """Return the graph in which a convolution without taps computes the product before it too, where the model expects
    that kernels of ``machine`` take fewer cycles.
    """
    makers, readers = graph.makers(), graph.readers()
    values, constants, nodes = dict(graph.values), dict(graph.constants), list[NetworkNode]()
    for node in graph.nodes:
        is_plain = is_product_of_pixels(node.work) and _are_held(node, constants)
        inner = _inner(graph, node, makers, readers) if is_plain else None
        if inner is None or not _pays(inner, node, machine, threads):
            nodes.append(node)
            continue
        weights: Any = constants[node.arguments["wei"]]
        bias: Any = constants[node.arguments["bia"]] if "bia" in node.arguments else 0
        work = node.work
        assert isinstance(work, Conv)
        square = weights.reshape(work.oc, work.ic).astype(np.float64)
        names = {array: f"{node.output}.composed.{array}" for array in ("wei", "bia")}
        made = replace(work, ic=inner.weights.shape[0], dir="FWD_B", bia_dt=work.dt[2])
        constants[names["wei"]] = (square @ inner.weights.T).astype(weights.dtype).reshape(made.wei_shape)
        constants[names["bia"]] = (square @ inner.bias + np.reshape(bias, -1)).astype(weights.dtype)
        source = inner.node.arguments["src"]
        if isinstance(inner.node.work, Matmul):
            last = (work.mb, *work.i, made.ic)
            prefix, axes = f"{node.output}.composed", _channels_second(len(last))
            source = add_transposed(source, work.dt[0], last, axes, prefix, inner.node.names, values, nodes)
        names_of_both = tuple(dict.fromkeys((*inner.node.names, *node.names)))
        nodes.append(NetworkNode(made, {**node.arguments, **names, "src": source}, node.output, names_of_both))
    if len(constants) == len(graph.constants):
        return graph
    whole = replace(graph, values=values).changed(nodes, constants)
    return whole.changed(tuple(whole.live_nodes()))


def _inner(
    graph: Graph, node: NetworkNode, makers: dict[str, NetworkNode], readers: dict[str, list[NetworkNode]]
) -> _InnerProduct | None:  # fmt: skip
    """Return the product whose result a convolution alone reads as its source, behind moves; None if there is none."""
    conv, name, moves = node.work, node.arguments["src"], list[NetworkNode]()
    assert isinstance(conv, Conv)
    while (maker := makers.get(name)) is not None:
        if len(readers[name]) > 1 or name in graph.outputs or name in graph.small:
            return None
        if not isinstance(maker.work, Reshape | Transpose):
            break
        moves, name = [*moves, maker], maker.arguments["src"]
    if maker is None or not isinstance(maker.work, Conv | Matmul) or maker.work.post_ops or maker.work.dt != conv.dt:
        return None
    work, held = maker.work, graph.constants
    weights: Any = held.get(maker.arguments["wei"])
    bias: Any = held.get(maker.arguments["bia"]) if "bia" in maker.arguments else np.zeros(1)
    if weights is None or bias is None:
        return None
    if isinstance(work, Conv):
        if moves or not is_product_of_pixels(work):
            return None
        weights = weights.reshape(work.oc, work.ic).T
    elif prod(work.wei[:-2]) > 1 or work.bia_mask not in (None, 1 << work.rank - 1):
        return None
    elif not _is_of_pixels(graph, moves, name, (conv.mb, conv.ic, *conv.i)):
        return None
    weights = weights.reshape(-1, conv.ic).astype(np.float64)
    return _InnerProduct(maker, weights, np.broadcast_to(bias.reshape(-1), conv.ic).astype(np.float64))


def _is_of_pixels(graph: Graph, moves: Sequence[NetworkNode], name: str, image: tuple[int, ...]) -> bool:
    """Return whether ``moves``, the last first, make an ``image`` of the value ``name``, each of whose rows holds the
    channels of a pixel, in the order of the pixels.
    """
    view: StridedView | None = StridedView.dense(graph.values[name].shape)
    for move in reversed(moves):
        view = view and after_move(view, move.work, graph.values[move.output].shape)
    view = view and view.reshaped(image)
    rows = StridedView.dense((image[0], *image[2:], image[1])).transposed(_channels_second(len(image)))
    return view is not None and all(
        size == 1 or one == two for size, one, two in zip(image, view.strides, rows.strides)
    )  # fmt: skip


def _channels_second(rank: int) -> tuple[int, ...]:
    """Return the axes of the transpose of an array with channels last to one with channels second."""
    return 0, rank - 1, *range(1, rank - 1)


def _pays(inner: _InnerProduct, node: NetworkNode, machine: Machine, threads: int) -> bool:
    """Return whether one product takes fewer cycles than two."""
    conv, first = node.work, inner.node.work
    assert isinstance(conv, Conv) and isinstance(first, Conv | Matmul)
    last = replace(conv, stag=LAST, dtag=LAST)
    composed = replace(last, ic=inner.weights.shape[0])
    if composed.flops_dense > first.flops_dense + last.flops_dense:
        return False
    before = replace(first, stag=LAST, dtag=LAST) if isinstance(first, Conv) else first
    apart = default_cycles(before, machine, threads) + default_cycles(last, machine, threads)
    return default_cycles(composed, machine, threads) < apart
