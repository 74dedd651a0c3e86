"""The libraries that kernels are compared with, each called in the way that the name stands for.

`torch` is `torch.nn.functional.conv*` under inference_mode, input and weight in channels-last memory format (1D has
none), no prepacking. `onnxruntime` is a session of a model with one `Conv` node on contiguous input, weights being
initializers, which it prepacks. Both with the thread count of the kernel. A post-op follows as the library's own call.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import output_size
from convsmith.problem.post_ops import Eltwise

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


def peer_call(name: str, problem: Conv, src: Array, wei: Array, bias: Array | None, threads: int) -> Call:
    """A function that computes the problem on copies of these logical arrays, ready to be timed.

    UnsupportedError says what the library lacks for this problem.
    """
    return PEERS[name](problem, src, wei, bias, threads)


def _torch(problem: Conv, src: Array, wei: Array, bias: Array | None, threads: int) -> Call:
    import torch
    from torch.nn import functional

    sizes = zip(problem.i, problem.k, problem.s, problem.d, problem.p, problem.p, strict=True)
    if problem.o != tuple(output_size(*size) for size in sizes):
        raise UnsupportedError("torch has the same pads at front and back, which give another size", code="pads")
    torch.set_num_threads(threads)
    layouts = {2: torch.channels_last, 3: torch.channels_last_3d}
    layout = layouts.get(problem.rank, torch.contiguous_format)

    def tensor(array: Array) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).contiguous(memory_format=layout)

    x, w = tensor(src), tensor(wei.reshape(problem.oc, problem.ic // problem.g, *problem.k))
    b = None if bias is None else torch.from_numpy(bias)
    convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[problem.rank - 1]
    options = (problem.s, problem.p, tuple(d + 1 for d in problem.d), problem.g)
    post_ops = [_torch_post_op(op.alg, op.alpha, op.beta) for op in _eltwise(problem)]

    def call() -> object:
        with torch.inference_mode():
            y = convolution(x, w, b, *options)
            for post_op in post_ops:
                post_op(y)
            return y

    return call


def _eltwise(problem: Conv) -> list[Eltwise]:
    steps = [op for op in problem.post_ops if isinstance(op, Eltwise) and op.alg in ("relu", "clip", "clip_v2")]
    if len(steps) != len(problem.post_ops):
        raise UnsupportedError("peers run post-ops relu, clip and clip_v2 only", code="post-ops")
    return steps


def _torch_post_op(alg: str, alpha: float, beta: float) -> Callable[[Any], Any]:
    from torch.nn import functional

    if alg == "relu":
        return lambda y: functional.leaky_relu_(y, alpha) if alpha else y.relu_()
    return lambda y: y.clamp_(alpha, beta)


def _onnxruntime(problem: Conv, src: Array, wei: Array, bias: Array | None, threads: int) -> Call:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    weights = np.ascontiguousarray(wei).reshape(problem.oc, problem.ic // problem.g, *problem.k)
    constants = {"w": weights} if bias is None else {"w": weights, "b": bias}
    # A negative pad leaves out the input that the rounded-down output size leaves out anyway.
    back = [max(pr, 0) for pr in problem.pr]
    nodes = [
        helper.make_node(
            "Conv", ["x", *constants], ["y0"], strides=list(problem.s), pads=[*problem.p, *back],
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
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, problem.src_shape)],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, problem.dst_shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _SESSION_OPSET)])
    model.ir_version = _IR_VERSION
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(src))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_output(result, "cpu")

    def call() -> object:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    return call


PEERS: dict[str, Callable[[Conv, Array, Array, Array | None, int], Call]] = {
    "torch": _torch,
    "onnxruntime": _onnxruntime,
}
_MODULES = {"torch": ("torch",), "onnxruntime": ("onnxruntime", "onnx")}
