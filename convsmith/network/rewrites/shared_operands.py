"""Products whose second operands are repeated: the matrices that read one operand become the rows of one matrix.

Several heads of queries have the keys and values of one head in grouped-query attention. Their rows follow each other
in memory, so that one product with more rows reads the keys where they are.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.image import NetworkValue
from convsmith.network.operators.expand import Expand
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.rewrites.added_moves import add_transposed
from convsmith.network.rewrites.repeated_views import RepeatedView
from convsmith.network.rewrites.strided_views import StridedView
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import PER_TENSOR, BinaryPostOp, Eltwise

__all__ = ["with_shared_operands"]


def with_shared_operands(graph: Graph) -> Graph:
    """Return the graph in which products read an operand that a broadcast repeats for several matrices once, as the
    operand of one matrix with all of their rows. Broadcasts that no node reads any more are gone.
    """
    makers, values, nodes = graph.makers(), dict(graph.values), list[NetworkNode]()
    for node in graph.nodes:
        found = _shared(graph, node, makers) if isinstance(node.work, Matmul) else None
        if found is None:
            nodes.append(node)
            continue
        work, source, view = found
        name = _added(graph, node, source, view, values, nodes)
        nodes.append(replace(node, work=work, arguments={**node.arguments, "wei": name}))
    if len(values) == len(graph.values) and nodes == [*graph.nodes]:
        return graph
    whole = replace(graph, values=values).changed(nodes)
    return whole.changed(tuple(whole.live_nodes()))


def _shared(
    graph: Graph, node: NetworkNode, makers: dict[str, NetworkNode]
) -> tuple[Matmul, str, StridedView] | None:  # fmt: skip
    """Return the product with fewer matrices of more rows, and the second operand as a view of a value in memory that
    has each of its matrices once; None if the operand repeats none.
    """
    work, name, moves = node.work, node.arguments["wei"], list[NetworkNode]()
    assert isinstance(work, Matmul)
    if work.rank < 3 or work.src[:-2] != work.product_shape[:-2] or not _keeps_rows(work):
        return None
    while (maker := makers.get(name)) is not None and isinstance(maker.work, Expand | Reshape | Transpose):
        moves, name = [*moves, maker], maker.arguments["src"]
        if isinstance(maker.work, Expand):
            break
    if not moves or not isinstance(moves[-1].work, Expand) or name not in graph.values:
        return None
    array: RepeatedView | None = RepeatedView(StridedView.dense(graph.values[name].shape))
    for maker in reversed(moves):
        array = array and array.after(maker.work, graph.values[maker.output].shape)
    array = array and array.reshaped(work.wei)
    if array is None or array.times == 1 or prod(array.shape[array.axis + 1 : -2]) > 1 or array.axis >= work.rank - 2:
        return None
    batch = tuple(size // array.times if n == array.axis else size for n, size in enumerate(work.src[:-2]))
    src = (*batch, work.src[-2] * array.times, work.src[-1])
    return replace(work, src=src, wei=(*batch, *work.wei[-2:])), name, array.view


def _keeps_rows(work: Matmul) -> bool:
    """Return whether no bias and no step of a product differs from row to row, but for sums of whole arrays."""
    masks = [op.mask for op in work.post_ops if isinstance(op, BinaryPostOp)]
    others = [op for op in work.post_ops if not isinstance(op, BinaryPostOp | Eltwise)]
    channel = 1 << work.channels
    return not others and work.bia_mask in (None, 0, channel) and all(x in (0, channel, PER_TENSOR) for x in masks)


def _added(
    graph: Graph, node: NetworkNode, source: str, view: StridedView, values: dict[str, NetworkValue],
    nodes: list[NetworkNode],
) -> str:  # fmt: skip
    """Add the nodes that compute a view of the whole value `source` as a row-major array, and return its name."""
    order = sorted(range(len(view.shape)), key=lambda n: (-view.strides[n], view.shape[n] > 1))
    if [n for n in order if view.shape[n] > 1] == [n for n in range(len(order)) if view.shape[n] > 1]:
        return source
    in_memory = [view.shape[n] for n in order]
    axes = [order.index(n) for n in range(len(order))]
    kind = graph.values[source].type
    return add_transposed(source, kind, in_memory, axes, f"{node.output}.shared", (node.name,), values, nodes)
