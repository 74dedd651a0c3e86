"""The libraries that kernels are compared with, and how each is called.

`torch` is `torch.nn.functional.conv*` under inference_mode, with input and weights in channels-last memory format (1D
has none) and without prepacking; deconvolutions are `conv_transpose*`, gradients are `convolution_backward` with only
the required output, matrix products are `torch.matmul`. A post-op is the library's own call. The other libraries have
one file each. Every library uses as many threads as the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata, util
from typing import Any

import numpy as np

from convsmith.diag.choices import choices
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.measure.ncnn import ncnn
from convsmith.measure.onednn import PACKAGE, onednn
from convsmith.measure.onnx_peers import nchwc, onnxruntime
from convsmith.measure.openvino import openvino
from convsmith.measure.peer import Array, Peer, clipping
from convsmith.measure.xnnpack import xnnpack
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import output_size
from convsmith.problem.problem import Problem

__all__ = ["PEERS", "TRANSFORMED", "installed", "make_peer"]

TRANSFORMED = 1e-5
"""Largest error of results of Winograd's transforms on integers, relative to the greatest result."""


@dataclass(frozen=True)
class Library:
    """A library: its peer function, its package, the modules it needs, and whether it computes deconvolutions, and
    chains.

    Results on integers are exact, or, if the library uses transforms, differ by at most ``error`` of the greatest
    result.
    """

    peer: Callable[[Problem, Mapping[str, Array], int], Peer]
    package: str
    modules: tuple[str, ...]
    deconvolutions: bool = False
    chains: bool = False
    error: float = 0.0

    @property
    def version(self) -> str | None:
        """Version of the package; None if it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None


def installed(name: str) -> bool:
    """Return whether the library `name` is installed. UsageError if `PEERS` has no such name."""
    if name not in PEERS:
        raise UsageError(f"unknown library {name!r}: legal are {choices(name, PEERS)}", code="bad-library")
    library = PEERS[name]
    return library.version is not None and all(util.find_spec(module) is not None for module in library.modules)


def make_peer(name: str, problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return the library's computation of `problem` on copies of the logical arrays, ready to be timed.

    UnsupportedError names the feature that the library lacks.
    """
    if problem.scales or problem.zero_points:
        raise UnsupportedError("peers run without scales and zero points only", code="attributes")
    if isinstance(problem, Chain) and not PEERS[name].chains:
        able = ", ".join(n for n, library in PEERS.items() if library.chains)
        raise UnsupportedError(f"{name} is not called for chains; available: {able}", code="chain")
    if isinstance(problem, Conv) and problem.deconv and not PEERS[name].deconvolutions:
        able = ", ".join(n for n, library in PEERS.items() if library.deconvolutions)
        raise UnsupportedError(f"{name} is not called for deconvolutions; available: {able}", code="deconv")
    return PEERS[name].peer(problem, arrays, threads)


def _torch(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    import torch

    kinds = {("f32",) * 3: torch.float32, ("bf16",) * 3: torch.bfloat16, ("f64",) * 3: torch.float64}
    if problem.dt not in kinds or problem.bia_dt not in ("", problem.dt[0]):
        raise UnsupportedError("torch has one type for all arrays: f32, bf16 or f64", code="types")
    torch.set_num_threads(threads)
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}

    def tensor(name: str, shape: tuple[int, ...] | None = None) -> Any:
        array = np.ascontiguousarray(arrays[name], np.float64).reshape(shape or arrays[name].shape)
        plain = torch.from_numpy(array).to(kinds[problem.dt])
        conv = isinstance(problem, Conv)
        return plain.contiguous(memory_format=layouts.get(array.ndim, torch.contiguous_format)) if conv else plain

    post_ops = [_torch_post_op(op.alg, op.alpha, op.beta) for op in clipping(problem)]
    bias = tensor("bia") if problem.bias else None
    if isinstance(problem, Conv):
        product = _torch_convolution(problem, tensor, bias)
    else:
        x, w = tensor("src"), tensor("wei")

        def product() -> Any:
            return torch.matmul(x, w) if bias is None else torch.matmul(x, w).add_(bias)

    def call() -> Any:
        with torch.inference_mode():
            y = product()
            for post_op in post_ops:
                post_op(y)
            return y

    return Peer(call, lambda: call().to(torch.float64).numpy())


def _torch_convolution(problem: Conv, tensor: Callable[..., Any], bias: Any) -> Callable[[], Any]:
    """Return a call of the forward convolution, or of the gradient that `problem` asks for."""
    import torch
    from torch.nn import functional

    if problem.deconv:
        return _torch_deconvolution(problem, tensor, bias)
    sizes = zip(problem.i, problem.k, problem.s, problem.d, problem.p, problem.p, strict=True)
    if problem.o != tuple(output_size(*size) for size in sizes):
        raise UnsupportedError("torch has the same pads at front and back, which give another size", code="pads")
    shape = (problem.oc, problem.ic // problem.g, *problem.k)
    dilations = tuple(d + 1 for d in problem.d)
    if problem.forward:
        x, w = tensor("src"), tensor("wei", shape)
        convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[problem.rank - 1]
        return lambda: convolution(x, w, bias, problem.s, problem.p, dilations, problem.g)
    # torch reads only the shape of the operand whose gradient it computes.
    diff_dst = tensor("diff_dst")
    x = diff_dst.new_empty(problem.src_shape) if problem.dir == "BWD_D" else tensor("src")
    w = tensor("wei", shape) if problem.dir == "BWD_D" else diff_dst.new_empty(shape)
    wanted = (problem.dir == "BWD_D", problem.dir != "BWD_D", problem.dir == "BWD_WB")
    options = (problem.s, problem.p, dilations, False, (0,) * problem.rank, problem.g)
    backward = torch.ops.aten.convolution_backward

    def gradient() -> Any:
        results = backward(diff_dst, x, w, (problem.oc,), *options, wanted)
        return results[wanted.index(True)]

    return gradient


def _torch_deconvolution(problem: Conv, tensor: Callable[..., Any], bias: Any) -> Callable[[], Any]:
    """Return a call of the forward deconvolution, with weights in torch's order: input channels first."""
    from torch.nn import functional

    sizes = zip(problem.o, problem.i, problem.k, problem.s, problem.d, problem.p, strict=True)
    more = tuple(o - ((i - 1) * s - 2 * p + (k - 1) * (d + 1) + 1) for o, i, k, s, d, p in sizes)
    if not problem.forward or any(not 0 <= n < s for n, s in zip(more, problem.s, strict=True)):
        raise UnsupportedError(
            "torch runs deconvolutions forward, with the same pads at front and back, and less than a stride more at "
            "the back", code="pads",
        )  # fmt: skip
    groups, channels = problem.g, (problem.oc // problem.g, problem.ic // problem.g)
    turned = tensor("wei", (groups, *channels, *problem.k)).transpose(1, 2)
    x, w = tensor("src"), turned.reshape(problem.ic, channels[0], *problem.k).contiguous()
    transposed = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
    convolution = transposed[problem.rank - 1]
    return lambda: convolution(x, w, bias, problem.s, problem.p, more, groups, tuple(d + 1 for d in problem.d))


def _torch_post_op(alg: str, alpha: float, beta: float) -> Callable[[Any], Any]:
    from torch.nn import functional

    if alg == "relu":
        return lambda y: functional.leaky_relu_(y, alpha) if alpha else y.relu_()
    return lambda y: y.clamp_(alpha, beta)


PEERS: dict[str, Library] = {
    "torch": Library(_torch, "torch", ("torch",), deconvolutions=True),
    "onnxruntime": Library(onnxruntime, "onnxruntime", ("onnxruntime", "onnx"), chains=True),
    "onnxruntime-nchwc": Library(nchwc, "onnxruntime", ("onnxruntime", "onnx")),
    "openvino": Library(openvino, "openvino", ("openvino",), chains=True),
    "ncnn": Library(ncnn, "ncnn", ("ncnn",), error=TRANSFORMED),
    "onednn": Library(onednn, PACKAGE, (), chains=True),
    "xnnpack": Library(xnnpack, "ai-edge-litert", ("ai_edge_litert", "flatbuffers"), chains=True),
}
