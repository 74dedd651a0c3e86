"""ONNX Runtime, as a session on a model whose input and output are bound to fixed memory.

`onnxruntime` runs a `Conv` (or `ConvInteger`) on contiguous input; its weights are initializers, which the session
packs in advance. A post-op is a node of its own. A chain is one model, whose nodes ONNX Runtime fuses as it likes.
`nchwc` runs the operator on blocked channels that ONNX Runtime's optimiser uses inside graphs. The optimiser would
reorder at both ends of a single `Conv`, so this model consists of the inner operator alone, and source and weights are
reordered beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.layout.layout import Layout
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.machine.host import cpu_features
from convsmith.measure.peer import (
    Array,
    Peer,
    PeerStage,
    factor_of_bytes,
    in_layout,
    is_in_bytes,
    plain_f32,
    require_no_quantities,
    residual_and_clipping,
    stages_for_peers,
)
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import numpy_dtype

__all__ = ["nchwc", "onnx_model", "onnxruntime"]

_DOMAIN = "com.microsoft.nchwc"
_OPSET, _IR_VERSION = 17, 9
_NO_BYTES = "onnxruntime has deconvolutions of floating-point numbers only"


def _block() -> int:
    """Return the channels of a block: the elements of the longest vector of f32 that ONNX Runtime uses on this CPU."""
    return 16 if "avx512f" in cpu_features() else 8


def onnxruntime(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return a peer that runs the standard's operators, for a chain one model of all stages. UnsupportedError if they
    do not cover `problem`.
    """
    nodes, constants = _of_problem(problem, arrays)
    result = np.zeros(problem.dst_shape, numpy_dtype(problem.dst_type))
    return _session(nodes, constants, np.ascontiguousarray(arrays["src"]), result, threads)


def onnx_model(problem: Problem, arrays: Mapping[str, Array]) -> tuple[bytes, str]:
    """Return the model of `problem` with its weights, whose input is `x`, and the name of its output. UnsupportedError
    if the standard's operators do not cover the problem.
    """
    nodes, constants = _of_problem(problem, arrays)
    result = np.zeros(problem.dst_shape, numpy_dtype(problem.dst_type))
    model = _model(nodes, constants, np.ascontiguousarray(arrays["src"]), result)
    return model.SerializeToString(), nodes[-1].output[0]


def _of_problem(problem: Problem, arrays: Mapping[str, Array]) -> tuple[list[Any], dict[str, Array]]:
    """Return the nodes that compute `problem`, and their constants."""
    nodes: list[Any] = []
    constants: dict[str, Array] = {}
    stages = stages_for_peers(problem, arrays)
    for n, stage in enumerate(stages):
        found, values = _nodes(stage, nodes[-1].output[0] if nodes else "x", f"_{n}" if len(stages) > 1 else "")
        nodes += found
        constants |= values
    return nodes, constants


def _nodes(stage: PeerStage, source: str, suffix: str) -> tuple[list[Any], dict[str, Array]]:
    """Return the nodes that compute `stage` from the value `source`, and their constants; names end in `suffix`."""
    from onnx import helper

    problem, arrays, adds_source = stage
    if not isinstance(problem, Conv) or not problem.forward:
        raise UnsupportedError("onnxruntime is compared on forward convolutions only", code="dir")
    if is_in_bytes(problem):
        return _quantised_node(stage, source, suffix)
    require_no_quantities("onnxruntime", problem)
    operator = {("f32",) * 3: "Conv", ("f16",) * 3: "Conv", ("u8", "s8", "s32"): "ConvInteger"}.get(problem.dt)
    if operator is None or problem.bia_dt or (problem.acc == "s32" and (problem.bias or problem.post_ops)):
        raise UnsupportedError(
            "onnxruntime runs f32, f16, u8:s8:s32 without bias and post-ops, or bytes that are scaled", code="types"
        )
    weights = np.ascontiguousarray(arrays["wei"]).reshape(problem.oc, problem.ic // problem.g, *problem.k)
    if problem.deconv:
        operator, weights = _transposed(operator, problem, weights)
    constants = {f"w{suffix}": weights} | ({f"b{suffix}": arrays["bia"]} if problem.bias else {})
    nodes = [helper.make_node(operator, [source, *constants], [f"y0{suffix}"], **_attributes(problem))]
    adds, clips = residual_and_clipping(problem)
    if adds:
        nodes.append(helper.make_node("Add", [f"y0{suffix}", f"old{suffix}"], [f"sum0{suffix}"]))
        constants[f"old{suffix}"] = arrays["dst"]
    for n, op in enumerate(clips):
        ends = [nodes[-1].output[0]], [f"y{n + 1}{suffix}"]
        if op.alg == "relu":
            slope: dict[str, Any] = {"alpha": op.alpha} if op.alpha else {}
            nodes.append(helper.make_node("LeakyRelu" if op.alpha else "Relu", *ends, **slope))
        else:
            bounds = {f"low{n}{suffix}": np.float32(op.alpha), f"high{n}{suffix}": np.float32(op.beta)}
            constants |= {name: np.asarray(value) for name, value in bounds.items()}
            nodes.append(helper.make_node("Clip", [*ends[0], *bounds], ends[1]))
    if adds_source:
        nodes.append(helper.make_node("Add", [nodes[-1].output[0], "x"], [f"sum{suffix}"]))
    return nodes, constants


def _quantised_node(stage: PeerStage, source: str, suffix: str) -> tuple[list[Any], dict[str, Array]]:
    """Return the node that multiplies bytes, scales the sums and rounds them to bytes, and its constants."""
    from onnx import helper

    problem, arrays, _ = stage
    assert isinstance(problem, Conv)
    factor = factor_of_bytes("onnxruntime", stage)
    if problem.dst_type == "s8" and any(isinstance(op, Eltwise) and op.alg == "relu" for op in problem.post_ops):
        raise UnsupportedError("onnxruntime has relu of bytes by saturation of u8 only", code="post-ops")
    if problem.dt[0] != problem.dst_type:
        raise UnsupportedError("onnxruntime writes the type of bytes that it reads", code="types")
    if problem.deconv:
        raise UnsupportedError(_NO_BYTES, code="types")
    if any(quantity.policy not in ("common", "per_oc") for quantity in (*problem.scales, *problem.zero_points)):
        raise UnsupportedError("onnxruntime has scales and zero points of an array or per channel", code="attributes")
    weights = np.ascontiguousarray(arrays["wei"]).reshape(problem.oc, problem.ic // problem.g, *problem.k)

    def scale(name: str, times: float = 1.0) -> Array:
        value = np.asarray(arrays.get(f"scales_{name}", 1.0), np.float32) * np.float32(times)
        return value.reshape(()) if value.size == 1 else value

    def zero_point(name: str, type_: str) -> Array:
        return np.asarray(arrays.get(f"zero_points_{name}", 0)).astype(numpy_dtype(type_)).reshape(())

    src, wei, dst = problem.dt
    constants: dict[str, Array] = {
        f"xs{suffix}": scale("src"), f"xz{suffix}": zero_point("src", src), f"w{suffix}": weights,
        f"ws{suffix}": scale("wei", factor), f"wz{suffix}": zero_point("wei", wei),
        f"ys{suffix}": scale("dst"), f"yz{suffix}": zero_point("dst", dst),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", [source, *constants], [f"y0{suffix}"], **_attributes(problem))
    return [node], constants


def nchwc(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return a peer that runs the blocked operator on a depthwise convolution."""
    from onnx import helper

    conv, block = plain_f32("onnxruntime-nchwc", problem), _block()
    if not conv.g == conv.ic == conv.oc or conv.oc % block:
        raise UnsupportedError(
            f"onnxruntime-nchwc is compared on depthwise convolutions of {block} channels and multiples", code="groups"
        )
    shape = (conv.oc, 1, *conv.k)
    weights = to_layout(arrays["wei"].reshape(shape), Layout.from_tag(f"Abcd{block}a", shape)).reshape(shape)
    constants = {"w": weights, "b": arrays["bia"]} if conv.bias else {"w": weights}
    node = helper.make_node("Conv", ["x", *constants], ["y"], domain=_DOMAIN, **_attributes(conv))
    source, layout = (Layout.from_tag(f"aBcd{block}b", shape) for shape in (conv.src_shape, conv.dst_shape))
    x = in_layout(arrays["src"], source).reshape(conv.src_shape)
    y = in_layout(np.zeros(conv.dst_shape, np.float32), layout).reshape(conv.dst_shape)
    peer = _session([node], constants, x, y, threads)
    return Peer(peer.call, lambda: from_layout(peer.result().reshape(layout.physical_shape), layout))


def _transposed(operator: str, conv: Conv, weights: Array) -> tuple[str, Array]:
    """Return the operator of a deconvolution, and its weights, which have input channels first."""
    if operator != "Conv":
        raise UnsupportedError(_NO_BYTES, code="types")
    groups = weights.reshape(conv.g, conv.oc // conv.g, conv.ic // conv.g, *conv.k).swapaxes(1, 2)
    return "ConvTranspose", np.ascontiguousarray(groups).reshape(conv.ic, conv.oc // conv.g, *conv.k)


def _attributes(conv: Conv) -> dict[str, Any]:
    if conv.deconv:
        whole = [s * (i - 1) + (k - 1) * (d + 1) + 1 for s, i, k, d in zip(conv.s, conv.i, conv.k, conv.d)]
        back = [n - p - o for n, p, o in zip(whole, conv.p, conv.o)]
        return {
            "strides": list(conv.s), "pads": [*conv.p, *(max(n, 0) for n in back)], "group": conv.g,
            "dilations": [d + 1 for d in conv.d], "kernel_shape": list(conv.k),
            "output_padding": [max(-n, 0) for n in back],
        }  # fmt: skip
    # A negative back pad drops inputs that no output reads anyway, because the output size is rounded down.
    back = [max(pr, 0) for pr in conv.pr]
    return {
        "strides": list(conv.s), "pads": [*conv.p, *back], "dilations": [d + 1 for d in conv.d], "group": conv.g,
        "kernel_shape": list(conv.k),
    }  # fmt: skip


def _model(nodes: Sequence[Any], constants: Mapping[str, Array], source: Array, result: Array) -> Any:
    """Return the model of `nodes`, from the input `x` to the output of the last node."""
    from onnx import helper, numpy_helper

    name = nodes[-1].output[0]
    values = (
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for n, array in (("x", source), (name, result))
    )
    inputs, outputs = ([value] for value in values)
    initializers = [numpy_helper.from_array(np.ascontiguousarray(value), n) for n, value in constants.items()]
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_DOMAIN, 1)]
    graph = helper.make_graph(nodes, "convolution", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = _IR_VERSION
    return model


def _session(nodes: Sequence[Any], constants: Mapping[str, Array], source: Array, result: Array, threads: int) -> Peer:
    """Return a session of `nodes`, from the input `x` to the output of the last node."""
    import onnxruntime as ort

    name, model = nodes[-1].output[0], _model(nodes, constants, source, result)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x, y = (ort.OrtValue.ortvalue_from_numpy(array) for array in (source, result))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output(name, y)

    def call(kept: object = (x, y)) -> object:
        return session.run_with_iobinding(binding)

    def computed() -> Array:
        array: Array = y.numpy()
        return array

    return Peer(call, computed)
