"""Concatenation in place: kernels write their results where a concatenation would copy them to.

A part of a concatenation has the strides of the whole: with channels last, a pixel of the part is followed by the other
channels of the whole. Kernels write, and read, arrays with such strides. Where the elements of a result have strides in
the memory of the part, moves between its kernel and the concatenation disappear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod

from convsmith.network.graph import Graph, NetworkNode, result_of
from convsmith.network.image import NetworkValue
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.placement.layouts import FIRST, Layouts, layout_of, same_memory, takes_any
from convsmith.network.placement.moved_results import MovedResult, result_behind_moves
from convsmith.network.placement.parts import Part, order_of, tag_within
from convsmith.problem.matmul import Matmul
from convsmith.problem.types import TYPES

__all__ = ["with_parts"]

_IDLE = 16
"""Nodes between the writers of two parts of a concatenation, beyond which a copy of the earlier one costs less than
memory for the rest."""


def with_parts(graph: Graph, layouts: Layouts) -> tuple[Graph, Layouts, dict[str, Part]]:
    """Return the graph without the concatenations that take place in memory, layouts whose parts have the strides of
    their whole, and the parts.

    A concatenation is in place if a kernel can write at least one of its parts, itself or in place of moves after it.
    Each other part, such as an input of the network, a part of two wholes, or one that is written much earlier than the
    others, is copied by a node of its own.
    """
    parts = _PartsOfWholes(graph, layouts)
    nodes = [made for node in reversed(graph.nodes) for made in reversed([*parts.nodes(node)])]
    changed = replace(graph, nodes=tuple(reversed(nodes)), values={**graph.values, **parts.copies})
    return changed, replace(layouts, values=parts.tags), parts.found


class _PartsOfWholes:
    """Takes the concatenations of a graph apart, the last first: the parts of a part have the strides of its whole."""

    def __init__(self, graph: Graph, layouts: Layouts) -> None:
        self._graph, self._readers, self._makers = graph, graph.readers(), graph.makers()
        self._layouts, self._moved, self._works = layouts, set[str](), dict[str, Matmul]()
        self._places = {node.output: n for n, node in enumerate(graph.nodes)}
        self.tags = dict(layouts.values)
        self.found: dict[str, Part] = {}
        self.copies: dict[str, NetworkValue] = {}

    def nodes(self, node: NetworkNode) -> Iterator[NetworkNode]:
        """Yield the nodes that replace a node: none for a move of a result that is written in place, and copies of
        parts for a concatenation in place.
        """
        if node.output in self._moved:
            return
        rows = [*self._rows(node)] if isinstance(node.work, Concat) else []
        names = [name for name, _, _ in rows]
        behind = [self._behind_moves(name, tag) if names.count(name) == 1 else None for name, tag, _ in rows]
        direct = [
            result is not None or (names.count(name) == 1 and self._is_written(node, name, tag))
            for (name, tag, _), result in zip(rows, behind)
        ]
        written = {n: result.node.output if (result := behind[n]) else names[n] for n, own in enumerate(direct) if own}
        for n in self._early(written):
            direct[n] = False
        if not any(direct):
            yield replace(node, work=self._works.get(node.output, node.work))
            return
        assert isinstance(node.work, Concat)
        for n, ((name, tag, offset), result, is_direct) in enumerate(zip(rows, behind, direct)):
            part = name if is_direct else f"{name}@{node.output}.{n}"
            if is_direct and result is not None:
                part, tag = result.node.output, self._put(result)
            elif not is_direct:
                value = NetworkValue(part, node.work.shapes[n], node.work.type)
                self.copies[part] = value
                work = Transpose(value.type, value.shape, tuple(range(len(value.shape))))
                yield NetworkNode(work, {"src": name}, part, (f"copy of {name}", *node.names))
            self.tags[part] = tag
            self.found[part] = Part(node.output, offset)

    def _behind_moves(self, name: str, tag: str) -> MovedResult | None:
        """Return the result that a product, or a kernel in place of moves after it, writes as the value `name` in the
        layout `tag`.
        """
        maker = self._makers.get(name)
        if maker is None or not isinstance(maker.work, Matmul | Reshape | Transpose) or len(self._readers[name]) > 1:
            return None
        strides = layout_of(self._graph.values[name].shape, tag).strides
        result = result_behind_moves(self._graph, name, strides, self.tags)
        is_free = result is not None and result.node.output not in {*self.found, *self._layouts.writes}
        return result if is_free and name not in self._graph.outputs else None

    def _put(self, result: MovedResult) -> str:
        """Let a kernel write its result in place, and return the layout of its value, whose strides a product has of
        its own.
        """
        self._moved |= result.moved
        work = result.node.work
        if not isinstance(work, Matmul):
            return result.tag
        if result.tag != FIRST:
            self._works[result.node.output] = replace(work, dtag=result.tag)
        return FIRST

    def _early(self, written: Mapping[int, str]) -> Sequence[int]:
        """Return the parts of a concatenation that are written so much earlier than the others that the memory of these
        would lie idle, as those of long skip connections are: at most half of the elements that kernels write.

        `written` are the values that kernels write, by the number of the part.
        """
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
