"""XNNPACK through LiteRT (`ai-edge-litert`), whose interpreter delegates supported operators to it.

The model has one depthwise convolution, channels last, with constant weights. Its padding is TensorFlow's `SAME`, which
puts an odd pixel at the end; a problem with the odd pixel at the front is mirrored along its axes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.measure.peer import Array, Peer, plain_f32
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem

__all__ = ["xnnpack"]

_TO_LAST, _FROM_LAST = (0, 2, 3, 1), (0, 3, 1, 2)


def xnnpack(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return a peer that interprets a model with one operator."""
    from ai_edge_litert.interpreter import Interpreter

    conv = plain_f32("xnnpack", problem)
    if not conv.g == conv.ic == conv.oc:
        raise UnsupportedError("xnnpack is compared on depthwise convolutions only", code="groups")
    same, turn = _padding(conv)
    weights = arrays["wei"].reshape(1, conv.oc, *conv.k)[:, :, ::turn, ::turn]
    bias = arrays["bia"] if conv.bias else np.zeros(conv.oc, np.float32)
    model = _model(conv, same, np.ascontiguousarray(weights.transpose(_TO_LAST)), bias)
    interpreter = Interpreter(model_content=model, num_threads=threads)
    interpreter.allocate_tensors()
    x = arrays["src"][:, :, ::turn, ::turn].transpose(_TO_LAST)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.ascontiguousarray(x))
    output = interpreter.get_output_details()[0]["index"]

    def result() -> Array:
        y: Array = interpreter.get_tensor(output)
        return y.transpose(_FROM_LAST)[:, :, ::turn, ::turn]

    return Peer(interpreter.invoke, result)


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


def _model(conv: Conv, same: bool, weights: Array, bias: Array) -> bytes:
    """Return a TensorFlow Lite model as bytes."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    mb, ic, height, width = conv.src_shape
    oh, ow = conv.o
    shapes = {"x": (mb, height, width, ic), "w": weights.shape, "b": bias.shape, "y": (mb, oh, ow, conv.oc)}
    contents = {"w": weights, "b": bias}
    model: Any = schema.ModelT()
    model.version = 3
    model.buffers = [schema.BufferT()]
    graph = schema.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs = [], [0], [3]
    for name, shape in shapes.items():
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type, tensor.buffer = name, list(shape), schema.TensorType.FLOAT32, 0
        if name in contents:
            tensor.buffer = len(model.buffers)
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(contents[name], np.float32).tobytes(), np.uint8)
            model.buffers.append(buffer)
        graph.tensors.append(tensor)
    operator = schema.OperatorT()
    operator.inputs, operator.outputs = [0, 1, 2], [3]
    options = schema.DepthwiseConv2DOptionsT()
    options.padding = schema.Padding.SAME if same else schema.Padding.VALID
    options.strideH, options.strideW = conv.s
    options.dilationHFactor, options.dilationWFactor = (d + 1 for d in conv.d)
    options.depthMultiplier = 1
    operator.builtinOptionsType = schema.BuiltinOptions.DepthwiseConv2DOptions
    operator.builtinOptions = options
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.DEPTHWISE_CONV_2D
    code.version = 2
    graph.operators, model.operatorCodes, model.subgraphs = [operator], [code], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
