"""A suite in every direction, layout and kind of types beside the installed libraries, one thread: no cliffs?

Run: python benchmarks/suite.py [--suite cliffs] [--sample 300] [--seed 0] [--vs torch,onnxruntime,onednn]

300 problems take some ten minutes. The page shows the distribution of the ratios and every problem that a library
computes faster; a picture beside it shows all problems under the roofline.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report import Report, Row

from convsmith.measure.peers import PEERS

SLOWER = 0.97
"""Ratio of a library's time to ours below which the problem is listed."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A suite in every direction and layout, one thread.")
    parser.add_argument("--suite", default="cliffs")
    parser.add_argument("--sample", default="300")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--vs", default=",".join(PEERS))
    given = parser.parse_args(arguments)
    report = Report(f"suite-{given.suite}", f"The suite {given.suite} in every direction and layout, one thread")
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "bench.json"
        command = [
            sys.executable, "-m", "convsmith.cli.main", "bench", "--suite", given.suite, "--sample", given.sample,
            "--seed", given.seed, "--vs", given.vs, "--rounds", "7", "--threads", "1", "--json", str(data),
            "--png", str(report.stem.with_suffix(".png")),
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if not data.exists():
            sys.exit(done.returncode)
        run = json.loads(data.read_text(encoding="utf-8"))
    report.data = {"runs": [run]}
    report.note(f"![roofline and ratios]({report.stem.with_suffix('.png').name})")
    wrong = [row["problem"] for row in run["rows"] if row["verified"] is False or row["error"]]
    report.note(f"{len(run['rows'])} problems; wrong results or errors: {', '.join(wrong) or 'none'}.")
    start = done.stdout.index("\ntime of ") if "\ntime of " in done.stdout else done.stdout.index("\ntime at ")
    report.note("```\n" + done.stdout[start:].strip() + "\n```")
    rows = [[f"`{row['problem']}`", f"`{row['config']}`", name, f"{ratio:.2f}"] for ratio, name, row in losses(run)]
    columns = ["problem", "config", "library", "its time / ours"]
    report.table("Every problem that a library computes faster", columns, rows)
    report.write()


def losses(run: Row) -> list[tuple[float, str, Row]]:
    """Return the rows that the best library computes faster, with its ratio and name, the slowest first."""
    found = []
    for row in run["rows"]:
        ratios = {name: library["speedup"]["median"] for name, library in row["libraries"].items()}
        best = min(ratios, key=ratios.__getitem__, default="")
        if best and ratios[best] < SLOWER:
            found.append((ratios[best], best, row))
    return sorted(found, key=lambda item: item[0])


if __name__ == "__main__":
    main()
