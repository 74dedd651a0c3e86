"""Fused chains beside the same stages of this project run one after the other: MobileNetV2's blocks, and 3x3 -> 3x3.

Run: python benchmarks/chains.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from report import Report

import convsmith as cs
from convsmith.diag.errors import UnsupportedError
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.machine.host import cache_sizes
from convsmith.machine.registry import target
from convsmith.measure.calls import aligned_inputs, bound_call
from convsmith.measure.peers import make_peer
from convsmith.measure.timing import Sampler, Spread, alternate, geometric_mean, spread
from convsmith.measure.verification import verify_kernel
from convsmith.problem import Chain, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import aligned_copy
from convsmith.tune.chains import config_of

GOAL = 1.25
"""Ratio of the time of the stages one after the other to that of the default, aimed at where a result exceeds L2."""

Block = tuple[int, int, int, int, int]
"""Extent, input channels, expansion, output channels and stride of an inverted residual block."""

BLOCKS: dict[str, Block] = {
    "112, 16 -> 96 -> 24, stride 2": (112, 16, 6, 24, 2),
    "112, 32 -> 32 -> 16": (112, 32, 1, 16, 1),
    "56, 24 -> 144 -> 24": (56, 24, 6, 24, 1),
    "56, 24 -> 144 -> 32, stride 2": (56, 24, 6, 32, 2),
    "28, 32 -> 192 -> 32": (28, 32, 6, 32, 1),
    "28, 32 -> 192 -> 64, stride 2": (28, 32, 6, 64, 2),
    "14, 64 -> 384 -> 64": (14, 64, 6, 64, 1),
    "14, 96 -> 576 -> 96": (14, 96, 6, 96, 1),
}
TYPES_OF = {"f32": ("", "clip:0:6", "sum:src"), "int8": ("--dt=u8:s8:u8 ", "relu+linear:0.05", "linear:0.5+sum:src")}
"""Option of the types, post-ops of the first stages, and those of the last stage with a residual, by kind."""


def block_line(block: Block, kind: str) -> str:
    """Return the chain of a block; an expansion of 1 has no first stage."""
    size, ic, expansion, oc, stride = block
    types, steps, residual = TYPES_OF[kind]
    wide, small = ic * expansion, (size - 1) // stride + 1
    stages = [f"{types}--attr-post-ops={steps} mb1ic{ic}ih{size}oc{wide}kh1"] if expansion > 1 else []
    stages.append(f"{types}--attr-post-ops={steps} g{wide}mb1ic{wide}ih{size}oc{wide}kh3sh{stride}ph1")
    last = f"--attr-post-ops={residual} " if ic == oc and stride == 1 else ""
    stages.append(f"{types}{last}mb1ic{wide}ih{small}oc{oc}kh1")
    stages[0], stages[-1] = f"--stag=axb {stages[0]}", f"--dtag=axb {stages[-1]}"
    return " -> ".join(stages)


def lines() -> dict[tuple[str, str], str]:
    """Return the chains by kind and name."""
    found = {(kind, name): block_line(block, kind) for kind in TYPES_OF for name, block in BLOCKS.items()}
    window = "mb1ic64ih224oc64kh3ph1"
    found["f32", "3x3 -> 3x3, 64 channels at 224"] = f"--stag=axb {window} -> --dtag=axb {window}"
    return found


Row = dict[str, Any]


def measured(line: str, threads: int, level: str | None, rounds: int) -> Row:
    """Return what is measured of a chain: the default, all stages fused, one kernel each in one call, and alone."""
    chain = parse_problem(line)
    assert isinstance(chain, Chain)
    stages = stages_of(chain.canonical())
    assert stages is not None
    default = cs.compile(chain, threads=threads, target=level)
    ways = {
        name: str(config_of(stages, default.target, threads, [fused] * (len(stages) - 1)))
        for name, fused in (("fused", True), ("apart", False))
    }  # fmt: skip
    kernels = {"default": default, **{name: cs.compile(chain, config=config) for name, config in ways.items()}}
    arrays = random_arrays(chain)
    inputs = aligned_inputs(chain, arrays)
    calls: dict[str, Callable[[], object]] = {}
    results = []
    for name, kernel in kernels.items():
        calls[name], found = bound_call(chain, kernel, inputs)
        results.append(found["dst"])
    verified = verify_kernel(default).ok and all(np.array_equal(results[0], other) for other in results[1:])
    calls["stages"] = alone(stages, threads, default.target.name)
    try:
        peer = make_peer("onnxruntime", chain, arrays, threads)
        peer.call()
        verified = verified and np.array_equal(peer.result(), from_layout(results[0], chain.outputs[0].layout))
        calls["onnxruntime"] = peer.call
    except UnsupportedError:
        pass
    samples = alternate({name: Sampler(call) for name, call in calls.items()}, rounds)
    between = [p.outputs[0] for p in stages.problems[:-1]]
    return {
        "problem": str(chain), "config": str(default.config), "fused": ways["fused"], "verified": verified,
        "target": default.target.name, "threads": threads,
        "bytes": [prod(t.shape[1:]) * TYPES[t.dtype].bits // 8 for t in between],
        "seconds": {name: vars(spread(found)) for name, found in samples.items()},
        "ratios": {
            name: vars(spread([theirs / ours for theirs, ours in zip(found, samples["default"])]))
            for name, found in samples.items()
        },
    }  # fmt: skip


def alone(stages: Stages, threads: int, level: str) -> Callable[[], object]:
    """Return a call of the kernels of all stages, each compiled alone, on arrays that they pass on."""
    calls: list[Callable[[], object]] = []
    source: Any = None
    for problem in stages.problems:
        kernel = cs.compile(problem, threads=threads, target=level)
        arrays = aligned_inputs(problem, random_arrays(problem))
        if source is not None:
            arrays["src"] = source
        arrays["wei"] = kernel.pack(arrays["wei"])
        result = problem.outputs[0]
        arrays["dst"] = aligned_copy(to_layout(np.zeros(result.shape, TYPES[result.dtype].numpy), result.layout))
        calls.append(kernel.bind_each(**arrays))
        source = arrays["dst"]

    def call() -> None:
        for stage in calls:
            stage()

    return call


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fused chains beside their stages run one after the other.")
    parser.add_argument("--threads", type=int, default=1, help="threads of each kernel (default: %(default)s)")
    parser.add_argument("--target", help="level of the instruction set (default: that of the types)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of samples (default: %(default)s)")
    options = parser.parse_args(arguments)
    rows = {key: measured(line, options.threads, options.target, options.rounds) for key, line in lines().items()}
    report = Report("chains", "Chains: stages fused through caches, and one after the other")
    report.data = {"chains": [{"kind": kind, "name": name, **row} for (kind, name), row in rows.items()]}
    report.note(
        f"{options.threads} thread{'s' * (options.threads > 1)}, batch 1, channels-last, weights packed before. The "
        "default is the kernel that `cs.compile` makes of the chain. Ratios are times divided by that of the default, "
        "formed in each round: of all stages fused, of one kernel for each stage in one call, and of the kernels of "
        "the stages compiled alone and called one after the other; onnxruntime is a session of one model of the whole "
        "chain, on channels-first input. +- is half the distance of the quartiles. No stage uses a transform."
    )
    columns = [
        "block", "largest result, KiB", "default, us", "stages fused", "all fused", "one kernel each", "stages alone",
        "onnxruntime", "verified",
    ]  # fmt: skip
    for kind in TYPES_OF:
        report.table(kind, columns, [cells(name, row) for (k, name), row in rows.items() if k == kind])
    limits = {f"L2 of the machine, {cache_sizes()['L2'] >> 10} KiB": cache_sizes()["L2"], "nothing": 0}
    limits |= {f"L2 of the model, {level.memories[1].bytes >> 10} KiB": level.memories[1].bytes for level in [target()]}
    means = []
    for limit, least in limits.items():
        chosen = [row for (_, name), row in rows.items() if name in BLOCKS and max(row["bytes"]) > least]
        medians = [[row["ratios"][way]["median"] for row in chosen] for way in ("apart", "stages")]
        least_ratio = f"{min(medians[0]):.2f}"
        theirs = [r["ratios"]["onnxruntime"]["median"] for r in chosen if "onnxruntime" in r["ratios"]]
        shown = [f"{geometric_mean(m):.3f}" for m in (*medians, theirs)]
        means.append([limit, str(len(chosen)), *shown[:2], least_ratio, f"{shown[2]} of {len(theirs)}"])
    report.table(
        f"Geometric means over blocks whose largest result exceeds a size (goal above L2: {GOAL})",
        ["size", "blocks", "one kernel each", "stages alone", "least, one kernel each", "onnxruntime, f32"],
        means,
    )  # fmt: skip
    report.write()


def cells(name: str, row: Row) -> list[str]:
    """Return the cells of a chain in its table."""
    ways = ("fused", "apart", "stages", "onnxruntime")
    ratios = [Spread(**row["ratios"][way]) if way in row["ratios"] else None for way in ways]
    return [
        name, f"{max(row['bytes']) >> 10}", f"{row['seconds']['default']['median'] * 1e6:.1f}",
        f"{row['config'].count('--at=')} of {len(row['bytes'])}",
        *(f"{r.median:.2f} +- {(r.high - r.low) / 2:.2f}" if r else "-" for r in ratios),
        "yes" if row["verified"] else "NO",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
