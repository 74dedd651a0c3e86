"""Concatenations of values that an earlier one joins already: they read its result.

In a dense block, each layer reads the concatenation of all results before it. Each of these concatenations is then part
of the next one, and all of them can be written in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.concat import Concat

__all__ = ["with_joined_concats"]


def with_joined_concats(graph: Graph) -> Graph:
    """Return the graph whose concatenations read an earlier one along the same axis in place of all of its values,
    where these follow each other in its order. The one with the most values is read.
    """
    known, nodes = dict[tuple[int, tuple[str, ...]], str](), list[NetworkNode]()
    for node in graph.nodes:
        work = node.work
        if isinstance(work, Concat) and _is_whole(graph, node, work):
            names = tuple(node.arguments.values())
            joined = _joined(names, {values: name for (axis, values), name in known.items() if axis == work.axis})
            known.setdefault((work.axis, names), node.output)
            if joined != names:
                shapes = tuple(graph.values[x].shape if x in graph.values else graph.constants[x].shape for x in joined)
                arguments = {f"src_{n}": x for n, x in enumerate(joined)}
                node = replace(node, work=Concat.of(work.type, shapes, work.axis), arguments=arguments)
        nodes.append(node)
    return graph.changed(nodes)


def _is_whole(graph: Graph, node: NetworkNode, work: Concat) -> bool:
    """Return whether the arrays of a concatenation have the shapes of its values."""
    shapes = (graph.values[x].shape if x in graph.values else graph.constants[x].shape for x in node.arguments.values())
    return (*shapes, graph.values[node.output].shape) == (*work.shapes, work.result.shape)


def _joined(names: tuple[str, ...], known: Mapping[tuple[str, ...], str]) -> Sequence[str]:
    """Return the values `names`, those that a concatenation joins replaced by its result."""
    found, n = list[str](), 0
    while n < len(names):
        counts = (count for count in range(len(names) - n, 1, -1) if names[n : n + count] in known)
        count = next((x for x in counts if x < len(names)), 1)
        found.append(known[names[n : n + count]] if count > 1 else names[n])
        n += count
    return tuple(found)
