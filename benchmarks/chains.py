"""Fused chains beside the same stages of this project run one after the other: MobileNetV2's blocks, and 3x3 -> 3x3.

Run: python benchmarks/chains.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from making import seconds
from report import Report

import convsmith as cs
from convsmith.diag.errors import UnsupportedError
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.machine.host import cache_sizes
from convsmith.machine.registry import target
from convsmith.measure.calls import aligned_inputs, bound_call
from convsmith.measure.peers import PEERS, TRANSFORMED, installed, make_peer
from convsmith.measure.timing import Sampler, Spread, alternate, geometric_mean, spread
from convsmith.measure.verification import verify_kernel
from convsmith.problem import Chain, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import aligned_copy
from convsmith.tune.chains import config_of
from convsmith.tune.stage_configs import StageConfigs

GOAL = 1.25
"""Ratio of the time of the stages one after the other to that of the default, aimed at where a result exceeds L2."""

LIBRARIES = tuple(name for name, library in PEERS.items() if library.chains and installed(name))
"""Installed libraries that run chains."""

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
        name: str(config_of(stages, StageConfigs(default.target), threads, [fused] * (len(stages) - 1)))
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
    verified = all(verify_kernel(kernel).ok for kernel in kernels.values())
    calls["stages"] = alone(stages, threads, default.target.name)
    plain = from_layout(results[0], chain.outputs[0].layout)
    refused: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            peer = make_peer(name, chain, arrays, threads)
        except UnsupportedError as error:
            refused[name] = str(error)
            continue
        peer.call()
        difference = np.abs(peer.result().astype(np.float64) - plain).max()
        error = max(PEERS[name].error, TRANSFORMED if default.config.has_transform else 0.0)
        verified = verified and bool(difference <= error * np.abs(plain).max())
        calls[name] = peer.call
    samples = alternate({name: Sampler(call) for name, call in calls.items()}, rounds)
    between = [p.outputs[0] for p in stages.problems[:-1]]
    singles = [sum(seconds(problem, default.target)) for problem in stages.problems]
    return {
        "problem": str(chain), "config": str(default.config), "fused": ways["fused"], "verified": verified,
        "target": default.target.name, "threads": threads, "refused": refused,
        "making": {"chain": sum(seconds(chain, default.target)), "stages": singles},
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
    parser.add_argument("--threads", default="1", help="threads of each kernel, one or more (default: %(default)s)")
    parser.add_argument("--target", help="level of the instruction set (default: that of the types)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of samples (default: %(default)s)")
    parser.add_argument("--every", type=int, default=1, help="measure every n-th chain (default: %(default)s)")
    options = parser.parse_args(arguments)
    chosen = dict(list(lines().items())[:: options.every])
    numbers = [int(word) for word in options.threads.split(",")]
    rows = {
        (threads, *key): measured(line, threads, options.target, options.rounds)
        for threads in numbers
        for key, line in chosen.items()
    }
    report = Report("chains", "Chains: stages fused through caches, and one after the other")
    report.data = {"chains": [{"kind": kind, "name": name, **row} for (_, kind, name), row in rows.items()]}
    report.note(
        "Batch 1, channels-last, weights packed before. The default is the kernel that `cs.compile` makes of the "
        "chain. Ratios are times divided by that of the default, formed in each round: of all stages fused, of one "
        "kernel for each stage in one call, of the kernels of the stages compiled alone and called one after the "
        f"other, and of libraries ({', '.join(LIBRARIES)}), each of which gets the whole chain. +- is half the "
        "distance of the quartiles. A stage that runs alone uses a transform where that is its default. Making is the "
        "processor time from the problem to the object code, divided by the sum of the times of the single stages; at "
        "most 1 is aimed at."
    )
    columns = [
        "block", "largest result, KiB", "default, us", "stages fused", "all fused", "one kernel each", "stages alone",
        *LIBRARIES, "making, ms", "making, ratio", "verified",
    ]  # fmt: skip
    for threads in numbers:
        of_threads = {(kind, name): row for (n, kind, name), row in rows.items() if n == threads}
        for kind in dict.fromkeys(kind for kind, _ in of_threads):
            title = f"{kind}, {threads} thread{'s' * (threads > 1)}"
            report.table(title, columns, [cells(name, row) for (k, name), row in of_threads.items() if k == kind])
        report.table(
            f"Geometric means over blocks whose largest result exceeds a size, {threads} "
            f"thread{'s' * (threads > 1)} (goal above L2: {GOAL})",
            ["size", "blocks", "one kernel each", "stages alone", "least, one kernel each", *LIBRARIES,
             "best library"],
            list(means([row for (_, name), row in of_threads.items() if name in BLOCKS])),
        )  # fmt: skip
    reasons = dict.fromkeys((name, why) for row in rows.values() for name, why in row["refused"].items())
    report.table("Why a library does not run a chain", ["library", "reason"], list(map(list, reasons)))
    report.write()


def means(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield the cells of each row of the table of geometric means."""
    level = target()
    limits = {
        f"L2 of the machine, {cache_sizes()['L2'] >> 10} KiB": cache_sizes()["L2"],
        f"L2 of the model, {level.memories[1].bytes >> 10} KiB": level.memories[1].bytes, "nothing": 0,
    }  # fmt: skip
    for limit, least in limits.items():
        chosen = [row["ratios"] for row in rows if max(row["bytes"]) > least]
        medians = {
            way: [ratios[way]["median"] for ratios in chosen if way in ratios]
            for way in ("apart", "stages", *LIBRARIES)
        }  # fmt: skip
        theirs_each = [[ratios[name]["median"] for name in LIBRARIES if name in ratios] for ratios in chosen]
        best = [min(found) for found in theirs_each if found]
        ours = [f"{geometric_mean(medians[way]):.3f}" if chosen else "-" for way in ("apart", "stages")]
        theirs = [
            f"{geometric_mean(found):.3f} of {len(found)}" if found else "-"
            for found in (*(medians[name] for name in LIBRARIES), best)
        ]  # fmt: skip
        yield [limit, str(len(chosen)), *ours, f"{min(medians['apart'], default=0):.2f}", *theirs]


def cells(name: str, row: Row) -> list[str]:
    """Return the cells of a chain in its table."""
    ways = ("fused", "apart", "stages", *LIBRARIES)
    ratios = [Spread(**row["ratios"][way]) if way in row["ratios"] else None for way in ways]
    making = row["making"]
    return [
        name, f"{max(row['bytes']) >> 10}", f"{row['seconds']['default']['median'] * 1e6:.1f}",
        f"{row['config'].count('--compute_at=')} of {len(row['bytes'])}",
        *(f"{r.median:.2f} +- {(r.high - r.low) / 2:.2f}" if r else "-" for r in ratios),
        f"{making['chain'] * 1e3:.0f}", f"{making['chain'] / sum(making['stages']):.2f}",
        "yes" if row["verified"] else "NO",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
