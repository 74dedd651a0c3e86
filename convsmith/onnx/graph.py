"""ONNX models as graphs of networks: nodes with their constants, read in the model's order.

Nodes whose inputs are all constants are computed while the model is read. `GRAPH_OPERATORS` has a function for each
operator that a graph takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import ConvsmithError, UnsupportedError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.diag.printable import printable
from convsmith.ir.types import DTYPES
from convsmith.network.builder import NO_KERNEL, TYPES_OF_VALUES, GraphBuilder, unavailable
from convsmith.network.graph import Graph
from convsmith.network.image import NetworkValue
from convsmith.network.rewrites.small_floats import SMALL_FLOATS
from convsmith.onnx.checks import array_of
from convsmith.onnx.graph_bodies import body_of, operators_with_bodies
from convsmith.onnx.graph_expansions import expanded, is_older
from convsmith.onnx.graph_integer_values import computed_in_floats, nodes_in_floats
from convsmith.onnx.graph_node import GraphNode
from convsmith.onnx.graph_operators import GRAPH_OPERATORS
from convsmith.onnx.graph_quantised import constant_integers, plain_nodes
from convsmith.onnx.graph_refusals import REFUSALS
from convsmith.onnx.models import OnnxModel, Shapes, operator_of, read_model
from convsmith.runtime.arrays import Array

__all__ = ["GraphReader", "ModelGraphNode", "read_graph"]

_SMALL_TYPES = {DTYPES[x].element: x for x in SMALL_FLOATS}
"""Types of 16 bits, by numpy's names, in which a model may store values that kernels compute in f32."""


def read_graph(source: str | os.PathLike[str] | bytes | Any, shapes: Shapes | None = None) -> Graph:
    """Return the graph of the ONNX model in the file, bytes, `onnx.ModelProto` or `ModelSource` `source`, for inputs of
    `shapes`.

    UsageError if it is no model, or leaves a size open; UnsupportedError names the nodes that no kernel computes.
    """
    return GraphReader(read_model(source, shapes, with_data=True)).read()


class ModelGraphNode(GraphNode):
    """A node of an ONNX model."""

    def __init__(self, proto: Any, reader: GraphBuilder, name: str, opset: int) -> None:
        attributes = {a.name: _decoded(a) for a in proto.attribute}
        super().__init__(reader, name, str(proto.op_type), proto.input, proto.output, attributes, opset)
        self.proto = proto


def _decoded(a: Any) -> Any:
    """Return the value of an attribute; the attribute itself if it is no number, text or series of numbers."""
    fields = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}
    found = getattr(a, fields[a.type]) if a.type in fields else a
    return found.decode(errors="replace") if isinstance(found, bytes) else found


class GraphReader(GraphBuilder):
    """Reads a `model` node by node."""

    def __init__(self, model: OnnxModel) -> None:
        super().__init__(model.name, {}, (name for proto in model.graph.node for name in proto.output))
        self.model = model
        self._opsets: Sequence[Any] = list(model.proto.opset_import)
        """Versions of the operators of the nodes that are read."""
        self._types = {name: dtype for name, (dtype, _) in model.types.items()}
        """Types of values as ONNX states them."""
        for name, x in model.initializers.items():
            self._hold(name, x)
        for name, (dtype, shape) in model.free_inputs.items():
            self.input(name, np.dtype(np.float32) if str(dtype) in _SMALL_TYPES else dtype, shape)
            self._keep_small(name)

    def _hold(self, name: str, x: Array) -> None:
        """Add a constant; floats of 16 bits are held in f32, in which kernels compute."""
        if str(x.dtype) in _SMALL_TYPES:
            self._types[name] = x.dtype
            x = x.astype(np.float32)
        self.constants[name] = x

    def _keep_small(self, name: str) -> None:
        """Note the type of 16 bits in which the model stores a value that is computed in f32."""
        small = _SMALL_TYPES.get(str(self._types.get(name, "")))
        if small and name in self.values and self.values[name].type == "f32":
            self.small[name] = small

    def read(self) -> Graph:
        """Return the graph. UnsupportedError names the nodes that no kernel computes."""
        wrong: list[tuple[str, str, str]] = []
        for number, proto in enumerate(self.model.graph.node):
            name = printable(proto.name) or f"number {number}"
            try:
                for part in plain_nodes(proto, self.fresh, self.model.package):
                    self._read_any(part, name)
            except ConvsmithError as error:
                wrong.append((name, printable(proto.op_type), str(error)))
                if not self._guessed(proto):
                    break
        if wrong:
            raise unavailable(self.name, wrong, {*GRAPH_OPERATORS, *operators_with_bodies()} - REFUSALS.keys())
        outputs = tuple(x.name for x in self.model.graph.output)
        for name in outputs:
            if name in self.constants and name not in self.values:
                self.copy_constant(name)
                self._keep_small(name)
        return self.graph(outputs, {name: self.model.types[name][0] for name in outputs if name in self.model.types})

    def _read_any(self, proto: Any, name: str) -> None:
        """Read a node, or the nodes that express it. All inputs are known: nodes of constants are constants."""
        is_constant = all(x in self.constants for x in proto.input if x) and operator_of(proto)
        package, version = self.model.package, self._version
        stays = is_constant and not is_older(proto, version)
        parts = [proto] if stays else expanded(proto, version, self.fresh, package, self._shape_of)
        if parts[0] is proto and not is_constant and computed_in_floats(proto, self._type_of):
            for part in nodes_in_floats(proto, self._type_of, self.fresh, package.helper):
                self._read_any(part, name)
            return
        if parts[0] is proto:
            self._read(ModelGraphNode(proto, self, name, self._version))
            self._keep_types(proto)
            for output in proto.output:
                self._keep_small(output)
            return
        with self._versions([package.helper.make_opsetid("", package.defs.onnx_opset_version())]):
            for part in parts:
                self._read_any(part, name)

    @property
    def _version(self) -> int:
        """The version of ONNX's operators."""
        return next((int(x.version) for x in self._opsets if x.domain in ("", "ai.onnx")), 1)

    @contextmanager
    def _versions(self, opsets: Sequence[Any]) -> Iterator[None]:
        """Read the nodes of the ``with`` block by the versions `opsets` of operators."""
        outer, self._opsets = self._opsets, opsets
        try:
            yield
        finally:
            self._opsets = outer

    def _keep_types(self, proto: Any) -> None:
        """Keep the types of the outputs of a node that the model does not have."""
        if all(name in self._types for name in proto.output):
            return
        package = self.model.package
        try:
            schema = package.defs.get_schema(proto.op_type, self._version, "")
            given = {name: self._type_of(name) for name in proto.input if name}
            found = package.shape_inference.infer_node_outputs(schema, proto, given, opset_imports=self._opsets)
        except Exception:  # an operator that ONNX does not infer
            return
        for name, made in found.items():
            if made.tensor_type.elem_type:
                self._types[name] = package.helper.tensor_dtype_to_np_dtype(made.tensor_type.elem_type)

    def _shape_of(self, name: str) -> tuple[int, ...]:
        return self.value(name).shape

    def _read(self, node: ModelGraphNode) -> None:
        """Read a node: it becomes nodes of the graph, or constants."""
        if operator_of(node.proto) == "Shape" and node.inputs[0] in self.values:
            sizes = self.values[node.inputs[0]].shape
            start, end = node.attribute("start", 0), node.attribute("end", len(sizes))
            self.constants[node.outputs[0]] = np.array(sizes[start:end], np.int64)
            return
        if operator_of(node.proto) == "Size" and node.inputs[0] in self.values:
            self.constants[node.outputs[0]] = np.array(prod(self.values[node.inputs[0]].shape), np.int64)
            return
        is_constant = all(name in self.constants for name in node.inputs if name)
        behind = constant_integers(node) if is_constant else None
        if behind is not None:
            self.integers[node.outputs[0]] = behind
        if behind is not None and node.operator == "DequantizeLinear":
            self.constants[node.outputs[0]] = behind.floats()
            return
        found = self.computed(node, {x: self.constants[x] for x in node.inputs if x}) if is_constant else None
        if found is not None:
            for name, x in zip(node.outputs, found):
                self._hold(name, x)
        elif operator_of(node.proto) == "If" and node.inputs[0] in self.constants:
            self._read_branch(node)
        elif node.operator in GRAPH_OPERATORS and operator_of(node.proto):
            before = len(self.nodes)
            try:
                GRAPH_OPERATORS[node.operator](node)
            except UnsupportedError as error:
                del self.nodes[before:]
                self._read_body(node, error)
        else:
            self._read_body(node, UnsupportedError(REFUSALS.get(node.operator, NO_KERNEL), code="operator"))

    def _read_branch(self, node: ModelGraphNode) -> None:
        """Read the nodes of the branch that the constant condition of a node selects."""
        condition: Any = self.constants[node.inputs[0]]
        wanted = "then_branch" if condition.reshape(-1)[0] else "else_branch"
        branch = next((a.g for a in node.proto.attribute if a.name == wanted), None)
        if branch is None or len(branch.output) != len(node.outputs):
            raise UsageError(f"it has no {wanted} with {len(node.outputs)} outputs", code="attribute")
        for t in branch.initializer:
            self._hold(t.name, array_of(self.name, t, self.model.package))
        self.reserve(name for part in branch.node for name in part.output)
        for part in branch.node:
            for proto in plain_nodes(part, self.fresh, self.model.package):
                self._read_any(proto, node.name)
        for inner, outer in zip(branch.output, node.outputs):
            self._read_any(self.model.package.helper.make_node("Identity", [inner.name], [outer]), node.name)

    def _read_body(self, node: ModelGraphNode, reason: UnsupportedError) -> None:
        """Read the nodes by which ONNX states a node. Raises the ``reason`` why the node is not read itself if there
        are none.
        """
        is_known = operator_of(node.proto) != "" and node.operator not in REFUSALS
        body = body_of(node.proto, self._opsets, self._type_of, self.fresh) if is_known else None
        if body is None:
            raise reason
        nodes, opsets = body
        with self._versions(opsets):
            for part in nodes:
                self._read_any(part, node.name)

    def _type_of(self, name: str) -> Any:
        """Return the type of a value as ONNX states it."""
        helper = self.model.package.helper
        if name in self.constants:
            shape = self.constants[name].shape
            dtype = self._types.get(name, self.constants[name].dtype)
        else:
            value = self.value(name)
            dtype, shape = self._types.get(name, value.dtype), value.shape
        return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), shape)

    def computed(self, node: GraphNode, given: Mapping[str, Array]) -> Sequence[Array] | None:
        """Return the outputs of a node for `given` inputs; None if ONNX's reference cannot compute them."""
        assert isinstance(node, ModelGraphNode)
        with import_lock:
            from onnx.reference import ReferenceEvaluator

        if node.operator.startswith("Random"):
            return None
        helper = self.model.package.helper
        inputs = [helper.make_empty_tensor_value_info(x) for x in node.inputs if x]
        outputs = [helper.make_empty_tensor_value_info(x) for x in node.outputs]
        graph = helper.make_graph([node.proto], "node", inputs, outputs)
        alone = helper.make_model(graph, opset_imports=self._opsets)
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
            self.values[name] = NetworkValue(name, shape, TYPES_OF_VALUES.get(dtype, "f32"))
        return True
