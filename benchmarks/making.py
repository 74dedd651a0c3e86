"""Measures the time to make a kernel: of ResNet-50's layers by part, and of 1,000 problems as multiples of theirs.

Run: python benchmarks/making.py
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from report import Report

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import emit, lower
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.problem import Problem
from convsmith.problem.lines import parse_problem
from convsmith.schedule.planned import plan_for
from convsmith.tune.compile import choose

DATA = Path(__file__).parents[1] / "tests" / "data"
PARTS = ("config", "plan", "rewrites and text", "LLVM")
Seconds = tuple[float, ...]
"""Processor time of each of `PARTS`."""

REPEATS = 3
"""Times that a kernel of ResNet-50 is made; the fastest counts."""
LATE = 10
"""Percentage of the problems, those that took longest, that are made again; the faster time counts."""
VARIANTS = 4
"""Variants of each listed shape: direction, types and layouts."""
TYPES = {
    "FWD_B": ("f32", "bf16", "u8:s8:s32", "f32", "s8:s8:f32", "u8:s8:u8", "f16", "bf16:bf16:f32"),
    "BWD_D": ("f32", "bf16", "s32:s8:u8", "f32", "f16", "f32:bf16:bf16", "f32:s8:s8"),
    "BWD_W": ("f32", "bf16", "f32", "f16", "bf16:f32:bf16"),
}
TAGS = ("axb", "axb", "abx", "aBx16b", "aBx8b")
EXTREMES = (
    "--dir=BWD_D --dt=s32:s8:u8 --stag=axb --dtag=aBx16b g90mb1_ic360oc180_ih12oh16kh1dh1ph2_iw14ow7kw3sw2pw2",
)  # fmt: skip
"""Problems that took long to make."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How long kernels take to make, as multiples of ResNet-50's median.")
    parser.add_argument("--every", type=int, default=1, help="measure every n-th problem (default: %(default)s)")
    options = parser.parse_args(arguments)
    level = target()
    layers = [f"--stag=axb --dtag=axb {p}" for p in cs.suite("resnet50")]
    lines = list(problems())[:: options.every]
    for line in layers[:3]:
        seconds(parse_problem(line), level)  # LLVM and the modules are loaded
    of_layers = {line: seconds(parse_problem(line), level) for line in layers}
    median = statistics.median(map(sum, of_layers.values()))
    made = {line: _once(parse_problem(line), level) for line in lines}
    late = sorted(made, key=lambda line: sum(made[line]), reverse=True)[: len(made) * LATE // 100]
    made |= {line: min(made[line], _once(parse_problem(line), level), key=sum) for line in late}
    multiples = {line: sum(parts) / median for line, parts in made.items()}
    slowest = sorted(multiples, key=multiples.__getitem__, reverse=True)
    ordered = sorted(multiples.values())
    report = Report("making", "How long a kernel takes to make")
    report.note(
        f"One thread, {level.name}, processor time from the problem to the object code; LLVM is loaded "
        f"already. The median over {len(layers)} layers of ResNet-50 is {median * 1e3:.1f} ms."
    )
    report.table(
        "Parts",
        ["", *PARTS, "all"],
        [
            ["ResNet-50, median, ms", *_medians(of_layers.values()), f"{median * 1e3:.1f}"],
            [f"{len(lines)} problems, median, ms", *_medians(made.values()), f"{_middle(made.values()) * 1e3:.1f}"],
        ],
    )
    shares = {f"{share} %": ordered[len(ordered) * share // 100] for share in (50, 75, 90, 95, 99)}
    shares["all"] = ordered[-1]
    report.table(
        "Problems made within a multiple of ResNet-50's median",
        list(shares),
        [[f"{value:.2f}" for value in shares.values()]],
    )
    report.table(
        "The slowest",
        ["problem", "multiple", *(f"{part}, ms" for part in PARTS)],
        [[f"`{line}`", f"{multiples[line]:.1f}", *(f"{s * 1e3:.1f}" for s in made[line])] for line in slowest[:10]],
    )
    report.data = {
        "target": level.name, "parts": PARTS, "median": median, "layers": of_layers, "problems": made, "within": shares,
    }  # fmt: skip
    report.write()


def problems() -> Iterator[str]:
    """Yield the lines of the problems: listed shapes in several directions, types and layouts, and listed lines."""
    rng = random.Random(1)
    for name, kind in (("oneDNN_problems.json", ""), ("oneDNN_deconvolutions.json", "--deconv ")):
        content = json.loads((DATA / name).read_text())
        for row in content["rows"]:
            descriptor = row[content["columns"].index("desc")]
            for _ in range(VARIANTS):
                direction = rng.choice(list(TYPES))
                tags = (rng.choice(TAGS),) * 2 if rng.random() < 0.6 else (rng.choice(TAGS), rng.choice(TAGS))
                types = rng.choice(TYPES[direction])
                yield f"{kind}--dir={direction} --dt={types} --stag={tags[0]} --dtag={tags[1]} {descriptor}"
    yield from (row[0] for row in json.loads((DATA / "oneDNN_attr_cases.json").read_text())["rows"])
    yield from EXTREMES


def seconds(problem: Problem, level: Machine) -> Seconds:
    """Return the processor time of each part of making a kernel, of the fastest of several times."""
    return min((_once(problem, level) for _ in range(REPEATS)), key=sum)


def _once(problem: Problem, level: Machine) -> Seconds:
    with llvm_bind.no_collection(), interning():
        times = [time.process_time()]
        plain = problem.canonical()
        config = choose(plain, level, 1, False)
        times.append(time.process_time())
        made = plan_for(plain, config, level)
        times.append(time.process_time())
        low = lower(made)
        times.append(time.process_time())
        if level.device is not None and level.device.code == "ptx":  # the assembler of machine code is left out
            llvm_bind.assembly(low.text, level.triple, level.cpu, level.features)
        else:
            emit(made, low)
        times.append(time.process_time())
    return tuple(b - a for a, b in pairwise(times))


def _medians(made: Iterable[Seconds]) -> list[str]:
    return [f"{statistics.median(column) * 1e3:.1f}" for column in zip(*made, strict=True)]


def _middle(made: Iterable[Seconds]) -> float:
    return statistics.median(map(sum, made))


if __name__ == "__main__":
    main()
