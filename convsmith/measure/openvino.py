"""OpenVINO, as a model whose input and output have the layout of the problem, on tensors in memory of the caller.

A bias or post-op is a node of its own. A chain is one model, whose nodes OpenVINO fuses as it chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.measure.peer import Array, Peer, PeerStage, clipping, require_no_quantities, stages_for_peers
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import aligned_copy

__all__ = ["openvino"]


def openvino(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return a peer that runs a model of all stages, channels last if the destination is channels last."""
    import openvino as library
    from openvino import opset13 as nodes

    stages = stages_for_peers(problem, arrays)
    for stage in stages:
        _check(stage.problem)
    rank = problem.rank
    last = problem.dtag == "axb"
    to_last, to_first = [0, *range(2, rank + 2), 1], [0, rank + 1, *range(1, rank + 1)]
    source = np.ascontiguousarray(arrays["src"], np.float32)
    x = aligned_copy(np.ascontiguousarray(source.transpose(to_last)) if last else source)
    shape = tuple(problem.dst_shape[axis] for axis in to_last) if last else problem.dst_shape
    y = aligned_copy(np.zeros(shape, np.float32))
    given = nodes.parameter(list(x.shape), np.float32)
    image = nodes.transpose(given, np.array(to_first)) if last else given
    value = image
    for stage in stages:
        value = _result(stage, value)
        value = nodes.add(value, image) if stage.adds_source else value
    result = nodes.transpose(value, np.array(to_last)) if last else value
    options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = library.Core().compile_model(library.Model([result], [given], "convolution"), "CPU", options)
    request = compiled.create_infer_request()
    request.set_input_tensor(library.Tensor(x, shared_memory=True))
    request.set_output_tensor(library.Tensor(y, shared_memory=True))

    def call(kept: object = (x, y, compiled)) -> object:
        return request.infer()

    return Peer(call, lambda: y.transpose(to_first) if last else y)


def _check(problem: Problem) -> None:
    """Raise UnsupportedError if OpenVINO is not called for `problem`."""
    if not isinstance(problem, Conv) or not problem.forward:
        raise UnsupportedError("openvino is compared on forward convolutions only", code="dir")
    if problem.dt != ("f32",) * 3 or problem.bia_dt not in ("", "f32"):
        raise UnsupportedError("openvino is compared in f32 only", code="types")
    require_no_quantities("openvino", problem)


def _result(stage: PeerStage, source: Any) -> Any:
    """Return the node with the result of `stage`, which reads the node `source`."""
    from openvino import opset13 as nodes

    problem, arrays = stage.problem, stage.arrays
    assert isinstance(problem, Conv)
    groups = (problem.g,) if problem.g > 1 else ()
    weights = np.ascontiguousarray(arrays["wei"], np.float32)
    weights = weights.reshape(*groups, problem.oc // problem.g, problem.ic // problem.g, *problem.k)
    convolution = nodes.group_convolution if groups else nodes.convolution
    back = [max(pr, 0) for pr in problem.pr]
    dilations = [d + 1 for d in problem.d]
    value = convolution(source, nodes.constant(weights), list(problem.s), list(problem.p), back, dilations)
    if problem.bias:
        bias = np.ascontiguousarray(arrays["bia"], np.float32)
        value = nodes.add(value, nodes.constant(bias.reshape(1, problem.oc, *(1 for _ in problem.k))))
    for op in clipping(problem):
        if op.alg != "relu":
            value = nodes.clamp(value, op.alpha, op.beta)
        elif op.alpha:
            value = nodes.prelu(value, nodes.constant(np.full(1, op.alpha, np.float32)))
        else:
            value = nodes.relu(value)
    return value
