"""PyTorch, eager: the call of its operators under inference_mode, without prepacking.

Convolutions are `torch.nn.functional.conv*`, deconvolutions `conv_transpose*`, gradients `convolution_backward` with
only the required output, matrix products `torch.matmul`. A post-op is a call of its own, and so is each stage of a
chain.
Arrays are contiguous where the problem has channels first, otherwise in channels-last memory format (1D has none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.measure.peer import (
    Array,
    Peer,
    PeerStage,
    require_no_quantities,
    residual_and_clipping,
    stages_for_peers,
)
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import output_size
from convsmith.problem.problem import Problem

__all__ = ["torch_peer"]

_TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}
"""PyTorch's names of the types of elements."""
_CHANNELS_FIRST = ("any", "abx")


def torch_peer(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return the calls that compute `problem`. UnsupportedError names what PyTorch lacks."""
    import torch

    torch.set_num_threads(threads)
    stages = [_stage(stage) for stage in stages_for_peers(problem, arrays)]
    first = stages_for_peers(problem, arrays)[0]
    source = _tensor(first, "src") if problem.forward else None

    def call() -> Any:
        with torch.inference_mode():
            y = source
            for stage, adds_source in stages:
                y = stage(y)
                if adds_source:
                    y.add_(source)
            return y

    return Peer(call, lambda: call().to(torch.float64).numpy())


def _tensor(stage: PeerStage, name: str, shape: tuple[int, ...] | None = None) -> Any:
    """Return an array of a stage in the type and layout of its problem."""
    import torch

    problem = stage.problem
    array = np.ascontiguousarray(stage.arrays[name], np.float64).reshape(shape or stage.arrays[name].shape)
    plain = torch.from_numpy(array).to(getattr(torch, _TYPES[problem.dt[0]]))
    if not isinstance(problem, Conv) or problem.stag in _CHANNELS_FIRST:
        return plain
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return plain.contiguous(memory_format=layouts.get(array.ndim, torch.contiguous_format))


def _stage(stage: PeerStage) -> tuple[Callable[[Any], Any], bool]:
    """Return a function of the source that computes a stage, and whether the source of the chain is added to its
    result.
    """
    import torch

    problem = stage.problem
    require_no_quantities("torch", problem)
    if len({*problem.dt}) > 1 or problem.dt[0] not in _TYPES or problem.bia_dt not in ("", problem.dt[0]):
        raise UnsupportedError(f"torch has one type for all arrays: {', '.join(_TYPES)}", code="types")
    adds, clips = residual_and_clipping(problem)
    steps = [_post_op(op.alg, op.alpha, op.beta) for op in clips]
    old = _tensor(stage, "dst") if adds else None
    bias = _tensor(stage, "bia") if problem.bias else None
    if isinstance(problem, Conv):
        product = _convolution(problem, stage, bias)
    else:
        weights = _tensor(stage, "wei")

        def product(x: Any) -> Any:
            return torch.matmul(x, weights) if bias is None else torch.matmul(x, weights).add_(bias)

    def call(x: Any) -> Any:
        y = product(x)
        if old is not None:
            y.add_(old)
        for step in steps:
            step(y)
        return y

    return call, stage.adds_source


def _convolution(problem: Conv, stage: PeerStage, bias: Any) -> Callable[[Any], Any]:
    """Return a function of the source: the convolution, or the gradient that `problem` asks for, which ignores it."""
    import torch
    from torch.nn import functional

    if problem.deconv:
        return _deconvolution(problem, stage, bias)
    sizes = zip(problem.i, problem.k, problem.s, problem.d, problem.p, problem.p, strict=True)
    if problem.o != tuple(output_size(*size) for size in sizes):
        raise UnsupportedError("torch has the same pads at front and back, which give another size", code="pads")
    shape = (problem.oc, problem.ic // problem.g, *problem.k)
    dilations = tuple(d + 1 for d in problem.d)
    if problem.forward:
        w = _tensor(stage, "wei", shape)
        convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[problem.rank - 1]
        return lambda x: convolution(x, w, bias, problem.s, problem.p, dilations, problem.g)
    # torch reads only the shape of the operand whose gradient it computes.
    diff_dst = _tensor(stage, "diff_dst")
    x = diff_dst.new_empty(problem.src_shape) if problem.dir == "BWD_D" else _tensor(stage, "src")
    w = _tensor(stage, "wei", shape) if problem.dir == "BWD_D" else diff_dst.new_empty(shape)
    wanted = (problem.dir == "BWD_D", problem.dir != "BWD_D", problem.dir == "BWD_WB")
    options = (problem.s, problem.p, dilations, False, (0,) * problem.rank, problem.g)
    backward = torch.ops.aten.convolution_backward

    def gradient(_: Any) -> Any:
        results = backward(diff_dst, x, w, (problem.oc,), *options, wanted)
        return results[wanted.index(True)]

    return gradient


def _deconvolution(problem: Conv, stage: PeerStage, bias: Any) -> Callable[[Any], Any]:
    """Return a function of the source: the forward deconvolution, with weights in torch's order, input channels first.
    """
    from torch.nn import functional

    sizes = zip(problem.o, problem.i, problem.k, problem.s, problem.d, problem.p, strict=True)
    more = tuple(o - ((i - 1) * s - 2 * p + (k - 1) * (d + 1) + 1) for o, i, k, s, d, p in sizes)
    if not problem.forward or any(not 0 <= n < s for n, s in zip(more, problem.s, strict=True)):
        raise UnsupportedError(
            "torch runs deconvolutions forward, with the same pads at front and back, and less than a stride more at "
            "the back", code="pads",
        )  # fmt: skip
    groups, channels = problem.g, (problem.oc // problem.g, problem.ic // problem.g)
    turned = _tensor(stage, "wei", (groups, *channels, *problem.k)).transpose(1, 2)
    w = turned.reshape(problem.ic, channels[0], *problem.k).contiguous()
    transposed = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
    convolution = transposed[problem.rank - 1]
    return lambda x: convolution(x, w, bias, problem.s, problem.p, more, groups, tuple(d + 1 for d in problem.d))


def _post_op(alg: str, alpha: float, beta: float) -> Callable[[Any], Any]:
    from torch.nn import functional

    if alg == "relu":
        return lambda y: functional.leaky_relu_(y, alpha) if alpha else y.relu_()
    return lambda y: y.clamp_(alpha, beta)
