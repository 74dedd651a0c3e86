"""`GraphBuilder`: a graph of a network in the making, node by node in an order in which they can run.

The readers of ONNX models and of PyTorch programs fill one, through the operators of `onnx/graph_*.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import ConvsmithError, UnsupportedError, UsageError
from convsmith.diag.printable import printable
from convsmith.network.graph import Graph, IntegerConstant, NetworkNode, Work, result_of
from convsmith.network.image import OUTSIDE, NetworkValue
from convsmith.network.operators.move import Reshape
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import Array
from convsmith.statement.operator import Operator

__all__ = ["NO_KERNEL", "TYPES_OF_VALUES", "GraphBuilder", "unavailable"]

TYPES_OF_VALUES = {
    np.dtype(np.float32): "f32", np.dtype(np.float64): "f64", np.dtype(np.uint8): "u8", np.dtype(np.int8): "s8",
    np.dtype(np.int32): "s32", np.dtype(np.int64): "s32", np.dtype(np.bool_): "u8",
}  # fmt: skip
"""Types of values. Whole numbers of 64 bits are computed in 32, and truth values are bytes of 0 and 1."""
_NARROWED: dict[Any, Any] = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.bool_): np.dtype(np.uint8)}
"""Types of constants that kernels read as others."""
NO_KERNEL = "no kernel computes it"
"""The reason why a node of an unknown operator cannot be read."""
_LISTED = 5
"""Maximum number of nodes that an error lists."""


class GraphBuilder:
    """The graph of a model called `name`: its `values`, `constants`, `nodes`, and the `integers` behind constants.

    `taken` are the names of the values that the model computes; `small` are the types in which it stores values of f32.
    """

    def __init__(self, name: str, constants: Mapping[str, Array], taken: Iterable[str]) -> None:
        self.name, self.constants, self._names = name, dict(constants), {*taken}
        self.values, self.nodes = dict[str, NetworkValue](), list[NetworkNode]()
        self.integers: dict[str, IntegerConstant] = {}
        self.small: dict[str, str] = {}
        self._inputs: list[NetworkValue] = []

    def input(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Add an input of the network."""
        outside = str(dtype) if str(dtype) in OUTSIDE else ""
        self.values[name] = NetworkValue(name, shape, TYPES_OF_VALUES.get(dtype, str(dtype)), outside)
        self._inputs.append(self.values[name])

    def graph(self, outputs: Sequence[str], outside: Mapping[str, np.dtype[Any]] | None = None) -> Graph:
        """Return the graph with these outputs, whose arrays have the types `outside` for callers, as far as kernels can
        compute them. UnsupportedError if one is no result of a node, or an output twice.
        """
        computed = {node.output for node in self.nodes}
        for n, name in enumerate(outputs):
            if name not in computed or name in outputs[:n]:
                kind = "an output twice" if name in computed else "a constant, an input, or computed by no node"
                raise UnsupportedError(
                    f"{self.name}: output {printable(name)} is {kind}; available are outputs that nodes compute, once "
                    "each", code="output",
                )  # fmt: skip
        for name, dtype in (outside or {}).items():
            if OUTSIDE.get(str(dtype)) == self.values[name].type:
                self.values[name] = replace(self.values[name], outside=str(dtype))
        nodes = tuple(self.nodes)
        return Graph(
            self.name, tuple(self._inputs), tuple(outputs), nodes, self.constants, self.values, self.integers,
            self.small,
        )  # fmt: skip

    def copy_constant(self, name: str) -> None:
        """Add a node that copies a constant to the value of that name, which the network can return."""
        value, held = self.value(name), self.fresh(name)
        x = self.constants.pop(name)
        self.constants[held] = _narrowed(name, x) if x.dtype in _NARROWED else x
        if name in self.integers:
            self.integers[held] = self.integers.pop(name)
        self.nodes = [
            replace(node, arguments={array: held if x == name else x for array, x in node.arguments.items()})
            for node in self.nodes
        ]
        self.values[name] = value
        self.nodes.append(NetworkNode(Reshape(value.type, prod(value.shape)), {"src": held}, name, (name,)))

    def value(self, name: str) -> NetworkValue:
        """Return a value by name. UsageError if no node before computes it, UnsupportedError for other data types."""
        if name in self.constants and name not in self.values:
            x = self.constants[name]
            return NetworkValue(name, x.shape, TYPES_OF_VALUES.get(x.dtype, str(x.dtype)))
        if name not in self.values:
            raise UsageError(
                f"{printable(name)} is computed by no node before; legal are values in order", code="order"
            )
        found = self.values[name]
        if found.type not in TYPES:
            raise UnsupportedError(
                f"{printable(name)} has elements of {found.type}; available are {', '.join(map(str, TYPES_OF_VALUES))}",
                code="dtype",
            )
        return found

    def rename(self, name: str, new: str) -> None:
        """Give the result of a node another name. No node reads it yet."""
        value = self.values.pop(name)
        self.values[new] = replace(value, name=new)
        if name in self.small:
            self.small[new] = self.small.pop(name)
        self.nodes = [replace(node, output=new) if node.output == name else node for node in self.nodes]

    def numpy_of(self, type_: str) -> np.dtype[Any]:
        """Return numpy's type of elements of a type."""
        return TYPES[type_].numpy

    def reserve(self, names: Iterable[str]) -> None:
        """Keep `names` from values that get fresh ones."""
        self._names.update(names)

    def fresh(self, near: str) -> str:
        """Return a name that no value has."""
        number = 1
        while f"{near}.{number}" in self._names or f"{near}.{number}" in self.constants:
            number += 1
        self._names.add(f"{near}.{number}")
        return f"{near}.{number}"

    def add(self, work: Work, arguments: Mapping[str, str], output: str, shape: Sequence[int] | None, name: str) -> str:
        """Add a node, and the constants that its operator has of its own."""
        result, own = result_of(work), dict(arguments)
        for array_name, x in getattr(work, "constants", {}).items():
            own[array_name] = f"{output}.{array_name}"
            self.constants[own[array_name]] = x
        whole = result.shape if shape is None else tuple(shape)
        if 0 in whole:
            raise UnsupportedError(f"its output {whole} has no elements; available are outputs with some", code="empty")
        if isinstance(work, Operator) and all(x in self.constants for x in own.values()):
            arrays = [self.constants[own[t.name]].reshape(t.shape) for t in work.inputs]
            self.constants[output] = np.asarray(work.reference(*arrays)).reshape(whole)
            return output
        for x in own.values():
            if x in self.constants and self.constants[x].dtype in _NARROWED:
                self.constants[x] = _narrowed(x, self.constants[x])
        self.values[output] = NetworkValue(output, whole, result.dtype)
        self.nodes.append(NetworkNode(work, own, output, (name,)))
        return output


def _narrowed(name: str, x: Array) -> Array:
    """Return a constant in the type in which kernels read it. UnsupportedError if its numbers are too large."""
    found: Array = x.astype(_NARROWED[x.dtype])
    if not np.array_equal(found, x):
        words = "has numbers beyond 32 bits; available are smaller ones"
        raise UnsupportedError(f"{printable(name)} {words}", code="dtype")
    return found


def unavailable(model: str, wrong: Sequence[tuple[str, str, str]], operators: Iterable[str]) -> ConvsmithError:
    """Return the error about nodes, each with its operator and the reason why it cannot be read; the `operators` that
    are available follow if one has no kernel.
    """
    listed = [f"node {name} ({operator}): {why}" for name, operator, why in wrong[:_LISTED]]
    more = f"; {len(wrong) - _LISTED} more nodes" if len(wrong) > _LISTED else ""
    is_unknown = any(why == NO_KERNEL for *_, why in wrong)
    legal = f"; available are {', '.join(sorted(operators))}" if is_unknown else ""
    return UnsupportedError(f"{model}: {'; '.join(listed)}{more}{legal}", code="operator")
