"""XNNPACK through LiteRT (`ai-edge-litert`), whose interpreter delegates supported operators to it.

The model has a convolution for each stage, dense or depthwise, channels last, with constant weights. Its padding is
TensorFlow's `SAME`, which puts an odd pixel at the end; a problem with the odd pixel at the front is mirrored along its
axes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.measure.peer import Array, Peer, PeerStage, clipping, plain_f32, stages_for_peers
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem

__all__ = ["xnnpack"]

_TO_LAST, _FROM_LAST = (0, 2, 3, 1), (0, 3, 1, 2)


def xnnpack(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return a peer that interprets a model of all stages."""
    from ai_edge_litert.interpreter import Interpreter

    stages = stages_for_peers(problem, arrays)
    is_chain = isinstance(problem, Chain)
    for stage in stages:
        # Other peers of single problems have no post-ops either.
        conv = plain_f32("xnnpack", replace(stage.problem, post_ops=()) if is_chain else stage.problem)
        if conv.g not in (1, conv.ic) or (conv.g > 1 and conv.oc != conv.ic):
            raise UnsupportedError("xnnpack is compared on dense and depthwise convolutions only", code="groups")
    same, turn = _paddings(stages)
    interpreter = Interpreter(model_content=_model(stages, same, turn), num_threads=threads)
    interpreter.allocate_tensors()
    x = arrays["src"][:, :, ::turn, ::turn].transpose(_TO_LAST)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.ascontiguousarray(x))
    output = interpreter.get_output_details()[0]["index"]

    def result() -> Array:
        y: Array = interpreter.get_tensor(output)
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


class _Graph:
    """A TensorFlow Lite model in the making; tensor 0 is its input."""

    def __init__(self, shape: Sequence[int]) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema: Any = schema
        self.model: Any = schema.ModelT()
        self.model.version, self.model.buffers, self.model.operatorCodes = 3, [schema.BufferT()], []
        self.graph: Any = schema.SubGraphT()
        self.graph.tensors, self.graph.inputs, self.graph.operators = [], [0], []
        self.model.subgraphs = [self.graph]
        self.tensor(shape)

    def tensor(self, shape: Sequence[int], contents: Array | None = None) -> int:
        """Add a tensor, with constant contents or without, and return its number."""
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape = f"t{len(self.graph.tensors)}", list(shape)
        tensor.type, tensor.buffer = self.schema.TensorType.FLOAT32, 0
        if contents is not None:
            tensor.buffer = len(self.model.buffers)
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(contents, np.float32).tobytes(), np.uint8)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def operator(self, name: str, options: Any, kind: str, inputs: Sequence[int], shape: Sequence[int]) -> int:
        """Add an operator with a result of ``shape``, and return the number of that."""
        code, operator = self.schema.OperatorCodeT(), self.schema.OperatorT()
        code.builtinCode = code.deprecatedBuiltinCode = getattr(self.schema.BuiltinOperator, name)
        code.version = 2
        operator.opcodeIndex = len(self.model.operatorCodes)
        operator.inputs, operator.outputs = list(inputs), [self.tensor(shape)]
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
    graph = _Graph([first.src_shape[axis] for axis in _TO_LAST])
    value, schema = 0, graph.schema
    for stage, is_same in zip(stages, same):
        conv = stage.problem
        assert isinstance(conv, Conv)
        depthwise = conv.g > 1
        options = schema.DepthwiseConv2DOptionsT() if depthwise else schema.Conv2DOptionsT()
        options.padding = schema.Padding.SAME if is_same else schema.Padding.VALID
        options.strideH, options.strideW = conv.s
        options.dilationHFactor, options.dilationWFactor = (d + 1 for d in conv.d)
        options.fusedActivationFunction = _activation(schema, conv)
        if depthwise:
            options.depthMultiplier = 1
        weights = stage.arrays["wei"].reshape(conv.oc, conv.ic // conv.g, *conv.k)[:, :, ::turn, ::turn]
        weights = weights.transpose((1, 2, 3, 0) if depthwise else _TO_LAST)
        bias = stage.arrays["bia"] if conv.bias else np.zeros(conv.oc, np.float32)
        inputs = [value, graph.tensor(weights.shape, weights), graph.tensor(bias.shape, bias)]
        shape = [conv.dst_shape[axis] for axis in _TO_LAST]
        name, kind = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if depthwise else ("CONV_2D", "Conv2DOptions")
        value = graph.operator(name, options, kind, inputs, shape)
        if stage.adds_source:
            value = graph.operator("ADD", schema.AddOptionsT(), "AddOptions", [value, 0], shape)
    return graph.bytes()


def _activation(schema: Any, conv: Conv) -> Any:
    """Return the activation function of an operator; UnsupportedError where it has none that computes the post-ops."""
    known = {(): "NONE", (("relu", 0.0, 0.0),): "RELU", (("clip", 0.0, 6.0),): "RELU6"}
    name = known.get(tuple((op.alg, op.alpha, op.beta) for op in clipping(conv)))
    if name is None:
        raise UnsupportedError("xnnpack has activations relu and clip:0:6 only", code="post-ops")
    return getattr(schema.ActivationFunctionType, name)
