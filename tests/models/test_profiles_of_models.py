"""The profile of an ONNX model: every convolution with its real shape, beside ONNX Runtime's kernel of that node."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.cli.bench_html import profile_html
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.measure.profile import LeftNode, ModelProfile, ProfiledNode, node_cells
from convsmith.measure.timing import Spread
from convsmith.onnx import host as host_module
from convsmith.onnx.host import OnnxHost
from convsmith.onnx.models import node_problems, read_model
from convsmith.onnx.node_profiler import _difference
from convsmith.onnx.profiling import onnx_profiler
from convsmith.problem import parse_problem

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
FLOAT, BYTE, SIGNED, LONG = 1, 2, 3, 7
RNG = np.random.default_rng(3)
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured times do not matter here."""
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)


def model(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str], **constants: Array) -> Any:
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info(n, t, shape) for n, (t, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    versions = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=versions)
    made.ir_version = 9
    return made


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def signed(*shape: int) -> Array:
    return RNG.integers(-9, 10, shape).astype(np.int8)


def small() -> Any:
    """Three convolutions, two of which have one problem, with activations between them."""
    nodes = [
        helper.make_node("Conv", ["x", "a", "b"], ["one"], "stem", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["one"], ["two"], "act"),
        helper.make_node("Conv", ["two", "c"], ["three"], "left", pads=[1] * 4),
        helper.make_node("Conv", ["three", "c"], ["four"], "right", pads=[1] * 4),
        helper.make_node("Add", ["two", "four"], ["y"]),
    ]
    return model(
        nodes, {"x": (FLOAT, ["N", 3, "H", "W"])}, ["y"], a=floats(16, 3, 3, 3), b=floats(16), c=floats(16, 16, 3, 3)
    )


def test_nodes_of_one_problem_are_one_row_and_sizes_are_those_of_the_inputs() -> None:
    found = cs.onnx.profile(small(), {"x": floats(2, 3, 20, 12)}, threads=1, rounds=1)
    assert [(n.names, n.operator, str(n.problem), n.agrees) for n in found.nodes] == [
        (("stem",), "Conv", "--dir=FWD_B --stag=axb --dtag=axb mb2ic3ih20iw12oc16oh10ow6kh3kw3sh2sw2ph1pw1", True),
        (("left", "right"), "Conv", "--stag=axb --dtag=axb mb2ic16ih10iw6oc16oh10ow6kh3kw3ph1pw1", True),
    ]
    assert found.others == {"Relu": 1, "Add": 1} and not found.left
    page = str(found)
    assert "left and 1 more" in page and "other operators stay with onnxruntime: Add 1, Relu 1" in page
    assert found.as_data()["nodes"][1]["names"] == ["left", "right"]


def test_onnx_runtime_computes_a_node_as_within_the_model_and_fuses_nothing_into_it() -> None:
    read = read_model(small(), {"x": (1, 3, 16, 16)})
    runs = OnnxHost(read, {"x": floats(1, 3, 16, 16)}, 1)
    for node in read.nodes:
        proto = runs._kernels[node.name]
        assert proto.op_type == "Conv" and "activation" not in {a.name for a in proto.attribute}
        assert len(proto.input) <= 3, "no sum is added"
        runs.node_call(node)()


QUANTISED = {
    "ConvInteger": ("ConvInteger", ["u", "w", "zx"], {"pads": [1] * 4}),
    "QLinearConv": ("QLinearConv", ["u", "s", "zx", "w", "s", "zw", "t", "zx", "i"], {"pads": [1] * 4}),
    "MatMulInteger": ("MatMulInteger", ["m", "v", "zx"], {}),
    "QLinearMatMul": ("QLinearMatMul", ["m", "s", "zx", "v", "s", "zw", "t", "zx"], {}),
}


@pytest.mark.parametrize("operator", QUANTISED)
def test_products_of_bytes_agree(operator: str) -> None:
    name, inputs, attributes = QUANTISED[operator]
    given = {"u": (BYTE, [1, 8, 6, 6])} if "u" in inputs else {"m": (BYTE, [3, 5, 8])}
    constants = {
        "w": signed(4, 8, 3, 3), "v": signed(8, 6), "zx": np.uint8(7), "zw": np.int8(0), "s": np.float32(0.5),
        "t": np.float32(9), "i": np.arange(4, dtype=np.int32),
    }  # fmt: skip
    made = model(
        [helper.make_node(name, inputs, ["y"], "node", **attributes)], given, ["y"],
        **{n: np.asarray(x) for n, x in constants.items() if n in inputs},
    )  # fmt: skip
    (row,) = cs.onnx.profile(made, threads=1, rounds=1).nodes
    assert (row.operator, row.agrees) == (operator, True)


@pytest.mark.sampled(2, "relu", "bias")
@pytest.mark.parametrize("bias", ["none", "s32", "f32"])
@pytest.mark.parametrize("relu", [False, True])
def test_a_convolution_between_conversions_is_one_of_bytes(bias: str, relu: bool) -> None:
    constants: dict[str, Array] = {
        "w": signed(4, 8, 3, 3), "sx": np.asarray(np.float32(0.25)), "sw": np.float32([0.5, 0.25, 0.125, 0.5]),
        "zx": np.asarray(np.uint8(3)), "zw": np.zeros(4, np.int8), "sy": np.asarray(np.float32(8)),
        "zy": np.asarray(np.uint8(0)),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["u", "sx", "zx"], ["x"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=0),
        helper.make_node("Conv", ["x", "wf", *(["bf"] if bias != "none" else [])], ["c"], "conv", pads=[1] * 4),
        *([helper.make_node("Relu", ["c"], ["r"])] if relu else []),
        helper.make_node("QuantizeLinear", ["r" if relu else "c", "sy", "zy"], ["y"]),
    ]
    if bias == "s32":
        constants |= {"bi": np.int32([5, -40, 300, 0]), "sb": constants["sw"] * np.float32(0.25)}
        nodes.insert(2, helper.make_node("DequantizeLinear", ["bi", "sb"], ["bf"], axis=0))
    elif bias == "f32":
        constants["bf"] = np.float32([5, -40, 300, 0]) * constants["sw"] * np.float32(0.25)
    found = cs.onnx.profile(model(nodes, {"u": (BYTE, [1, 8, 7, 7])}, ["y"], **constants), threads=1, rounds=1)
    (row,) = found.nodes
    assert (row.names, row.operator, row.agrees) == (("conv",), "Conv (QDQ)", True)
    assert row.problem.dt == ("u8", "s8", "u8") and not found.others
    assert found.nodes[0].error <= 1 / 255


def test_scales_may_come_from_constant_nodes() -> None:
    constants: dict[str, Array] = {
        "sx": np.asarray(np.float32(0.25)), "sw": np.float32([0.5] * 4), "zx": np.asarray(np.uint8(3)),
        "zw": np.zeros(4, np.int8), "sy": np.asarray(np.float32(8)), "zy": np.asarray(np.uint8(0)),
    }  # fmt: skip
    nodes = [
        *(helper.make_node("Constant", [], [n], value=numpy_helper.from_array(x, n)) for n, x in constants.items()),
        helper.make_node("DequantizeLinear", ["u", "sx", "zx"], ["x"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=0),
        helper.make_node("Conv", ["x", "wf"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]), helper.make_node("QuantizeLinear", ["r", "sy", "zy"], ["y"]),
    ]  # fmt: skip
    made = model(nodes, {"u": (BYTE, [1, 8, 7, 7])}, ["y"], w=signed(4, 8, 3, 3))
    found = cs.onnx.profile(made, threads=1, rounds=1)
    (row,) = found.nodes
    assert (row.operator, row.agrees, dict(found.others)) == ("Conv (QDQ)", True, {})


def test_a_relu_that_saturation_does_not_compute_stays_a_node() -> None:
    constants = {
        "w": signed(4, 8, 1, 1), "s": np.asarray(np.float32(0.5)), "zw": np.asarray(np.int8(0)),
        "z": np.asarray(np.uint8(9)),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["u", "s", "z"], ["x"]),
        helper.make_node("DequantizeLinear", ["w", "s", "zw"], ["wf"]),
        helper.make_node("Conv", ["x", "wf"], ["c"], "conv"), helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["y"]),
    ]  # fmt: skip
    read = read_model(model(nodes, {"u": (BYTE, [1, 8, 5, 5])}, ["y"], **constants))
    assert [node.title for node in read.nodes] == ["Conv"] and read.others["Relu"] == 1


def test_transposed_convolutions_and_weights_that_are_inputs() -> None:
    nodes = [
        helper.make_node("ConvTranspose", ["x", "t", "b"], ["one"], "up", strides=[2, 2], group=2),
        helper.make_node("Conv", ["one", "w"], ["y"], "given"),
    ]
    made = model(
        nodes, {"x": (FLOAT, [1, 8, 5, 5]), "w": (FLOAT, [3, 6, 1, 1])}, ["y"], t=floats(8, 3, 2, 2), b=floats(6)
    )
    found = cs.onnx.profile(made, {"w": floats(3, 6, 1, 1)}, threads=1, rounds=1)
    assert [(n.names, n.operator, n.agrees) for n in found.nodes] == [
        (("up",), "ConvTranspose", True), (("given",), "Conv", True),
    ]  # fmt: skip


def test_a_shape_that_only_a_run_knows() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["z"]),
        helper.make_node("Conv", ["z", "w"], ["y"], "conv"),
    ]
    made = model(nodes, {"x": (FLOAT, [2, 8, 6, 6]), "shape": (LONG, [4])}, ["y"], w=floats(4, 8, 1, 1))
    found = cs.onnx.profile(made, {"shape": np.int64([1, 8, 12, 6])}, threads=1, rounds=1)
    assert found.nodes[0].problem.dims["oh"] == 12
    read = read_model(made)
    with pytest.raises(UsageError, match="node conv: the shape of z is unknown"):
        read.stand_ins(read.nodes[0])


def test_nodes_without_a_kernel_are_named_and_left() -> None:
    body = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["inner"])], "body", [], [helper.make_empty_tensor_value_info("inner")]
    )
    nodes = [
        helper.make_node("QLinearMatMul", ["m", "nought", "z", "m", "s", "z", "s", "z"], ["none"], "nought"),
        helper.make_node("FusedConv", ["x", "w"], ["fused"], "own", domain="com.microsoft", activation="Relu"),
        helper.make_node("If", ["is"], ["chosen"], then_branch=body, else_branch=body),
        helper.make_node("Conv", ["x", "w"], ["y"], "served"),
    ]
    made = model(
        nodes, {"x": (FLOAT, [1, 4, 5, 5])}, ["y", "none", "fused", "chosen"], w=floats(4, 4, 1, 1),
        m=np.ones((3, 3), np.uint8), z=np.asarray(np.uint8(0)), s=np.asarray(np.float32(1)),
        nought=np.asarray(np.float32(0)), **{"is": np.asarray(True)},
    )  # fmt: skip
    found = cs.onnx.profile(made, threads=1, rounds=1)
    assert [node.names for node in found.nodes] == [("served",)]
    reasons = {(left.name, left.operator): left.reason for left in found.left}
    assert reasons["nought", "QLinearMatMul"].startswith("a_scale=")
    assert reasons["1 node", "FusedConv of com.microsoft"] == "no kernel serves it"
    assert reasons["2 nodes", "Conv"] == "it is in the body of a loop or a branch"
    assert "left to onnxruntime: nought (QLinearMatMul): a_scale=" in str(found) and found.others == {"If": 1}


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"\xff" * 100, "is no ONNX model"), (b"", "is no ONNX model"), (b"a text\n", "is no ONNX model")],
)
def test_a_damaged_file_is_one_message(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"damaged.onnx: {why}"):
        cs.onnx.profile(path)


def test_a_file_that_breaks_off_and_a_model_that_cannot_run(tmp_path: Path) -> None:
    path = tmp_path / "short.onnx"
    path.write_bytes(small().SerializeToString()[:-200])
    with pytest.raises(UsageError, match=r"short\.onnx: "):
        cs.onnx.profile(path)
    broken = model([helper.make_node("Conv", ["x", "nowhere"], ["y"])], {"x": (FLOAT, [1, 4, 5, 5])}, ["y"])
    with pytest.raises(UsageError, match="graph: ONNX Runtime cannot load it: "):
        cs.onnx.profile(broken)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"z": floats(1)}, "graph has no 'z'; legal are x"),
        ({"x": floats(1, 4, 8, 8)}, r"the shape of x is \(1, 4, 8, 8\); legal is N x 3 x H x W"),
        ({"x": (1, 3, 8)}, r"the shape of x is \(1, 3, 8\); legal is N x 3 x H x W"),
        ({"x": np.zeros((1, 3, 8, 8))}, "x is float64; legal is float32"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Array], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        onnx_profiler(small(), inputs, threads=1)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small(), str(path))
    host_module._package.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=rf"needs the package {package}: pip install 'convsmith\[onnx\]'"):
        cs.onnx.profile(path, {"x": (1, 3, 8, 8)})


def test_rounding_explains_small_differences_only() -> None:
    one = np.float32([100, -3, 0])
    assert _difference(one, one) == (0.0, True)
    assert _difference(one + np.float32(5e-3), one)[1] and not _difference(one + np.float32(0.5), one)[1]
    steps = np.uint8([100, 3, 0])
    assert _difference(steps, steps + np.uint8(1))[1] and not _difference(steps, steps + np.uint8(2))[1]
    assert not _difference(np.int32([1]), np.int32([2]))[1] and not _difference(one, one[:2])[1]


def node(name: str, ours: float, host: float, count: int = 1) -> ProfiledNode:
    spreads = (Spread(x, x, x) for x in (ours, host, host / ours))
    names = tuple(f"{name}{n}" for n in range(count))
    return ProfiledNode(names, "Conv", parse_problem("ic1ih1oc1kh1"), "", *spreads, 0.0, True)


def test_a_summary_names_what_could_be_won() -> None:
    rows = (node("a", 1e-3, 3e-3, 2), node("b", 2e-3, 1e-3), node("c", 1e-3, 1.5e-3), node("d", 1e-3, 9e-3))
    found = ModelProfile("m", "host", 1, Spread(20e-3, 0, 0), rows, (LeftNode("e", "Odd", "why"),), {"Relu": 2})
    assert (round(found.host_seconds * 1e3, 6), round(found.gain * 1e3, 6)) == (17.5, 12.5)
    assert [n.names[0] for n in found.worst()] == ["d0", "a0", "c0"]
    lines = list(found.summary())
    assert next(ModelProfile("m", "host", 1, Spread(1, 0, 0), rows[1:2]).summary()).startswith("1 convolution or prod")
    assert list(ModelProfile("m", "host", 1, Spread(1, 0, 0), ()).summary()) == [
        "m has no convolution and no product of bytes"
    ]
    assert lines[0] == "5 convolutions and products take host 17.50 ms, each on its own, 88% of the model's 20.00 ms"
    assert lines[1] == "could be won: 12.50 ms, 71% of that" and lines[3].startswith("    4.00 ms at a0, a1: ")
    assert lines[-2:] == ["left to host: e (Odd): why", "other operators stay with host: Relu 2"]


def noisy(factor: float, ratio: float = 1.0, share: float | None = None) -> ProfiledNode:
    """A node whose times vary by a factor, and whose ratio is one of other rounds."""
    steady = node("a", 1e-3, 2e-3)
    host, speedup = (Spread(x.median, x.median / factor, x.median * factor) for x in (steady.host, steady.speedup))
    return replace(steady, host=host, speedup=speedup.scaled(ratio), cpu_share=share)


@pytest.mark.parametrize(
    ("row", "mark", "said"),
    [
        (noisy(1.05), "", []), (noisy(1.05, share=0.9), "", []), (noisy(1.05, ratio=1.05), "", []),
        (noisy(1.3), "?", ["2 of 4 rows vary by more than 10% (? behind the ratio): is something else running?"]),
        (noisy(1.05, ratio=0.4), "?",
         ["2 of 4 rows have a ratio that is not that of their times (a0: 0.80 is the median of the rounds, 2.00 the "
          "ratio of the medians): the machine was busy in some rounds"]),
        (noisy(1.05, share=0.5), "",
         ["2 of 4 rows had less than 80% of the CPU time of their threads (the least 50%)"]),
    ],
)  # fmt: skip
def test_a_profile_says_which_figures_are_doubtful(row: ProfiledNode, mark: str, said: list[str]) -> None:
    rows = (row, node("b", 1e-3, 2e-3), row, node("c", 1e-3, 2e-3))
    found = ModelProfile("m", "host", 1, Spread(20e-3, 20e-3, 20e-3), rows)
    lines = [line for line in found.summary() if " rows " in line]
    assert [line[: len(text)] for line, text in zip(lines, said, strict=True)] == said
    assert node_cells(row, "host")["ratio"] == f"{row.speedup.median:.2f}{mark}"
    assert f"{row.speedup.median:.2f}{mark}<" in profile_html(found)  # and the column sorts


@pytest.mark.parametrize(("whole", "share"), [(20e-3, "20% of the model's 20.00 ms"), (4e-3, "100% of"), (1e-3, "")])
def test_a_share_of_the_model_is_at_most_all_of_it(whole: float, share: str) -> None:
    found = ModelProfile("m", "host", 1, Spread(whole, whole, whole), (node("a", 1e-3, 2e-3, 2),))
    line = next(found.summary())
    if share:
        assert f"each on its own, {share}" in line
    else:
        assert line.endswith("each on its own, more than the model's 1.00 ms, of which their share is not known")


def test_a_whole_model_that_varies_is_said() -> None:
    found = ModelProfile("m", "host", 1, Spread(20e-3, 10e-3, 40e-3), (node("a", 1e-3, 2e-3),))
    assert "the whole model's time varies by 75%: is something else running?" in found.summary()


def test_models_and_profiles_have_the_same_problems(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small(), str(path))
    shapes = {"x": (2, 3, 16, 12)}
    profiled = onnx_profiler(path, shapes, threads=1).node_problems
    assert {name: replace(p, stag="any", dtag="any") for name, p in profiled.items()} == node_problems(path, shapes)
