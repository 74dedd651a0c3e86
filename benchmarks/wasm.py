"""Layers of ResNet-50 and MobileNetV2 in WebAssembly, beside onnxruntime-web and tfjs-backend-wasm, in Node.

Run: python benchmarks/wasm.py --npm FOLDER [--networks resnet50] (FOLDER has both packages in node_modules)
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_models import MODELS
from report import Report

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Entry
from convsmith.codegen.wasm_module import PAGE_BYTES, ModuleMemory, wasm_module
from convsmith.diag.printable import printable
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for
from convsmith.problem import Conv, parse_problem
from convsmith.problem.suites import suite

TARGETS = ("wasm32+relaxed", "wasm32")
PEERS = ("onnxruntime-web", "tfjs")
COPIES = " with copies"
ROUNDS, MILLISECONDS = 15, 5
_SUMS = 12
_ALIGNMENT = 128


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Convolutions in WebAssembly beside other libraries.")
    parser.add_argument("--npm", required=True, help="folder whose node_modules has the peers")
    parser.add_argument("--node", default="node", help="program of Node (default: that on PATH)")
    parser.add_argument("--networks", default="resnet50,mobilenet_v2", help="networks, with commas between")
    parser.add_argument("--only", default="", help="part of the names of layers")
    parser.add_argument("--targets", default=",".join(TARGETS), help="levels, with commas between")
    parser.add_argument("--config", help="config of all kernels, without its target")
    parser.add_argument("--vs", default=",".join(PEERS), help="peers, with commas between; none is legal")
    parser.add_argument("--models", default="MobileNetV2", help="whole networks, with commas between")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds (default: {ROUNDS})")
    parser.add_argument("--try", action="store_true", dest="is_trial", help="print the rows, and write no page")
    given = parser.parse_args(arguments)
    targets, networks = given.targets.split(","), given.networks.split(",")
    lines = {n: [str(p) for p in suite(n) if given.only in (p.name or "")] for n in networks}
    found = measured([x for xs in lines.values() for x in xs], targets, given)
    if given.is_trial:
        for row in found["rows"]:
            print(f"{row['name']:30}", *(f"{name} {value:.2f}" for name, value in row["ratios"].items()),
                  *(f"{100 * share:.0f}%" for share in row["shares"].values()))  # fmt: skip
        print(found["means"], found["peaks"], [(row["name"], row["ratios"]) for row in found["networks"]])
        return
    _page(found, lines, targets, given.rounds).write()


def measured(lines: Sequence[str], targets: Sequence[str], given: Any) -> dict[str, Any]:
    """Return the times of layers, with ratios and shares of the peak."""
    node = shutil.which(given.node)
    if node is None:
        sys.exit(f"there is no Node at {given.node}: install nodejs")
    with tempfile.TemporaryDirectory(prefix="convsmith-wasm-") as directory:
        folder = Path(directory)
        layers = [_layer(folder, n, f"--stag=axb --dtag=axb {x}", targets, given.config) for n, x in enumerate(lines)]
        peaks = {name: _peak(folder, target(name)) for name in targets}
        (folder / "probe.wasm").write_bytes((folder / peaks[targets[0]]["module"]).read_bytes())
        networks = [_network(folder, name) for name in given.models.split(",") if name]
        plan = {"layers": layers, "networks": networks, "peaks": peaks, "vs": given.vs.split(",")}
        plan["milliseconds"] = MILLISECONDS
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        script = Path(__file__).with_suffix(".mjs")
        command = [node, str(script), str(folder), str(Path(given.npm).resolve()), str(given.rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            sys.exit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    peers = [peer for peer in plan["vs"] if peer in PEERS]
    found["networks"] = found["rows"][len(layers) :]
    del found["rows"][len(layers) :]
    for row in found["networks"]:
        own = row["times"]["network"]
        row["ratios"] = {name: _ratio(own, row["times"][name]) for name in row["times"] if name in PEERS}
    for row, layer in zip(found["rows"], layers):
        row["ratios"], row["shares"] = {}, {}
        for name in targets:
            best = min(row["times"][name])
            row["shares"][name] = layer["flops"] / best / 1e6 / found["peaks"][name]
            for peer in peers:
                own = row["times"][name + (COPIES if peer == PEERS[0] else "")]
                row["ratios"][f"{name} {peer}"] = _ratio(own, row["times"][peer])
    found["means"] = {
        name: statistics.geometric_mean(row["ratios"][name] for row in found["rows"])
        for name in found["rows"][0]["ratios"]
    }  # fmt: skip
    return found


def _ratio(own: Sequence[float], peer: Sequence[float]) -> float:
    """Return a peer's time divided by ours, the median of the rounds in which both ran."""
    return statistics.median(t / o for o, t in zip(own, peer))


def _network(folder: Path, name: str) -> dict[str, Any]:
    """Export a network to a folder of its own, and return what the script needs to know of it."""
    model = MODELS[name]()
    graph = read_graph(model.SerializeToString())
    (x,) = graph.inputs
    made = export_for(graph, folder / name, "net", TARGETS[0])
    (folder / f"{name}.model").write_bytes(model.SerializeToString())
    sizes = {file.name: file.stat().st_size for file in made.files}
    return {
        "name": name, "loader": str(made.header), "onnx": f"{name}.model", "input": x.name, "shape": list(x.shape),
        "elements": int(np.prod(x.shape)), "sizes": sizes,
    }  # fmt: skip


def _layer(folder: Path, number: int, line: str, targets: Sequence[str], config: str | None) -> dict[str, Any]:
    """Write the files of a layer, and return what the script needs to know of it."""
    problem = parse_problem(line)
    assert isinstance(problem, Conv)
    rng = np.random.default_rng(number)
    (sh, sw), (ph, pw) = problem.s, problem.p
    mb, ic, ih, iw = problem.tensor("src").shape
    _, oc, oh, ow = problem.tensor("dst").shape
    kh, kw = problem.k
    x = rng.integers(-3, 4, (mb, ih, iw, ic)).astype(np.float32)
    w = rng.integers(-3, 4, (oc, ic // problem.g, kh, kw)).astype(np.float32)
    ends = [max((n - 1) * s + k - i - p, 0) for n, s, k, i, p in ((oh, sh, kh, ih, ph), (ow, sw, kw, iw, pw))]
    pads = [[ph, ends[0]], [pw, ends[1]]]
    is_depthwise = problem.g > 1
    arrays = {
        "src": x, "wei": w, "onnx": x.transpose(0, 3, 1, 2),
        "tf": w.transpose(2, 3, 0, 1) if is_depthwise else w.transpose(2, 3, 1, 0),
    }  # fmt: skip
    for name, array in arrays.items():
        (folder / f"{number}.{name}").write_bytes(np.ascontiguousarray(array).tobytes())
    (folder / f"{number}.model").write_bytes(_onnx(problem, w, pads))
    kernels = {}
    for name in targets:
        chosen = None if config is None else f"--target={name} {config}"
        kernel = cs.compile(problem, target=name, threads=1, config=chosen)
        artifact = kernel.artifact
        assert artifact is not None
        symbols = [entry.chunk_symbol for entry in artifact.entries.values()]
        module = wasm_module(artifact.code, symbols, ModuleMemory(1024, PAGE_BYTES))
        (folder / f"{number}.{name}.wasm").write_bytes(module)
        kernels[name] = {"module": f"{number}.{name}.wasm", "config": str(kernel.config), **_bound(artifact.entries)}
    return {
        "name": printable(problem.name or line), "flops": problem.flops_real, "kernels": kernels,
        "stride": list(problem.s), "pads": pads if any(map(any, pads)) else [],
        "src": {"file": f"{number}.src", "elements": x.size, "shape": list(x.shape)},
        "wei": {"file": f"{number}.wei", "elements": w.size},
        "dst": {"elements": mb * oc * oh * ow, "shape": [mb, oh, ow, oc]},
        "tf": {"file": f"{number}.tf", "shape": list(arrays["tf"].shape), "depthwise": is_depthwise},
        "onnx": {"file": f"{number}.model", "src": f"{number}.onnx", "shape": [mb, ic, ih, iw]},
    }  # fmt: skip


def _bound(entries: dict[str, Entry]) -> dict[str, Any]:
    """Return the steps of packing and of a call, each with the places of its arguments, in one area of memory."""
    places: dict[str, int] = {}
    end = 0
    steps: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for entry in entries.values():
        words = []
        for n, argument in enumerate(entry.arguments):
            assert argument.role in ("in", "out", "inout", "packed", "scratch", "shared"), argument
            name = f"{entry.symbol}.{n}" if argument.role == "scratch" else argument.name
            if name not in places:
                places[name] = end
                end += argument.nbytes * entry.launch.threads + -argument.nbytes % _ALIGNMENT
            words.append(places[name])
        steps[bool(entry.packing)].append({"symbol": entry.chunk_symbol, "block": end, "words": words})
        end += _ALIGNMENT * -(-4 * len(words) // _ALIGNMENT)
    return {"packs": steps[True], "steps": steps[False], "sizes": {"total": end, "places": places}}


def _onnx(problem: Conv, weights: np.ndarray[Any, Any], pads: Sequence[Sequence[int]]) -> bytes:
    """Return a model with one convolution."""
    ends = [[p[n] for p in pads] for n in (0, 1)]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[*ends[0], *ends[1]], strides=problem.s, group=problem.g)
    shapes = (("x", problem.tensor("src").shape), ("y", problem.tensor("dst").shape))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
    graph = helper.make_graph([node], "layer", values[:1], values[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def _peak(folder: Path, level: Machine) -> dict[str, Any]:
    """Write a loop of multiply-adds on registers, and return its file and its operations in an iteration."""
    row = level.row("f32", "f32", "f32")
    assert row is not None
    vector = f"<{row.lanes} x float>"
    names = [f"%a{n}" for n in range(_SUMS)]
    lines = [f"{x} = phi {vector} [ splat (float 0.5), %entry ], [ {x}.next, %loop ]" for x in names]
    for x in names:
        lines.append(f"{x}.next = {row.llvm.format(a=x, b='splat (float 0.5)', c='splat (float 0.25)')}")
    total = names[0] + ".next"
    sums = []
    for x in names[1:]:
        sums.append(f"{x}.sum = fadd {vector} {total}, {x}.next")
        total = f"{x}.sum"
    text = "\n".join((
        f'target triple = "{level.triple}"', row.declare, "define float @loop(i32 %turns) {", "entry:",
        "  br label %loop", "loop:", "  %i = phi i32 [ 0, %entry ], [ %next, %loop ]", *lines,
        "  %next = add i32 %i, 1", "  %more = icmp ult i32 %next, %turns", "  br i1 %more, label %loop, label %end",
        "end:", *sums, f"  %first = extractelement {vector} {total}, i32 0", "  ret float %first", "}", "",
    ))  # fmt: skip
    code = llvm_bind.object_code(text, level.triple, level.cpu, level.features)
    file = f"peak.{level.name}.wasm"
    (folder / file).write_bytes(wasm_module(code, ("loop",), ModuleMemory(1024, PAGE_BYTES, 1)))
    return {"module": file, "flops": 2 * row.lanes * _SUMS}


def _page(found: dict[str, Any], lines: dict[str, list[str]], targets: Sequence[str], rounds: int) -> Report:
    """Return the page of what was measured."""
    versions = found["versions"]
    report = Report("wasm", "WebAssembly: layers of ResNet-50 and MobileNetV2 in Node")
    report.data = {"runs": [{"libraries": versions}], **found}
    peaks = ", ".join(f"`{name}` {value:.1f} GFLOP/s" for name, value in found["peaks"].items())
    report.note(
        "Batch 1, f32, one thread, one process of Node in which all run in turn; results differ by at most 1e-5 of the "
        "largest. A ratio is a library's time divided by ours (above 1: convsmith is faster), the median of "
        f"{rounds} rounds of {MILLISECONDS} ms each. onnxruntime-web takes and returns arrays of JavaScript: our time "
        "beside it includes copying the source into the memory of the module and the result out of it. tfjs keeps "
        "tensors in its memory, and our time beside it is the kernel's alone. Shares are those of the fastest loop of "
        f"multiply-adds in the same engine ({peaks}), counted as operations of the direct form, so that Winograd's "
        "transforms exceed it."
    )  # fmt: skip
    columns = [name for name in found["rows"][0]["ratios"]]
    versus = [name.replace(" ", " vs ") for name in columns]
    heads = ["layer", "ms", *versus, *(f"{name}, % of peak" for name in targets)]
    start = 0
    for network, own in lines.items():
        rows = found["rows"][start : start + len(own)]
        start += len(own)
        cells = [
            [row["name"], f"{statistics.median(row['times'][targets[0]]):.3f}",
             *(f"{row['ratios'][x]:.2f}" for x in columns), *(f"{100 * row['shares'][x]:.0f}" for x in targets)]
            for row in rows
        ]  # fmt: skip
        report.table(network, heads, cells)
    own = [(row, statistics.median(row["times"]["network"])) for row in found["networks"]]
    rows = [[row["name"], f"{took:.1f}", *(f"{x:.2f}" for x in row["ratios"].values())] for row, took in own]
    report.table("Whole networks, with copies of input and output", ["", "ms", f"{targets[0]} vs {PEERS[0]}"], rows)
    below = {x: sum(row["ratios"][x] < 1 for row in found["rows"]) for x in columns}
    means = [[title, f"{found['means'][x]:.2f}", str(below[x])] for title, x in zip(versus, columns)]
    report.table("Geometric means", ["", "mean", "layers below 1"], means)
    return report


if __name__ == "__main__":
    main()
