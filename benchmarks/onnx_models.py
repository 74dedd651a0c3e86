"""Whole ONNX models as one function, beside other libraries: times, loading from a file, and the size of a library.

Run: python benchmarks/onnx_models.py [--threads 1] (needs the package onnx; libraries: onnxruntime, openvino)
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx_peers import functions_of_libraries, threads_of, versions
from random_models import NETWORKS
from report import Report

import convsmith as cs
from convsmith.measure.timing import measure

ROUNDS = 15
LOADS = 5
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


def main(arguments: Sequence[str] | None = None) -> None:
    threads = threads_of("Whole ONNX models beside other libraries.", arguments)
    report = Report("onnx-models", "ONNX models as one function, beside other libraries")
    report.note(
        f"Batch 1, f32, {threads} thread{'s' * (threads > 1)}, random weights. All run in turn; a ratio is a "
        "library's time divided by ours (above 1: convsmith is faster). The error is the largest difference of an "
        "output to the first library's, as a part of the largest output. A load is a process that imports numpy and "
        f"convsmith, maps the file and runs once, without torch, from bytecode (median of {LOADS}). The library has "
        "its weights in a member of its own."
    )
    found = [_row(name, build(), threads) for name, build in NETWORKS.items()]
    columns = ["model", "ms", *(f"{name} / ours" for name in versions()), "error", "workspace", "above live bytes"]
    report.table("Results", [*columns, "load and run", "library without weights"], [row for row, _ in found])
    report.data = {"runs": [run for _, run in found]}
    report.write()


def _row(name: str, model: Any, threads: int) -> tuple[list[str], dict[str, Any]]:
    """Return a row of the table, and the numbers behind it."""
    net = cs.onnx.compile(model, threads=threads)
    x = np.random.default_rng(1).standard_normal(net.inputs["x"]).astype(np.float32)
    libraries = functions_of_libraries(model.SerializeToString(), {"x": x}, threads)
    results = net.run({"x": x})
    (ours,) = results.values()
    (theirs,) = next(iter(libraries.values()))()
    error = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    made = measure(lambda: net.run({"x": x, **results}), 1.0, None, libraries, ROUNDS, threads)
    with tempfile.TemporaryDirectory() as directory:
        net.save(file := Path(directory) / "net.cs")
        command = [sys.executable, "-c", _FIRST_RUN, str(file)]
        loads = [_load(command, directory) for _ in range(1 + LOADS)][1:]  # the first one writes bytecode
        start = time.perf_counter()
        library = net.export(directory, "model").library.stat().st_size - net.image.weights.size
        exported = time.perf_counter() - start
    load, over = statistics.median(loads), net.workspace / net.image.bound - 1
    run = {
        "model": name, "threads": threads, "seconds": made.seconds.median, "error": error,
        "peers": {peer: timed.seconds.median for peer, timed in made.peers.items()},
        "ratios": {peer: timed.speedup.median for peer, timed in made.peers.items()},
        "workspace": net.workspace, "bound": net.image.bound,
        "load": load, "library": library, "export": exported, "libraries": versions(),
    }  # fmt: skip
    row = [
        name, f"{made.seconds.median * 1e3:.2f}", *(f"{peer.speedup.median:.2f}" for peer in made.peers.values()),
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
