"""The order of nodes: products that make a large value small run before the other readers of the large value.

A model lists the convolution of a shortcut behind the layers beside it, so that the source of both stays alive during
these layers. If the convolution runs first, its smaller result stays alive instead.
"""

from __future__ import annotations

from convsmith.network.graph import Graph, NetworkNode
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul

__all__ = ["with_early_products"]


def with_early_products(graph: Graph) -> Graph:
    """Return the graph with convolutions and products directly behind the node that computes their source, where the
    bytes that are alive, summed over all steps, become fewer; the graph itself if there are none.
    """
    numbers = {node.output: n for n, node in enumerate(graph.nodes)}
    last = dict[str, list[int]]()
    for n, node in enumerate(graph.nodes):
        for name in dict.fromkeys(node.arguments.values()):
            last.setdefault(name, []).append(n)
    early, is_changed = dict[int, list[NetworkNode]](), False
    for n, node in enumerate(graph.nodes):
        source = _source(graph, node)
        if source not in numbers or source in graph.outputs:
            continue
        made, freed = numbers[source], max((k for k in last[source] if k != n), default=numbers[source])
        if graph.nbytes(source) * (n - freed) > graph.nbytes(node.output) * (n - made):
            early.setdefault(made, []).append(node)
            is_changed |= n - made > 1
    if not is_changed:
        return graph
    moved = {node.output for nodes in early.values() for node in nodes}
    order = list[NetworkNode]()

    def add(node: NetworkNode) -> None:
        order.append(node)
        for follower in early.get(numbers[node.output], ()):
            add(follower)

    for node in graph.nodes:
        if node.output not in moved:
            add(node)
    return graph.changed(order)


def _source(graph: Graph, node: NetworkNode) -> str:
    """Return the value that a convolution or a product reads beside constants; "" if it is no such node."""
    read = {x for x in node.arguments.values() if x not in graph.constants}
    return read.pop() if isinstance(node.work, Conv | Matmul) and len(read) == 1 else ""
