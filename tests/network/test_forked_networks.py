"""Networks on several threads where there is no OpenMP runtime, as in a forked child: Python threads run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, signal
import numpy as np
from onnx import TensorProto, helper, numpy_helper
import convsmith as cs
from convsmith.runtime import threads

rng = np.random.default_rng(0)
w, w2 = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, 8, 3, 3), (16, 16, 1, 1)))
x = rng.integers(-4, 5, (1, 8, 12, 12)).astype(np.float32)
value = helper.make_tensor_value_info
graph = helper.make_graph(
    [helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Conv", ["a", "w2"], ["y"])], "g",
    [value("x", TensorProto.FLOAT, [1, 8, 12, 12])], [value("y", TensorProto.FLOAT, [1, 16, 12, 12])],
    [numpy_helper.from_array(w, "w"), numpy_helper.from_array(w2, "w2")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
expected = cs.onnx.compile(model, threads=1)(x)
"""
"""A model of two convolutions, and its exact result on one thread."""
FORKED = """
kernel = cs.compile("mb1ic8ih12oc16kh3ph1", threads=2)
kernel(x, w)  # starts the team of an OpenMP runtime, if there is one
net = cs.onnx.compile(model, threads=2) if {linked} else None
if {runs}:
    assert (net(x) == expected).all()
child = os.fork()
if not child:
    signal.alarm(60)
    net = net or cs.onnx.compile(model, threads=2)
    os._exit(0 if net.threads == 2 and all((net(x) == expected).all() for _ in range(5)) else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 0, status
assert net is None or (net(x) == expected).all()
"""
WITHOUT = """
threads._find = lambda: None
net = cs.onnx.compile(model, threads=2)
assert net.threads == 2 and threads.openmp() is None
assert (net(x) == expected).all()
"""


def _run(body: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT + body]
    done = subprocess.run(command, env=environment, timeout=120, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.sampled(3)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")
@pytest.mark.parametrize(("linked", "runs"), [(False, False), (True, False), (True, True)])
def test_a_forked_child_runs_networks(linked: bool, runs: bool) -> None:
    """The child compiles the network, or has it from its parent, in which it may have run."""
    _run(FORKED.format(linked=linked, runs=runs))


def test_a_process_without_an_openmp_runtime_runs_networks() -> None:
    _run(WITHOUT)
