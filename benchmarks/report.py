"""Shared by the benchmarks: measuring through `convsmith bench`, and results as a JSON file with a page beside it.

All timing of kernels is done by `convsmith bench` (its method is in README.md), each call of which is one process.
A page shows the machine, the versions and the command, so that it can be read on its own; the JSON file keeps
everything that was measured.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convsmith import __version__
from convsmith.compiler.cache import compiler_source_hash
from convsmith.measure.description import describe

__all__ = ["LIMITS", "Report", "Row", "bench", "percent", "ratio"]

RESULTS = Path(__file__).parent / "results"

LIMITS = {"avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}}
"""Variables by which PyTorch and oneDNN use no higher level, by the level."""

Row = dict[str, Any]
"""A problem in the JSON of `convsmith bench`."""


def bench(problems: Sequence[str], *options: str, **environment: str) -> dict[str, Any]:
    """Return the rows of `convsmith bench` for these problems (lines of descriptors with options), in their order.

    It runs in a process of its own, with the further environment variables. Ends the program when a kernel is wrong or
    cannot be made.
    """
    with tempfile.TemporaryDirectory() as directory:
        json_file = Path(directory) / "bench.json"
        command = [sys.executable, "-m", "convsmith.cli.main", "bench", "-", "--json", str(json_file), *options]
        env = os.environ | environment
        text = "\n".join(f"--reset {problem}" for problem in problems)
        done = subprocess.run(command, input=text, text=True, check=False, env=env, cwd=directory)
        if done.returncode:
            sys.exit(done.returncode)
        result: dict[str, Any] = json.loads(json_file.read_text(encoding="utf-8"))
    if len(result["rows"]) != len(problems):
        sys.exit(f"{len(problems)} problems, but {len(result['rows'])} rows")
    return result


def percent(spread: Mapping[str, float] | None) -> str:
    """A share as a percentage, with half the distance of its quartiles."""
    if spread is None:
        return "-"
    return f"{spread['median'] * 100:.1f} +- {(spread['high'] - spread['low']) * 50:.1f}"


def ratio(row: Row, library: str) -> str:
    """Return a library's time divided by ours."""
    found = row["libraries"].get(library)
    return f"{found['speedup']['median']:.2f}" if found else "-"


class Report:
    """Tables under headings, and the data behind them; the file is named by ``on``, by default the CPU."""

    def __init__(self, name: str, title: str, on: str = "") -> None:
        self.name, self._on = name, on
        self.data: dict[str, Any] = {}
        self._date = datetime.date.today().isoformat()
        self._machine = describe()
        self._lines = [f"# {title}", ""]

    @property
    def stem(self) -> Path:
        """The path of the results without suffix."""
        machine = self._on or f"{self._machine['cpu']} {self._machine['llvm_cpu']}"
        return RESULTS / f"{self.name}-{re.sub(r'[^a-z0-9]+', '-', machine.lower()).strip('-')}-{self._date}"

    def note(self, text: str) -> None:
        """A paragraph."""
        self._lines += [text, ""]

    def table(self, heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table under a heading."""
        line = [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
        self._lines += [f"## {heading}", "", *line, ""]

    @property
    def page(self) -> str:
        """The text of the page: title, machine, versions and command, then paragraphs and tables."""
        heads = [*self._lines[:2], *_machine_lines(self._machine, self.data), "", f"`{_command()}`, {self._date}", ""]
        return "\n".join([*heads, *self._lines[2:]])

    def write(self) -> None:
        """Write both files, and print the page."""
        facts = {"benchmark": self.name, "date": self._date, "command": _command(), "convsmith": __version__}
        content = facts | {"sources": compiler_source_hash(), "machine": self._machine, **self.data}
        page = self.page
        RESULTS.mkdir(exist_ok=True)
        self.stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        self.stem.with_suffix(".md").write_text(page, encoding="utf-8")
        print(page)
        print(f"written: {self.stem}.md and .json", file=sys.stderr)


def _command() -> str:
    return f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip()


def _machine_lines(machine: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    caches = ", ".join(f"{level} {size >> 10} KiB" for level, size in machine["caches"].items())
    runs: list[dict[str, Any]] = data.get("runs", [])
    libraries = {name: version for run in runs for name, version in run["libraries"].items() if version}
    versions = {"convsmith": __version__} | {key: machine[key] for key in ("python", "numpy", "llvmlite", "llvm")}
    listed = ", ".join(f"{name} {version}" for name, version in (versions | libraries).items())
    return [
        f"{machine['cpu']} ({machine['llvm_cpu']}), {machine['cpus']} CPUs, {caches}; {machine['os']}; "
        f"OpenMP: {Path(machine['openmp']).name}.",
        "",
        f"{listed}; sources {compiler_source_hash()[:12]}.",
    ]
