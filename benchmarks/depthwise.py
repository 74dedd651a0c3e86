"""The depthwise convolutions of MobileNetV2 beside the libraries that are best at them, one thread.

Run: python benchmarks/depthwise.py
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import prod
from typing import Any

from report import Report, Row, bench, percent, ratio

import convsmith as cs
from convsmith.machine.host import cache_sizes
from convsmith.measure.peak import read_sample
from convsmith.measure.timing import geometric_mean
from convsmith.problem.suites import suite

LIBRARIES = ("onednn", "onnxruntime-nchwc", "xnnpack")
LAYOUTS = {"axb": "Channels last", "aBcd16b": "Channels in blocks of 16"}
SAMPLES = 15


def main() -> None:
    problems = [problem for problem in suite("mobilenet_v2") if problem.g > 1]
    report = Report("depthwise", "Depthwise convolutions of MobileNetV2, one thread")
    runs: list[dict[str, Any]] = []
    report.data = {"runs": runs}
    report.note(
        "Batch 1, f32. `vs` is a library's time divided by ours, from rounds in which all ran in turn; `vs best` is "
        "that of the library which is fastest on the layer. Each library has the layout that it likes best, whatever "
        "ours is, and reorders are not in its time. GB/s counts source, weights and result once; beside it stands the "
        "read bandwidth of a buffer as large as all three, and the cache that holds it."
    )
    summary = []
    bandwidths = [_bandwidth(problem) for problem in problems]
    for layout, title in LAYOUTS.items():
        options = ("--threads", "1", "--layout", layout, "--vs", ",".join(LIBRARIES))
        run = bench([str(problem) for problem in problems], *options)
        runs.append({"layout": layout, "read_gbs": bandwidths, **run})
        rows: list[Row] = run["rows"]
        columns = ["layer", "problem", "config", "us", "GFLOP/s", "% of peak", "GB/s", "read GB/s", "of", "verified"]
        lines = [
            [*_cells(problem, row, bandwidth), *(ratio(row, name) for name in LIBRARIES), _times(_best(row))]
            for problem, row, bandwidth in zip(problems, rows, bandwidths, strict=True)
        ]
        report.table(title, [*columns, *(f"vs {name}" for name in LIBRARIES), "vs best"], lines)
        summary.append([title, *_summary(rows)])
    report.table("Summary", ["", "geometric mean vs best", "least", "geometric mean of the share of the peak"], summary)
    report.write()


def _bytes(problem: cs.Conv) -> int:
    """Return the bytes of source, weights and result."""
    return sum(prod(tensor.shape) * 4 for tensor in problem.tensors)


def _bandwidth(problem: cs.Conv) -> float:
    """Bytes read a nanosecond from a buffer as large as what a layer reads and writes."""
    return statistics.median(read_sample(_bytes(problem)).gbs for _ in range(SAMPLES))


def _cells(problem: cs.Conv, row: Row, bandwidth: float) -> list[str]:
    level = next((name for name, size in cache_sizes().items() if _bytes(problem) <= size), "DRAM")
    seconds = row["seconds"]["median"]
    return [
        row["name"], f"`{row['problem']}`", f"`{row['config']}`", f"{seconds * 1e6:.1f}",
        f"{row['gflops']['median']:.1f}", percent(row["of_peak"]), f"{_bytes(problem) / seconds * 1e-9:.1f}",
        f"{bandwidth:.1f}", level, "yes" if row["verified"] else "NO",
    ]  # fmt: skip


def _best(row: Row) -> float | None:
    """The least that a library's time is of ours; None where there is no library."""
    return min((found["speedup"]["median"] for found in row["libraries"].values()), default=None)


def _summary(rows: Sequence[Row]) -> list[str]:
    found = {row["name"]: best for row in rows if (best := _best(row)) is not None}
    shares = geometric_mean(row["of_peak"]["median"] for row in rows)
    name = min(found, key=lambda n: found[n], default="")
    least = f"{found[name]:.2f} ({name})" if found else "-"
    return [_times(geometric_mean(found.values())), least, "-" if shares is None else f"{shares * 100:.1f} %"]


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
