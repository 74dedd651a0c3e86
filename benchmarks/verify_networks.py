"""Forty networks of torchvision, timm, transformers, diffusers and plain PyTorch: does each run, and is it right?

Run: python benchmarks/verify_networks.py [--networks "timm levit_128s,torch yolo"] [--ways optimize,onnx] [--keep]

A network runs by `convsmith.torch.optimize`, by `convsmith.torch.compile`, and by `convsmith.onnx.compile` of three
files: what `torch.onnx.export` writes, what its older exporter writes, and the latter with an open batch. Each result
is compared with a run of PyTorch, and those of files with ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from report import Report
from row_processes import Row, earlier_rows, reason_of, row_in_a_process

SCRIPT_OPSET = 17
"""The version of ONNX's operators in files of the older exporter."""
LIMIT = 1e-5
"""Largest difference of a right result, as a part of its largest element."""
PACKAGES = ("torch", "torchvision", "timm", "transformers", "diffusers", "onnx", "onnxscript", "onnxruntime")


def main(arguments: Sequence[str] | None = None) -> None:
    from library_networks import available

    parser = argparse.ArgumentParser(description="Forty networks: does each run, and is it right?")
    parser.add_argument("--networks", help="networks, with commas between (default: all that are installed)")
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas between (default: %(default)s)")
    parser.add_argument("--kept", help="folder in which exported ONNX models stay for a later run")
    parser.add_argument("--keep", action="store_true", help="keep what the day's earlier runs found")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    ways = options.ways.split(",")
    if options.one:
        os.environ["CONVSMITH_CACHE"] = "off"
        print(json.dumps(_verified(options.one, ways, options.kept)))
        return
    report = Report("verify-networks", "Networks of other packages: does each run, and is it right?")
    found = earlier_rows(report, options.keep)
    try:
        for name in options.networks.split(",") if options.networks else available():
            found[name] = {**found.get(name, {}), **_in_a_process(name, ways, options.kept)}
    finally:
        _write(report, [found[name] for name in available() if name in found])


def _write(report: Report, rows: Sequence[Row]) -> None:
    """Write the page and the data."""
    report.note(
        f"f32, one sample, random weights, one thread. A number is the largest difference to PyTorch's result, as a "
        f"part of its largest element; up to {LIMIT:g}, it is right. optimize: `convsmith.torch.optimize`, with the "
        "convolutions and products that it runs on convsmith's kernels, and all that it finds. compile: "
        "`convsmith.torch.compile`, one native function of the whole network. onnx: `convsmith.onnx.compile` of the "
        "model that `torch.onnx.export` writes. script: of what its older exporter writes, with operators of version "
        f"{SCRIPT_OPSET}. open: the same with an open batch, run with a batch of 2. A dash: not run. The command is "
        "that of the day's last run; with `--keep`, the rows of earlier ones stay."
    )
    ways = [way for way in WAYS if any(way in row for row in rows)]
    right = {way: sum(row[way].get("error", 1.0) <= LIMIT for row in rows if way in row) for way in ways}
    run = {way: sum(way in row for row in rows) for way in ways}
    report.table("Right", ["", *ways], [["networks", *(f"{right[way]} of {run[way]}" for way in ways)]])
    lines = [[row["network"], *(_cell(row.get(way)) for way in ways)] for row in rows]
    report.table("Results", ["network", *ways], lines)
    memory = [
        [row["network"], *(f"{n / 2**20:.2f}" for n in sizes), f"{sizes[0] / sizes[1]:.2f}"] for row in rows
        if len(sizes := [row.get("compile", {}).get(key) for key in ("workspace", "eager_bytes")]) == 2 and all(sizes)
    ]  # fmt: skip
    if memory:
        report.table("Memory beside weights, inputs and outputs", ["network", "MiB", "PyTorch MiB", "ratio"], memory)
        report.note(
            "Memory: the workspace of the one native function, with the scratch memory of its kernels, and the largest "
            "number of bytes that PyTorch's tensors hold at once, without what its operators allocate inside."
        )
    loads = [[row["network"], way, *_loaded(row[way])] for row in rows for way in FILES if "load" in row.get(way, {})]
    if loads:
        report.table("Files", ["network", "way", "MiB", "s", "ONNX Runtime s", "difference"], loads)
        report.note(
            "Files: seconds until the function of a file is there, without kernels from earlier runs, but with those "
            "of files above, and until ONNX Runtime has a session of it, each once, on a machine that may do more; "
            "the difference to ONNX Runtime's result, as a part of its largest element."
        )
    whys = [[row["network"], way, row[way]["why"]] for row in rows for way in ways if "why" in row.get(way, {})]
    if whys:
        report.table("Why not", ["network", "way", "reason"], whys)
    libraries = {name: version(name) for name in PACKAGES if find_spec(name)}
    report.data = {"runs": [{"libraries": libraries, "rows": rows}]}
    report.write()


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None or "why" in found:
        return "-" if found is None else "no"
    text = f"{found['error']:.0e}" if found["error"] <= LIMIT else f"**{found['error']:.0e}**"
    return f"{text} ({found['ours']} of {found['layers']})" if "layers" in found else text


def _loaded(found: Mapping[str, Any]) -> tuple[str, ...]:
    times = (f"{found[key]:.1f}" if key in found else "-" for key in ("load", "runtime_load"))
    apart = found.get("runtime_error")
    return f"{found['bytes'] / 2**20:.0f}", *times, found.get("runtime_why", "-") if apart is None else f"{apart:.0e}"


def _in_a_process(name: str, ways: Sequence[str], kept: str | None) -> Row:
    """Return what `_verified` returns, from a process of its own."""
    found = row_in_a_process(__file__, name, ["--ways", ",".join(ways), *(["--kept", kept] if kept else [])])
    row = {"network": name, **{way: {"why": found} for way in ways}} if isinstance(found, str) else found
    words = (f"{way} {row[way].get('why') or format(row[way]['error'], '.1e')}" for way in ways)
    print(f"{name}: {', '.join(words)}", file=sys.stderr, flush=True)
    return row


def _verified(name: str, ways: Sequence[str], kept: str | None) -> Row:
    """Return a row: for each way the difference to PyTorch, or the reason why it does not run."""
    import torch
    from library_networks import listed_network

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model, inputs = listed_network(name)
    row: Row = {"network": name}
    for way in ways:
        start = time.perf_counter()
        try:
            with torch.inference_mode():
                expected = arrays_of(model(*(twice(inputs) if way == "open" else inputs)))
                results, facts = WAYS[way](name, model, inputs, kept)
            row[way] = {"error": difference(results, expected), **facts}
        except Exception as error:  # a package's, or ours: the row says which
            row[way] = {"why": reason_of(error)}
        row[way]["seconds"] = round(time.perf_counter() - start, 2)
    return row


def arrays_of(results: Any) -> list[Any]:
    """Return one tensor or several as arrays."""
    return [x.numpy() for x in (results if isinstance(results, tuple | list) else (results,))]


def difference(results: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest difference to the expected arrays, as a part of their largest elements."""
    import numpy as np

    worst = 0.0
    for x, y in zip(results, expected, strict=True):
        if x.shape != y.shape:
            return float("inf")
        apart = np.abs(x.astype(np.float64) - y).max() / np.abs(y).max()
        worst = max(worst, float(apart) if np.isfinite(apart) else float("inf"))
    return worst


# -- ways -------------------------------------------------------------------------------------------------------------


def _optimized(name: str, model: Any, inputs: Sequence[Any], kept: str | None) -> tuple[list[Any], Row]:
    import convsmith.torch as ct

    fast = ct.optimize(model, tuple(inputs), threads=1, progress=False, keep_faster=False)
    report = fast.convsmith_report
    layers = sum(len(row.names) for row in report.rows)
    ours = sum(len(row.names) for row in report.rows if row.runner != "torch")
    return arrays_of(fast(*inputs)), {"ours": ours, "layers": layers}


def _as_graph(name: str, model: Any, inputs: Sequence[Any], kept: str | None) -> tuple[list[Any], Row]:
    from live_bytes import most_live_bytes

    import convsmith.torch as ct

    net = ct.compile(model, tuple(inputs), threads=1)
    known = (*model.parameters(), *model.buffers(), *inputs)
    eager = most_live_bytes(lambda: model(*inputs), known)
    facts = {"steps": len(net.image.steps), "workspace": net.workspace, "eager_bytes": eager}
    return arrays_of(net(*map(narrowed, inputs))), facts


def narrowed(x: Any) -> Any:
    """Return whole numbers of 64 bits in 32, as networks take them."""
    return x if x.is_floating_point() else x.int()


def _by_file(way: str, name: str, model: Any, inputs: Sequence[Any], kept: str | None) -> tuple[list[Any], Row]:
    import convsmith as cs

    with TemporaryDirectory() as made:
        file = exported(name, model, inputs, Path(kept or made), way)
        if way == "open":
            inputs = twice(inputs)
        arrays = [x.numpy() for x in inputs]
        row: Row = {"bytes": sum(x.stat().st_size for x in file.parent.glob(f"{file.name}*"))}
        start = time.perf_counter()
        net = cs.onnx.compile(file, threads=1, batch=2 if way == "open" else None)
        row["load"] = time.perf_counter() - start
        found = net(*arrays)
        results = list(found) if isinstance(found, tuple) else [found]
        row |= {"steps": len(net.image.steps), "workspace": net.workspace, **_beside_runtime(file, arrays, results)}
    return results, row


def _beside_runtime(file: Path, arrays: Sequence[Any], results: Sequence[Any]) -> Row:
    """Return the difference of results to those of ONNX Runtime, if it is installed, and the time of its session."""
    import onnx
    from onnx_peers import LIBRARIES

    if not find_spec("onnxruntime"):
        return {}
    graph = onnx.load(file, load_external_data=False).graph
    names = [x.name for x in graph.input]
    try:
        start = time.perf_counter()
        run = LIBRARIES["onnxruntime"](file, dict(zip(names, arrays, strict=True)), 1)
        seconds = time.perf_counter() - start
        return {"runtime_load": seconds, "runtime_error": difference(results, run())}
    except Exception as error:  # a library's: the row says which
        return {"runtime_why": reason_of(error)}


def twice(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return inputs with each sample twice; one of a single axis has no samples."""
    return tuple(x.repeat(2, *[1] * (x.dim() - 1)) if x.dim() > 1 else x for x in inputs)


def exported(name: str, model: Any, inputs: Sequence[Any], folder: Path, way: str = "onnx") -> Path:
    """Return the file of a network's ONNX model in a ``folder``, which is written if it is not there."""
    import torch

    kind = "" if way == "onnx" else f".{way}"
    file = folder / f"{name.replace(' ', '-')}{kind}.onnx"
    if file.exists():
        return file
    if way == "onnx":
        program = torch.onnx.export(model, tuple(inputs), dynamo=True, verbose=False)
        assert program is not None
        program.save(file)
        return file
    names = [f"x{n}" for n in range(len(inputs))]
    axes = {name: {0: "batch"} for name, x in zip(names, inputs) if way == "open" and x.dim() > 1}
    given = {"input_names": names, "dynamic_axes": axes, "opset_version": SCRIPT_OPSET}
    torch.backends.mha.set_fastpath_enabled(False)  # its attention has no form in ONNX
    torch.onnx.export(model, tuple(inputs), file, dynamo=False, **given)
    return file


FILES = ("onnx", "script", "open")
"""Ways that read a file."""

WAYS: dict[str, Callable[..., tuple[list[Any], Row]]] = {
    "optimize": _optimized, "compile": _as_graph, **{way: partial(_by_file, way) for way in FILES},
}  # fmt: skip
"""Ways to run a network by name: they return its results as arrays, and facts for the row."""


if __name__ == "__main__":
    main()
