"""Places of the values of a graph: in memory of the caller, or in the workspace, where results may take the place of
values that no later node reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from convsmith.network.graph import Graph, NetworkNode, result_of
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.placement.memory import Life
from convsmith.network.placement.parts import Part, home_of
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import BinaryPostOp, SumPostOp
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import Operator

__all__ = ["Placed", "placed"]


class Placed(NamedTuple):
    """The `nodes` for which a kernel runs, the value that names the memory of each value, with the offset there, and
    the lifetimes, in steps, of the values of the workspace.
    """

    nodes: tuple[NetworkNode, ...]
    homes: Mapping[str, Part]
    lives: Mapping[str, Life]


def placed(graph: Graph, parts: Mapping[str, Part], replaces: bool = True) -> Placed:
    """Return the places of the values of `graph`, whose nodes have their layouts, and of which some are `parts` of
    others.

    A reshape, or a transpose that keeps the order of elements, shares the memory of its source, and a sum replaces an
    addend in its layout that no later node reads. If it `replaces`, the result of an operator takes the memory of a
    source in the same way: compilers for GPUs take the arrays of a kernel for disjoint.
    """
    sets = _Sets(graph, parts, replaces)
    nodes = [made for n, node in enumerate(graph.nodes) if (made := sets.place(n, node)) is not None]
    lives: dict[str, Life] = {}
    outside = {*graph.outputs, *(x.name for x in graph.inputs)}
    homes = {name: sets.home(name) for name in graph.values}
    for step, node in enumerate(nodes):
        for name in (*node.arguments.values(), node.output):
            if name not in homes or homes[name].whole in outside:
                continue
            home, nbytes = homes[name].whole, graph.nbytes(home_of(name, parts).whole)
            known = lives.get(home, Life(nbytes, step, step))
            lives[home] = Life(max(known.nbytes, nbytes), known.first, step)
    return Placed(tuple(nodes), homes, lives)


def _is_alike(old: Tensor, new: Tensor) -> bool:
    """Return whether elements of both arrays are at the same places in memory."""
    return (old.dtype, old.shape, old.layout.strides) == (new.dtype, new.shape, new.layout.strides)


class _Sets:
    """Values that share memory."""

    def __init__(self, graph: Graph, parts: Mapping[str, Part], replaces: bool) -> None:
        self._graph, self._parts, self._replaces = graph, parts, replaces
        self._parts_of: dict[str, list[str]] = {}
        for name in parts:
            self._parts_of.setdefault(home_of(name, parts).whole, []).append(name)
        self._inputs, self._outputs = {x.name for x in graph.inputs}, {*graph.outputs}
        self._members: dict[str, list[str]] = {name: [name] for name in graph.values}
        self._last = {name: n for n, node in enumerate(graph.nodes) for name in node.arguments.values()}

    def home(self, name: str) -> Part:
        """Return the value that names the memory of a value, an input or an output if it is that of the caller, and
        the offset there.
        """
        whole, offset = home_of(name, self._parts)
        members = self._members[whole]
        return Part(next((x for x in members if x in self._inputs or x in self._outputs), members[0]), offset)

    def place(self, n: int, node: NetworkNode) -> NetworkNode | None:
        """Return node `n` as it runs; None if its result is the memory of its source."""
        is_view = isinstance(node.work, Reshape) or (isinstance(node.work, Transpose) and node.work.keeps_order)
        if is_view and self._join(node.arguments["src"], node.output):
            return None
        if isinstance(node.work, Conv | Matmul):
            return self._in_place(n, node)
        if isinstance(node.work, Operator) and self._replaces:
            self._replace(n, node, node.work)
        return node

    def _replace(self, n: int, node: NetworkNode, work: Operator) -> None:
        """Let the result of an operator take the memory of a source that no later node reads, if there is one."""
        for t in work.inputs:
            if t.name in work.replaceable and _is_alike(t, work.result):
                source = node.arguments[t.name]
                others = [x for array, x in node.arguments.items() if array != t.name]
                if self._is_over(n, source, others) and self._join(source, node.output):
                    return

    def _join(self, one: str, two: str) -> bool:
        """Let two values share memory, and return whether they can: memory of the caller holds one value."""
        if one in self._graph.constants or one in self._parts or two in self._parts:
            return False
        members = [*self._members[one], *self._members[two]]
        if len({x for x in members if x in self._inputs or x in self._outputs}) > 1:
            return False
        for x in members:
            self._members[x] = members
        return True

    def _in_place(self, n: int, node: NetworkNode) -> NetworkNode:
        """Return a node whose result replaces a value that it adds, if no later node reads that."""
        for position, op in enumerate(node.work.post_ops):  # type: ignore[union-attr]
            name = f"post_op_{position}"
            if not isinstance(op, BinaryPostOp) or op.alg != "add" or name not in node.arguments:
                continue
            addend = node.arguments[name]
            others = [x for array, x in node.arguments.items() if array != name]
            old = next(t for t in node.work.tensors if t.name == name)
            if not _is_alike(old, result_of(node.work)):
                continue
            if self._is_over(n, addend, others) and self._join(addend, node.output):
                post_ops = tuple(SumPostOp() if k == position else x for k, x in enumerate(node.work.post_ops))  # type: ignore[union-attr]
                arguments = {array: x for array, x in node.arguments.items() if array != name}
                return replace(node, work=replace(node.work, post_ops=post_ops), arguments=arguments)  # type: ignore[type-var]
        return node

    def _is_over(self, n: int, name: str, others: Sequence[str]) -> bool:
        """Return whether the memory of a value may be overwritten in node `n`, which reads the values `others` too."""
        if name in self._graph.constants:
            return False
        members = self._members[name]
        held = {*members, *(part for x in members for part in self._parts_of.get(x, ()))}
        is_outside = any(x in self._inputs or x in self._outputs or x in self._parts for x in members)
        return not is_outside and all(self._last.get(x, -1) <= n for x in held) and not held & {*others}
