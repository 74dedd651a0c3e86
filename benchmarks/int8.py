"""int8 at a level beside f32: the 1x1 and 3x3 layers of ResNet-50 on one thread, in rounds that alternate.

Run: python benchmarks/int8.py --target avx2
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter

from report import Report

import convsmith as cs
from convsmith.measure.calls import aligned_inputs, bound_call
from convsmith.measure.verification import narrow_limits, real_arrays

LAYERS = {
    "1x1": ["ic64ih56oc256", "ic256ih56oc64", "ic128ih28oc512", "ic512ih28oc128", "ic256ih14oc1024", "ic1024ih14oc256",
            "ic512ih7oc2048", "ic2048ih7oc512"],
    "3x3": ["ic64ih56oc64", "ic128ih28oc128", "ic256ih14oc256", "ic512ih7oc512"],
}  # fmt: skip
TAILS = {"1x1": "kh1ph0", "3x3": "kh3ph1"}
LAST = "--stag=axb --dtag=axb"
KINDS = {
    "u8 x s8": ("--dt=u8:s8:s32", True), "s8 x s8": ("--dt=s8:s8:s32", True),
    "u8 x s8, all weights": ("--dt=u8:s8:s32", False), "f32": ("--accuracy=strict", True),
    "f32, transforms": ("", True),
}  # fmt: skip
"""By column: options, and whether weights are within the limits of the kernel, or of the whole range of their type."""
ROUNDS, CALLS = 21, 3


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="int8 beside f32 at one level, on one thread.")
    parser.add_argument("--target", default="avx2")
    target = parser.parse_args(arguments).target
    report = Report(f"int8-{target}", f"int8 beside f32 at level {target}, one thread")
    report.note(
        f"Batch 1, channels last. Times are medians of {ROUNDS} rounds of {CALLS} calls, in us; in brackets the median "
        "of the ratio of direct f32 to them, of the same round. Weights of the first columns are from -64 to 64 where "
        "the kernel has that limit; `all weights` are from -128 to 127."
    )
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for size, layers in LAYERS.items():
        times = found[size] = {layer: _times(f"mb1{layer}{TAILS[size]}", target) for layer in layers}
        rows = [[f"`mb1{layer}{TAILS[size]}`", *_cells(of_layer)] for layer, of_layer in times.items()]
        means = [statistics.geometric_mean(_ratio(times[layer], kind) for layer in layers) for kind in KINDS]
        rows.append(["geometric mean of the ratios", *(f"{mean:.2f}" for mean in means)])
        report.table(size, ["layer", *KINDS], rows)
    report.data = {"target": target, "seconds": found}
    report.write()


def _times(layer: str, target: str) -> dict[str, list[float]]:
    """Return the seconds of a call in each round, by kind."""
    calls = {kind: _call(f"{options} {LAST} {layer}", target, within) for kind, (options, within) in KINDS.items()}
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, call in calls.items():
            start = perf_counter()
            for _ in range(CALLS):
                call()
            times[kind].append((perf_counter() - start) / CALLS)
    return times


def _call(line: str, target: str, within: bool) -> Callable[[], object]:
    """Return a call with packed weights, of a kernel."""
    kernel = cs.compile(line, target=target, threads=1)
    arrays = real_arrays(kernel.problem, limits=narrow_limits(kernel) if within else None)
    call, _ = bound_call(kernel.problem, kernel, aligned_inputs(kernel.problem, arrays))
    call()
    return call


def _ratio(times: dict[str, list[float]], kind: str) -> float:
    return statistics.median(f32 / own for f32, own in zip(times["f32"], times[kind], strict=True))


def _cells(times: dict[str, list[float]]) -> list[str]:
    return [f"{statistics.median(times[kind]) * 1e6:.0f} ({_ratio(times, kind):.2f})" for kind in KINDS]


if __name__ == "__main__":
    main()
