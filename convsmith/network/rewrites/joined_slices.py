"""Slices that a concatenation joins again: it reads their source.

Layers that divide channels, and join the parts with what they compute of one of them, have such slices: their source
can then be written in place.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.slice import Slice

__all__ = ["with_joined_slices"]


def with_joined_slices(graph: Graph) -> Graph:
    """Return the graph whose concatenations read an array in place of all of its slices along their axis, in order.
    A concatenation of the slices alone stays.
    """
    makers, nodes = graph.makers(), list[NetworkNode]()
    for node in graph.nodes:
        work, names = node.work, [*node.arguments.values()]
        if isinstance(work, Concat):
            n = 0
            while n < len(names):
                count = _whole(graph, makers, names[n:], work.axis)
                if 1 < count < len(names):
                    names[n : n + count] = [makers[names[n]].arguments["src"]]
                n += 1
        if isinstance(work, Concat) and len(names) < len(work.shapes):
            shapes = tuple(graph.values[x].shape if x in graph.values else graph.constants[x].shape for x in names)
            arguments = {f"src_{n}": x for n, x in enumerate(names)}
            node = replace(node, work=Concat.of(work.type, shapes, work.axis), arguments=arguments)
        nodes.append(node)
    return graph.changed(nodes)


def _whole(graph: Graph, makers: dict[str, NetworkNode], names: list[str], axis: int) -> int:
    """Return how many of the first values `names` are the slices of an array along `axis`, one after the other; 0 if
    they are not the whole array.
    """
    source, end = "", 0
    for n, name in enumerate(names):
        maker = makers.get(name)
        work = None if maker is None else maker.work
        if maker is None or not isinstance(work, Slice) or (source and maker.arguments["src"] != source):
            return 0
        source = maker.arguments["src"]
        others = [k for k in range(len(work.shape)) if k != axis]
        is_next = work.starts[axis] == end and (work.steps[axis] == 1 or work.sizes[axis] == 1)
        if not is_next or any(work.sizes[k] != work.shape[k] or work.steps[k] != 1 for k in others):
            return 0
        if name not in graph.values or graph.values[name].shape != work.sizes or source not in graph.values:
            return 0
        end += work.sizes[axis]
        if end == work.shape[axis]:
            return n + 1
    return 0
