"""The convolutions and integer products of an ONNX model: its nodes, with shapes, constants and problems.

A `Conv` between `DequantizeLinear` and `QuantizeLinear` is one `QLinearConv`, as runtimes compute it. Reading a model
needs the package `onnx`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from convsmith.diag.choices import choices
from convsmith.diag.errors import ConvsmithError, UsageError
from convsmith.diag.forking import cached_property
from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.onnx.calls import NODE_CALLS, KernelCall, node_call
from convsmith.onnx.checks import Connections, array_of, check_node, check_shape, element_type
from convsmith.onnx.sources import ModelSource, model_source, onnx_package
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array

__all__ = [
    "ModelNode", "OnnxModel", "Shapes", "node_constants", "node_problems", "open_dims", "operator_of", "read_model",
]  # fmt: skip

BATCH = 1
"""Size of the first dim of an input if neither the model nor the caller gives a size."""
_EXAMPLE = 224
"""Size of an open dim in the example of a message."""
_DOMAINS = ("", "ai.onnx")
_CONVERSION_DOMAINS = (*_DOMAINS, "com.microsoft")
"""Domains whose conversions between bytes and floats have one meaning."""
_RELU = "Relu"
_CONSTANT = "Constant"
_FROM_BYTES, _TO_BYTES = "DequantizeLinear", "QuantizeLinear"
_CONNECTIONS: dict[str, Connections] = {
    **{name: (row.needed, row.inputs) for name, row in NODE_CALLS.items()},
    _RELU: (1, 1), _CONSTANT: (0, 0), _FROM_BYTES: (2, 3), _TO_BYTES: (2, 3),
}
"""Numbers of inputs of the operators whose nodes are read."""

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of inputs, by their names."""


@record(frozen=True)
class ModelNode:
    """A node with an operator of `NODE_CALLS`, or the nodes around a quantised convolution, which are one operator.

    ``inputs`` are the names of values in the order of ``operator``, empty where one is absent; ``protos`` are the nodes
    of the model that compute ``output``.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    output: str
    protos: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_quantised_around(self) -> bool:
        """Whether it is a convolution of floats between conversions from and to bytes."""
        return len(self.protos) > 1

    @property
    def title(self) -> str:
        """The operator as the model writes it."""
        return "Conv (QDQ)" if self.is_quantised_around else self.operator

    @property
    def weights(self) -> str:
        """The name of the weights."""
        return self.inputs[NODE_CALLS[self.operator].factors[1]]

    def call(self, values: Mapping[str, Array]) -> KernelCall:
        """Return the kernel call on the ``values`` of the inputs. UsageError or UnsupportedError if no kernel computes
        the node.
        """
        inputs = [values[name] if name else None for name in self.inputs]
        if self.is_quantised_around:
            self._complete(inputs)
        return node_call(self.operator, inputs, self.attributes)

    def _complete(self, inputs: list[Array | None]) -> None:
        """Fill in absent zero points, which are 0, and round a floating-point bias to multiples of its scale."""
        x, x_scale, _, w, w_scale, _, _, _, b = inputs
        assert x is not None and w is not None and x_scale is not None and w_scale is not None
        for place, dtype in ((2, x.dtype), (5, w.dtype), (7, np.dtype(np.uint8))):
            if inputs[place] is None:
                inputs[place] = np.zeros((), dtype)
        if b is not None and b.dtype.kind == "f":
            with np.errstate(all="ignore"):  # the call refuses a scale that is 0 or not finite
                inputs[8] = np.rint(np.divide(b, np.multiply(x_scale, w_scale))).astype(np.int32)


class OnnxModel:
    """The model of a ``source``, whose inputs have the sizes that ``shapes`` gives; an open batch is `BATCH`.

    UsageError if an input has another open dim, or a shape does not suit it.
    """

    def __init__(self, source: ModelSource, shapes: Shapes | None = None) -> None:
        self.name = name = source.name
        self._large = source.held
        proto = type(source.proto)()
        proto.CopyFrom(source.proto)
        for n, node in enumerate(proto.graph.node):
            if operator_of(node) in _CONNECTIONS:
                check_node(name, printable(node.name) or f"number {n}", node, _CONNECTIONS[node.op_type])
        held = {tensor.name for tensor in proto.graph.initializer}
        _fill_in(name, {v.name: v.type for v in proto.graph.input if v.name not in held}, shapes or {})
        try:
            self.proto = self.package.shape_inference.infer_shapes(proto)
        except Exception as error:
            raise UsageError(f"{name}: is no ONNX model: {printable(str(error))}", code="bad-file") from None

    @property
    def package(self) -> Any:
        """The package `onnx`."""
        return onnx_package(self.name)

    @property
    def graph(self) -> Any:
        """The graph, with the shapes inferred from the shapes of its inputs."""
        return self.proto.graph

    @cached_property
    def constants(self) -> dict[str, Array]:
        """The values that the model holds, by name."""
        wanted = {name for node in self.nodes for name in node.inputs}
        return {name: self.held(name) for name in self._tensors if name in wanted}

    @cached_property
    def initializers(self) -> dict[str, Array]:
        """The values of initializers, by name."""
        return {tensor.name: self.held(tensor.name) for tensor in self.graph.initializer}

    @cached_property
    def whole(self) -> Any:
        """The model as a protocol buffer with the elements of all tensors."""
        whole = type(self.proto)()
        whole.CopyFrom(self.proto)
        for tensor in whole.graph.initializer:
            if tensor.name in self._large:
                tensor.CopyFrom(self.package.numpy_helper.from_array(self._large[tensor.name], tensor.name))
        return whole

    def held(self, name: str) -> Array:
        """Return the value of an initializer or of a constant node."""
        large = self._large.get(name)
        return array_of(self.name, self._tensors[name], self.package) if large is None else large

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        """The initializers and the tensors of constant nodes, by name."""
        found = {tensor.name: tensor for tensor in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == _CONSTANT and node.attribute and node.attribute[0].name == "value":
                found[node.output[0]] = node.attribute[0].t
        return found

    @cached_property
    def free_inputs(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of each input that a run has to give, by name. UsageError if one is unknown."""
        known = {tensor.name for tensor in self.graph.initializer}
        found = {}
        for value in self.graph.input:
            if value.name in known:
                continue
            if value.name not in self.types:
                why = f"states no type and shape of {printable(value.name)}"
                raise _input_needed(self.name, value.name, why, (BATCH, 3, _EXAMPLE, _EXAMPLE))
            check_shape(f"{self.name}: input {printable(value.name)}", self.types[value.name][1])
            found[value.name] = self.types[value.name]
        return found

    @cached_property
    def types(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Types and shapes of values, as far as they are known without a run; an unknown size is 0."""
        onnx = onnx_package(self.name)
        found = {}
        for value in (*self.graph.input, *self.graph.value_info, *self.graph.output):
            tensor = value.type.tensor_type
            if tensor.elem_type and tensor.HasField("shape"):
                dtype = element_type(f"{self.name}: value {printable(value.name)}", tensor.elem_type, onnx)
                found[value.name] = dtype, tuple(dim.dim_value for dim in tensor.shape.dim)
        return found

    @cached_property
    def nodes(self) -> tuple[ModelNode, ...]:
        """The convolutions and integer products, in the model's order."""
        return tuple(self._nodes())

    @cached_property
    def others(self) -> Counter[str]:
        """The number of nodes of each other operator that computes something, including nodes in bodies of loops and
        branches.
        """
        counted = {id(proto) for node in self.nodes for proto in node.protos}
        return Counter(
            printable(f"{node.op_type} of {node.domain}" if node.domain not in _DOMAINS else node.op_type)
            for node in _every(self.graph) if id(node) not in counted and node.op_type != _CONSTANT
        )  # fmt: skip

    def stand_ins(self, node: ModelNode) -> dict[str, Array]:
        """Return the inputs of ``node`` without a run: its constants, and zeros of the known shapes for other inputs.

        UsageError if a shape is unknown, or not legal for an array.
        """
        found = {}
        for name in filter(None, node.inputs):
            if name in self.constants:
                found[name] = self.constants[name]
                continue
            title = f"{self.name}: node {node.name}"
            dtype, shape = self.types.get(name, (np.dtype(np.float32), (0,)))
            if name not in self.types or 0 in shape:
                raise UsageError(
                    f"{title}: the shape of {printable(name)} is unknown; legal are models whose shapes follow from "
                    "those of their inputs", code="shape",
                )  # fmt: skip
            check_shape(f"{title}: {printable(name)}", shape)
            found[name] = np.broadcast_to(np.zeros((), dtype), shape)
        return found

    def _nodes(self) -> Iterator[ModelNode]:
        taken: set[str] = set()
        for proto in self.graph.node:
            if proto.op_type not in NODE_CALLS or proto.domain not in _DOMAINS:
                continue
            base = name = printable(proto.name) or proto.op_type
            number = 1
            while name in taken:
                number += 1
                name = f"{base}#{number}"
            taken.add(name)
            attributes = {a.name: a.s or tuple(a.ints) or a.i for a in proto.attribute}
            node = ModelNode(name, proto.op_type, tuple(proto.input), proto.output[0], (proto,), attributes)
            yield (self._quantised(node) or node) if proto.op_type == "Conv" else node

    # -- convolutions between conversions
    @cached_property
    def _makers(self) -> dict[str, Any]:
        return {name: proto for proto in self.graph.node for name in proto.output}

    @cached_property
    def _readers(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {value.name: [value] for value in self.graph.output}
        for proto in self.graph.node:
            for name in proto.input:
                found.setdefault(name, []).append(proto)
        return found

    def _quantised(self, node: ModelNode) -> ModelNode | None:
        """Return a convolution and the conversions around it as one `QLinearConv`; None if it has no such conversions.
        """
        source, weights = (self._conversion(name) for name in node.inputs[:2])
        bias = self._conversion(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
        if source is None or weights is None:
            return None
        chain = [node.protos[0]]
        follower = self._only_reader(node.output)
        if follower is not None and operator_of(follower) == _RELU:
            chain.append(follower)
            follower = self._only_reader(follower.output[0])
        if follower is None or operator_of(follower) != _TO_BYTES:
            return None
        if len(chain) > 1 and not self._starts_at_zero(follower):
            return None
        bias_name = bias.input[0] if bias is not None else "".join(node.inputs[2:3])
        before = [p for p in (source, weights, bias) if p is not None]
        return ModelNode(
            node.name, "QLinearConv",
            (*_three(source), *_three(weights), *_three(follower)[1:], bias_name), follower.output[0],
            (*before, *chain, follower), node.attributes,
        )  # fmt: skip

    def _conversion(self, name: str) -> Any | None:
        """Return the node that makes the value ``name`` from bytes or s32, with one scale, or one per first index."""
        proto = self._makers.get(name)
        if proto is None or operator_of(proto) != _FROM_BYTES:
            return None
        axis = next((a.i for a in proto.attribute if a.name == "axis"), 1)
        scale = self._tensors.get(proto.input[1])
        return proto if scale is not None and (int(np.prod(scale.dims)) == 1 or axis == 0) else None

    def _only_reader(self, name: str) -> Any | None:
        readers = self._readers.get(name, [])
        return readers[0] if len(readers) == 1 and hasattr(readers[0], "op_type") else None

    def _starts_at_zero(self, quantise: Any) -> bool:
        """Return whether the least byte represents 0, so that saturation is a relu."""
        if len(quantise.input) < 3 or not quantise.input[2]:
            return True
        if quantise.input[2] not in self._tensors:
            return False
        values: Any = self.held(quantise.input[2])
        return values.dtype.kind in "iu" and bool((values == np.iinfo(values.dtype).min).all())


def read_model(source: Any, shapes: Shapes | None = None, with_data: bool = False) -> OnnxModel:
    """Return the model in the file ``source``, in the bytes ``source``, or the `onnx.ModelProto` or `ModelSource`
    ``source`` itself.

    ``with_data`` also reads constants from separate files next to the model. UsageError if the file is no model,
    UnsupportedError without the package `onnx`.
    """
    return OnnxModel(source if isinstance(source, ModelSource) else model_source(source, with_data), shapes)


def open_dims(proto: Any) -> dict[str, tuple[int | str, ...]]:
    """Return the sizes of the inputs of a model, by name: numbers, and names of sizes that it leaves open."""
    held = {tensor.name for tensor in proto.graph.initializer}
    return {
        x.name: tuple(
            (d.dim_param or f"size {n} of {x.name}") if _is_open(d) else int(d.dim_value)
            for n, d in enumerate(x.type.tensor_type.shape.dim)
        )
        for x in proto.graph.input if x.name not in held
    }  # fmt: skip


def node_problems(source: str | os.PathLike[str], shapes: Shapes | None = None) -> dict[str, Problem]:
    """Return the problem of each node of a model, by the node's name, in the model's order.

    UsageError: the file is no model, or the shape of a source is unknown.
    """
    model = read_model(source, shapes, with_data=True)
    return {node.name: _problem(model, node) for node in model.nodes}


def node_constants(
    source: str | os.PathLike[str], shapes: Shapes | None = None
) -> dict[str, tuple[Problem, dict[str, Array]]]:
    """Return the problem of each node of a model, with the arrays that the model holds for it, by the node's name.

    The arrays are empty if another node computes some of them. UsageError as in `node_problems`.
    """
    model = read_model(source, shapes, with_data=True)
    found = {}
    for node in model.nodes:
        call, first = _call(model, node), NODE_CALLS[node.operator].factors[0]
        others = [name for n, name in enumerate(node.inputs) if name and n != first]
        held = {name: array for name, array in call.arrays.items() if name != "src"}
        found[node.name] = call.problem, held if model.constants.keys() >= set(others) else {}
    return found


def _problem(model: OnnxModel, node: ModelNode) -> Problem:
    return _call(model, node).problem


def _call(model: OnnxModel, node: ModelNode) -> KernelCall:
    """Return the kernel call of a node, with the constants, and zeros for all other inputs."""
    try:
        return node.call(model.stand_ins(node))
    except ConvsmithError as error:
        if error.code == "shape" and str(error).startswith(model.name):
            raise
        raise error.located(f"{model.name}: node {node.name}") from None


def _fill_in(model: str, inputs: Mapping[str, Any], shapes: Shapes) -> None:
    """Write sizes into the open dims of ``inputs``, types by name. UsageError if one is unknown or a shape does not
    suit. An input without a shape in the model accepts any shape, and stays without one if ``inputs`` has none for it.
    """
    for name, shape in shapes.items():
        if name not in inputs:
            legal = choices(name, inputs, map(printable, inputs))
            raise UsageError(f"inputs: {model} has no {name!r}; legal are {legal}", code="inputs")
        dims = inputs[name].tensor_type.shape.dim
        if not inputs[name].tensor_type.HasField("shape"):
            dims.extend(inputs[name].tensor_type.shape.Dimension() for _ in shape)
        if len(shape) != len(dims) or any(not _is_open(d) and d.dim_value != size for d, size in zip(dims, shape)):
            raise UsageError(
                f"inputs: the shape of {printable(name)} is {shape}; legal is {_dims_text(dims)}", code="inputs"
            )
    for name, value in inputs.items():
        dims = value.tensor_type.shape.dim
        if name in shapes:
            for dim, size in zip(dims, shapes[name]):
                dim.dim_value = size
            continue
        if dims and _is_open(dims[0]):
            dims[0].dim_value = BATCH
        if any(map(_is_open, dims)):
            example = tuple(_EXAMPLE if _is_open(dim) else dim.dim_value for dim in dims)
            raise _input_needed(model, name, f"leaves sizes of {printable(name)} open, {_dims_text(dims)}", example)


def _is_open(dim: Any) -> bool:
    """Return whether a dim has no size; some exporters write -1."""
    return bool(dim.dim_value <= 0)


def _dims_text(dims: Any) -> str:
    return " x ".join(printable(str(dim.dim_param or "any")) if _is_open(dim) else str(dim.dim_value) for dim in dims)


def _input_needed(model: str, name: str, why: str, example: tuple[int, ...]) -> UsageError:
    """Return the error about an input whose shape the caller has to give."""
    shown = f"--input {printable(name)}={'x'.join(map(str, example))} or inputs={{{name!r}: {example}}}"
    return UsageError(f"inputs: {model} {why}; legal is to give its shape, such as {shown}", code="inputs")


def operator_of(proto: Any) -> str:
    """Return the operator of a node if it is ONNX's, or a conversion that means the same; otherwise the empty string.
    """
    domains = _CONVERSION_DOMAINS if proto.op_type in (_FROM_BYTES, _TO_BYTES) else _DOMAINS
    return str(proto.op_type) if proto.domain in domains else ""


def _three(proto: Any) -> tuple[str, str, str]:
    """Return the names of the value, the scale and the zero point of a conversion; an absent one is empty."""
    value, scale, point = [*proto.input, ""][:3]
    return value, scale, point


def _every(graph: Any) -> Iterator[Any]:
    """Yield the nodes of ``graph`` and of the bodies of its loops and branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _every(body)
