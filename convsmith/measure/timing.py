"""Timing: warm calls, samples of a few milliseconds, alternating subjects, ratios within a round.

Clock frequency and background load change from second to second, so two times are comparable only if measured side by
side. Every round samples each subject once, ratios are formed within the round, and the result is their median.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, runtime_checkable

from convsmith.diag.record import record
from convsmith.runtime.threads import available_cpus

__all__ = [
    "Measurement",
    "PeerTime",
    "Sampler",
    "Spread",
    "Watch",
    "alternate",
    "geometric_mean",
    "measure",
    "spread",
    "wait_until_idle",
]

SAMPLE_SECONDS = 3e-3
"""Approximate duration of one sample in seconds."""

WARM_UP = 1.0
"""Ratio of the warm-up calls before a sample to the calls in the sample. On an Intel server with AMX, kernels are up to
10 % slower in the first 2 to 3 ms after another library's kernel.
"""

SETTLE_SECONDS = 0.25
"""Maximum wait in seconds for the previous subject's threads: OpenMP's spin for 5 ms, ONNX Runtime's for 40 ms."""

LONG_SECONDS = 0.2
"""Seconds above which a call needs no warm-up call, because warming up takes a negligible part of it."""

ROUNDS = 15
"""Default number of rounds."""

MIN_SHARE = 0.9
"""Ratio of CPU time to wall-clock time of a sample, per thread, below which the sample does not count."""


@record(frozen=True)
class Spread:
    """Median and quartiles of a series."""

    median: float
    low: float
    high: float

    def scaled(self, factor: float) -> Spread:
        """Return the spread multiplied by a positive factor."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


@record(frozen=True)
class PeerTime:
    """A library's seconds per call, and its time divided by the kernel's time (above 1: the kernel is faster)."""

    seconds: Spread
    speedup: Spread


@record(frozen=True)
class Measurement:
    """A kernel's seconds per call, 1e9 operations per second, and fraction of the peak measured in the same rounds."""

    seconds: Spread
    gflops: Spread
    peak_gflops: Spread | None
    of_peak: Spread | None
    peers: dict[str, PeerTime] = field(default_factory=dict)
    cpu_share: float = 1.0
    """Ratio of the CPU time used during the kernel's samples to the CPU time available to its threads."""


class Watch:
    """Counts the CPUs that the threads of this process use from now on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def cpus(self) -> float:
        """CPU seconds per second that the process has used so far."""
        return (time.process_time() - self._cpu) / (time.perf_counter() - self._wall)


@runtime_checkable
class QueuedCall(Protocol):
    """A call that returns before its work has ended."""

    def __call__(self) -> object: ...

    def finish(self) -> None:
        """Wait until the work of all calls has ended."""
        ...


class Sampler:
    """Returns the seconds per call of one sample. The constructor warms `call` up and chooses the repetitions per
    sample; unless a call is long, each sample is preceded by `warm_up` times its number of calls. A sample of a
    `QueuedCall` ends when the work of its calls has ended.
    """

    def __init__(
        self, call: Callable[[], object], seconds: float = SAMPLE_SECONDS, warm_up: float = WARM_UP
    ) -> None:
        self._call, self._warm_up = call, warm_up
        self._wall = self._cpu = 0.0
        self.repeats = 1
        self._run(1)
        while (elapsed := self._run(self.repeats)) < seconds / 4:
            scale = seconds / 4 / max(elapsed, 1e-9)
            self.repeats = max(self.repeats * 2, min(math.ceil(self.repeats * scale), 1 << 20))
        self._is_long = elapsed / self.repeats > LONG_SECONDS
        self.repeats = max(1, math.ceil(self.repeats * seconds / elapsed))

    def __call__(self) -> float:
        if not self._is_long:
            self._run(max(1, int(self.repeats * self._warm_up)))  # refills the caches after the previous subject
        before = time.process_time()
        elapsed = self._run(self.repeats)
        self._cpu += time.process_time() - before
        self._wall += elapsed
        return elapsed / self.repeats

    @property
    def busy_cpus(self) -> float:
        """CPU seconds per second during the samples so far; 0 before the first sample."""
        return self._cpu / self._wall if self._wall else 0.0

    def _run(self, repeats: int) -> float:
        call = self._call
        turns = range(repeats)
        start = time.perf_counter()
        for _ in turns:
            call()
        if isinstance(call, QueuedCall):
            call.finish()
        return time.perf_counter() - start


def wait_until_idle(seconds: float = SETTLE_SECONDS) -> None:
    """Sleep until no thread of this process uses CPU time, because worker threads spin for a while after their work."""
    deadline = time.perf_counter() + seconds
    while (start := time.perf_counter()) < deadline:
        used = time.process_time()
        time.sleep(1e-3)
        if time.process_time() - used < 0.2 * (time.perf_counter() - start):
            return


def alternate(
    subjects: Mapping[str, Callable[[], float]], rounds: int = ROUNDS, settle: Callable[[], None] = wait_until_idle
) -> dict[str, list[float]]:
    """Return the samples of each subject, one per round. The first subject and the direction change from round to
    round, so that each subject follows different predecessors.
    """
    names = list(subjects)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(names)
        turned = names[start:] + names[:start]
        for name in turned if turn % 2 == 0 else reversed(turned):
            settle()
            samples[name].append(subjects[name]())
    return samples


def measure(
    call: Callable[[], object],
    flops: float,
    peak: Callable[[], float] | None = None,
    peers: Mapping[str, Callable[[], object]] | None = None,
    rounds: int = ROUNDS,
    threads: int = 1,
) -> Measurement:
    """Return the times of `call`, which performs `flops` operations on `threads` threads, and of every peer's call.

    `peak` returns a sample of the machine's peak in 1e9 operations per second.
    """
    peers = peers or {}
    subjects: dict[str, Callable[[], float]] = {" peak": peak} if peak else {}
    subjects[" kernel"] = kernel = Sampler(call)
    subjects |= {name: Sampler(peer) for name, peer in peers.items()}
    samples = alternate(subjects, rounds)
    ours, peaks = samples[" kernel"], samples.get(" peak")
    rates = [flops / seconds * 1e-9 for seconds in ours]
    return Measurement(
        seconds=spread(ours),
        gflops=spread(rates),
        peak_gflops=spread(peaks) if peaks else None,
        of_peak=spread([rate / top for rate, top in zip(rates, peaks)]) if peaks else None,
        peers={
            name: PeerTime(spread(samples[name]), spread([theirs / our for theirs, our in zip(samples[name], ours)]))
            for name in peers
        },
        cpu_share=kernel.busy_cpus / min(threads, available_cpus()),
    )


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles of `values`."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), low, high)


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean of `values`; None if `values` is empty."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else None
