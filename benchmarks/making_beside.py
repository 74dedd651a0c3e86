"""Measures the processor time of cold compilations of another revision and of this one, in alternating processes.

Run: python benchmarks/making_beside.py REVISION [--turns 4] [--target avx512]

Five layers of ResNet-50 without a transform, and those whose default is a transform in both revisions, are compiled
from the problem to the object code, without the cache. The fastest compilation of a layer counts, over all processes.
The calls of functions are those that Python's profiler counts, with built-in ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gate import ROOT, sources
from report import Report

FIVE = slice(1, 18, 4)
"""The five layers among those of the suite."""
COMPILATIONS = 5
"""Compilations of a layer in a process."""
PROGRAM = f"""
import cProfile, json, pstats, sys, time
import convsmith as cs
from convsmith.compiler.service import compile_or_load
from convsmith.machine.registry import target
from convsmith.problem.lines import parse_problem
from convsmith.tune.compile import choose

level = target(sys.argv[1])
layers = [f"--stag=axb --dtag=axb {{line}}" for line in cs.suite("resnet50")]
problems = {{line: parse_problem(line).canonical() for line in layers}}
found = {{}}
for line in layers[-2:] + layers:
    def make():
        return compile_or_load(problems[line], target=level, choose=choose)
    seconds = []
    for _ in range({COMPILATIONS}):
        start = time.process_time()
        made = make()
        seconds.append(time.process_time() - start)
    profile = cProfile.Profile()
    profile.runcall(make)
    calls = pstats.Stats(profile).total_calls
    found[line] = [min(seconds), calls, "--winograd" in made.config]
print(json.dumps(found))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Processor time of cold compilations beside another revision's.")
    parser.add_argument("revision", help="revision or folder to compare with")
    parser.add_argument("--turns", type=int, default=4, help="processes of each revision (default: %(default)s)")
    parser.add_argument("--target", default="avx512", help="level of the kernels (default: %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        trees = (sources(options.revision, Path(folder) / "old"), ROOT)
        runs: list[list[dict[str, list[float]]]] = [[], []]
        for turn in range(options.turns):
            for side in (0, 1) if turn % 2 else (1, 0):
                runs[side].append(_compiled(trees[side], options.target))
    old, new = ({line: [min(run[line][0] for run in side), *side[0][line][1:]] for line in side[0]} for side in runs)
    five = list(new)[2:][FIVE]
    both = [line for line in new if old[line][2] and new[line][2]]
    report = Report("making-beside", f"Processor time of cold compilations, beside {options.revision}")
    report.note(
        f"One thread, {options.target}, without the cache. A ratio is this revision's time by the other's; the means "
        "are geometric."
    )
    for title, lines in (("Five layers of ResNet-50", five), ("Layers with a transform in both revisions", both)):
        rows = [
            [f"`{line.split()[-1]}`", f"{old[line][0] * 1e3:.1f}", f"{new[line][0] * 1e3:.1f}",
             f"{new[line][0] / old[line][0]:.2f}", f"{old[line][1]:,}", f"{new[line][1]:,}"]
            for line in lines
        ]  # fmt: skip
        mean = statistics.geometric_mean(new[line][0] / old[line][0] for line in lines)
        rows.append(["mean", "", "", f"{mean:.2f}", "", ""])
        report.table(title, ["layer", "before, ms", "now, ms", "ratio", "calls before", "calls now"], rows)
    report.data = {"target": options.target, "revision": options.revision, "old": old, "new": new, "five": five}
    report.write()


def _compiled(tree: Path, target: str) -> dict[str, list[float]]:
    """Return seconds, calls and whether there is a transform, for each layer, by the compiler of a folder."""
    setting = {"PYTHONPATH": str(tree), "CONVSMITH_CACHE": "off", "CONVSMITH_DATABASE": "off"}
    command = [sys.executable, "-c", PROGRAM, target]
    done = subprocess.run(command, env=os.environ | setting, stdout=subprocess.PIPE, check=True, cwd=tree)
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
