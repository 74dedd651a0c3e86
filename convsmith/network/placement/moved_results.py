"""Results behind moves: kernels that write a result where reshapes and transposes after them would move it to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from convsmith.network.graph import Graph, NetworkNode, result_of
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.placement.layouts import FIRST, layout_of, takes_any
from convsmith.network.placement.parts import order_of, tag_within
from convsmith.network.rewrites.strided_views import StridedView
from convsmith.problem.matmul import Matmul

__all__ = ["MovedResult", "result_behind_moves"]


class MovedResult(NamedTuple):
    """A `node` that can write its result in the layout `tag`, which makes the moves that compute `moved` needless."""

    node: NetworkNode
    tag: str
    moved: frozenset[str]


def result_behind_moves(
    graph: Graph, name: str, strides: Sequence[int], tags: Mapping[str, str]
) -> MovedResult | None:  # fmt: skip
    """Return the node whose result becomes the value ``name``, of ``strides``, by moves alone, and the layout of its
    result in the memory of that value; None if no layout has that memory, or a value before a move has other readers.

    A product writes rows with any distance between them, whether moves follow or not. Convolutions and operators keep
    the order of dims that their results have in memory by the layouts ``tags``.
    """
    makers, readers, moved = graph.makers(), graph.readers(), set[str]()
    view: StridedView | None = StridedView(graph.values[name].shape, tuple(strides))
    node = makers.get(name)
    while node is not None and view is not None and isinstance(node.work, Reshape | Transpose):
        moved.add(name)
        if isinstance(node.work, Transpose):
            view, axes = view.reshaped(node.work.result.shape), node.work.axes
            view = view and view.transposed([axes.index(n) for n in range(len(axes))])
        name = node.arguments["src"]
        if name not in graph.values or name in graph.outputs or len(readers[name]) != 1:
            return None
        view, node = view and view.reshaped(graph.values[name].shape), makers.get(name)
    if node is None or view is None or (view := view.reshaped(result_of(node.work).shape)) is None:
        return None
    tag = tag_within(view.shape, _around_ones(view), FIRST)
    return MovedResult(node, tag, frozenset(moved)) if _writes(graph, node, tag, tags.get(name, FIRST)) else None


def _around_ones(view: StridedView) -> list[int]:
    """Return the strides of a view, whose dims of one element come first in memory."""
    whole = max(size * stride for size, stride in zip(view.shape, view.strides))
    return [whole if size == 1 else stride for size, stride in zip(view.shape, view.strides)]


def _writes(graph: Graph, node: NetworkNode, tag: str, before: str) -> bool:
    """Return whether a node can write its result in the layout `tag`, where it would have the layout `before`."""
    result, value = result_of(node.work), graph.values[node.output]
    if isinstance(node.work, Matmul):
        rows = layout_of(result.shape, tag)
        return order_of(result.shape, tag) == order_of(result.shape, FIRST) and rows.strides[-1] == 1
    return takes_any(node.work, result.name, value) and order_of(value.shape, before) == order_of(value.shape, tag)
