"""The libraries that kernels are compared with, each called in the way that the name stands for.

`torch` is `torch.nn.functional.conv*` under inference_mode, input and weight in channels-last memory format (1D has
none), no prepacking; gradients are `convolution_backward` with only the wanted output, matrix products `torch.matmul`.
`onnxruntime` is a session of a model with one `Conv` (or `ConvInteger`) node on contiguous input, weights being
initializers, which it prepacks. Both with the thread count of the kernel. A post-op follows as the library's own call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import util
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import output_size
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.problem import Problem

__all__ = ["PEERS", "installed", "peer_call"]

Array = np.ndarray[Any, Any]
Call = Callable[[], object]

_SESSION_OPSET = 17
_IR_VERSION = 9


def installed(name: str) -> bool:
    """Whether a library of `PEERS` can be imported. UsageError: another name."""
    if name not in PEERS:
        raise UsageError(f"unknown library {name!r}: legal are {', '.join(PEERS)}", code="bad-library")
    return all(util.find_spec(module) is not None for module in _MODULES[name])


def peer_call(name: str, problem: Problem, arrays: Mapping[str, Array], threads: int) -> Call:
    """A function that computes the problem on copies of these logical arrays, ready to be timed.

    UnsupportedError says what the library lacks for this problem.
    """
    if problem.scales or problem.zero_points:
        raise UnsupportedError("peers run without scales and zero points only", code="attributes")
    if isinstance(problem, Conv) and problem.deconv:
        raise UnsupportedError("peers run no deconvolutions", code="deconv")
    return PEERS[name](problem, arrays, threads)


def _torch(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Call:
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

    post_ops = [_torch_post_op(op.alg, op.alpha, op.beta) for op in _eltwise(problem)]
    bias = tensor("bia") if problem.bias else None
    if isinstance(problem, Conv):
        product = _torch_convolution(problem, tensor, bias)
    else:
        x, w = tensor("src"), tensor("wei")

        def product() -> Any:
            return torch.matmul(x, w) if bias is None else torch.matmul(x, w).add_(bias)

    def call() -> object:
        with torch.inference_mode():
            y = product()
            for post_op in post_ops:
                post_op(y)
            return y

    return call


def _torch_convolution(problem: Conv, tensor: Callable[..., Any], bias: Any) -> Callable[[], Any]:
    """Forward, or the gradients that are asked for."""
    import torch
    from torch.nn import functional

    sizes = zip(problem.i, problem.k, problem.s, problem.d, problem.p, problem.p, strict=True)
    if problem.o != tuple(output_size(*size) for size in sizes):
        raise UnsupportedError("torch has the same pads at front and back, which give another size", code="pads")
    shape = (problem.oc, problem.ic // problem.g, *problem.k)
    dilations = tuple(d + 1 for d in problem.d)
    if problem.forward:
        x, w = tensor("src"), tensor("wei", shape)
        convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[problem.rank - 1]
        return lambda: convolution(x, w, bias, problem.s, problem.p, dilations, problem.g)
    # What is not wanted is read for its shape only.
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


def _eltwise(problem: Problem) -> list[Eltwise]:
    steps = [op for op in problem.post_ops if isinstance(op, Eltwise) and op.alg in ("relu", "clip", "clip_v2")]
    if len(steps) != len(problem.post_ops):
        raise UnsupportedError("peers run post-ops relu, clip and clip_v2 only", code="post-ops")
    return steps


def _torch_post_op(alg: str, alpha: float, beta: float) -> Callable[[Any], Any]:
    from torch.nn import functional

    if alg == "relu":
        return lambda y: functional.leaky_relu_(y, alpha) if alpha else y.relu_()
    return lambda y: y.clamp_(alpha, beta)


def _onnxruntime(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Call:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    if not isinstance(problem, Conv) or not problem.forward:
        raise UnsupportedError("onnxruntime is compared on forward convolutions only", code="dir")
    types = {("f32",) * 3: ("Conv", "FLOAT", "FLOAT"), ("u8", "s8", "s32"): ("ConvInteger", "UINT8", "INT32")}
    if problem.dt not in types or problem.bia_dt or (problem.acc == "s32" and (problem.bias or problem.post_ops)):
        raise UnsupportedError("onnxruntime runs f32, or u8:s8:s32 without bias and post-ops", code="types")
    operator, source, result_type = types[problem.dt]
    weights = np.ascontiguousarray(arrays["wei"]).reshape(problem.oc, problem.ic // problem.g, *problem.k)
    constants = {"w": weights, "b": arrays["bia"]} if problem.bias else {"w": weights}
    # A negative pad leaves out the input that the rounded-down output size leaves out anyway.
    back = [max(pr, 0) for pr in problem.pr]
    nodes = [
        helper.make_node(
            operator, ["x", *constants], ["y0"], strides=list(problem.s), pads=[*problem.p, *back],
            dilations=[d + 1 for d in problem.d], group=problem.g, kernel_shape=list(problem.k),
        )
    ]  # fmt: skip
    for n, op in enumerate(_eltwise(problem)):
        ends = [f"y{n}"], [f"y{n + 1}"]
        if op.alg == "relu":
            slope: dict[str, Any] = {"alpha": op.alpha} if op.alpha else {}
            nodes.append(helper.make_node("LeakyRelu" if op.alpha else "Relu", *ends, **slope))
        else:
            bounds = {f"low{n}": np.float32(op.alpha), f"high{n}": np.float32(op.beta)}
            constants |= {name: np.asarray(value) for name, value in bounds.items()}
            nodes.append(helper.make_node("Clip", [*ends[0], *bounds], ends[1]))
    result = f"y{len(problem.post_ops)}"
    graph = helper.make_graph(
        nodes, "convolution",
        [helper.make_tensor_value_info("x", getattr(TensorProto, source), problem.src_shape)],
        [helper.make_tensor_value_info(result, getattr(TensorProto, result_type), problem.dst_shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _SESSION_OPSET)])
    model.ir_version = _IR_VERSION
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(arrays["src"]))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_output(result, "cpu")

    def call() -> object:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    return call


PEERS: dict[str, Callable[[Problem, Mapping[str, Array], int], Call]] = {
    "torch": _torch,
    "onnxruntime": _onnxruntime,
}
_MODULES = {"torch": ("torch",), "onnxruntime": ("onnxruntime", "onnx")}
