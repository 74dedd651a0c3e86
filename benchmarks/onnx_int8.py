"""Quantised ONNX models as one function: times beside the same models of floats, and beside other libraries.

Run: python benchmarks/onnx_int8.py [--threads 1] (needs the packages onnx and onnxruntime; openvino is a peer too)
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx_peers import functions_of_libraries, threads_of, versions
from random_models import NETWORKS
from report import Report

import convsmith as cs
from convsmith.measure.timing import measure

ROUNDS = 15
_SAMPLES = 4


def main(arguments: Sequence[str] | None = None) -> None:
    threads = threads_of("Quantised ONNX models beside floats and other libraries.", arguments)
    report = Report("onnx-int8", "Quantised ONNX models as one function, beside f32 and other libraries")
    report.note(
        f"Batch 1, {threads} thread{'s' * (threads > 1)}, random weights. ONNX Runtime's `quantize_static` makes the "
        "models (QDQ, u8 values, s8 weights with a scale for each channel), so that all run the same file. They run in "
        "turn; a ratio is the time of a library's function on bytes, or of convsmith's on floats, divided by the "
        "time of convsmith's on bytes (above 1: convsmith's on bytes is faster). The last columns are the root mean "
        "square of an output's difference to that of the model of floats, as a part of its root mean square."
    )
    found = [_row(name, build(), threads) for name, build in NETWORKS.items()]
    peers = versions()
    columns = ["model", "ms", *(f"{name} / ours" for name in [*peers, "f32"]), "error"]
    columns += [f"error of {name}" for name in peers]
    report.table("Results", columns, [row for row, _ in found])
    report.data = {"runs": [run for _, run in found]}
    report.write()


class _Samples:
    """Samples as ONNX Runtime's tool takes them."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self._left = [*samples]

    def get_next(self) -> Any:
        return {"x": self._left.pop()} if self._left else None


def quantised(model: Any, samples: Sequence[Any]) -> bytes:
    """Return the file of the model on bytes."""
    tool: Any = import_module("onnxruntime.quantization")
    prepared: Any = import_module("onnxruntime.quantization.shape_inference").quant_pre_process
    with tempfile.TemporaryDirectory() as directory:
        plain, shaped, made = (str(Path(directory) / f"{name}.onnx") for name in ("plain", "shaped", "made"))
        onnx.save(model, plain)
        prepared(plain, shaped, skip_symbolic_shape=True)
        tool.quantize_static(
            shaped, made, _Samples(samples), quant_format=tool.QuantFormat.QDQ, per_channel=True,
            activation_type=tool.QuantType.QUInt8, weight_type=tool.QuantType.QInt8,
        )  # fmt: skip
        return Path(made).read_bytes()


def _row(name: str, model: Any, threads: int) -> tuple[list[str], dict[str, Any]]:
    """Return a row of the table, and the numbers behind it."""
    rng = np.random.default_rng(1)
    floats = cs.onnx.compile(model, threads=threads)
    samples = [rng.standard_normal(floats.inputs["x"]).astype(np.float32) for _ in range(_SAMPLES)]
    x, content = samples[0], quantised(model, samples)
    net = cs.onnx.compile(content, threads=threads)
    libraries = functions_of_libraries(content, {"x": x}, threads)
    results, plain = net.run({"x": x}), floats.run({"x": x})
    (ours,), (expected,) = results.values(), plain.values()
    errors = [_error(y, expected) for y in (ours, *(function()[0] for function in libraries.values()))]
    peers = {**libraries, "f32": lambda: floats.run({"x": x, **plain})}
    made = measure(lambda: net.run({"x": x, **results}), 1.0, None, peers, ROUNDS, threads)
    row = [
        name, f"{made.seconds.median * 1e3:.2f}", *(f"{peer.speedup.median:.2f}" for peer in made.peers.values()),
        *(f"{error:.3f}" for error in errors),
    ]  # fmt: skip
    print(" ".join(row), flush=True)
    run = {
        "model": name, "threads": threads, "libraries": versions(), "seconds": made.seconds.median,
        "peers": {peer: time.seconds.median for peer, time in made.peers.items()},
        "ratios": {peer: time.speedup.median for peer, time in made.peers.items()}, "errors": errors,
    }  # fmt: skip
    return row, run


def _error(y: np.ndarray, expected: np.ndarray) -> float:
    """Return the root mean square of the differences, as a part of that of the ``expected`` values."""
    return float(np.sqrt(np.square(y - expected).mean() / np.square(expected).mean()))


if __name__ == "__main__":
    main()
