"""Measures the time to make kernels of devices, as multiples of that of a CPU's kernel of the same problem.

Run: python benchmarks/making_devices.py

The time is that of convsmith's own part and of LLVM; assemblers of machine code are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from making import seconds
from report import Report

import convsmith as cs
from convsmith.machine.registry import target
from convsmith.measure.timing import geometric_mean
from convsmith.problem.lines import parse_problem

LEVELS = ("sm_90a", "sm_80", "sm_70", "opencl")
TYPES = ("f32", "bf16", "s8:s8:s32")
DIRECTIONS = ("FWD_D", "BWD_D", "BWD_W")
LIMIT = 6.0
"""Largest legal multiple."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How long kernels of devices take to make, as multiples of a CPU's.")
    parser.add_argument("--every", type=int, default=4, help="measure every n-th layer (default: %(default)s)")
    options = parser.parse_args(arguments)
    rows = []
    for way, types in ((d, t) for d in DIRECTIONS for t in TYPES):
        if way != "FWD_D" and types.startswith("s8"):
            continue
        found: dict[str, list[float]] = {level: [] for level in LEVELS}
        alone: dict[str, list[float]] = {level: [] for level in LEVELS}
        for layer in cs.suite("resnet50")[:: options.every]:
            problem = parse_problem(f"--dir={way} --dt={types} --stag=axb --dtag=axb {layer}")
            cpu = sum(seconds(problem, target(None, problem.types)))
            for level in LEVELS:
                alone[level].append(sum(seconds(problem, target(level))))
                found[level].append(alone[level][-1] / cpu)
        rows += [
            [way, types, level, f"{geometric_mean(found[level]):.1f}", f"{max(found[level]):.1f}",
             f"{1e3 * max(alone[level]):.0f}"] for level in LEVELS
        ]  # fmt: skip
    report = Report("making-devices", "Making kernels of devices, as multiples of a CPU's")
    report.note(
        f"Every {options.every}th layer of ResNet-50, batch 1, channels last; processor time of convsmith and LLVM, "
        "without assemblers. SPIR-V is made by LLVM in a process of its own, whose time is left out. The limit is "
        f"{LIMIT:g}."
    )
    report.table("Multiples", ["direction", "types", "level", "geometric mean", "largest", "largest in ms"], rows)
    report.write()


if __name__ == "__main__":
    main()
