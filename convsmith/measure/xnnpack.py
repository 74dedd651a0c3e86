"""XNNPACK through LiteRT (`ai-edge-litert`), whose interpreter delegates supported operators to it.

The model has a convolution for each stage, dense or depthwise, channels last, with constant weights. Its padding is
TensorFlow's `SAME`, which puts an odd pixel at the end; a problem with the odd pixel at the front is mirrored along its
axes first.

Bytes are multiplied as s8: XNNPACK has weights per channel for that type alone. The model gets u8 values less 128, with
-128 as their zero point, and rounds to the nearest even value, as this project does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.measure.peer import (
    Array,
    Peer,
    PeerStage,
    clipping,
    factor_of_bytes,
    is_in_bytes,
    plain_f32,
    plain_forward,
    stages_for_peers,
)
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.problem import Problem

__all__ = ["xnnpack"]

_TO_LAST, _FROM_LAST = (0, 2, 3, 1), (0, 3, 1, 2)
_TENSOR_TYPES: dict[str, tuple[str, type[np.generic]]] = {
    "f32": ("FLOAT32", np.float32), "s32": ("INT32", np.int32), "s8": ("INT8", np.int8), "u8": ("INT8", np.int8),
}  # fmt: skip
"""Names of types in the model's schema, and types of constants."""


def xnnpack(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return a peer that interprets a model of all stages."""
    from ai_edge_litert.interpreter import Interpreter

    stages = stages_for_peers(problem, arrays)
    is_chain = isinstance(problem, Chain)
    for stage in stages:
        # Other peers of single problems have no post-ops either.
        plain = replace(stage.problem, post_ops=()) if is_chain else stage.problem
        conv = (plain_forward if is_chain and is_in_bytes(plain) else plain_f32)("xnnpack", plain)
        if conv.g not in (1, conv.ic) or (conv.g > 1 and conv.oc != conv.ic):
            raise UnsupportedError("xnnpack is compared on dense and depthwise convolutions only", code="groups")
    same, turn = _paddings(stages)
    interpreter = Interpreter(model_content=_model(stages, same, turn), num_threads=threads)
    interpreter.allocate_tensors()
    x = _less(arrays["src"][:, :, ::turn, ::turn].transpose(_TO_LAST), _zero_point(problem.dt[0]))
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.ascontiguousarray(x))
    output = interpreter.get_output_details()[0]["index"]

    def result() -> Array:
        y: Array = interpreter.get_tensor(output)
        if zero := _zero_point(problem.dst_type):
            y = (y.astype(np.int16) - zero).astype(np.uint8)
        return y.transpose(_FROM_LAST)[:, :, ::turn, ::turn]

    return Peer(interpreter.invoke, result)


def _paddings(stages: Sequence[PeerStage]) -> tuple[list[bool], int]:
    """Return whether the padding of each stage is `SAME`, and the step of the spatial axes of all."""
    convs = [stage.problem for stage in stages if isinstance(stage.problem, Conv)]
    found = [_padding(conv) for conv in convs]
    turn = min(step for _, step in found)
    for conv, (_, step) in zip(convs, found):
        if step != turn and conv.p != conv.pr:
            raise UnsupportedError("xnnpack has stages whose odd pixels are at one end", code="pads")
    return [same for same, _ in found], turn


def _padding(conv: Conv) -> tuple[bool, int]:
    """Return whether the padding is `SAME`, and the step of the spatial axes: -1 if they must be mirrored."""
    if not any((*conv.p, *conv.pr)):
        return False, 1
    if conv.o == tuple(-(-i // s) for i, s in zip(conv.i, conv.s)):
        sums = [p + max(q, 0) for p, q in zip(conv.p, conv.pr)]
        for front, turn in ((conv.p, 1), (conv.pr, -1)):
            if all(f == n // 2 for f, n in zip(front, sums)):
                return True, turn
    raise UnsupportedError("xnnpack has padding that keeps the size (SAME), or none", code="pads")


def _zero_point(dtype: str) -> int:
    """Return the value in the model that represents 0 of type `dtype`."""
    return -128 if dtype == "u8" else 0


def _less(values: Array, zero: int) -> Array:
    """Return `values` plus `zero`, as s8; unchanged if `zero` is 0."""
    return (values.astype(np.int16) + zero).astype(np.int8) if zero else values


class _Quantities(NamedTuple):
    """The scales and the zero point of a tensor; several scales vary along the axis `axis`."""

    scales: Sequence[float]
    zero: int = 0
    axis: int = 0


class _Graph:
    """A TensorFlow Lite model in the making; tensor 0 is its input of type `dtype`."""

    def __init__(self, shape: Sequence[int], dtype: str) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema: Any = schema
        self.model: Any = schema.ModelT()
        self.model.version, self.model.buffers, self.model.operatorCodes = 3, [schema.BufferT()], []
        self.graph: Any = schema.SubGraphT()
        self.graph.tensors, self.graph.inputs, self.graph.operators = [], [0], []
        self.model.subgraphs = [self.graph]
        self.tensor(shape, dtype)

    def tensor(
        self, shape: Sequence[int], dtype: str, contents: Array | None = None, quantities: _Quantities | None = None
    ) -> int:
        """Add a tensor of our type `dtype`, with constant contents or without, and return its number.

        Bytes without `quantities` have a scale of 1.
        """
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape = f"t{len(self.graph.tensors)}", list(shape)
        name, numpy_type = _TENSOR_TYPES[dtype]
        tensor.type, tensor.buffer = getattr(self.schema.TensorType, name), 0
        if quantities or numpy_type is np.int8:
            scales, zero, axis = quantities or _Quantities([1.0], _zero_point(dtype))
            tensor.quantization = self.schema.QuantizationParametersT()
            tensor.quantization.scale, tensor.quantization.zeroPoint = list(scales), [zero] * len(scales)
            tensor.quantization.quantizedDimension = axis
        if contents is not None:
            tensor.buffer = len(self.model.buffers)
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(contents, numpy_type).tobytes(), np.uint8)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def operator(
        self, name: str, options: Any, kind: str, inputs: Sequence[int], shape: Sequence[int], dtype: str
    ) -> int:
        """Add an operator with a result of ``shape`` and ``dtype``, and return the number of the result."""
        code, operator = self.schema.OperatorCodeT(), self.schema.OperatorT()
        code.builtinCode = code.deprecatedBuiltinCode = getattr(self.schema.BuiltinOperator, name)
        code.version = 3  # from this version on, weights may have one scale per channel
        operator.opcodeIndex = len(self.model.operatorCodes)
        operator.inputs, operator.outputs = list(inputs), [self.tensor(shape, dtype)]
        operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, kind)
        operator.builtinOptions = options
        self.model.operatorCodes.append(code)
        self.graph.operators.append(operator)
        return len(self.graph.tensors) - 1

    def bytes(self) -> bytes:
        """Return the model whose output is the last tensor."""
        import flatbuffers

        self.graph.outputs = [len(self.graph.tensors) - 1]
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _model(stages: Sequence[PeerStage], same: Sequence[bool], turn: int) -> bytes:
    """Return a TensorFlow Lite model of ``stages`` as bytes; windows are mirrored if ``turn`` is -1."""
    first = stages[0].problem
    graph = _Graph([first.src_shape[axis] for axis in _TO_LAST], first.dt[0])
    value, schema = 0, graph.schema
    for stage, is_same in zip(stages, same):
        conv = stage.problem
        assert isinstance(conv, Conv)
        depthwise = conv.g > 1
        options = schema.DepthwiseConv2DOptionsT() if depthwise else schema.Conv2DOptionsT()
        options.padding = schema.Padding.SAME if is_same else schema.Padding.VALID
        options.strideH, options.strideW = conv.s
        options.dilationHFactor, options.dilationWFactor = (d + 1 for d in conv.d)
        in_bytes = is_in_bytes(conv)
        factor = factor_of_bytes("xnnpack", stage) if in_bytes else 1.0
        options.fusedActivationFunction = _activation(schema, conv)
        if depthwise:
            options.depthMultiplier = 1
        weights = stage.arrays["wei"].reshape(conv.oc, conv.ic // conv.g, *conv.k)[:, :, ::turn, ::turn]
        weights = weights.transpose((1, 2, 3, 0) if depthwise else _TO_LAST)
        quantities = _Quantities([factor] * conv.oc, 0, 3 if depthwise else 0) if in_bytes else None
        sums = quantities._replace(axis=0) if quantities else None
        bias = stage.arrays["bia"] if conv.bias else np.zeros(conv.oc, np.float32)
        inputs = [
            value, graph.tensor(weights.shape, conv.dt[1], weights, quantities),
            graph.tensor(bias.shape, conv.acc, bias, sums),
        ]  # fmt: skip
        shape = [conv.dst_shape[axis] for axis in _TO_LAST]
        name, kind = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if depthwise else ("CONV_2D", "Conv2DOptions")
        value = graph.operator(name, options, kind, inputs, shape, conv.dst_type)
        if stage.adds_source:
            value = graph.operator("ADD", schema.AddOptionsT(), "AddOptions", [value, 0], shape, conv.dst_type)
    return graph.bytes()


def _activation(schema: Any, conv: Conv) -> Any:
    """Return the activation function of an operator; UnsupportedError if no activation function computes the post-ops.
    """
    if is_in_bytes(conv):  # the only one that `factor_of_bytes` accepts; u8 is clamped at 0 anyway
        relu = conv.dst_type == "s8" and any(isinstance(op, Eltwise) and op.alg == "relu" for op in conv.post_ops)
        return getattr(schema.ActivationFunctionType, "RELU" if relu else "NONE")
    known = {(): "NONE", (("relu", 0.0, 0.0),): "RELU", (("clip", 0.0, 6.0),): "RELU6"}
    name = known.get(tuple((op.alg, op.alpha, op.beta) for op in clipping(conv)))
    if name is None:
        raise UnsupportedError("xnnpack has activations relu and clip:0:6 only", code="post-ops")
    return getattr(schema.ActivationFunctionType, name)
