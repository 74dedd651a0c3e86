"""Layers of networks on a GPU: beside cuDNN, the rate of a product of matrices, and the bandwidth of memory.

Run: python benchmarks/gpu.py [--target sm_90a] [--budget 500] [--only bf16,depthwise] [--tune 5] [--out DIRECTORY]

ResNet-50 and VGG-16 at batch 32 and 128 in bf16, channels last, alternate with PyTorch's kernels (cuDNN after its own
search); so do both gradients. Depthwise layers stand beside the bandwidth of a copy, bytes and the rest stand alone.
After each layer the results are written, so that an interrupted run loses one; a run with `--resume FILE` leaves out
what that file holds. `--target opencl --small` tries all of it on any machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import report
from gpu_subjects import SIDE, CudaSubjects, OpenClSubjects, bytes_of
from report import Report

from convsmith.diag.errors import ConvsmithError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.registry import target as known_target
from convsmith.measure.timing import alternate, geometric_mean, spread
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.suites import suite
from convsmith.tune.database import Database
from convsmith.tune.process import WorkerProcess
from convsmith.tune.recall import database_path
from convsmith.tune.search import search

BATCHES = (32, 128)
LAST = "--stag=axb --dtag=axb"
KINDS = {
    "bf16": f"--dt=bf16 {LAST} --wtag=axb", "data": f"--dir=BWD_D --dt=bf16 {LAST} --wtag=axb",
    "weights": f"--dir=BWD_W --dt=bf16 {LAST} --wtag=axb", "int8": f"--dt=s8:s8:s32 {LAST} --wtag=axb",
    "f32": f"{LAST} --wtag=axb", "depthwise": f"--dt=bf16 {LAST}",
}  # fmt: skip
"""Options of the layers of each kind; the rows of a kind stand in one table."""
SANITIZER = "compute-sanitizer"
PATIENCE = 60
"""Seconds that compute-sanitizer may take."""
CHECKED = ("--dt=bf16 {last} mb2ic32ih9oc40oh9kh3ph1", "{last} mb2ic8ih9oc12oh9kh3ph1",
           "--dt=bf16 {last} g32mb2ic32ih9oc32oh9kh3ph1")  # fmt: skip
"""Problems that are computed once more under compute-sanitizer, where it is installed."""

Row = dict[str, Any]


def layers(kind: str, small: bool) -> Iterator[tuple[str, Conv]]:
    """Yield the layers of a kind by name; ``small`` ones have few channels and pixels."""
    batches = BATCHES if kind == "bf16" else BATCHES[:1]
    for mb in (1,) if small else batches:
        for network in ("mobilenet_v2",) if kind == "depthwise" else ("resnet50", "vgg16"):
            for conv in suite(network):
                if (conv.g > 1) != (kind == "depthwise"):
                    continue
                line = replace(conv, mb=mb, name=None).descriptor()
                problem = parse_problem(f"{KINDS[kind]} {_smaller(line) if small else line}")
                assert isinstance(problem, Conv)
                yield f"{network} {conv.name} mb{mb}", problem


def _smaller(line: str) -> str:
    """Return the line of one small problem with the taps of another one."""
    taps = line[line.index("kh") :]
    return ("g16mb1ic16ih8oc16oh8" if line.startswith("g") else "mb1ic16ih8oc16oh8") + (
        "kh3ph1" if "kh3" in taps else "kh1"
    )


class Measuring:
    """Measures rows one after the other, until the budget is spent."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.target = known_target(options.target)
        assert self.target.device is not None
        cuda = self.target.device.runtime == "cuda"
        self.subjects = (CudaSubjects if cuda else OpenClSubjects)(self.target)
        self.end = time.perf_counter() + options.budget
        self.product, self.bandwidth = self.subjects.product(), self.subjects.bandwidth()
        self.rows: list[Row] = []
        if options.resume:
            self.rows = json.loads(Path(options.resume).read_text(encoding="utf-8"))["rows"]

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self.end

    def kind(self, kind: str) -> None:
        """Measure all layers of a kind that no row has yet."""
        known = {row["problem"] for row in self.rows}
        found = [x for x in layers(kind, self.options.small) if str(x[1]) not in known]
        for name, problem in dict((str(p), (n, p)) for n, p in found).values():
            if self.is_over:
                return
            self.rows.append({"kind": kind, "name": name, "problem": str(problem), **self.row(problem)})
            print(json.dumps(self.rows[-1]), file=sys.stderr, flush=True)
            self.write()

    def row(self, problem: Conv) -> Row:
        """Return what is measured of one layer, or why it was not."""
        try:
            if self.options.tune:
                self.tune(problem)
            start = time.perf_counter()
            kernel = CompiledKernel(problem, self.target)
            made = time.perf_counter() - start
            ours, right = self.subjects.kernel(problem, kernel)
            peer = self.subjects.peer(problem)
            subjects = {"ours": ours} | ({} if peer is None else {"cudnn": peer})
            samples = alternate(subjects, self.options.rounds, lambda: None)
        except ConvsmithError as error:
            return {"error": str(error)}
        seconds = spread(samples["ours"]).median
        row: Row = {
            "config": str(kernel.config), "right": right, "made": made, "seconds": seconds,
            "rate": problem.flops_dense / seconds * 1e-12, "bytes": bytes_of(problem) / seconds,
        }  # fmt: skip
        if peer is not None:
            row["cudnn"] = spread(samples["cudnn"]).median
            row["speedup"] = spread([b / a for a, b in zip(samples["ours"], samples["cudnn"])]).median
        return row

    def tune(self, problem: Conv) -> None:
        """Search for the fastest config, which the next compile takes."""
        path = database_path()
        if path is not None:
            with Database(path) as database, WorkerProcess() as worker:
                search(problem.canonical(), self.target, 1, self.options.tune, database, worker)

    def write(self) -> None:
        """Write what has been measured."""
        out = Path(self.options.out)
        out.mkdir(parents=True, exist_ok=True)
        content = {
            "device": self.subjects.name, "target": self.target.name, "product": self.product,
            "bandwidth": self.bandwidth, "rows": self.rows,
        }  # fmt: skip
        (out / f"gpu-{self.target.name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def page(measured: Measuring, sanitizer: str) -> None:
    """Write the page of all rows."""
    product, bandwidth = measured.product, measured.bandwidth
    made = Report(f"gpu-{measured.target.name}", f"Layers on {measured.subjects.name} ({measured.target.name})")
    made.data = {"device": measured.subjects.name, "product": product, "bandwidth": bandwidth, "rows": measured.rows}
    made.note(
        f"Product of bf16 matrices of {SIDE} rows: {_number(product, 1)} TFLOP/s. Copy in memory: "
        f"{_number(bandwidth, 1, 1e-9)} GB/s read and written. compute-sanitizer: {sanitizer}. Both sides run from "
        "CUDA graphs and alternate; `vs cuDNN` is PyTorch's time divided by ours."
    )
    for kind in KINDS:
        rows = [row for row in measured.rows if row["kind"] == kind]
        good = [row for row in rows if "seconds" in row]
        if not rows:
            continue
        ratios = [row["speedup"] for row in good if "speedup" in row]
        if ratios:
            made.note(f"{kind}: geometric mean {geometric_mean(ratios):.2f} of cuDNN, least {min(ratios):.2f}.")
        cells = [_cells(row, product, bandwidth) for row in rows]
        columns = ["layer", "config", "us", "TOP/s", "% of product", "% of bandwidth", "vs cuDNN", "right"]
        made.table(kind, columns, cells)
    made.write()


def _cells(row: Mapping[str, Any], product: float | None, bandwidth: float | None) -> list[str]:
    if "error" in row:
        return [row["name"], row["error"], *["-"] * 6]
    return [
        row["name"], f"`{row['config']}`", f"{row['seconds'] * 1e6:.1f}", f"{row['rate']:.1f}",
        _number(product and row["rate"] / product, 0, 100), _number(bandwidth and row["bytes"] / bandwidth, 0, 100),
        _number(row.get("speedup"), 2), "yes" if row["right"] else "NO",
    ]  # fmt: skip


def _number(value: float | None, digits: int, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


def sanitized(target: str) -> str:
    """Return what compute-sanitizer says of some kernels, or why nothing."""
    tool = shutil.which(SANITIZER)
    if tool is None:
        return "not installed"
    lines = [line.format(last=LAST) for line in CHECKED]
    command = [tool, sys.executable, "-m", "convsmith.cli.main", "verify", "-", "--target", target]
    try:
        done = subprocess.run(
            command, input="\n".join(lines), text=True, capture_output=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"took more than {PATIENCE} s"
    said = [x for x in done.stdout.splitlines() if "ERROR SUMMARY" in x]
    return said[-1].strip("= ") if said else f"status {done.returncode}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Layers of networks on a GPU.")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--only", default=",".join(KINDS), help="Kinds, in the order in which they are measured.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=500, help="Seconds, after which no other layer begins.")
    parser.add_argument("--tune", type=float, default=0, help="Seconds of a search before each layer.")
    parser.add_argument("--small", action="store_true", help="Small layers, to try the script.")
    parser.add_argument("--resume", help="A file of rows that are not measured again.")
    parser.add_argument("--out", default=str(report.RESULTS), help="Folder of the results.")
    options = parser.parse_args(arguments)
    report.RESULTS = Path(options.out)
    measured = Measuring(options)
    for kind in options.only.split(","):
        measured.kind(kind)
    page(measured, "not asked" if options.small else sanitized(options.target))


if __name__ == "__main__":
    main()
