"""Times of the steps of a network."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_networks import NetworkBuilder

from convsmith.network.compile import program_of
from convsmith.network.driver import image_of
from convsmith.network.report.step_times import network_times
from convsmith.onnx.graph import read_graph
from convsmith.problem.conv import Conv
from convsmith.runtime.host import HostLibrary


def test_each_step_has_its_own_time() -> None:
    b = NetworkBuilder(0)
    x = b.conv(b.op("MaxPool", b.input("x", 1, 64, 32, 32), kernel_shape=[2, 2], strides=[2, 2]), 64, 256, 3)
    program = program_of(read_graph(b.model(b.op("GlobalAveragePool", x)).SerializeToString()))
    arrays = [np.ones((1, 64, 32, 32), np.float32), np.zeros((1, 256, 1, 1), np.float32)]
    libraries = [HostLibrary(kernel) for kernel in image_of(program).kernels]
    times = network_times(program, libraries, arrays, rounds=3)
    works = [program.kernels[step.kernel].work for step in program.steps]
    (conv,) = (n for n, work in enumerate(works) if isinstance(work, Conv))
    assert times.slowest(1) == [conv] and times.steps[conv].share > 0.5
    assert sum(step.share for step in times.steps) == pytest.approx(1)
    for step, work in zip(times.steps, works):
        assert step.flops == (2 * 256 * 16 * 16 * 64 * 9 if isinstance(work, Conv) else 0)
        assert step.gflops == (step.flops / step.seconds.median * 1e-9 if step.flops else None)
