"""Measures the waiting times of users: making a kernel, loading one from the cache, calling one, importing the package.

Run: python benchmarks/latency.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from report import Report

import convsmith as cs
from convsmith.codegen.artifact import Artifact
from convsmith.compiler.driver import emit, lower
from convsmith.diag.collection import no_collection
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.runtime.arrays import Array, aligned_empty
from convsmith.runtime.host import HostLibrary
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

REPEATS = 5
IMPORTS = 15
CALLS = 20_000
PIXEL = "--stag=axb --dtag=axb mb1ic16ih1oc16oh1kh1ph0"

STEPS = ("text", "llvm", "load", "all")
Steps = dict[str, float]


def main() -> None:
    level = target()
    lines = [f"--stag=axb --dtag=axb {problem}" for problem in cs.suite("resnet50")]
    report = Report("latency", "What a person waits for")
    report.note(
        f"One thread, {level.name}, median of {REPEATS} for each layer of ResNet-50, in ms; LLVM is loaded already."
    )
    cold = {line: _steps(line, level) for line in lines}
    cached = _from_cache(lines, level)
    medians = {step: statistics.median(steps[step] for steps in cold.values()) for step in STEPS}
    medians["cached"] = statistics.median(cached.values())
    rows = [[f"`{line}`", *_ms([*steps.values(), cached[line]])] for line, steps in cold.items()]
    report.table(
        "Making a kernel",
        ["problem", "descriptor to LLVM text", "LLVM", "load", "all of it", "from the cache"],
        [*rows, ["median", *_ms(medians.values())]],
    )
    call = _call()
    imports = {what: _import(what) for what in ("import convsmith", "import convsmith; convsmith.compile")}
    report.table(
        "Calling and importing",
        ["what", "time"],
        [
            [
                "a call with `out=` and packed weights: 16 -> 16 channels, 1x1, one pixel, itself included",
                f"{call * 1e6:.2f} us",
            ],
            *([f"`{what}`", f"{seconds * 1e3:.0f} ms"] for what, seconds in imports.items()),
        ],
    )
    report.data = {
        "target": level.name,
        "cold": cold,
        "cached": cached,
        "medians": medians,
        "call": call,
        "imports": imports,
    }
    report.write()


def _steps(line: str, level: Machine) -> Steps:
    """Median seconds of `STEPS`, from a line to a callable."""
    taken: list[tuple[float, float, float]] = []
    for _ in range(REPEATS):
        with no_collection(), interning():
            start = time.perf_counter()
            problem = cs.Conv.parse(line).canonical()
            config = default_config(problem, level, 1)
            made = plan(problem, config, level)
            low = lower(made)
            text = time.perf_counter()
            artifact: Artifact = emit(made, low)
            code = time.perf_counter()
        HostLibrary(artifact)
        taken.append((text - start, code - text, time.perf_counter() - code))
    columns = [*zip(*taken, strict=True), [sum(times) for times in taken]]
    return {step: statistics.median(column) for step, column in zip(STEPS, columns, strict=True)}


def _from_cache(lines: list[str], level: Machine) -> dict[str, float]:
    """Median seconds from a problem to a kernel whose artifact is in the cache on disk."""
    seconds = {}
    with tempfile.TemporaryDirectory() as directory, cs.settings.scope(cache=directory):
        for line in lines:
            CompiledKernel(cs.Conv.parse(line), level)
            problems = [cs.Conv.parse(line) for _ in range(REPEATS)]  # which keep nothing from one time to the next
            seconds[line] = statistics.median(_timed(partial(CompiledKernel, problem, level)) for problem in problems)
    return seconds


def _call() -> float:
    """Median seconds of a call that computes next to nothing."""
    kernel = cs.compile(PIXEL, threads=1)
    x, out = _aligned((1, 16, 1, 1)), _aligned((1, 16, 1, 1))
    packed = kernel.pack(np.ones((16, 16, 1, 1), np.float32))
    rounds = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(CALLS):
            kernel(x, packed, out=out)
        rounds.append((time.perf_counter() - start) / CALLS)
    return statistics.median(rounds)


def _import(statement: str) -> float:
    """Median seconds of a statement in a new interpreter."""
    program = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    command = [sys.executable, "-c", program]
    return statistics.median(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(IMPORTS)
    )


def _aligned(shape: tuple[int, ...]) -> Array:
    array = aligned_empty(int(np.prod(shape)) * 4).view(np.float32).reshape(shape)
    array[...] = 1
    return array


def _ms(seconds: Iterable[float]) -> list[str]:
    return [f"{value * 1e3:.2f}" for value in seconds]


def _timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
