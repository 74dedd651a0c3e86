"""ONNX models as graphs of networks: nodes with their constants, read in the model's order.

Nodes whose inputs are all constants are computed while the model is read. `GRAPH_OPERATORS` has a function for each
operator that a graph takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import ConvsmithError, UnsupportedError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.diag.printable import printable
from convsmith.network.graph import Graph, IntegerConstant, NetworkNode, Work, result_of
from convsmith.network.image import NetworkValue
from convsmith.network.operators.on_bytes import BYTES, OnBytes
from convsmith.onnx.checks import array_of
from convsmith.onnx.graph_quantised import constant_integers, plain_nodes
from convsmith.onnx.models import OnnxModel, Shapes, operator_of, read_model
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import Array
from convsmith.statement.operator import Operator

__all__ = ["GraphNode", "GraphReader", "read_graph"]

_TYPES = {
    np.dtype(np.float32): "f32", np.dtype(np.float64): "f64", np.dtype(np.uint8): "u8", np.dtype(np.int8): "s8",
    np.dtype(np.int32): "s32", np.dtype(np.int64): "s32", np.dtype(np.bool_): "u8",
}  # fmt: skip
"""Types of values. Whole numbers of 64 bits are computed in 32, and truth values are bytes of 0 and 1."""
_NARROWED: dict[Any, Any] = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.bool_): np.dtype(np.uint8)}
"""Types of constants that kernels read as others."""
_FLOATS = ("f32", "f64")
"""Types of values with which kernels compute."""
_NO_KERNEL = "no kernel computes it"
_LISTED = 5
"""Maximum number of nodes that an error lists."""


def read_graph(source: str | os.PathLike[str] | bytes | Any, shapes: Shapes | None = None) -> Graph:
    """Return the graph of the ONNX model in the file, bytes or `onnx.ModelProto` `source`, for inputs of `shapes`.

    UsageError if it is no model, or leaves a size open; UnsupportedError names the nodes that no kernel computes.
    """
    return GraphReader(read_model(source, shapes, with_data=True)).graph


class GraphNode:
    """A node of a model, with the values of its inputs as far as they are known."""

    def __init__(self, proto: Any, reader: GraphReader, name: str) -> None:
        self.proto, self.reader, self.name = proto, reader, name
        self.inputs = tuple(proto.input)
        self.outputs = tuple(proto.output)
        self._attributes = {a.name: a for a in proto.attribute}

    @property
    def operator(self) -> str:
        """The operator, by ONNX's name."""
        return str(self.proto.op_type)

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute in the type of its default: a number, a text, or a tuple."""
        a = self._attributes.get(name)
        if a is None:
            return default
        if isinstance(default, str):
            return a.s.decode(errors="replace")
        if isinstance(default, float):
            return float(a.f)
        return tuple(a.ints) if isinstance(default, tuple) or default is None else int(a.i)

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
            parts = (integers.values, integers.scale, integers.point)
            self.reader.integers[name] = IntegerConstant(*map(move, parts))
        return name


class GraphReader:
    """Reads a `model` node by node; `graph` is the result."""

    def __init__(self, model: OnnxModel) -> None:
        with import_lock:  # the operators import this module
            from convsmith.onnx.graph_operators import GRAPH_OPERATORS

        self.model, self.values, self.nodes = model, dict[str, NetworkValue](), list[NetworkNode]()
        self._names: set[str] = {name for proto in model.graph.node for name in proto.output}
        package = model.package
        self.constants: dict[str, Array] = {
            t.name: array_of(model.name, t, package) for t in model.graph.initializer
        }  # fmt: skip
        self.integers: dict[str, IntegerConstant] = {}
        inputs = []
        for name, (dtype, shape) in model.free_inputs.items():
            value = NetworkValue(name, shape, _TYPES.get(dtype, str(dtype)))
            self.values[name] = value
            inputs.append(value)
        wrong: list[tuple[str, str, str]] = []
        for number, proto in enumerate(model.graph.node):
            name = printable(proto.name) or f"number {number}"
            try:
                for part in plain_nodes(proto, self.fresh, model.package):
                    self._read(GraphNode(part, self, name), GRAPH_OPERATORS)
            except ConvsmithError as error:
                wrong.append((name, printable(proto.op_type), str(error)))
                if not self._guessed(proto):
                    break
        if wrong:
            raise _unavailable(model.name, wrong, GRAPH_OPERATORS)
        outputs = tuple(x.name for x in model.graph.output)
        computed = {node.output for node in self.nodes}
        for n, name in enumerate(outputs):
            if name not in computed or name in outputs[:n]:
                kind = "an output twice" if name in computed else "a constant, an input, or computed by no node"
                raise UnsupportedError(
                    f"{model.name}: output {printable(name)} is {kind}; available are outputs that nodes compute, once "
                    "each", code="output",
                )  # fmt: skip
        self.graph = Graph(
            model.name, tuple(inputs), outputs, tuple(self.nodes), self.constants, self.values, self.integers
        )

    def value(self, name: str) -> NetworkValue:
        """Return a value by name. UsageError if no node before computes it, UnsupportedError for other data types."""
        if name in self.constants and name not in self.values:
            x = self.constants[name]
            return NetworkValue(name, x.shape, _TYPES.get(x.dtype, str(x.dtype)))
        if name not in self.values:
            raise UsageError(
                f"{printable(name)} is computed by no node before; legal are values in order", code="order"
            )
        found = self.values[name]
        if found.type not in TYPES:
            raise UnsupportedError(
                f"{printable(name)} has elements of {found.type}; available are {', '.join(map(str, _TYPES))}",
                code="dtype",
            )
        return found

    def numpy_of(self, type_: str) -> np.dtype[Any]:
        """Return numpy's type of elements of a type."""
        return TYPES[type_].numpy

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

    def _read(self, node: GraphNode, operators: Mapping[str, Any]) -> None:
        """Read a node: it becomes nodes of the graph, or constants."""
        if operator_of(node.proto) == "Shape" and node.inputs[0] in self.values:
            sizes = self.values[node.inputs[0]].shape
            start, end = node.attribute("start", 0), node.attribute("end", len(sizes))
            self.constants[node.outputs[0]] = np.array(sizes[start:end], np.int64)
            return
        is_constant = all(name in self.constants for name in node.inputs if name)
        behind = constant_integers(node) if is_constant else None
        if behind is not None:
            self.integers[node.outputs[0]] = behind
        if behind is not None and node.operator == "DequantizeLinear":
            self.constants[node.outputs[0]] = behind.floats()
            return
        found = self._computed(node) if is_constant else None
        if found is not None:
            self.constants |= zip(node.outputs, found)
        elif node.operator in operators and operator_of(node.proto):
            operators[node.operator](node)
        else:
            raise UnsupportedError(_NO_KERNEL, code="operator")

    def _computed(self, node: GraphNode) -> Sequence[Array] | None:
        """Return the outputs of a node whose inputs are constants; None if ONNX's reference cannot compute them."""
        return self.computed(node, {x: self.constants[x] for x in node.inputs if x})

    def computed(self, node: GraphNode, given: Mapping[str, Array]) -> Sequence[Array] | None:
        """Return the outputs of a node for `given` inputs; None if ONNX's reference cannot compute them."""
        with import_lock:
            from onnx.reference import ReferenceEvaluator

        if node.operator.startswith("Random"):
            return None
        helper = self.model.package.helper
        inputs = [helper.make_empty_tensor_value_info(x) for x in node.inputs if x]
        outputs = [helper.make_empty_tensor_value_info(x) for x in node.outputs]
        graph = helper.make_graph([node.proto], "node", inputs, outputs)
        alone = helper.make_model(graph, opset_imports=list(self.model.proto.opset_import))
        try:
            return [np.asarray(x) for x in ReferenceEvaluator(alone).run(None, dict(given))]
        except Exception:  # an operator, or a version of it, that the package lacks
            return None

    def _guessed(self, node: Any) -> bool:
        """Give the outputs of a node that cannot be read the shapes that the model infers, so that later nodes are
        read, and reported, too; return whether that is possible.
        """
        for name in node.output:
            dtype, shape = self.model.types.get(name, (None, (0,)))
            if dtype is None or 0 in shape:
                return False
            self.values[name] = NetworkValue(name, shape, _TYPES.get(dtype, "f32"))
        return True


def _narrowed(name: str, x: Array) -> Array:
    """Return a constant in the type in which kernels read it. UnsupportedError if its numbers are too large."""
    found: Array = x.astype(_NARROWED[x.dtype])
    if not np.array_equal(found, x):
        words = "has numbers beyond 32 bits; available are smaller ones"
        raise UnsupportedError(f"{printable(name)} {words}", code="dtype")
    return found


def _unavailable(model: str, wrong: Sequence[tuple[str, str, str]], operators: Iterable[str]) -> ConvsmithError:
    """Return the error about nodes, each with its operator and the reason why it cannot be read; the `operators` that
    are available follow if one has no kernel.
    """
    listed = [f"node {name} ({operator}): {why}" for name, operator, why in wrong[:_LISTED]]
    more = f"; {len(wrong) - _LISTED} more nodes" if len(wrong) > _LISTED else ""
    is_unknown = any(why == _NO_KERNEL for *_, why in wrong)
    legal = f"; available are {', '.join(sorted(operators))}" if is_unknown else ""
    return UnsupportedError(f"{model}: {'; '.join(listed)}{more}{legal}", code="operator")
