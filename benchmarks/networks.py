"""The convolutions of ResNet-50 and the dense ones of MobileNetV2, beside PyTorch and ONNX Runtime.

Run: python benchmarks/networks.py [--threads 1,2]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from report import Report, bench, percent, ratio

from convsmith.problem.suites import suite

LIBRARIES = ("torch", "onnxruntime")
NETWORKS = {"resnet50": "ResNet-50", "mobilenet_v2": "MobileNetV2, dense convolutions"}
LARGE = 50e6
"""Floating-point operations from which two threads are expected to pay."""
WELL_FED = 0.97
"""Share of the peak on one thread from which two threads are compared with theirs."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Two networks beside other libraries.")
    parser.add_argument("--threads", default="1,2", help="thread counts, with commas between (default: 1,2)")
    counts = [int(count) for count in parser.parse_args(arguments).threads.split(",")]
    report = Report("networks", "Networks: time and share of the peak beside other libraries")
    runs: list[dict[str, Any]] = []
    report.data = {"runs": runs}
    report.note(
        "Batch 1, f32, channels-last. A library's column is its time divided by ours (above 1: convsmith is faster), "
        "from rounds in which both ran in turn. torch: `conv2d` in channels-last memory format; onnxruntime: a session "
        "with one `Conv`, on one thread only. Several threads are bound to CPUs (`OMP_PROC_BIND=true`)."
    )
    summary = []
    for network, title in NETWORKS.items():
        lines = [str(problem) for problem in suite(network) if problem.g == 1]
        shares: dict[int, list[dict[str, Any]]] = {}
        for threads in counts:
            # Threads that wander between CPUs while others spin say nothing; bound ones share torch's OpenMP pool.
            # ONNX Runtime has a pool of its own, which would inherit the binding of one thread.
            bound = {"OMP_PROC_BIND": "true"} if threads > 1 else {}
            libraries = ",".join(LIBRARIES[:1] if threads > 1 else LIBRARIES)
            run = bench(lines, "--threads", str(threads), "--layout", "axb", "--vs", libraries, **bound)
            runs.append({"network": network, "threads": threads, **run})
            shares[threads] = run["rows"]
            heading = f"{title}, {threads} thread{'s' * (threads > 1)}"
            summary.append([heading, *_table(report, heading, run)])
        if 1 in shares:
            for threads in counts:
                if threads > 1:
                    summary[-1][-1] = _efficiency(report, title, threads, shares[1], shares[threads])
    means = ["mean % of peak", "mean vs torch", "slower than torch", "mean vs onnxruntime"]
    columns = ["", *means, "least % of peak where one thread has 97"]
    report.table("Summary (geometric means)", columns, summary)
    report.write()


def _table(report: Report, heading: str, run: dict[str, Any]) -> list[str]:
    """Add the table of a run; returns its cells of the summary."""
    rows, means = run["rows"], run["geometric_means"]
    ours = ["layer", "problem", "MFLOP", "config", "us", "GFLOP/s", "% of peak", "verified"]
    lines = [
        [
            row["name"] or "", f"`{row['problem']}`", f"{row['flops'] / 1e6:.0f}", f"`{row['config']}`",
            f"{row['seconds']['median'] * 1e6:.1f}", f"{row['gflops']['median']:.1f}", percent(row["of_peak"]),
            "yes" if row["verified"] else "NO", *(ratio(row, name) for name in LIBRARIES),
        ]
        for row in rows
    ]  # fmt: skip
    report.table(heading, [*ours, *(f"vs {name}" for name in LIBRARIES)], lines)
    slower = [row for row in rows if (torch := row["libraries"].get("torch")) and torch["speedup"]["median"] < 1]
    names = ", ".join(f"{row['name']} ({row['libraries']['torch']['speedup']['median']:.2f})" for row in slower)
    return [
        f"{means['of_peak'] * 100:.1f}", _mean(means, "torch"), names or "none", _mean(means, "onnxruntime"), "",
    ]  # fmt: skip


def _mean(means: dict[str, float | None], library: str) -> str:
    mean = means.get(library)
    return "-" if mean is None else f"{mean:.2f}"


def _efficiency(report: Report, title: str, threads: int, one: list[dict[str, Any]], many: list[dict[str, Any]]) -> str:
    """Add the table of the large layers that use one thread well; returns the least share and its layer."""
    lines, least = [], []
    for alone, together in zip(one, many, strict=True):
        share = alone["of_peak"]["median"], together["of_peak"]["median"]
        if alone["flops"] >= LARGE and share[0] >= WELL_FED:
            times = alone["seconds"]["median"] / together["seconds"]["median"]
            lines.append([alone["name"], percent(alone["of_peak"]), percent(together["of_peak"]), f"{times:.2f}"])
            least.append((share[1], alone["name"]))
    if not least:
        return "-"
    heading = f"{title}: layers of 50 MFLOP and more that reach 97 % on one thread"
    report.table(heading, ["layer", "% of peak, 1 thread", f"% of peak, {threads} threads", "times as fast"], lines)
    share, name = min(least)
    return f"{share * 100:.1f} ({name})"


if __name__ == "__main__":
    main()
