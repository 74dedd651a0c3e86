"""Moves of elements in graphs: reshapes and transposes that follow each other become fewer, or come in another order.

A reshape takes row-major arrays, so a transpose beside an image is written on the image's own dims: with channels last
in memory, it moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from convsmith.network.graph import Graph, NetworkNode, Work
from convsmith.network.image import NetworkValue
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pad import Pad
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.resize import Resize
from convsmith.network.operators.slice import Slice
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul

__all__ = ["with_fewer_moves"]

Shape = tuple[int, ...]


def with_fewer_moves(graph: Graph) -> Graph:
    """Return the graph after these rewrites, for as long as one applies:

    - Operators whose results are their sources disappear: reshapes to the same shape, transposes that leave each dim in
      its place, slices of all elements, pads of none, and resizes to the same sizes.
    - Two reshapes are one, and so are two transposes.
    - A transpose before a reshape that divides dims comes after it, and one after a reshape that joins dims before it.
    - Element-wise steps on one value come before moves, so that they can follow the node that computes it. An operation
      on two values comes before a reshape of a product's result if the other value broadcasts over its dims too.

    Values that several nodes read, and outputs, stay where a rewrite would compute them again. Moves whose results the
    model stores in another type than their sources stay too.
    """
    rewriter = _Moves(graph)
    while rewriter.rewrite():
        pass
    return rewriter.graph


class _Moves:
    """The graph in the making."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._count = 0
        self._makers = dict[str, NetworkNode]()

    def rewrite(self) -> bool:
        """Apply a rewrite wherever it applies, and return whether the graph changed."""
        return self._without_nothing() or self._with_joined()

    def _without_nothing(self) -> bool:
        """Remove moves whose results are their sources, and return whether there were some."""
        graph, renamed = self.graph, dict[str, str]()
        nodes: list[NetworkNode] = []
        for old in graph.nodes:
            node = replace(old, arguments={array: renamed.get(x, x) for array, x in old.arguments.items()})
            if node.output not in graph.outputs and self._is_nothing(node):
                renamed[node.output] = node.arguments["src"]
            else:
                nodes.append(node)
        self.graph = graph.changed(nodes)
        return bool(renamed)

    def _with_joined(self) -> bool:
        """Rewrite pairs of nodes, and return whether there were some."""
        graph, nodes = self.graph, dict[str, NetworkNode]()
        values, readers = dict(graph.values), graph.readers()
        changed, self._makers = False, nodes
        for node in graph.nodes:
            made: Sequence[NetworkNode] | None = None
            for source in [node.arguments[x] for x in ("src", "src_0", "src_1") if x in node.arguments]:
                before = nodes.get(source)
                if before is not None and len(readers[source]) == 1 and source not in graph.outputs:
                    made = self._joined(before, node, values)
                if made is not None:
                    del nodes[source]
                    changed = True
                    break
            for each in made or (node,):
                nodes[each.output] = each
        self.graph = replace(graph.changed(tuple(nodes.values())), values=values)
        return changed

    def _rounds(self, node: NetworkNode) -> bool:
        """Return whether the model stores the result of a move in another type than its source."""
        return self.graph.small.get(node.output) != self.graph.small.get(node.arguments["src"])

    def _is_nothing(self, node: NetworkNode) -> bool:
        """Return whether the result of a node is its source."""
        source, result = self.graph.values.get(node.arguments.get("src", "")), self.graph.values[node.output]
        if source is None or (source.shape, source.type) != (result.shape, result.type):
            return False
        return _keeps_all(node.work) and not self._rounds(node)

    def _joined(
        self, before: NetworkNode, node: NetworkNode, values: dict[str, NetworkValue]
    ) -> Sequence[NetworkNode] | None:
        """Return the nodes that take the place of two, of which the second alone reads the first; None for others."""
        if not _is_move(before) or before.arguments["src"] not in values or self._rounds(before):
            return None
        root, between, result = (values[x] for x in (before.arguments["src"], before.output, node.output))
        names = tuple(dict.fromkeys((*before.names, *node.names)))
        first, second = before.work, node.work
        if isinstance(first, Reshape) and isinstance(second, Reshape):
            return (NetworkNode(second, before.arguments, node.output, names),)
        if isinstance(second, Pointwise):
            return self._stepped(before, node, values, self._is_of_product(root.name))
        if isinstance(first, Transpose) and isinstance(second, Transpose):
            if (first.shape, second.shape) != (root.shape, between.shape):
                return None
            axes = tuple(first.axes[axis] for axis in second.axes)
            return (NetworkNode(Transpose(first.type, first.shape, axes), before.arguments, node.output, names),)
        if isinstance(first, Transpose) and isinstance(second, Reshape) and first.shape == root.shape:
            parts = _parts(between.shape, result.shape)
            if parts is None or not len(between.shape) < len(result.shape) <= _MAX_RANK:
                return None
            places = [parts[first.axes.index(axis)] for axis in range(len(root.shape))]
            shape = tuple(result.shape[x] for own in places for x in own)
            order = [x for own in places for x in own]
            axes = tuple(order.index(x) for x in range(len(order)))
            inner = self._value(root, shape, values)
            return (
                NetworkNode(Reshape(first.type, prod(shape)), before.arguments, inner, before.names),
                NetworkNode(Transpose(first.type, shape, axes), {"src": inner}, node.output, names),
            )
        if isinstance(first, Reshape) and isinstance(second, Transpose) and second.shape == between.shape:
            parts = _parts(between.shape, root.shape)
            if parts is None or not len(between.shape) < len(root.shape) <= _MAX_RANK:
                return None
            axes = tuple(x for axis in second.axes for x in parts[axis])
            shape = tuple(root.shape[axis] for axis in axes)
            inner = self._value(root, shape, values)
            return (
                NetworkNode(Transpose(second.type, root.shape, axes), before.arguments, inner, names),
                NetworkNode(Reshape(second.type, prod(shape)), {"src": inner}, node.output, node.names),
            )
        return None

    def _is_of_product(self, name: str) -> bool:
        """Return whether a convolution or a product computes a value, with element-wise operations behind it."""
        maker = self._makers.get(name)
        while maker is not None and isinstance(maker.work, Pointwise):
            maker = self._makers.get(maker.arguments["src_0"])
        return maker is not None and isinstance(maker.work, Conv | Matmul)

    def _stepped(
        self, before: NetworkNode, node: NetworkNode, values: dict[str, NetworkValue], is_of_product: bool
    ) -> Sequence[NetworkNode] | None:
        """Return a move after the element-wise steps that followed it; None if they read another value too, and that
        has no place before the move, or the source of the move is no result of a product.
        """
        work = node.work
        assert isinstance(work, Pointwise)
        root, result = values[before.arguments["src"]], values[node.output]
        if root.type != result.type or prod(root.shape) != prod(result.shape):
            return None
        shape = root.shape or (1,)
        shapes, arguments = [shape], {"src_0": root.name}
        if work.binary:
            names = [node.arguments[f"src_{n}"] for n in range(2)]
            at = names.index(before.output)
            whole, other = work.shapes[at], work.shapes[1 - at]
            is_moved = is_of_product and isinstance(before.work, Reshape)
            operand = _before_reshape(other, whole, shape) if is_moved else None
            if operand is None or names[1 - at] == before.output or whole != work.result.shape:
                return None
            shapes.insert(1 - at, operand)
            arguments = {f"src_{at}": root.name, f"src_{1 - at}": names[1 - at]}
        inner = self._value(root, root.shape, values)
        return (
            NetworkNode(replace(work, shapes=tuple(shapes)), arguments, inner, node.names),
            NetworkNode(before.work, {"src": inner}, node.output, before.names),
        )

    def _value(self, like: NetworkValue, shape: Shape, values: dict[str, NetworkValue]) -> str:
        """Add a value of a shape, and return its name."""
        while (name := f"{like.name}.moved{self._count}") in values:
            self._count += 1
        values[name] = NetworkValue(name, shape, like.type)
        return name


def _keeps_all(work: Work) -> bool:
    """Return whether an operator, whose result has the shape of its source, leaves each element in its place."""
    if isinstance(work, Transpose):
        return work.axes == tuple(range(len(work.axes)))
    if isinstance(work, Slice):
        return work.sizes == work.shape and all(step == 1 or size == 1 for step, size in zip(work.steps, work.sizes))
    if isinstance(work, Pad):
        return not any((*work.before, *work.after))
    return isinstance(work, Reshape) or (isinstance(work, Resize) and not work.resized)


def _is_move(node: NetworkNode) -> bool:
    return isinstance(node.work, Reshape | Transpose)


def _before_reshape(operand: Shape, whole: Shape, root: Shape) -> Shape | None:
    """Return the shape in which an array that has the shape ``operand`` and broadcasts to ``whole`` broadcasts to
    ``root``, which was reshaped to ``whole``; None if it has no such shape.
    """
    padded = (*(1,) * (len(whole) - len(operand)), *operand)
    old, new = ([n for n, size in enumerate(x) if size > 1] for x in (whole, root))
    made, i, j = [1] * len(root), 0, 0
    if not prod(root):
        return None
    while i < len(old):  # the fewest dims of both shapes that have the same number of elements
        first, start, read, written = i, j, whole[old[i]], root[new[j]]
        while read != written:
            if read < written:
                i += 1
                read *= whole[old[i]]
            else:
                j += 1
                written *= root[new[j]]
        i, j = i + 1, j + 1
        sizes = [padded[n] for n in old[first:i]]
        if sizes == [whole[n] for n in old[first:i]]:
            for n in new[start:j]:
                made[n] = root[n]
        elif max(sizes) > 1:
            return None
    return tuple(made)


_MAX_RANK = 6
"""Largest number of dims of an array that a transpose takes."""


def _parts(whole: Shape, divided: Shape) -> list[list[int]] | None:
    """Return, for each dim of an array of shape ``whole``, the dims of ``divided`` whose product it is; None if
    ``divided`` does not divide its dims.
    """
    found: list[list[int]] = []
    at = 0
    for size in whole:
        end = at + (size == 1 and divided[at : at + 1] == (1,))
        while prod(divided[at:end]) < size and end < len(divided):
            end += 1
        if prod(divided[at:end]) != size:
            return None
        found.append([*range(at, end)])
        at = end
    rest = [*range(at, len(divided))]
    return None if prod(divided[at:]) != 1 or not found else [*found[:-1], [*found[-1], *rest]]
