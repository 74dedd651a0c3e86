"""The convolutions of an ONNX model as problems: the operators Conv, ConvTranspose, ConvInteger and QLinearConv.

The problems are those that `convsmith.onnx` compiles for these operators, without the scales of QLinearConv.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.frontend.onnx_window import OperandNames, convolution, transposed, window
from convsmith.problem.problem import Problem

__all__ = ["model_problems"]

_INPUTS = {"Conv": (0, 1), "ConvTranspose": (0, 1), "ConvInteger": (0, 1), "QLinearConv": (0, 3)}
"""Positions of source and weights among the inputs of each operator."""
_TYPES = {1: "f32", 10: "f16", 11: "f64", 16: "bf16", 2: "u8", 3: "s8"}
"""Names of data types by their numbers in ONNX."""
BATCH = 1
"""Size of a dim that the model leaves open."""


def model_problems(path: str | os.PathLike[str]) -> list[Problem]:
    """Return the distinct problems of a model, in the order of its nodes. UsageError: the file is no model, or the
    shape of a source is unknown.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", code="bad-file") from None
    with import_lock:
        try:
            import onnx
        except ImportError:
            raise UnsupportedError(f"{path}: reading a model needs the package onnx", code="no-onnx") from None
    try:
        model = onnx.load_model_from_string(content)
        for value in model.graph.input:
            for dim in value.type.tensor_type.shape.dim:
                if not dim.dim_value:
                    dim.dim_value = BATCH
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception as error:
        raise UsageError(f"{path}: is no ONNX model: {error}", code="bad-file") from None
    return list(dict.fromkeys(_problems(graph, os.fspath(path))))


def _problems(graph: Any, path: str) -> Iterator[Problem]:
    known: dict[str, tuple[int, tuple[int, ...]]] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        known[value.name] = tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim)
    for tensor in graph.initializer:
        known[tensor.name] = tensor.data_type, tuple(tensor.dims)
    for node in graph.node:
        if node.op_type in _INPUTS:
            yield _problem(node, known, path)


def _problem(node: Any, known: Mapping[str, tuple[int, tuple[int, ...]]], path: str) -> Problem:
    x, w = (node.input[n] for n in _INPUTS[node.op_type])
    for name in (x, w):
        if name not in known or 0 in known[name][1]:
            raise UsageError(
                f"{path}: node {node.name or node.op_type}: the shape of {name} is unknown; legal are models whose "
                "shapes follow from those of their inputs", code="shape",
            )  # fmt: skip
    (x_type, x_shape), (w_type, w_shape) = known[x], known[w]
    given: dict[str, Any] = {a.name: a.s or tuple(a.ints) or a.i for a in node.attribute}
    frame = window(
        given.get("auto_pad", "NOTSET"), given.get("dilations"), given.get("group", 1), given.get("kernel_shape"),
        given.get("pads"), given.get("strides"), given.get("output_padding"), given.get("output_shape"),
    )  # fmt: skip
    types = tuple(_TYPES.get(n, "") for n in (x_type, w_type))
    if not all(types):
        raise UsageError(f"{path}: node {node.name or node.op_type}: types {x_type}, {w_type} are unknown", code="dt")
    is_integer = node.op_type in ("ConvInteger", "QLinearConv")
    options: dict[str, Any] = {"dt": (*types, "s32" if is_integer else types[0])}
    if not is_integer and len(node.input) > 2 and node.input[2]:
        options |= {"dir": "FWD_B", "bia_dt": types[0]}
    if node.op_type == "ConvTranspose":
        return transposed(OperandNames(x, w), x_shape, w_shape, frame, **options)[0]
    return convolution(OperandNames(x, w), x_shape, w_shape, frame, **options)
