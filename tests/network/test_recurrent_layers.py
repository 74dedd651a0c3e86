"""Recurrent layers of ONNX models: results beside ONNX Runtime's, in every direction and with lengths of samples."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto
from onnx_networks import NetworkBuilder

import convsmith as cs
from convsmith.machine.registry import target
from convsmith.network.operators.recurrence import CELLS
from convsmith.problem.post_ops import Eltwise
from convsmith.schedule.operator import operator_plan

runtime: Any = import_module("onnxruntime")
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
T, B, N, H = 5, 3, 7, 10


def layer(kind: str, lengths: bool = False, **attributes: Any) -> Any:
    """Return the model of a layer whose inputs are its source, first states, and lengths."""
    b = NetworkBuilder(3, real=True)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    batch_first, rng = attributes.get("layout", 0), np.random.default_rng(0)
    gates = GATES[kind]
    constants = [rng.standard_normal((directions, *rest)).astype(np.float32) / 2 for rest in (
        (gates * H, N), (gates * H, H), (2 * gates * H,))]  # fmt: skip
    x = b.input("x", *((B, T, N) if batch_first else (T, B, N)))
    names = [x, *map(b.held, constants), b.input("lengths", B, type_=TensorProto.INT32) if lengths else ""]
    states = (B, directions, H) if batch_first else (directions, B, H)
    names += [b.input(name, *states) for name in ("h", "c")[: 2 if kind == "LSTM" else 1]]
    if attributes.pop("peeks", False):
        names.append(b.held(rng.standard_normal((directions, 3 * H)).astype(np.float32)))
    outputs = b.op(kind, *names, outputs=3 if kind == "LSTM" else 2, hidden_size=H, **attributes)
    return b.model(*outputs)


def check(model: Any, **more: Any) -> cs.Network:
    """Compare a model with ONNX Runtime."""
    net = cs.onnx.compile(model, threads=1)
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in net.inputs.items()} | more
    expected = runtime.InferenceSession(model.SerializeToString()).run(None, arrays)
    for y, name in zip(expected, net.outputs):
        np.testing.assert_allclose(net.run(arrays)[name], y, rtol=1e-5, atol=2e-6, err_msg=name)
    return net


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_layers_agree_with_onnx_runtime(kind: str, direction: str) -> None:
    check(layer(kind, direction=direction))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", GATES)
def test_samples_end_after_their_lengths(kind: str) -> None:
    check(layer(kind, lengths=True, direction="bidirectional"), lengths=np.array([5, 1, 3], np.int32))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "attributes"), [
    ("GRU", {"linear_before_reset": 1}), ("LSTM", {"peeks": True}), ("LSTM", {"clip": 0.5}),
    ("RNN", {"activations": ["Relu"]}), ("LSTM", {"activations": ["HardSigmoid", "Relu", "Tanh"]}),
    ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.3]}),
])  # fmt: skip
def test_variants_of_layers(kind: str, attributes: dict[str, Any]) -> None:
    check(layer(kind, **attributes))


def test_a_layer_whose_batch_is_first() -> None:
    first, last = (cs.onnx.compile(layer("GRU", layout=n), threads=1) for n in (1, 0))
    x, h = np.random.default_rng(2).standard_normal((T, B, N)), np.zeros((1, B, H), np.float32)
    (y, _), (z, _) = first(x.astype(np.float32).transpose(1, 0, 2), h.transpose(1, 0, 2)), last(x.astype(np.float32), h)
    np.testing.assert_allclose(y.transpose(1, 2, 0, 3), z, rtol=1e-6)


@pytest.mark.parametrize("kind", CELLS)
def test_samples_share_vectors_of_weights_in_registers(kind: str) -> None:
    """Eight samples are two tiles of four: each reads a vector of weights once."""
    work = CELLS[kind]("f32", 4, 8, 128, ((Eltwise("logistic"),), (Eltwise("tanh"),), (Eltwise("tanh"),)))
    plan = operator_plan(work, target("avx512"), 1)
    assert plan.given is not None
    lowered = str(plan.given.lowered)
    assert "f32[4, 4, 16] @register" in lowered and ".r in 0 .. 2" in lowered


@pytest.mark.parametrize("kind", GATES)
def test_a_step_is_vectors_of_a_state(kind: str) -> None:
    work = CELLS[kind]("f32", 4, 1, 64, ((Eltwise("logistic"),), (Eltwise("tanh"),), (Eltwise("tanh"),)))
    plan = operator_plan(work, target("avx2"), 1)
    assert plan.given is not None and "vectors=True" in str(plan.config)
    assert "{8}" in str(plan.given.lowered) and "#parallel" not in str(plan.given.lowered)


@pytest.mark.parametrize(("attributes", "message"), [
    ({"activations": ["Swish"]}, "activation Swish; available are relu, tanh"),
    ({"activations": ["Tanh", "Tanh"]}, "2 activations; legal are 1"),
    ({"direction": "sideways"}, "legal are forward, reverse and bidirectional"),
])  # fmt: skip
def test_errors_name_the_attribute(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.ConvsmithError, match=message):
        cs.onnx.compile(layer("RNN", **attributes), threads=1)
