"""Compares the time that a kernel from the cache, and each way to call a kernel, takes in two revisions.

Run: python benchmarks/overheads.py OLD NEW [--turns 5] [--write]

OLD and NEW are revisions of git, or folders. Both run in processes of their own, in turns; the fastest turn counts. A
kernel from the cache is that of a layer of ResNet-50: the first one of a new process in processor time, with all
imports but those of other packages, and the median of the layers in a process that has LLVM and the modules. The calls
compute next to nothing (16 to 16 channels, one pixel), on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROUNDS, CALLS = 25, 300
"""Times that each call is timed, and calls at a time; the median counts."""
PIXEL = "--stag=axb --dtag=axb mb1ic16ih1oc16oh1kh1ph0"
LAYER = "--stag=axb --dtag=axb mb1ic64ih56oc64oh56kh3ph1"
FRESH, WARM = "first kernel of a process, from the cache", "kernel from the cache"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The overheads of two revisions.")
    parser.add_argument("old", help="revision or folder")
    parser.add_argument("new", help="revision or folder")
    parser.add_argument("--turns", type=int, default=5, help="times that each runs (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="keep the results beside those of other benchmarks")
    options = parser.parse_args(arguments)
    from gate import sources
    from report import Report

    with tempfile.TemporaryDirectory() as directory:
        trees = [sources(name, Path(directory) / side) for name, side in ((options.old, "old"), (options.new, "new"))]
        caches = [Path(directory) / f"cache-{side}" for side in ("old", "new")]
        taken: list[list[dict[str, float]]] = [[], []]
        for turn in range(-1, options.turns):  # the first turn fills the caches
            for n in (0, 1) if turn % 2 else (1, 0):
                found = {**_run("fresh", trees[n], caches[n]), **_run("warm", trees[n], caches[n])}
                taken[n] += [found] if turn >= 0 else []
    old, new = ({name: min(turn[name] for turn in of_one) for name in of_one[0]} for of_one in taken)
    report = Report("overheads", f"Kernels from the cache, and calls: {options.new} beside {options.old}")
    report.note("Microseconds, of the fastest of the turns; a ratio below 1 is a gain.")
    shared = [name for name in new if name in old]
    rows = [[name, f"{old[name]:.2f}", f"{new[name]:.2f}", f"{new[name] / old[name]:.2f}"] for name in shared]
    report.table("Overheads", ["what", "old, us", "new, us", "new / old"], rows)
    report.data = {"old": old, "new": new}
    report.write() if options.write else print(report.page)


def _run(what: str, tree: Path, cache: Path) -> dict[str, float]:
    """Return the microseconds that a process with the modules of `tree` measures."""
    command = [sys.executable, __file__, "--measure", what]
    setting = {"PYTHONPATH": str(tree), "CONVSMITH_CACHE": str(cache)}
    setting |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{cache}-of-bytecode"}  # as if installed
    done = subprocess.run(command, env={**os.environ, **setting}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def fresh() -> dict[str, float]:
    """Return the time of the first kernel of this process."""
    import llvmlite.binding
    import ml_dtypes
    import numpy
    import platformdirs

    assert all((llvmlite.binding, ml_dtypes, numpy, platformdirs))
    start = time.process_time()
    import convsmith as cs

    cs.compile(LAYER, threads=1)
    return {FRESH: (time.process_time() - start) * 1e6}


def warm() -> dict[str, float]:
    """Return the times of kernels from the cache, and of calls, in this process."""
    import numpy as np

    import convsmith as cs
    from convsmith.frontend.kernel import CompiledKernel
    from convsmith.machine.registry import target
    from convsmith.problem.conv import Conv
    from convsmith.runtime.arrays import aligned_empty

    lines, level = [f"--stag=axb --dtag=axb {p}" for p in cs.suite("resnet50")], target()
    for line in lines:
        CompiledKernel(Conv.parse(line), level)
    taken = []
    for _ in range(9):
        for problem in map(Conv.parse, lines):
            start = time.perf_counter()
            CompiledKernel(problem, level)
            taken.append(time.perf_counter() - start)
    x, out = (aligned_empty(64).view(np.float32).reshape(1, 16, 1, 1) for _ in range(2))
    x[...] = 1
    w, bias = np.ones((16, 16, 1, 1), np.float32), np.ones(16, np.float32)
    k, with_bias, gradient = (cs.compile(f"{d}{PIXEL}", threads=1) for d in ("", "--dir=FWD_B ", "--dir=BWD_W "))
    sizes = cs.compile(PIXEL.split()[-1], dynamic="mb,ih,iw", threads=1)
    packed, packed_with_bias, packed_of_sizes = k.pack(w), with_bias.pack(w, bias), sizes.pack(w)
    calls: dict[str, Callable[[], Any]] = {
        "`k(x, packed, out=out)`": lambda: k(x, packed, out=out),
        "`k(x, packed, out=out)` with a bias": lambda: with_bias(x, packed_with_bias, out=out),
        "`k(x, packed)`": lambda: k(x, packed),
        "`k(x, w, out=out)`": lambda: k(x, w, out=out),
        "`k.run(src=x, wei=packed, dst=out)`": lambda: k.run(src=x, wei=packed, dst=out),
        "`k.run` of a gradient": lambda: gradient.run(src=x, diff_dst=out),
        "`k.bind(x, packed, out)`": k.bind(x, packed, out),
        "`k.bind_each(src=x, wei=w, dst=out)`": k.bind_each(src=x, wei=w, dst=out),
        "`k(x, packed, out=out)` of any sizes": lambda: sizes(x, packed_of_sizes, out=out),
        "`k.pack(w)`": lambda: k.pack(w),
        "`cs.conv2d(x, w)`": lambda: cs.conv2d(x, w, threads=1),
    }
    return {WARM: statistics.median(taken) * 1e6, **{name: _median(call) for name, call in calls.items()}}


def _median(call: Callable[[], Any]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter() - start) / CALLS)
    return statistics.median(rounds) * 1e6


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(fresh() if sys.argv[2] == "fresh" else warm()))
    else:
        main()
