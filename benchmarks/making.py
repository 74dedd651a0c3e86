"""Measures the time to make a kernel: of ResNet-50's layers by part, and of 1,000 problems as multiples of theirs; or
of problems that are drawn in spaces of the suite cliffs, as multiples of the median of their space.

Run: python benchmarks/making.py [--every 6]
     python benchmarks/making.py --space f32 --space bf16 [--sample 300] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from report import Report

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import emit, lower
from convsmith.compiler.dynamic import requirements
from convsmith.diag.collection import no_collection
from convsmith.ir.intern import interning
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.problem import Problem
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.suites import suite
from convsmith.problem.suites.spaces import SPACES, suite_in
from convsmith.schedule.dynamic import check_dynamic, general
from convsmith.schedule.planned import plan_for
from convsmith.tune.compile import choose

DATA = Path(__file__).parents[1] / "tests" / "data"
PARTS = ("config", "plan", "rewrites and text", "LLVM")
Seconds = tuple[float, ...]
"""Processor time of each of `PARTS`."""

SHARES = (50, 75, 90, 95, 99)
"""Percentages of the problems for which a multiple of the median is shown."""
LISTED = 10
"""Number of slowest problems that are listed."""
SLOWEST = ["problem", "multiple", *(f"{part}, ms" for part in PARTS), "code, KiB"]
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


class Made(NamedTuple):
    """The processor time of each of `PARTS` of making a kernel, and the bytes of its object code."""

    parts: Seconds
    code: int

    @property
    def seconds(self) -> float:
        return sum(self.parts)


class Subject(NamedTuple):
    """A kernel to make: problem, level and threads; with ``sizes``, the others are those of each call."""

    problem: Problem
    level: Machine
    threads: int = 1
    sizes: Requirements = FIXED


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How long kernels take to make, as multiples of a median.")
    parser.add_argument("--every", type=int, default=1, help="measure every n-th problem (default: %(default)s)")
    parser.add_argument("--space", action="append", choices=SPACES, help="draw problems in a space; may be repeated")
    parser.add_argument("--sample", type=int, default=300, help="problems of a space (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed that draws them (default: %(default)s)")
    options = parser.parse_args(arguments)
    layers = [f"--stag=axb --dtag=axb {p}" for p in cs.suite("resnet50")]
    for line in layers[:3]:
        seconds(parse_problem(line), target())  # LLVM and the modules are loaded
    if options.space:
        of_spaces(options.space, options.sample, options.seed)
    else:
        of_lists(layers, options.every)


def of_lists(layers: Sequence[str], every: int) -> None:
    """Measure the layers of ResNet-50 and the listed problems, and write the page."""
    level = target()
    of_layers = {line: seconds(parse_problem(line), level) for line in layers}
    median = statistics.median(map(sum, of_layers.values()))
    made = made_of({line: Subject(parse_problem(line), level) for line in list(problems())[::every]})
    report = Report("making", "How long a kernel takes to make")
    report.note(
        f"One thread, {level.name}, processor time from the problem to the object code; LLVM is loaded "
        f"already. The median over {len(layers)} layers of ResNet-50 is {median * 1e3:.1f} ms."
    )
    parts = {line: x.parts for line, x in made.items()}
    report.table(
        "Parts",
        ["", *PARTS, "all"],
        [
            ["ResNet-50, median, ms", *_medians(of_layers.values()), f"{median * 1e3:.1f}"],
            [f"{len(made)} problems, median, ms", *_medians(parts.values()), f"{_median(made) * 1e3:.1f}"],
        ],
    )
    within = shares(made, median)
    report.table("Problems made within a multiple of ResNet-50's median", list(within), [_two_digits(within)])
    report.table("The slowest", SLOWEST, slowest(made, median))
    report.data = {
        "target": level.name, "parts": PARTS, "median": median, "layers": of_layers, "problems": parts,
        "within": within,
    }  # fmt: skip
    report.write()


def of_spaces(names: Sequence[str], sample: int, seed: int) -> None:
    """Measure the problems that are drawn in spaces, and write the page."""
    report = Report("making-spaces", "How long the kernels of the suite cliffs take to make")
    report.note(
        f"{sample} problems of each space of the suite cliffs, drawn by the seed {seed}. Processor time from the "
        "problem to the object code; LLVM is loaded already. A multiple is one of the median of the space."
    )
    found: dict[str, dict[str, Any]] = {}
    rows: list[list[str]] = []
    late: list[list[str]] = []
    for name in names:
        made = made_of(drawn(name, sample, seed))
        median = _median(made)
        within = shares(made, median)
        most = f"{within['all'] * median * 1e3:.0f}"
        rows.append([name, str(len(made)), f"{median * 1e3:.1f}", *_two_digits(within), most])
        late += [[name, *row] for row in slowest(made, median)]
        found[name] = {"median": median, "within": within, "problems": {line: x.parts for line, x in made.items()}}
    columns = ["space", "problems", "median, ms", *(f"{share} %" for share in SHARES), "all", "slowest, ms"]
    report.table("Problems made within a multiple of the median", columns, rows)
    report.table("The slowest", ["space", *SLOWEST], late)
    report.data = {"parts": PARTS, "sample": sample, "seed": seed, "spaces": found}
    report.write()


def drawn(name: str, sample: int, seed: int) -> dict[str, Subject]:
    """Return the kernels of the problems that are drawn in the space ``name``, by the lines of the problems."""
    where, found = SPACES[name], {}
    for p in suite_in(suite("cliffs"), where, sample, seed):
        level = target(where.target, p.types)
        found[str(p)] = Subject(p, level, where.threads)
        if where.is_dynamic and isinstance(p, Conv):
            sizes = requirements(p, ["mb", *(f"i{axis}" for axis in p.axes)])
            found[str(p)] = Subject(general(check_dynamic(p)), level, where.threads, sizes)
    return found


def made_of(subjects: Mapping[str, Subject]) -> dict[str, Made]:
    """Return the times of kernels; those that take longest are made twice, and the faster time counts."""
    made = {line: _once(subject) for line, subject in subjects.items()}
    late = sorted(made, key=lambda line: made[line].seconds, reverse=True)[: len(made) * LATE // 100]
    return made | {line: min(made[line], _once(subjects[line]), key=lambda x: x.seconds) for line in late}


def shares(made: Mapping[str, Made], median: float) -> dict[str, float]:
    """Return the multiples of ``median`` within which shares of the kernels are made, and the largest one."""
    ordered = sorted(x.seconds / median for x in made.values())
    return {f"{share} %": ordered[len(ordered) * share // 100] for share in SHARES} | {"all": ordered[-1]}


def slowest(made: Mapping[str, Made], median: float) -> list[list[str]]:
    """Return the rows of the kernels that take longest to make."""
    lines = sorted(made, key=lambda line: made[line].seconds, reverse=True)[:LISTED]
    return [
        [f"`{line}`", f"{made[line].seconds / median:.1f}", *(f"{s * 1e3:.1f}" for s in made[line].parts),
         f"{made[line].code / 1024:.0f}"]
        for line in lines
    ]  # fmt: skip


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
    subject = Subject(problem, level)
    return min((_once(subject).parts for _ in range(REPEATS)), key=sum)


def _once(subject: Subject) -> Made:
    problem, level, threads, sizes = subject
    with no_collection(), interning():
        times = [time.process_time()]
        plain = problem.canonical()
        config = choose(plain, level, threads, bool(sizes))
        times.append(time.process_time())
        made = plan_for(plain, config, level, sizes)
        times.append(time.process_time())
        low = lower(made)
        times.append(time.process_time())
        if level.device is not None and level.device.code == "ptx":  # the assembler of machine code is left out
            code = len(llvm_bind.assembly(low.text, level.triple, level.cpu, level.features))
        else:
            code = len(emit(made, low).code)
        times.append(time.process_time())
    return Made(tuple(b - a for a, b in pairwise(times)), code)


def _medians(made: Iterable[Seconds]) -> list[str]:
    return [f"{statistics.median(column) * 1e3:.1f}" for column in zip(*made, strict=True)]


def _median(made: Mapping[str, Made]) -> float:
    return statistics.median(x.seconds for x in made.values())


def _two_digits(within: Mapping[str, float]) -> list[str]:
    return [f"{value:.2f}" for value in within.values()]


if __name__ == "__main__":
    main()
