"""ONNX models as one function: results beside ONNX Runtime, calls, memory, and what is folded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beside_onnx_runtime import check, inputs, lines

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_networks import NetworkBuilder, mobile_net, residual_net, u_net

import convsmith as cs
from convsmith.machine.base import Machine
from convsmith.network import weight_limits
from convsmith.network.operators.move import Transpose
from convsmith.network.placement import layout_choice
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.compile import choose
from convsmith.tune.vector_width import machine_of

NETWORKS: dict[str, Callable[..., Any]] = {"residual": residual_net, "mobile": mobile_net, "u_net": u_net}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_agree_with_onnx_runtime(name: str) -> None:
    for real in (False, True):
        net = check(NETWORKS[name](real=real))
        assert net.workspace <= net.image.bound * 1.05


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1, 4), (4,), (1, 1), (6, 1)])
def test_a_computed_addend_that_broadcasts_is_not_overwritten(shape: tuple[int, ...]) -> None:
    b = NetworkBuilder()
    addend = b.op("Neg", b.input("c", *shape))
    check(b.model(b.op("Add", b.op("MatMul", b.input("a", 6, 7), b.weights(7, 4)), addend)), exact=True)


def test_channels_of_a_product_with_a_vector_are_its_rows() -> None:
    """The kernel's result has one column, which the value lacks."""
    b = NetworkBuilder(4)
    products = [b.op("MatMul", b.input(name, 2, 4, 8), b.input("v", 8)) for name in "ab"]
    check(b.model(b.norm(products[0], 4), b.op("Mul", b.op("Abs", products[1]), b.weights(4))), exact=True)


def test_weights_of_a_convolution_may_be_computed() -> None:
    b = NetworkBuilder()
    weights = b.op("Neg", b.input("w", 8, 4, 3, 3))
    check(b.model(b.op("Conv", b.input("x", 2, 4, 9, 9), weights, b.input("bias", 8), pads=[1] * 4)), exact=True)
    check(b.model(b.op("Conv", b.input("z", 1, 4, 5, 5), b.weights(8, 4, 3, 3), "bias")), exact=True)
    grouped = b.op("Conv", b.input("y", 1, 8, 7, 7), b.input("v", 8, 4, 1, 1), group=2)
    check(b.model(grouped), exact=True)


def test_a_constant_may_be_an_output() -> None:
    b = NetworkBuilder()
    held = b.held(np.float32([1, 2, 3]))
    b.op("Add", b.input("x", 3), held)
    check(b.model("v0", held), exact=True)


def test_two_threads_compute_the_same() -> None:
    model = residual_net()
    one, two = check(model), check(model, threads=2)
    arrays = inputs(one)
    np.testing.assert_allclose(one(*arrays.values()), two(*arrays.values()), rtol=1e-5)


def test_models_are_files_bytes_or_protocol_buffers(tmp_path: Path) -> None:
    model = residual_net(16)
    content = model.SerializeToString()
    (tmp_path / "net.onnx").write_bytes(content)
    x = np.ones((1, 3, 16, 16), np.float32)
    results = [cs.onnx.compile(given, threads=1)(x) for given in (model, content, tmp_path / "net.onnx")]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    assert cs.onnx.compile(model, {"x": (2, 3, 16, 16)}, threads=1).inputs == {"x": (2, 3, 16, 16)}


# -- what is folded -----------------------------------------------------------------------------------------------


# -- layouts ------------------------------------------------------------------------------------------------------


def _with_copies_of(cycles: float, favoured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give copies a price, and other operators one that favours a layout."""

    def priced(op: Any, _: Any) -> float:
        if isinstance(op, Transpose):
            return cycles
        return 1.0 + sum(tag != favoured for tag in getattr(op, "tags", ()))

    monkeypatch.setattr(layout_choice, "operator_cycles", priced)


@pytest.mark.parametrize("cycles", [0.0, 1e12])
def test_convolutions_at_borders_are_priced_in_both_layouts(cycles: float, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_copies_of(cycles, "axb", monkeypatch)
    b = NetworkBuilder(22)
    x = b.op("Relu", b.conv(b.input("x", 1, 4, 6, 6), 4, 16, 3))
    flat = b.op("Flatten", b.conv(x, 16, 8, 1))
    net = check(b.model(b.op("Gemm", flat, b.weights(8 * 36, 5))))
    copies = [line for line in lines(net) if line.startswith("Transpose")]
    if cycles:
        assert not copies and "--stag=abx" in lines(net)[0] and "--dtag=abx" in lines(net)[1]
    else:
        # Without a price, copies stand wherever the kernel beside them is expected to be faster.
        assert len(net.image.steps) == 3 + len(copies)


@pytest.mark.parametrize("tag", ["abx", "axb"])
def test_values_between_other_operators_have_the_cheaper_layout(tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_copies_of(1e12, tag, monkeypatch)
    b = NetworkBuilder(23)
    x = b.op("MaxPool", b.input("x", 1, 8, 16, 16), kernel_shape=[2, 2], strides=[2, 2])
    y = b.op("Sub", x, b.op("ReduceMax", x, b.held(np.int64([3]))))
    y = b.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2])
    net = check(b.model(y))
    assert any("axb" in line for line in lines(net)) == (tag == "axb")
    assert not any(line.startswith("Transpose") for line in lines(net))


# -- memory -------------------------------------------------------------------------------------------------------


def test_views_share_memory_and_outputs_are_written_in_place() -> None:
    b = NetworkBuilder(9)
    x = b.input("x", 1, 4, 6, 6)
    flat = b.op("Flatten", b.op("Relu", b.conv(x, 4, 4, 1)))
    y = b.op("Reshape", flat, b.held(np.int64([4, -1])))
    net = check(b.model(y, flat), exact=True)
    arrays = inputs(net)
    outputs = {name: np.full(shape, 7, np.float32) for name, shape in net.outputs.items()}
    kept = dict(outputs)
    results = net.run({**arrays, **outputs})
    assert all(results[name] is kept[name] for name in kept)


def test_an_input_that_is_only_reshaped_is_copied() -> None:
    b = NetworkBuilder(10)
    x = b.input("x", 2, 3)
    net = check(b.model(b.op("Reshape", x, b.held(np.int64([3, 2])))), exact=True)
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert not np.shares_memory(net(given), given)


def test_equal_weights_are_held_once() -> None:
    b = NetworkBuilder(11)
    x = b.input("x", 1, 32, 6, 6)
    w, sizes = b.weights(32, 32, 3, 3), []
    for _ in range(4):
        x = b.op("Conv", x, w, pads=[1] * 4)
        sizes.append(cs.onnx.compile(b.model(x), threads=1))
    assert sizes[1].image.weights.size == sizes[3].image.weights.size
    assert len(sizes[3].image.kernels) < len(sizes[3].image.steps)


# -- calls --------------------------------------------------------------------------------------------------------


def test_several_threads_call_a_network_at_once() -> None:
    model = u_net()
    net = cs.onnx.compile(model, threads=1)
    images = [inputs(net, seed)["x"] for seed in range(6)]
    alone = [net(x) for x in images]
    found: list[Any] = [None] * len(images)

    def call(n: int) -> None:
        for _ in range(5):
            found[n] = net(images[n])

    workers = [threading.Thread(target=call, args=(n,)) for n in range(len(images))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one, other in zip(alone, found):
        for y, z in zip(one, other):
            np.testing.assert_array_equal(y, z)


def test_inputs_by_name_in_other_orders_of_memory() -> None:
    model = residual_net(16)
    net = cs.onnx.compile(model, threads=1)
    x = inputs(net)["x"]
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(net(x), net(x=last))
    wide = x.astype(np.float64)
    for wrong, code in (((), "missing"), ((x, x), "inputs"), ((x[:, :2],), "shape"), ((wide,), "dtype")):
        with pytest.raises(cs.UsageError) as caught:
            net(*wrong)
        assert caught.value.code == code
    with pytest.raises(cs.UsageError, match="given twice"):
        net(x, x=x)


def test_tensors_of_torch_are_not_copied() -> None:
    torch = pytest.importorskip("torch")
    model = residual_net(16)
    net = cs.onnx.compile(model, threads=1)
    x = inputs(net)["x"]
    y = net(torch.from_numpy(x))
    assert isinstance(y, torch.Tensor)
    np.testing.assert_array_equal(y.numpy(), net(x))


# -- operators ----------------------------------------------------------------------------------------------------


def _one(build: Callable[[NetworkBuilder], Any], exact: bool = True, opset: int = 18) -> cs.Network:
    b = NetworkBuilder(12)
    found = build(b)
    return check(b.model(*(found if isinstance(found, tuple) else (found,)), opset=opset), exact)


def _x(b: NetworkBuilder, *shape: int) -> str:
    return b.input("x", *(shape or (2, 5, 6, 7)))


def _sizes(b: NetworkBuilder, x: str) -> str:
    """The first two sizes of a value, which the model computes from its shape."""
    return str(b.op("Slice", b.op("Shape", x), b.held(np.int64([0])), b.held(np.int64([2]))))


EXACT: dict[str, Callable[[NetworkBuilder], Any]] = {
    "ceil_mode": lambda b: b.op("MaxPool", _x(b), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "SAME_LOWER": lambda b: b.op("MaxPool", _x(b), kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_LOWER"),
    "counted pads": lambda b: b.op("AveragePool", _x(b), kernel_shape=[2, 2], pads=[1] * 4, count_include_pad=1),
    "global maximum": lambda b: b.op("GlobalMaxPool", _x(b)),
    "transpose": lambda b: b.op("Transpose", _x(b), perm=[0, 2, 3, 1]),
    "concat of rows": lambda b: b.op("Concat", x := _x(b), b.op("Relu", x), x, axis=2),
    "slice": lambda b: b.op("Slice", _x(b), *(b.held(np.int64(n)) for n in ([1, -1], [9, -9], [1, 3], [2, -2]))),
    "split": lambda b: b.op("Split", _x(b), axis=1, outputs=2, num_outputs=2),
    "reflected": lambda b: b.op("Pad", _x(b), b.held(np.int64([0, 0, 1, 2, 0, 0, 3, 1])), mode="reflect"),
    "padded": lambda b: b.op("Pad", _x(b), b.held(np.int64([1, 0, -1, 2, 0, 2, 0, 1])), b.held(np.float32(1.5))),
    "reduced": lambda b: b.op("ReduceMax", _x(b), b.held(np.int64([1])), keepdims=0),
    "summed": lambda b: b.op("ReduceSum", _x(b), keepdims=0),
    "unsqueezed": lambda b: b.op("Squeeze", b.op("Unsqueeze", _x(b), b.held(np.int64([0, 3]))), b.held(np.int64([0]))),
    "product": lambda b: b.op("MatMul", _x(b, 2, 3, 4), b.weights(4, 5)),
    "batched product": lambda b: b.op("MatMul", x := _x(b, 2, 3, 4, 4), b.op("Relu", x)),
    "product with constants": lambda b: b.op("Gemm", _x(b, 3, 8), b.weights(8, 4), b.held(np.float32(2)), alpha=0.5),
    "deconvolution": lambda b: b.op("ConvTranspose", _x(b), b.weights(5, 4, 2, 2), strides=[2, 2]),
    "grouped": lambda b: b.conv(b.op("Relu", _x(b, 1, 6, 5, 5)), 6, 9, 3, group=3),
    "one axis": lambda b: b.op("Conv", b.op("Relu", _x(b, 2, 4, 9)), b.weights(3, 4, 3), pads=[1, 1]),
    "three axes": lambda b: b.op(
        "MaxPool", b.op("Conv", _x(b, 1, 4, 5, 5, 5), b.weights(3, 4, 2, 2, 2)), kernel_shape=[2, 2, 2]
    ),
    "minimum of three": lambda b: b.op("Min", x := _x(b), b.held(np.float32(1)), b.op("Neg", x)),
    "one bound": lambda b: b.op("Clip", b.conv(_x(b), 5, 4, 1), "", b.held(np.float32(2))),
    "shape of a value": lambda b: b.op(
        "Reshape", x := _x(b), b.op("Concat", _sizes(b, x), b.held(np.int64([-1])), axis=0)
    ),
    "resized to sizes": lambda b: b.op("Resize", _x(b), "", "", b.held(np.int64([2, 5, 9, 4])), mode="nearest"),
    "aligned corners": lambda b: b.op(
        "Resize", _x(b, 1, 4, 3, 5), "", "", b.held(np.int64([1, 4, 5, 9])), mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    "several inputs": lambda b: (b.op("Sub", x := _x(b), y := b.input("y", 5, 1, 7)), b.op("Mul", y, x)),
}  # fmt: skip

CLOSE: dict[str, Callable[[NetworkBuilder], Any]] = {
    **{
        op: lambda b, op=op: b.op(op, _x(b))
        for op in ("Sigmoid", "Tanh", "Erf", "HardSwish", "HardSigmoid", "Elu", "Softplus")
    },
    "softmax": lambda b: b.op("Softmax", _x(b), axis=1),
    "log of softmax": lambda b: b.op("LogSoftmax", _x(b, 3, 50)),
    "layer norm": lambda b: b.op("LayerNormalization", _x(b, 2, 9, 24), b.weights(24), b.weights(24)),
    "norm of groups": lambda b: b.op(
        "GroupNormalization", b.conv(_x(b), 5, 6, 1), b.weights(3), b.weights(3), num_groups=3
    ),
    "norm of images": lambda b: b.op("InstanceNormalization", _x(b), b.weights(5), b.weights(5)),
    "norm alone": lambda b: b.norm(b.op("Relu", _x(b)), 5),
    "power": lambda b: b.op("Pow", b.op("Abs", _x(b)), b.held(np.float32(1.5))),
    "sigmoid gate": lambda b: b.op("Mul", x := b.conv(_x(b), 5, 5, 1), b.op("Sigmoid", b.op("GlobalAveragePool", x))),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EXACT)
def test_operators_give_what_onnx_runtime_gives(name: str) -> None:
    _one(EXACT[name])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CLOSE)
def test_operators_are_close_to_onnx_runtime(name: str) -> None:
    _one(CLOSE[name], exact=False)


def test_conversions_from_and_to_bytes() -> None:
    b = NetworkBuilder(13)
    scale, point = b.held(np.float32(0.25)), b.held(np.uint8(7))
    x = b.op("QuantizeLinear", _x(b), scale, point)
    y = b.op("DequantizeLinear", b.op("Transpose", x, perm=[0, 1, 3, 2]), scale, point)
    weights = b.op("DequantizeLinear", b.held(np.int8([[[[3]]] * 5] * 4)), b.held(np.float32([1, 2, 0.5, 4])), axis=0)
    check(b.model(b.op("Conv", y, weights)), exact=True)


def test_older_opsets_pass_numbers_as_attributes() -> None:
    b = NetworkBuilder(14)
    x = b.op("Clip", b.conv(_x(b), 5, 4, 1), min=-2.0, max=5.0)
    x = b.op("Unsqueeze", b.op("Squeeze", b.op("ReduceMean", x, axes=[2, 3]), axes=[2, 3]), axes=[2])
    check(b.model(b.op("Upsample", x, b.held(np.float32([1, 2, 1])), mode="nearest"), opset=9), exact=False)


# -- errors -------------------------------------------------------------------------------------------------------


def test_one_error_names_every_node_that_no_kernel_computes() -> None:
    b = NetworkBuilder(15)
    x = b.op("BitCast", _x(b), to=1)
    model = b.model(b.op("Relu", b.op("Bernoulli", x)), opset=26)
    with pytest.raises(cs.UnsupportedError) as caught:
        cs.onnx.compile(model)
    text = str(caught.value)
    assert all(w in text for w in ("node BitCast_0 (BitCast)", "node Bernoulli_1 (Bernoulli)", "available are", "Conv"))
    legal = text.partition("available are ")[2].split(", ")
    assert {"Softsign", "Celu"} <= {*legal}, "ONNX states them by other operators"
    assert "SequenceMap" not in legal, "it has a body, and is refused for its sequences"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda b: b.op("ReduceSum", _x(b), b.input("w", 1, type_=7)), "input 1, w, is computed in each run"),
        (lambda b: b.op("MaxPool", _x(b), kernel_shape=[2, 2], storage_order=1, outputs=2)[1], "storage_order"),
        (lambda b: b.op("Resize", _x(b), "", b.held(np.float32([1, 1, 2, 2])), mode="area"), "cubic"),
        (lambda b: b.op("Sqrt", b.input("x", 2, 3, type_=7)), "elements of s32; available are f32, f64"),
    ],
)  # fmt: skip
def test_errors_name_the_node_and_what_would_serve(build: Callable[[NetworkBuilder], Any], words: str) -> None:
    b = NetworkBuilder(16)
    with pytest.raises(cs.ConvsmithError, match=words) as caught:
        cs.onnx.compile(b.model(build(b)))
    assert "node " in str(caught.value)


def test_an_output_is_no_input() -> None:
    b = NetworkBuilder(18)
    y = b.op("Add", b.input("x", 2, 3), b.held(np.ones((2, 3), np.float32)))
    with pytest.raises(cs.UnsupportedError, match="output x"):
        cs.onnx.compile(b.model(y, "x"))


def test_kernels_that_do_not_exist_are_named_with_their_node() -> None:
    b = NetworkBuilder(19)
    model = b.model(b.op("Exp", b.input("x", 2, 3, type_=11)))
    model.graph.output[0].type.tensor_type.elem_type = 11
    with pytest.raises(cs.UnsupportedError, match=r"node Exp_0.*exp on f64"):
        cs.onnx.compile(model)


def test_double_precision() -> None:
    b = NetworkBuilder(21)
    x = b.op("Relu", b.op("MaxPool", b.input("x", 1, 2, 4, 4, type_=11), kernel_shape=[2, 2]))
    model = b.model(x)
    model.graph.output[0].type.tensor_type.elem_type = 11
    y = cs.onnx.compile(model)(np.arange(32.0).reshape(1, 2, 4, 4))
    np.testing.assert_array_equal(y, np.arange(32.0).reshape(1, 2, 4, 4)[:, :, 1:, 1:])


def test_open_sizes_are_asked_for() -> None:
    b = NetworkBuilder(17)
    model = b.model(b.op("Relu", b.input("x", "N", 3, "H", "W")))
    with pytest.raises(cs.UsageError, match="H"):
        cs.onnx.compile(model)
    assert cs.onnx.compile(model, {"x": (2, 3, 4, 5)}).outputs == {"v0": (2, 3, 4, 5)}


def test_kernels_are_chosen_for_weights_that_no_cache_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is slow, a transform gains less than its larger weights cost."""

    def with_slow_memory(problem: Problem) -> Machine:
        machine = machine_of(problem)
        return replace(machine, costs=replace(machine.costs, streamed=1e4))

    monkeypatch.setattr(weight_limits, "machine_of", with_slow_memory)
    b = NetworkBuilder()
    x = b.op("Relu", b.conv(b.op("Relu", b.conv(b.input("x", 1, 16, 14, 14), 16, 128, 1)), 128, 128, 3))
    net = check(b.model(b.op("Relu", b.conv(x, 128, 16, 1))), exact=True)
    (kernel,) = (kernel for kernel in net.image.kernels if "kh3" in kernel.problem)
    problem = parse_problem(kernel.problem)
    assert choose(problem, with_slow_memory(problem), 1, False).has_transform
    assert not Config.parse(kernel.config).has_transform
