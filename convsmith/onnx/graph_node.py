"""`GraphNode`: a node with an operator of ONNX, whose function in `onnx/graph_*.py` adds the nodes that compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.printable import printable
from convsmith.network.builder import GraphBuilder
from convsmith.network.graph import Work
from convsmith.network.operators.on_bytes import BYTES, OnBytes
from convsmith.runtime.arrays import Array
from convsmith.statement.operator import Operator

__all__ = ["GraphNode"]

_FLOATS = ("f32", "f64")
"""Types of values with which kernels compute."""
NEWEST = 1 << 16
"""A version of operators above all that ONNX has."""
_KINDS = {int: "a whole number", float: "a number", str: "a text", tuple: "several numbers"}


class GraphNode:
    """A node of a model: an `operator` by ONNX's name, the names of its `inputs`, empty where one is absent, and of its
    `outputs`, and its `attributes`, which are numbers, texts and tuples. `reader` has the values, `opset` is the
    version of ONNX's operators.
    """

    def __init__(
        self, reader: GraphBuilder, name: str, operator: str, inputs: Sequence[str], outputs: Sequence[str],
        attributes: Mapping[str, Any], opset: int = NEWEST,
    ) -> None:  # fmt: skip
        self.reader, self.name, self.operator = reader, name, operator
        self.inputs, self.outputs, self._attributes = tuple(inputs), tuple(outputs), attributes
        self.opset = opset

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute in the type of its default: a number, a text, or a tuple; None stands for a tuple."""
        found = self._attributes.get(name)
        if found is None:
            return default
        kind: type = tuple if default is None else type(default)
        try:
            return kind(found)
        except (TypeError, ValueError):
            words = f"{name} is {printable(str(found))}; legal is {_KINDS[kind]}"
            raise UsageError(words, code="attribute") from None

    def has(self, n: int) -> bool:
        """Return whether input `n` is present."""
        return n < len(self.inputs) and bool(self.inputs[n])

    def shape(self, n: int = 0) -> tuple[int, ...]:
        """Return the shape of input `n`."""
        return self.reader.value(self.inputs[n]).shape

    def type(self, n: int = 0) -> str:
        """Return the data type of input `n`. UnsupportedError if kernels do not compute with it."""
        found = self.any_type(n)
        if found not in _FLOATS:
            raise UnsupportedError(
                f"{printable(self.inputs[n])} has elements of {found}; available are {', '.join(_FLOATS)}", code="dtype"
            )
        return found

    def any_type(self, n: int = 0) -> str:
        """Return the data type of input `n`, for operators that only move elements."""
        return self.reader.value(self.inputs[n]).type

    def constant(self, n: int) -> Array | None:
        """Return input `n` if it is known without a run; None for an absent one.

        UnsupportedError if the values of a run decide it.
        """
        if not self.has(n):
            return None
        found = self.reader.constants.get(self.inputs[n])
        if found is None:
            raise UnsupportedError(
                f"input {n}, {printable(self.inputs[n])}, is computed in each run; available are constants there",
                code="constant",
            )
        return found

    def numbers(self, n: int, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
        """Return whole numbers that input `n` holds, or the attribute `name`, as opsets differ."""
        held = self.constant(n)
        if held is not None:
            return tuple(int(x) for x in held.reshape(-1))
        found = self.attribute(name, None)
        return default if found is None else tuple(found)

    def add(self, work: Work, arguments: Mapping[str, str], shape: Sequence[int] | None = None, n: int = 0) -> str:
        """Add the node that computes output `n`, of `shape` if that differs from the shape of the work's result."""
        return self.reader.add(work, arguments, self.outputs[n], shape, self.name)

    def add_for_any(self, make: Callable[[str], Operator]) -> str:
        """Add the operator on one array that `make` returns for a type, here for floats or bytes."""
        t, arguments = self.any_type(), {"src": self.inputs[0]}
        if t in BYTES:
            return self.add(OnBytes(make("f32"), (t, t), coded=False), arguments)
        return self.add(make(self.type()), arguments)

    def between(self, work: Work, arguments: Mapping[str, str], shape: Sequence[int] | None = None) -> str:
        """Add a node that computes a value inside of this node, and return the value's name."""
        return self.reader.add(work, arguments, self.reader.fresh(self.outputs[0]), shape, self.name)

    def held(self, array: Array) -> str:
        """Add a constant, and return its name."""
        name = self.reader.fresh(self.outputs[0])
        self.reader.constants[name] = array
        return name

    def moved(self, n: int, move: Callable[[Array], Array]) -> str:
        """Add the constant input `n` with its elements moved, and return its name."""
        held = self.constant(n)
        assert held is not None
        name, integers = self.held(move(held)), self.reader.integers.get(self.inputs[n])
        if integers is not None:
            self.reader.integers[name] = integers.moved(move)
        return name
