"""Surveys the memory of the default kernels beside their tensors, of problems that are drawn in spaces of the suite
cliffs: the distribution of the ratio in each space, and the largest ratios of each cause. Nothing is timed.

Run: python benchmarks/memory.py [--space f32 --space bf16] [--sample 150] [--seed 0]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from making import drawn
from report import Report

from convsmith.codegen.memory import KernelMemory
from convsmith.compiler.memory import memory_of
from convsmith.diag.collection import no_collection
from convsmith.ir.intern import interning
from convsmith.problem.suites.spaces import EVERY, SPACES
from convsmith.schedule.planned import plan_for
from convsmith.tune.compile import choose

SHARES = (50, 75, 90, 95, 99)
"""Percentages of the problems for which a ratio is shown."""
LISTED = 4
"""Number of problems that are listed for each cause."""


class Needed(NamedTuple):
    """The bytes beside the tensors, as a multiple of these, in parts: packed copies, a call, packing alone; and the
    cause of most of them.
    """

    tensors: int
    packed: float
    call: float
    packing: float
    cause: str

    @property
    def ratio(self) -> float:
        return self.packed + max(self.call, self.packing)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How much memory kernels need beside their tensors.")
    names = [name for name in SPACES if name != EVERY]
    parser.add_argument("--space", action="append", choices=names, help="a space, by default all; may be repeated")
    parser.add_argument("--sample", type=int, default=150, help="problems of a space (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed that draws them (default: %(default)s)")
    options = parser.parse_args(arguments)
    report = Report("memory", "How much memory kernels need beside their tensors")
    report.note(
        f"{options.sample} problems of each space of the suite cliffs, drawn by the seed {options.seed}: packed copies "
        "of operands, and what a call or packing needs besides, as multiples of the bytes of all tensors."
    )
    found = {name: needed_in(name, options.sample, options.seed) for name in options.space or names}
    columns = ["space", "problems", *(f"{share} %" for share in SHARES), "all", "above 1"]
    report.table("Ratio within which problems are", columns, [_row(name, rows) for name, rows in found.items()])
    every = [(name, line, x) for name, rows in found.items() for line, x in rows.items() if x.ratio > 1]
    for cause in sorted({x.cause for _, _, x in every}, key=lambda c: -sum(x.cause == c for _, _, x in every)):
        own = sorted((row for row in every if row[2].cause == cause), key=lambda row: -row[2].ratio)
        rows = [[name, line, *(f"{n:.2f}" for n in (x.ratio, x.packed, x.call, x.packing))] for name, line, x in own]
        title = f"Above 1, most of it {cause}: {len(own)} problems"
        report.table(title, ["space", "problem", "ratio", "packed", "call", "packing"], rows[:LISTED])
    report.data = {name: {line: x._asdict() for line, x in rows.items()} for name, rows in found.items()}
    report.write()


def needed_in(name: str, sample: int, seed: int) -> dict[str, Needed]:
    """Return the memory of the kernels of the problems that are drawn in a space, by the lines of the problems."""
    found = {}
    for line, (problem, level, threads, sizes) in drawn(name, sample, seed).items():
        with no_collection(), interning():
            plain = problem.canonical()
            plan = plan_for(plain, choose(plain, level, threads, bool(sizes)), level, sizes)
            found[line] = _needed(memory_of(plan), plan.config.has_transform)
    return found


def _needed(memory: KernelMemory, is_transform: bool) -> Needed:
    packed, tensors = memory.whole - max(memory.call, memory.packing), max(memory.tensors, 1)
    parts = {
        "packed copies": packed, "scratch memory of threads": memory.scratch.whole, "while packing": memory.packing,
        "arrays between kernels": memory.call - memory.scratch.whole,
    }  # fmt: skip
    cause = max(parts, key=parts.__getitem__)
    kind = "of a transform" if is_transform else "of a direct kernel"
    return Needed(tensors, packed / tensors, memory.call / tensors, memory.packing / tensors, f"{cause} {kind}")


def _row(name: str, rows: Mapping[str, Needed]) -> list[str]:
    ordered = sorted(x.ratio for x in rows.values())
    shares = (ordered[len(ordered) * share // 100] for share in SHARES)
    above = sum(ratio > 1 for ratio in ordered) / len(ordered)
    return [name, str(len(ordered)), *(f"{ratio:.2f}" for ratio in shares), f"{ordered[-1]:.2f}", f"{above:.0%}"]


if __name__ == "__main__":
    main()
