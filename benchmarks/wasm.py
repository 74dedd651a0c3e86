"""Layers of ResNet-50 and MobileNetV2 in WebAssembly, beside onnxruntime-web and tfjs-backend-wasm, and networks.

    python benchmarks/wasm.py --npm FOLDER [--engine chromium]    # FOLDER has both packages in node_modules
    python benchmarks/wasm.py --npm FOLDER --models ''            # layers alone
    python benchmarks/wasm.py --npm FOLDER --networks ''          # whole networks alone
    python benchmarks/wasm.py --npm FOLDER --models '' --types u8:s8:u8 --targets wasm32+pairs_u8 --vs onnxruntime-web

Layers of other types than f32 are measured beside our own kernels of f32 too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx_int8 import quantised
from random_models import NETWORKS, VOCODERS
from report import Report

import convsmith as cs
from convsmith.diag.printable import printable
from convsmith.measure.web import ENGINES, WebEngine, WebNetworkFiles, engine_of
from convsmith.measure.web_peers import WEB_PEERS, Packages
from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for
from convsmith.problem import parse_problem
from convsmith.problem.suites import suite

TARGETS = ("wasm32+relaxed", "wasm32")
OF_BYTES = "wasm32+dot_u8,wasm32+pairs_u8"
ROUNDS = 15
BYTES = " in bytes"
"""The end of the name of a quantised network."""
TOLERANCES = {False: 1e-4, True: 0.1}
"""Largest difference between results of f32, and of bytes, whose rounding differs in ties, as a part of the largest."""
MODELS = ("MobileNetV2", "EfficientNet-B0", "HiFi-GAN", f"MobileNetV2{BYTES}", f"EfficientNet-B0{BYTES}")
COPYING = "onnxruntime-web"
OWN = "f32"
"""The name of our own kernel of f32 among those that another type is measured beside."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Convolutions in WebAssembly beside other libraries.")
    parser.add_argument("--npm", required=True, help="folder whose node_modules has the peers")
    parser.add_argument("--engine", default="node", choices=[*ENGINES], help="engine (default: node)")
    parser.add_argument("--networks", default="resnet50,mobilenet_v2", help="networks, with commas between")
    parser.add_argument("--only", default="", help="part of the names of layers")
    parser.add_argument("--targets", default=",".join(TARGETS), help="levels, with commas between")
    parser.add_argument("--config", help="config of all kernels, without its target")
    parser.add_argument("--vs", default=",".join(WEB_PEERS), help="peers, with commas between; none is legal")
    parser.add_argument("--types", default="f32", help="types of source, weights and result (default: f32)")
    parser.add_argument("--models", default=",".join(MODELS), help="whole networks, with commas between")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds (default: {ROUNDS})")
    parser.add_argument("--try", action="store_true", dest="is_trial", help="print the rows, and write no page")
    given = parser.parse_args(arguments)
    targets, networks = given.targets.split(","), [x for x in given.networks.split(",") if x]
    lines = {n: [str(p) for p in suite(n) if given.only in (p.name or "")] for n in networks}
    found = measured([x for xs in lines.values() for x in xs], targets, given)
    if given.is_trial:
        print(found["means"], found["peaks"], [(row["name"], row["ratios"]) for row in found["networks"]])
        return
    _page(found, lines, targets, given).write()


def measured(lines: Sequence[str], targets: Sequence[str], given: Any) -> dict[str, Any]:
    """Return the times of layers, with ratios and shares of the peak, and those of networks."""
    packages = Packages(given.npm, [x for x in given.vs.split(",") if x in WEB_PEERS])
    if missing := packages.advice(packages.here):
        sys.exit(missing)
    rows, peaks = [], {name: 0.0 for name in targets}
    with engine_of(given.engine, packages) as engine:
        version = engine.version
        for line in lines:
            row = _layer(engine, line, targets, given, peaks)
            rows.append(row)
            shares = (f"{100 * share:.0f}%" for share in row["shares"].values())
            ratios = (f"{name} {value:.2f}" for name, value in row["ratios"].items())
            print(f"{row['name']:30}", *ratios, *shares, file=sys.stderr, flush=True)
        models = [name for name in given.models.split(",") if name]
        networks = [_network(engine, n, name, given.rounds) for n, name in enumerate(models)]
    columns = dict.fromkeys(x for row in rows for x in row["ratios"])
    means = {x: statistics.geometric_mean(row["ratios"][x] for row in rows) for x in columns}
    versions = {"engine": version, **packages.versions}
    return {"rows": rows, "means": means, "peaks": peaks, "networks": networks, "versions": versions}


def _layer(engine: WebEngine, line: str, targets: Sequence[str], given: Any, peaks: dict[str, float]) -> dict[str, Any]:
    """Return the row of a layer; the highest rates of multiply-adds are kept in `peaks`."""
    types = "" if given.types == OWN else f"--dt={given.types} "
    problem = parse_problem(f"--stag=axb --dtag=axb {types}{line}")
    row: dict[str, Any] = {"name": printable(problem.name or line), "seconds": {}, "ratios": {}, "shares": {}}
    for name in targets:
        chosen = None if given.config is None else f"--target={name} {given.config}"
        kernel = cs.compile(problem, target=name, threads=1, config=chosen)
        found = engine.measure(kernel, given.rounds)
        if found.wrong or found.missing:
            sys.exit(f"{line}: {found.wrong or found.missing}")
        times = found.times
        row["seconds"][name] = times.seconds.median
        if times.of_peak is not None:
            row["shares"][name] = times.of_peak.median
            peaks[name] = max(peaks[name], times.peak_gflops.median)
        if types:
            plain = parse_problem(f"--stag=axb --dtag=axb {line}")
            beside = cs.compile(plain, target=name, threads=1)
            took = engine.measure(beside, given.rounds, ()).times.seconds.median
            row["ratios"][f"{name} {OWN}"] = took / times.seconds.median
        row["ratios"] |= {f"{name} {peer}": x.speedup.median for peer, x in times.peers.items()}
    return row


def _network(engine: WebEngine, number: int, name: str, rounds: int) -> dict[str, Any]:
    """Return the row of a network, the exported files of which have names with its number."""
    is_bytes = name.endswith(BYTES)
    model = {**NETWORKS, **VOCODERS}[name.removesuffix(BYTES)]()
    content = model.SerializeToString()
    if is_bytes:
        rng = np.random.default_rng(1)
        content = quantised(model, [rng.standard_normal((1, 3, 224, 224)).astype(np.float32) for _ in range(2)])
    graph, folder, stem = read_graph(content), engine.emptied(), f"net{number}"
    (x,) = graph.inputs
    made = export_for(graph, folder, stem, OF_BYTES if is_bytes else TARGETS[0])
    sizes = {file.suffix: file.stat().st_size for file in made.files if file.stem == stem}
    (folder / "model").write_bytes(content)
    files = WebNetworkFiles(made.header.name, "model", x.name, tuple(x.shape), TOLERANCES[is_bytes])
    times = engine.measure_network(files, rounds)
    own, peers = times["network"], [x for x in times if x != "network"]
    ratios = {x: statistics.median(t / o for o, t in zip(own, times[x])) for x in peers}
    row = {"name": name, "times": times, "sizes": sizes, "ratios": ratios}
    print(f"{name:30} {statistics.median(own):.1f} ms", ratios, file=sys.stderr, flush=True)
    return row


def _note(peaks: dict[str, float], columns: Sequence[str], given: Any) -> str:
    """Return what is measured, and how, for the page."""
    sentences = [
        f"Batch 1, {given.types}, one thread, one process or page in which all run in turn; results of layers differ "
        "from the right ones by at most 1e-5 of the largest, or by the bound of a transform, those of networks from "
        "the library's by 1e-4. A ratio is a library's time divided by ours (above 1: convsmith is faster), the median "
        f"of {given.rounds} rounds of 5 ms each. onnxruntime-web takes arrays of JavaScript and returns new ones: our "
        "time beside it includes copying the source into the memory of the module, and the result out of it to an "
        "array that all calls share."
    ]
    if BYTES in given.models:
        sentences.append(
            f"Networks in bytes are models of ONNX Runtime's `quantize_static` (QDQ, u8 values, s8 weights), exported "
            f"for `{OF_BYTES}`; their results differ by at most 0.1 of the largest, because libraries round ties apart."
        )
    if any(name.endswith(" tfjs") for name in columns):
        sentences.append("tfjs keeps tensors in its memory, and our time beside it is the kernel's alone.")
    if any(name.endswith(f" {OWN}") for name in columns):
        sentences.append(
            f"The ratio to {OWN} is that of the times of our own kernels of the same layer. Weights are within the "
            "limit of a kernel's instruction."
        )
    if any(peaks.values()):
        rates = ", ".join(f"`{name}` {value:.1f} GFLOP/s" for name, value in peaks.items())
        sentences.append(
            f"Shares are those of the fastest loop of multiply-adds in the same engine ({rates}), counted as "
            "operations of the direct form, so that Winograd's transforms exceed it."
        )
    return " ".join(sentences)


def _page(found: dict[str, Any], lines: dict[str, list[str]], targets: Sequence[str], given: Any) -> Report:
    """Return the page of what was measured."""
    versions = found["versions"]
    what = "layers of ResNet-50 and MobileNetV2" if lines else "whole networks"
    kinds = ("" if given.types == OWN else given.types.replace(":", "-"), "" if lines else "networks")
    engine = "" if given.engine == next(iter(ENGINES)) else given.engine
    title = f"WebAssembly: {what} in {versions['engine'].split()[0]}"
    report = Report("-".join(("wasm", *filter(None, (*kinds, engine)))), title)
    report.data = {"runs": [{"libraries": versions}], **found}
    columns = [*found["means"]]
    report.note(_note(found["peaks"], columns, given))
    versus = [name.replace(" ", " vs ") for name in columns]
    shown = [name for name in targets if found["peaks"][name]]
    heads = ["layer", "ms", *versus, *(f"{name}, % of peak" for name in shown)]
    start = 0
    for network, own in lines.items():
        rows = found["rows"][start : start + len(own)]
        start += len(own)
        cells = [
            [row["name"], f"{1e3 * row['seconds'][targets[0]]:.3f}",
             *(f"{row['ratios'][x]:.2f}" for x in columns), *(f"{100 * row['shares'][x]:.0f}" for x in shown)]
            for row in rows
        ]  # fmt: skip
        report.table(network, heads, cells)
    own = [(row, statistics.median(row["times"]["network"])) for row in found["networks"]]
    rows = [[row["name"], f"{took:.1f}", *(f"{x:.2f}" for x in row["ratios"].values())] for row, took in own]
    title = "Whole networks, with copies of input and output"
    if rows:
        sizes = [row["sizes"][".wasm"] for row, _ in own]
        rows = [[*row, f"{size / 1000:.0f}"] for row, size in zip(rows, sizes)]
        report.table(title, ["", "ms", f"vs {COPYING}", "module without weights, KB"], rows)
    below = {x: sum(row["ratios"][x] < 1 for row in found["rows"]) for x in columns}
    means = [[title, f"{found['means'][x]:.2f}", str(below[x])] for title, x in zip(versus, columns)]
    if means:
        report.table("Geometric means", ["", "mean", "layers below 1"], means)
    return report


if __name__ == "__main__":
    main()
