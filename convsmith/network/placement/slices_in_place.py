"""Slices in place: nodes read a part of an array where it lies, and no kernel copies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.slice import Slice
from convsmith.network.placement.layouts import FIRST, Layouts, layout_of, takes_any
from convsmith.network.placement.parts import Part, order_of, tag_within
from convsmith.problem.types import TYPES

__all__ = ["with_slices"]


def with_slices(
    graph: Graph, layouts: Layouts, parts: Mapping[str, Part]
) -> tuple[Graph, Layouts, dict[str, Part]]:  # fmt: skip
    """Return the graph without the slices that nodes read in place, layouts in which they have the strides of their
    sources, and the `parts` with them.

    A slice is in place if its elements follow each other in the source, and all nodes that read it take any layout. An
    output of the network, and a part of a concatenation, are copied.
    """
    readers, tags, found = graph.readers(), dict(layouts.values), dict(parts)
    nodes: list[NetworkNode] = []
    for node in graph.nodes:
        name, source = node.output, node.arguments.get("src", "")
        work = node.work
        if not isinstance(work, Slice) or name in found or not _is_read_in_place(graph, node, work, readers, tags):
            nodes.append(node)
            continue
        tag = tags.get(source, FIRST)
        strides = layout_of(work.shape, tag).strides
        start = sum(n * stride for n, stride in zip(work.starts, strides))
        tags[name] = tag_within(work.sizes, strides, tag)
        found[name] = Part(source, start * TYPES[work.type].bits // 8)
    return replace(graph, nodes=tuple(nodes)), replace(layouts, values=tags), found


def _is_read_in_place(
    graph: Graph, node: NetworkNode, work: Slice, readers: Mapping[str, Sequence[NetworkNode]], tags: Mapping[str, str]
) -> bool:  # fmt: skip
    """Return whether all nodes that read a slice take it with the strides of its source."""
    name, source = node.output, graph.values.get(node.arguments["src"])
    value = graph.values[name]
    if source is None or (source.shape, value.shape) != (work.shape, work.sizes) or name in graph.outputs:
        return False
    if any(step != 1 for step, size in zip(work.steps, work.sizes) if size > 1):
        return False
    if order_of(value.shape, tags.get(name, FIRST)) != order_of(value.shape, tags.get(source.name, FIRST)):
        return False
    uses = ((reader, array) for reader in readers.get(name, ()) for array, x in reader.arguments.items() if x == name)
    return all(takes_any(reader.work, array, value) for reader, array in uses)
