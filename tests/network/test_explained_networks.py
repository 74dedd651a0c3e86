"""The page about a network: memory over the steps, why steps are apart, bounds and gains."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_networks import NetworkBuilder

import convsmith as cs
from convsmith.measure.ceilings import Ceiling, Figure
from convsmith.measure.timing import spread
from convsmith.network.compile import program_of
from convsmith.network.driver import image_of
from convsmith.network.image import NetworkImage
from convsmith.network.placement.memory import alive_bytes
from convsmith.network.program import WEIGHTS, NetworkProgram
from convsmith.network.report.explain import explain_image
from convsmith.network.report.step_bounds import StepBound, step_bounds
from convsmith.network.report.step_times import NetworkTimes, StepTime
from convsmith.onnx.graph import read_graph


def _program() -> NetworkProgram:
    """Two convolutions, of which the first is read again, a pool, and a convolution of it."""
    b = NetworkBuilder(8)
    first = b.conv(b.input("x", 1, 16, 12, 12), 16, 32, 3)
    second = b.op("Mul", b.conv(first, 32, 32, 1), first)
    third = b.conv(b.op("MaxPool", second, kernel_shape=[2, 2], strides=[2, 2]), 32, 16, 1)
    return program_of(read_graph(b.model(b.conv(third, 16, 16, 3)).SerializeToString()))


def _image() -> NetworkImage:
    return image_of(_program())


def test_each_step_says_why_it_is_apart() -> None:
    steps = {step.names[-1]: step.apart for step in _image().steps}
    assert steps["Conv_0"] == ""
    assert steps["Conv_1"] == "2 nodes read v0"
    assert steps["MaxPool_3"] == "there are no kernels of Pointwise and Pool together"
    assert steps["Conv_4"] == "there are no kernels of Pool and Conv together"
    assert steps["Conv_5"].startswith("v4 fits ")


def test_the_workspace_holds_what_is_alive() -> None:
    image = _image()
    assert max(step.alive for step in image.steps) == image.bound <= image.workspace
    assert alive_bytes([(100, 0, 1), (128, 1, 1), (1, 2, 3)], 5) == [128, 256, 128, 128, 0]
    lines = explain_image(image).splitlines()
    (bars,) = (line.split()[1] for line in lines if line.startswith("memory"))
    highest = [n for n, bar in enumerate(bars) if bar == "█"]
    assert len(bars) == len(image.steps)
    assert highest[0] == [step.alive for step in image.steps].index(image.bound)


def test_a_bound_is_that_of_multiply_adds_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that are measured under load are not kept, so that each measurement has another one."""
    rates_under_load = count(100.0)
    monkeypatch.setattr(Ceiling, "figure", lambda *_: Figure(next(rates_under_load), "2026-01-01", False))
    program = _program()
    bounds = step_bounds(program)
    rates = []
    for step, bound in zip(program.steps, bounds):
        kernel = program.kernels[step.kernel]
        assert (bound.products > 0) == hasattr(kernel.work, "flops_real")
        assert bound.seconds == max(bound.products, bound.bytes) > 0
        if bound.products:
            rates.append(kernel.work.flops_real / bound.products)  # type: ignore[union-attr]
        assert any(area == WEIGHTS for area, _ in step.places) == (bound.products > 0)
    assert rates == pytest.approx([rates[0]] * len(rates))
    assert [StepBound(2, 1).side, StepBound(1, 2).side] == ["multiply-adds", "bytes"]


def test_an_array_that_is_read_as_several_moves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ceiling, "figure", lambda *_: Figure(1.0, "2026-01-01", True))
    b = NetworkBuilder(11)
    shape = b.held(np.int64([1, 16, 2, 8]))
    thirds = b.op("Split", b.op("Relu", b.input("x", 1, 16, 48)), axis=2, outputs=3, num_outputs=3)
    q, k, v = (b.op("Transpose", b.op("Reshape", x, shape), perm=(0, 2, 1, 3)) for x in thirds)
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    model = b.model(b.op("MatMul", b.op("Softmax", scores, axis=-1), v))
    bounds = step_bounds(program_of(read_graph(model.SerializeToString())))
    assert [bound.bytes for bound in bounds] == pytest.approx([2 * 16 * 48 * 4e-9, (16 * 48 + 16 * 16) * 4e-9])


def test_gains_are_those_of_all_steps_of_a_kernel() -> None:
    b = NetworkBuilder(9)
    x = b.input("x", 1, 16, 12, 12)
    for _ in range(3):
        x = b.op("MaxPool", b.conv(x, 16, 16, 3), kernel_shape=[3, 3], pads=[1] * 4)
    image = image_of(program_of(read_graph(b.model(b.op("GlobalAveragePool", x)).SerializeToString())))
    seconds = {"Conv": 0.004, "MaxPool": 0.001, "GlobalAveragePool": 0.002}
    steps = []
    for step in image.steps:
        kind = step.names[-1].partition("_")[0]
        steps.append(StepTime(spread([seconds.get(kind, 0.0)]), 0.1, 0, StepBound(0.001, 0.0005)))
    page = explain_image(image, NetworkTimes(spread([0.02]), tuple(steps)))
    (gain,) = (line for line in page.splitlines() if line.startswith("gains"))
    work = next(step.work for step in reversed(image.steps) if step.names[-1].startswith("Conv"))
    numbers = [n + 1 for n, step in enumerate(image.steps) if step.work == work]
    lost = f"{len(numbers) * 3:.3f} of {len(numbers) * 4:.3f} ms in steps {', '.join(map(str, numbers))}"
    assert len(numbers) > 1 and gain.split(maxsplit=1)[1] == f"{lost}, if only its multiply-adds took time"


def test_times_of_a_network_state_the_gains() -> None:
    b = NetworkBuilder(10)
    model = b.model(b.conv(b.input("x", 1, 16, 12, 12), 16, 16, 3))
    page = cs.onnx.compile(model, threads=1).explain({"x": np.ones((1, 16, 12, 12), np.float32)})
    assert "\ngains " in page and ", its multiply-adds " in page
