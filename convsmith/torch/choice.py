"""Whether a layer runs on our kernel or on torch's: measured once in turn, and kept in the cache."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from convsmith.compiler.cache import cache_key, disk_cache
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.numpy_api import compile
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.torch.kernel_sequence import KernelSequence, SequenceStep
from convsmith.torch.layers import ConvLayer
from convsmith.torch.layouts import in_order

__all__ = ["Times", "kept_times", "least_seconds", "times_of"]

ROUNDS = 5
"""Rounds of a measurement, in each of which both run once."""
SHORT_SECONDS = 2e-3
"""Seconds that a sample takes at least: short calls are repeated."""


class Times(NamedTuple):
    """Seconds of a call of our kernel and of the other way; `measured` is false where they were kept."""

    ours: float
    other: float
    measured: bool


def times_of(layer: ConvLayer, shape: tuple[int, ...], threads: int) -> Times:
    """Return the times of a layer for a source of `shape`, from the cache or measured now."""
    problem = layer.problem(shape, True)
    kernel = compile(problem, threads=threads)
    what = f"{problem} {kernel.config} beside torch {torch.__version__} on {threads}"
    return kept_times(what, kernel.target, lambda: _measured(layer, problem, kernel, shape))


def kept_times(what: str, target: Machine, measure: Callable[[], tuple[float, float]]) -> Times:
    """Return the times of `what` on a target that the cache keeps, else those that `measure` returns."""
    cache, key = disk_cache(), cache_key("times of", what, target.key)
    kept = None if cache is None else cache.get(key)
    if kept is not None:
        ours, other = json.loads(kept)
        return Times(ours, other, False)
    times = measure()
    if cache is not None:
        cache.put(key, json.dumps(times).encode())
    return Times(*times, True)


def _measured(
    layer: ConvLayer, problem: Conv, kernel: CompiledKernel, shape: tuple[int, ...]
) -> tuple[float, float]:
    """Return seconds of our kernel and of torch's, each the least of several samples."""
    dtype = layer.weight.dtype
    shapes = (shape, layer.result_shape(shape))
    x, y = (in_order(torch.randn(given).to(dtype), last) for given, last in zip(shapes, layer.orders))
    step = SequenceStep(kernel, layer.packed_for(problem, kernel), {"src": 0, "dst": 1}, 1, y.nbytes)
    sequence, addresses, by_torch = KernelSequence([step], (0, 1)), (x.data_ptr(), y.data_ptr()), layer.by_torch()
    with torch.inference_mode():
        return least_seconds(lambda: sequence(addresses), lambda: by_torch(x, y if layer.adds else None))


def least_seconds(*calls: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call of two functions, each the least of several samples that alternate."""
    best, counts = [], []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        best.append(took)
        counts.append(max(1, int(SHORT_SECONDS / max(took, 1e-7))))
    for _ in range(ROUNDS):
        for n, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(counts[n]):
                call()
            best[n] = min(best[n], (time.perf_counter() - start) / counts[n])
    return best[0], best[1]
