"""Whole ONNX models as one function, beside ONNX Runtime: times, loading from a file, and the size of a library.

Run: python benchmarks/onnx_models.py [--threads 1] (needs the packages onnx and onnxruntime)
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from report import Report

import convsmith as cs
from convsmith.measure.timing import measure

ROUNDS = 15
LOADS = 5
_SIZE = 224
_FIRST_RUN = """
import time
start = time.perf_counter()
import sys
import numpy as np
import convsmith as cs
net = cs.load(sys.argv[1])
net(np.zeros(net.inputs["x"], np.float32))
print(time.perf_counter() - start)
"""


class RandomModel:
    """Builds a model with random weights, node by node; methods take and return names of values."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self._held: list[Any] = []

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def held(self, array: Any) -> str:
        self._held.append(numpy_helper.from_array(np.asarray(array, np.float32), f"c{len(self._held)}"))
        return str(self._held[-1].name)

    def weights(self, *shape: int) -> str:
        return self.held(self._rng.standard_normal(shape) * np.sqrt(2 / max(np.prod(shape[1:]), 1)))

    def conv(self, x: str, ic: int, oc: int, k: int, stride: int = 1, group: int = 1) -> str:
        weights = self.weights(oc, ic // group, k, k)
        return self.node("Conv", x, weights, self.weights(oc), pads=[k // 2] * 4, strides=[stride] * 2, group=group)

    def classified(self, x: str, channels: int) -> Any:
        """The model, after the mean over pixels and a product."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x))
        y = self.node("Gemm", flat, self.weights(1000, channels), self.weights(1000), transB=1)
        shapes = (("x", (1, 3, _SIZE, _SIZE)), (y, None))
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
        graph = helper.make_graph(self.nodes, "network", ends[:1], ends[1:], self._held)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        model.ir_version = 9
        return model


def resnet50() -> Any:
    """ResNet-50, with norms folded into its convolutions."""
    m = RandomModel()
    x = m.node("Relu", m.conv("x", 3, 64, 7, 2))
    x, channels = m.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = 1 if block else first
            y = m.node("Relu", m.conv(x, channels, width, 1))
            y = m.conv(m.node("Relu", m.conv(y, width, width, 3, stride)), width, 4 * width, 1)
            x = m.node("Relu", m.node("Add", y, x if block else m.conv(x, channels, 4 * width, 1, stride)))
            channels = 4 * width
    return m.classified(x, channels)


def mobilenet_v2() -> Any:
    """MobileNetV2, with norms folded into its convolutions."""
    m = RandomModel()
    low, high = m.held(0), m.held(6)

    def capped(x: str) -> str:
        return m.node("Clip", x, low, high)

    x, channels = capped(m.conv("x", 3, 32, 3, 2)), 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, out, blocks, first in rows:
        for block in range(blocks):
            stride, wide = 1 if block else first, channels * factor
            y = x if factor == 1 else capped(m.conv(x, channels, wide, 1))
            y = m.conv(capped(m.conv(y, wide, wide, 3, stride, wide)), wide, out, 1)
            x = m.node("Add", x, y) if stride == 1 and channels == out else y
            channels = out
    return m.classified(capped(m.conv(x, channels, 1280, 1)), 1280)


MODELS: dict[str, Callable[[], Any]] = {"ResNet-50": resnet50, "MobileNetV2": mobilenet_v2}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Whole ONNX models beside ONNX Runtime.")
    parser.add_argument("--threads", type=int, default=1, help="threads of both (default: %(default)s)")
    threads = parser.parse_args(arguments).threads
    report = Report("onnx-models", "ONNX models as one function, beside ONNX Runtime")
    report.note(
        f"Batch 1, f32, {threads} thread{'s' * (threads > 1)}, random weights. Both run in turn; a ratio is ONNX "
        "Runtime's time divided by ours (above 1: convsmith is faster). The error is the largest difference of an "
        "output to ONNX Runtime's, as a part of the largest output. A load is a process that imports numpy and "
        f"convsmith, maps the file and runs once, without torch, from bytecode (median of {LOADS}). The library has "
        "its weights in a member of its own."
    )
    found = [_row(name, build(), threads) for name, build in MODELS.items()]
    columns = ["model", "ms", "onnxruntime ms", "ratio", "error", "workspace", "above live bytes", "load and run"]
    report.table("Results", [*columns, "library without weights"], [row for row, _ in found])
    report.data = {"runs": [run for _, run in found]}
    report.write()


def _row(name: str, model: Any, threads: int) -> tuple[list[str], dict[str, Any]]:
    """Return a row of the table, and the numbers behind it."""
    net = cs.onnx.compile(model, threads=threads)
    x = np.random.default_rng(1).standard_normal(net.inputs["x"]).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (theirs,), results = session.run(None, {"x": x}), net.run({"x": x})
    (ours,) = results.values()
    error = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    peers = {"onnxruntime": lambda: session.run(None, {"x": x})}
    made = measure(lambda: net.run({"x": x, **results}), 1.0, None, peers, ROUNDS, threads)
    peer = made.peers["onnxruntime"]
    with tempfile.TemporaryDirectory() as directory:
        net.save(file := Path(directory) / "net.cs")
        command = [sys.executable, "-c", _FIRST_RUN, str(file)]
        loads = [_load(command, directory) for _ in range(1 + LOADS)][1:]  # the first one writes bytecode
        start = time.perf_counter()
        library = net.export(directory, "model").library.stat().st_size - net.image.weights.size
        exported = time.perf_counter() - start
    load, over = statistics.median(loads), net.workspace / net.image.bound - 1
    run = {
        "model": name, "threads": threads, "seconds": made.seconds.median, "peer": peer.seconds.median,
        "ratio": peer.speedup.median, "error": error, "workspace": net.workspace, "bound": net.image.bound,
        "load": load, "library": library, "export": exported, "libraries": {"onnxruntime": onnxruntime.__version__},
    }  # fmt: skip
    row = [
        name, f"{made.seconds.median * 1e3:.2f}", f"{peer.seconds.median * 1e3:.2f}", f"{peer.speedup.median:.2f}",
        f"{error:.0e}", f"{net.workspace / 2**20:.2f} MiB", f"{over:.1%}", f"{load * 1e3:.0f} ms",
        f"{library / 1e3:.0f} KB",
    ]  # fmt: skip
    return row, run


def _load(command: Sequence[str], directory: str) -> float:
    """Return the seconds of a process that loads a network and runs it once, from bytecode, as an installed package
    has it.
    """
    kept = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "PYTHONPYCACHEPREFIX": directory}
    return float(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)


if __name__ == "__main__":
    main()
