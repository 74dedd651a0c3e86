"""Layers of networks on a GPU: beside cuDNN, the rate of a product of matrices, and the bandwidth of memory.

Run: python benchmarks/gpu.py [--target sm_90a] [--budget 500] [--only bf16,depthwise] [--tune 5] [--out DIRECTORY]

Layers alternate with PyTorch's kernels (cuDNN after its own search) on the same tensors. Their results are compared
exactly on integers. A process of its own runs the kernels, while others compile the layers that follow: one that hangs
for `--patience` seconds, or that ends, loses its row alone, and another takes its place. After each row the results are
written; a run with `--resume FILE` leaves out what that file holds. `--only choices` compares default configs with
those that lack one of their decisions. `--target opencl --small` tries all of it on any machine. How to run it on a
machine without a network: README.md, "On a GPU".
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import report
from gpu_choices import with_choices
from gpu_rows import KINDS, GpuRow, rows
from report import Report

from convsmith.machine.registry import target
from convsmith.measure.timing import geometric_mean
from convsmith.runtime.threads import available_cpus
from convsmith.tune.search.process import WorkerDied, WorkerProcess

WORKER = Path(__file__).parent / "gpu_worker.py"
CHOICES = "choices"
"""The kind whose rows compare decisions."""
LATE = 0.8
"""Ratio of a library's time to ours below which a layer is listed as slow."""

Row = dict[str, Any]


class Measuring:
    """Measures rows one after the other, until the budget is spent."""

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        self.options = options
        self._end = time.perf_counter() + options.budget
        self._command = (sys.executable, str(WORKER), options.target, folder)
        self._timing = WorkerProcess(self._command, options.patience)
        self._found: list[Row] = []
        if options.resume:
            self._found = json.loads(Path(options.resume).read_text(encoding="utf-8"))["rows"]
        self.facts: Row = {}

    @property
    def rows(self) -> list[Row]:
        """All rows, those of an earlier run first."""
        return self._found

    def run(self, wanted: Sequence[GpuRow]) -> None:
        """Measure the rows that no earlier run has."""
        known = {(row["kind"], row["name"], row["problem"]) for row in self._found}
        missing = [row for row in wanted if (row.kind, row.name, str(row.problem)) not in known]
        with self._timing, Makers(self._command, self.options) as makers:
            makers.start(missing)
            self.facts = self._asked(op="facts")
            self._write()
            for row in missing:
                if time.perf_counter() >= self._end:
                    return
                made = makers.made(row)
                answer = self._timed(row, made) if "error" not in made else made
                self._found.append({"kind": row.kind, "name": row.name, "problem": str(row.problem), **answer})
                print(json.dumps(self._found[-1]), file=sys.stderr, flush=True)
                self._write()

    def _timed(self, row: GpuRow, made: Row) -> Row:
        config = made["config"]
        if self.options.tune:
            config = self._asked(op="tune", problem=str(row.problem), seconds=self.options.tune).get("config") or config
        answer = self._asked(op="time", problem=str(row.problem), config=config, rounds=self.options.rounds)
        if "seconds" in answer:
            from gpu_subjects import bytes_of

            answer |= {
                "made": made["made"], "rate": row.problem.flops_dense / answer["seconds"] * 1e-12,
                "bytes": bytes_of(row.problem) / answer["seconds"],
            }  # fmt: skip
        return answer

    def _asked(self, **request: Any) -> Row:
        return asked(self._timing, **request)

    def _write(self) -> None:
        """Write what has been measured; an interrupted write leaves the former file."""
        out = Path(self.options.out)
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"gpu-{self.options.target}.json"
        content = json.dumps({"target": self.options.target, "facts": self.facts, "rows": self._found}, indent=1)
        path.with_suffix(".part").write_text(content + "\n", encoding="utf-8")
        path.with_suffix(".part").replace(path)


class Makers:
    """Processes that compile kernels into the folder of a cache, as many as there are CPUs beside two."""

    def __init__(self, command: Sequence[str], options: argparse.Namespace) -> None:
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self._processes = [WorkerProcess(command, options.patience) for _ in range(max(1, available_cpus() - 2))]
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(len(self._processes))
        self._made: dict[GpuRow, Any] = {}

    def start(self, rows: Sequence[GpuRow]) -> None:
        """Begin to compile the kernels of ``rows``, in this order."""
        self._made = {row: self._threads.submit(self._make, row) for row in rows}

    def made(self, row: GpuRow) -> Row:
        """Wait for a kernel, and return its config, or the error."""
        answer: Row = self._made[row].result()
        return answer

    def _make(self, row: GpuRow) -> Row:
        process = self._idle.get()
        try:
            return asked(process, op="make", problem=str(row.problem), config=row.config)
        finally:
            self._idle.put(process)

    def __enter__(self) -> Makers:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.close()


def asked(process: WorkerProcess, **request: Any) -> Row:
    """Return the answer of a worker, or an error if it ended without one. A worker that is lost after it is ended."""
    try:
        answer = process.ask(**request)
    except WorkerDied as death:
        return {"error": str(death)}
    if answer.pop("lost", False):
        process.close()
    return answer


def page(target: str, facts: Row, found: Sequence[Row]) -> None:
    """Write the page of all rows."""
    device = facts.get("device", "a GPU")
    product, bandwidth = facts.get("product"), facts.get("bandwidth")
    made = Report(f"gpu-{target}", f"Layers on {device} ({target})", device)
    made.data = {"target": target, "facts": facts, "rows": found}
    made.note("; ".join(f"{key} {value}" for key, value in facts.items() if isinstance(value, str | int)) + ".")
    made.note(
        f"Product of bf16 matrices of 8,192 rows: {_number(product, 1)} TFLOP/s. Copies, read and written: "
        f"{_number(bandwidth, 1, 1e-9)} GB/s in memory, {_number(facts.get('cached'), 1, 1e-9)} GB/s in the cache. "
        "Both sides run from CUDA graphs on the same tensors and alternate; `vs cuDNN` is PyTorch's time divided by "
        "ours. Results are exact on integers unless the last column says what is wrong."
    )
    for kind in KINDS:
        of_kind = [row for row in found if row["kind"] == kind]
        ratios = [row["speedup"] for row in of_kind if "speedup" in row]
        if ratios:
            late = sum(ratio < LATE for ratio in ratios)
            made.note(
                f"{kind}: geometric mean {geometric_mean(ratios):.2f} of cuDNN, least {min(ratios):.2f}, {late} of "
                f"{len(ratios)} below {LATE}."
            )
        if of_kind:
            columns = ["layer", "config", "us", "TOP/s", "% of product", "% of bandwidth", "MHz", "vs cuDNN", "wrong"]
            made.table(kind, columns, [_cells(row, product, bandwidth) for row in of_kind])
    made.write()


def _cells(row: Mapping[str, Any], product: float | None, bandwidth: float | None) -> list[str]:
    if "error" in row:
        return [row["name"], row["error"].partition("\n")[0], *["-"] * 7]
    return [
        row["name"], f"`{row['config']}`", f"{row['seconds'] * 1e6:.1f}", f"{row['rate']:.1f}",
        _number(product and row["rate"] / product, 0, 100), _number(bandwidth and row["bytes"] / bandwidth, 0, 100),
        _number(row["clock"], 0), _number(row.get("speedup"), 2), row["wrong"] or "-",
    ]  # fmt: skip


def _number(value: float | None, digits: int, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


def _wanted(options: argparse.Namespace) -> Iterator[GpuRow]:
    for kind in options.only.split(","):
        found = rows(kind, options.small)
        yield from with_choices([*found], target(options.target)) if kind == CHOICES else found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Layers of networks on a GPU.")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--only", default=",".join(KINDS), help="Kinds, in the order in which they are measured.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=500, help="Seconds, after which no other layer begins.")
    parser.add_argument("--patience", type=float, default=60, help="Seconds after which a row is given up.")
    parser.add_argument("--tune", type=float, default=0, help="Seconds of a search before each layer.")
    parser.add_argument("--small", action="store_true", help="Small layers, to try the script.")
    parser.add_argument("--resume", help="A file of rows that are not measured again.")
    parser.add_argument("--out", default=str(report.RESULTS), help="Folder of the results.")
    options = parser.parse_args(arguments)
    report.RESULTS = Path(options.out)
    with tempfile.TemporaryDirectory() as folder:
        measured = Measuring(options, folder)
        measured.run([*_wanted(options)])
    page(options.target, measured.facts, measured.rows)


if __name__ == "__main__":
    main()
