"""Forty networks of torchvision, timm, transformers, diffusers and plain PyTorch beside other libraries.

Run: python benchmarks/library_times.py [--networks "timm levit_128s,torch yolo"] [--models FOLDER] [--keep]

Each network runs as `convsmith.torch.compile` makes it, beside PyTorch and beside the libraries that run what
`torch.onnx.export` writes. The export takes most of the time; with --models, its files stay for a later run.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx_peers import LIBRARIES
from report import Report
from row_processes import Row, earlier_rows, reason_of, row_in_a_process
from verify_networks import LIMIT, PACKAGES, arrays_of, difference, exported, narrowed

from convsmith.measure.timing import Sampler, alternate, geometric_mean, spread

ROUNDS = 9
SAMPLE_SECONDS = 0.05


def main(arguments: Sequence[str] | None = None) -> None:
    from library_networks import available

    parser = argparse.ArgumentParser(description="Forty networks beside other libraries.")
    parser.add_argument("--networks", help="networks, with commas between (default: all that are installed)")
    parser.add_argument("--models", help="folder in which exported ONNX models stay for a later run")
    parser.add_argument("--threads", type=int, default=1, help="threads of all libraries (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the rows of the day's earlier runs")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(_measured(options.one, options.models, options.threads)))
        return
    report = Report("library-times", "Networks of other packages beside other libraries")
    rows = earlier_rows(report, options.keep)
    try:
        with TemporaryDirectory() as made:
            for name in options.networks.split(",") if options.networks else available():
                rows[name] = _in_a_process(name, options.models or made, options.threads)
    finally:
        _write(report, [rows[name] for name in available() if name in rows], options.threads)


def _in_a_process(name: str, models: str, threads: int) -> Row:
    """Return what `_measured` returns, from a process of its own."""
    row = row_in_a_process(__file__, name, ["--models", models, "--threads", str(threads)])
    if isinstance(row, str):
        return {"network": name, "ratios": {}, "why": {"convsmith": row}}
    print(name, row.get("seconds"), row["ratios"], row["why"], file=sys.stderr, flush=True)
    return row


def _measured(name: str, models: str, threads: int) -> Row:
    """Return a row: our time, the ratios of other times to it, and why a library does not run the network."""
    import torch
    from library_networks import listed_network

    import convsmith.torch as ct

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    model, inputs = listed_network(name)
    row: Row = {"network": name, "ratios": {}, "why": {}}
    with torch.inference_mode():
        expected = arrays_of(model(*inputs))
        net = ct.compile(model, tuple(inputs), threads=threads)
        taken = {key: narrowed(x).numpy() for key, x in zip(net.inputs, inputs, strict=True)}
        results = net.run(taken)
        row["error"] = difference(list(results.values()), expected)
        calls: dict[str, Callable[[], object]] = {
            "convsmith": lambda: net.run(taken | results), "eager": lambda: model(*inputs),
        }  # fmt: skip
        file = exported(name, model, inputs, Path(models))
        for library, make in LIBRARIES.items():
            if find_spec(library):
                try:
                    calls[library] = _function(make, file, inputs, expected, threads)
                except Exception as error:  # a library's: the row says which
                    row["why"][library] = reason_of(error)
        samplers = {key: Sampler(call, SAMPLE_SECONDS) for key, call in calls.items()}
        times = alternate(samplers, ROUNDS)
    ours = times.pop("convsmith")
    row["seconds"] = spread(ours).median
    row["ratios"] = {key: spread([a / b for a, b in zip(sample, ours)]).median for key, sample in times.items()}
    return row


def _function(
    make: Callable[[Path, Mapping[str, np.ndarray], int], Callable[[], Sequence[Any]]],
    file: Path,
    inputs: Sequence[Any],
    expected: Sequence[np.ndarray],
    threads: int,
) -> Callable[[], object]:
    """Return a library's function of the model in a file. ValueError if its results are others."""
    import onnx

    graph = onnx.load(file, load_external_data=False).graph
    names = [x.name for x in graph.input if x.name not in {held.name for held in graph.initializer}]
    function = make(file, {name: x.numpy() for name, x in zip(names, inputs, strict=True)}, threads)
    error = difference(list(function()), expected)
    if not error <= 10 * LIMIT:
        raise ValueError(f"its results differ by {error:.1e} of the largest element")
    return function


def _write(report: Report, rows: Sequence[Row], threads: int) -> None:
    """Write the page and the data."""
    report.note(
        f"f32, one sample, random weights, {threads} thread{'s' * (threads > 1)}. All run in turn; a ratio is a "
        "library's time divided by ours (above 1: convsmith is faster), and the best is that of the fastest library. "
        "The error is the largest difference of our result to PyTorch's, as a part of its largest element. A dash: the "
        "library does not run the network, or its result is another one. With `--keep`, rows of earlier runs stay."
    )
    libraries = ["eager", *LIBRARIES]
    timed = [row for row in rows if row["ratios"]]
    best = {row["network"]: min(row["ratios"].values()) for row in timed}
    means = [[name, *_mean([row["ratios"][name] for row in timed if name in row["ratios"]])] for name in libraries]
    report.table("Ratios", ["", "networks", "mean", "least"], [*means, ["the best of all", *_mean([*best.values()])]])
    lines = [
        [
            row["network"], f"{row['seconds'] * 1e3:.2f}", *(_ratio(row["ratios"].get(name)) for name in libraries),
            _ratio(best[row["network"]]), f"{row['error']:.0e}",
        ]
        for row in timed
    ]  # fmt: skip
    report.table("Results", ["network", "ms", *(f"{name} / ours" for name in libraries), "best / ours", "error"], lines)
    whys = [[row["network"], name, why] for row in rows for name, why in row["why"].items()]
    if whys:
        report.table("Why not", ["network", "library", "reason"], whys)
    named = {name: version(name) for name in (*PACKAGES, *LIBRARIES) if find_spec(name)}
    report.data = {"runs": [{"libraries": named, "rows": list(rows)}]}
    report.write()


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _mean(ratios: Sequence[float]) -> tuple[str, str, str]:
    """Return the number, the geometric mean and the least of ``ratios``."""
    if not ratios:
        return "0", "-", "-"
    return str(len(ratios)), f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"


if __name__ == "__main__":
    main()
