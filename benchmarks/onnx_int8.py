"""Quantised ONNX models as one function: times beside the same models of floats, and beside ONNX Runtime's.

Run: python benchmarks/onnx_int8.py [--threads 1] (needs the packages onnx and onnxruntime)
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx_models import MODELS, RandomModel
from report import Report

import convsmith as cs
from convsmith.measure.timing import measure

ROUNDS = 15
_SAMPLES = 4


def efficient_net() -> Any:
    """EfficientNet-B0, with norms folded into its convolutions."""
    m = RandomModel()

    def swish(x: str) -> str:
        return m.node("Mul", x, m.node("Sigmoid", x))

    x, channels = swish(m.conv("x", 3, 32, 3, 2)), 32
    rows = (
        (1, 16, 3, 1, 1), (6, 24, 3, 2, 2), (6, 40, 5, 2, 2), (6, 80, 3, 3, 2), (6, 112, 5, 3, 1), (6, 192, 5, 4, 2),
        (6, 320, 3, 1, 1),
    )  # fmt: skip
    for factor, out, k, blocks, first in rows:
        for block in range(blocks):
            stride, wide = 1 if block else first, channels * factor
            y = x if factor == 1 else swish(m.conv(x, channels, wide, 1))
            y = swish(m.conv(y, wide, wide, k, stride, wide))
            few = channels // 4
            gate = swish(m.conv(m.node("GlobalAveragePool", y), wide, few, 1))
            y = m.conv(m.node("Mul", y, m.node("Sigmoid", m.conv(gate, few, wide, 1))), wide, out, 1)
            x = m.node("Add", x, y) if stride == 1 and channels == out else y
            channels = out
    return m.classified(swish(m.conv(x, channels, 1280, 1)), 1280)


NETWORKS: dict[str, Callable[[], Any]] = {**MODELS, "EfficientNet-B0": efficient_net}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Quantised ONNX models beside ONNX Runtime.")
    parser.add_argument("--threads", type=int, default=1, help="threads of all (default: %(default)s)")
    threads = parser.parse_args(arguments).threads
    report = Report("onnx-int8", "Quantised ONNX models as one function, beside f32 and ONNX Runtime")
    report.note(
        f"Batch 1, {threads} thread{'s' * (threads > 1)}, random weights. ONNX Runtime's `quantize_static` makes the "
        "models (QDQ, u8 values, s8 weights with a scale for each channel), so that both run the same file. All run in "
        "turn; a ratio is the time of ONNX Runtime's function on bytes, or of convsmith's on floats, divided by the "
        "time of convsmith's on bytes (above 1: convsmith's on bytes is faster). The last columns are the root mean "
        "square of an output's difference to that of the model of floats, as a part of its root mean square."
    )
    found = [_row(name, build(), threads) for name, build in NETWORKS.items()]
    columns = ["model", "ms", "onnxruntime ms", "ratio", "f32 ms", "ratio to f32", "error", "onnxruntime error"]
    report.table("Results", columns, [row for row, _ in found])
    report.data = {"runs": [run for _, run in found]}
    report.write()


class _Samples:
    """Samples as ONNX Runtime's tool takes them."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self._left = [*samples]

    def get_next(self) -> Any:
        return {"x": self._left.pop()} if self._left else None


def _quantised(model: Any, samples: Sequence[Any]) -> bytes:
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
    x, content = samples[0], _quantised(model, samples)
    net = cs.onnx.compile(content, threads=threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(content, options)
    (expected,), (theirs,) = floats.run({"x": x}).values(), session.run(None, {"x": x})
    results, plain = net.run({"x": x}), floats.run({"x": x})
    (ours,) = results.values()
    errors = [float(np.sqrt(np.square(y - expected).mean() / np.square(expected).mean())) for y in (ours, theirs)]
    peers = {
        "onnxruntime": lambda: session.run(None, {"x": x}), "f32": lambda: floats.run({"x": x, **plain}),
    }  # fmt: skip
    made = measure(lambda: net.run({"x": x, **results}), 1.0, None, peers, ROUNDS, threads)
    peer, own = made.peers["onnxruntime"], made.peers["f32"]
    row = [
        name, f"{made.seconds.median * 1e3:.2f}", f"{peer.seconds.median * 1e3:.2f}", f"{peer.speedup.median:.2f}",
        f"{own.seconds.median * 1e3:.2f}", f"{own.speedup.median:.2f}", *(f"{error:.3f}" for error in errors),
    ]  # fmt: skip
    print(" ".join(row), flush=True)
    run = {
        "model": name, "threads": threads, "libraries": {"onnxruntime": onnxruntime.__version__},
        "seconds": made.seconds.median, "onnxruntime": peer.seconds.median, "ratio": peer.speedup.median,
        "f32": own.seconds.median, "ratio_f32": own.speedup.median, "errors": errors,
    }  # fmt: skip
    return row, run


if __name__ == "__main__":
    main()
