"""Graphs of networks: values, and the nodes that compute them, in an order in which they can run.

A node computes one value by a problem, which is a convolution or a product, or by an operator. The arrays of either are
values of the graph, by name: inputs, constants, or results of other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from convsmith.diag.record import record
from convsmith.network.image import NetworkValue
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import Array
from convsmith.statement.operator import Operator

__all__ = ["Graph", "IntegerConstant", "NetworkNode", "Work", "products_of", "result_of"]

Work: TypeAlias = Problem | Operator


def products_of(work: Work) -> tuple[Problem, ...]:
    """Return the convolutions and products that a work computes: itself, or those of an operator."""
    return (work,) if isinstance(work, Problem) else work.products


def result_of(work: Work) -> Tensor:
    """Return the array that a problem or an operator computes."""
    (result,) = (t for t in work.tensors if t.role != "in")
    return result


@record(frozen=True)
class NetworkNode:
    """A step: `work` computes the value `output` from its `arguments`, values by the names of arrays of the work.

    `names` are the nodes of the model that it computes.
    """

    work: Work
    arguments: Mapping[str, str]
    output: str
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the last node of the model that it computes."""
        return self.names[-1]


@record(frozen=True)
class IntegerConstant:
    """The integers that a constant of floats stands for: it is `(values - point) * scale`, element by element.

    The three arrays have the constant's shape.
    """

    values: Array = field(repr=False)
    scale: Array = field(repr=False)
    point: Array = field(repr=False)

    def moved(self, move: Callable[[Array], Array]) -> IntegerConstant:
        """Return the integers behind the constant with its elements moved."""
        return IntegerConstant(move(self.values), move(self.scale), move(self.point))

    def floats(self) -> Array:
        """Return the constant."""
        values: Any = self.values
        return np.asarray((values.astype(np.int64) - self.point).astype(self.scale.dtype) * self.scale)


@record(frozen=True)
class Graph:
    """A network: its nodes in an order in which they can run, its inputs, its outputs, and constants by name.

    `values` are the shapes and types of all values in the model. The array of a node may have another shape, with the
    same elements in row-major order. `integers` are those behind constants of floats, by name, where they are known.
    `small` are the types, such as bf16, in which the model stores values of f32, by name.
    """

    name: str
    inputs: tuple[NetworkValue, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NetworkNode, ...]
    constants: Mapping[str, Array] = field(repr=False)
    values: Mapping[str, NetworkValue] = field(repr=False)
    integers: Mapping[str, IntegerConstant] = field(default_factory=dict, repr=False)
    small: Mapping[str, str] = field(default_factory=dict, repr=False)

    def nbytes(self, name: str) -> int:
        """Return the bytes of a value."""
        value = self.values[name]
        return prod(value.shape) * TYPES[value.type].bits // 8

    def readers(self) -> dict[str, list[NetworkNode]]:
        """Return the nodes that read each value."""
        found: dict[str, list[NetworkNode]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.arguments.values()):
                found.setdefault(name, []).append(node)
        return found

    def makers(self) -> dict[str, NetworkNode]:
        """Return the node that computes each value."""
        return {node.output: node for node in self.nodes}

    def changed(self, nodes: Sequence[NetworkNode], constants: Mapping[str, Array] | None = None) -> Graph:
        """Return the graph with other nodes, without constants that no node reads."""
        every = self.constants if constants is None else constants
        read = {name for node in nodes for name in node.arguments.values()} | {*self.outputs}
        kept = {name: x for name, x in every.items() if name in read}
        return replace(self, nodes=tuple(nodes), constants=kept)

    def live_nodes(self) -> Iterator[NetworkNode]:
        """Yield the nodes on which an output depends, in order."""
        wanted, kept = {*self.outputs}, []
        for node in reversed(self.nodes):
            if node.output in wanted:
                wanted |= {*node.arguments.values()}
                kept.append(node)
        return reversed(kept)
