"""Concatenation in place: kernels write their results where a concatenation would copy them to.

A part of a concatenation has the strides of the whole: with channels last, a pixel of the part is followed by the other
channels of the whole. Kernels write, and read, arrays with such strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod

from convsmith.network.graph import Graph, NetworkNode, result_of
from convsmith.network.image import NetworkValue
from convsmith.network.layouts import FIRST, Layouts, layout_of, same_memory, takes_any
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.parts import Part, order_of, tag_within
from convsmith.problem.types import TYPES

__all__ = ["with_parts"]

_IDLE = 16
"""Nodes between the writers of two parts of a concatenation, beyond which a copy of the earlier one costs less than
memory for the rest."""


def with_parts(graph: Graph, layouts: Layouts) -> tuple[Graph, Layouts, dict[str, Part]]:
    """Return the graph without the concatenations that take place in memory, layouts whose parts have the strides of
    their whole, and the parts.

    A concatenation is in place if a kernel can write at least one of its parts. Each other part, such as an input of
    the network, a part of two wholes, or one that is written much earlier than the others, is copied by a node of its
    own.
    """
    parts = _PartsOfWholes(graph, layouts)
    nodes = [made for node in reversed(graph.nodes) for made in reversed([*parts.nodes(node)])]
    changed = replace(graph, nodes=tuple(reversed(nodes)), values={**graph.values, **parts.copies})
    return changed, replace(layouts, values=parts.tags), parts.found


class _PartsOfWholes:
    """Takes the concatenations of a graph apart, the last first: the parts of a part have the strides of its whole."""

    def __init__(self, graph: Graph, layouts: Layouts) -> None:
        self._graph, self._readers, self._makers = graph, graph.readers(), graph.makers()
        self._places = {node.output: n for n, node in enumerate(graph.nodes)}
        self.tags = dict(layouts.values)
        self.found: dict[str, Part] = {}
        self.copies: dict[str, NetworkValue] = {}

    def nodes(self, node: NetworkNode) -> Iterator[NetworkNode]:
        """Yield the nodes that replace a node: copies of parts for a concatenation in place."""
        rows = [*self._rows(node)] if isinstance(node.work, Concat) else []
        names = [name for name, _, _ in rows]
        direct = [names.count(name) == 1 and self._is_written(node, name, tag) for name, tag, _ in rows]
        for n in self._early(rows, direct):
            direct[n] = False
        if not any(direct):
            yield node
            return
        assert isinstance(node.work, Concat)
        for n, ((name, tag, offset), is_direct) in enumerate(zip(rows, direct)):
            part = name if is_direct else f"{name}@{node.output}.{n}"
            if not is_direct:
                value = NetworkValue(part, node.work.shapes[n], node.work.type)
                self.copies[part] = value
                work = Transpose(value.type, value.shape, tuple(range(len(value.shape))))
                yield NetworkNode(work, {"src": name}, part, (f"copy of {name}", *node.names))
            self.tags[part] = tag
            self.found[part] = Part(node.output, offset)

    def _early(self, rows: Sequence[tuple[str, str, int]], direct: Sequence[bool]) -> Sequence[int]:
        """Return the parts of a concatenation that are written so much earlier than the others that the memory of these
        would lie idle, as those of long skip connections are: at most half of the elements that kernels write.
        """
        written = {n: name for n, (name, _, _) in enumerate(rows) if direct[n]}
        places = {n: self._places.get(name, -1) for n, name in written.items()}
        sizes = {n: prod(self._graph.values[name].shape) for n, name in written.items()}
        order = sorted(written, key=lambda n: places[n])
        found: Sequence[int] = ()
        for count in range(1, len(order)):
            gap = places[order[count]] - places[order[count - 1]]
            if gap > _IDLE and 2 * sum(sizes[n] for n in order[:count]) <= sum(sizes[n] for n in order):
                found = order[:count]
        return found

    def _rows(self, node: NetworkNode) -> Iterator[tuple[str, str, int]]:
        """Yield each part of a concatenation with its layout inside the whole, and its offset in bytes."""
        assert isinstance(node.work, Concat)
        whole, axis = self._graph.values[node.output], node.work.axis
        tag = self._tag(node, result_of(node.work).name, node.output)
        strides = layout_of(whole.shape, tag).strides
        sizes = [shape[axis] for shape in node.work.shapes]
        for n, (start, shape) in enumerate(zip(accumulate(sizes, initial=0), node.work.shapes)):
            offset = start * strides[axis] * TYPES[whole.type].bits // 8
            yield node.arguments[f"src_{n}"], tag_within(shape, strides, tag), offset

    def _is_written(self, node: NetworkNode, name: str, tag: str) -> bool:
        """Return whether a kernel writes the part `name` of a concatenation in the layout `tag`, and all other nodes
        read it there.
        """
        maker = self._makers.get(name)
        if maker is None or isinstance(maker.work, Reshape) or name in self._graph.outputs or name in self.found:
            return False
        value, first = self._graph.values[name], self.tags.get(name, FIRST)
        if same_memory(value.shape, first, tag):
            return True
        whole = self._tag(node, result_of(node.work).name, node.output)
        if order_of(value.shape, first) != order_of(value.shape, whole):
            return False
        uses = [(maker, result_of(maker.work).name)]
        others = (reader for reader in self._readers[name] if reader is not node)
        uses += [(reader, array) for reader in others for array, x in reader.arguments.items() if x == name]
        return all(takes_any(user.work, array, value) for user, array in uses)

    def _tag(self, node: NetworkNode, array: str, name: str) -> str:
        """Return the layout of a value that a node reads or computes as an array."""
        is_free = takes_any(node.work, array, self._graph.values[name])
        return self.tags.get(name, FIRST) if is_free else FIRST
