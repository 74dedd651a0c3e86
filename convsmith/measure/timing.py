"""How things are timed: warm, in samples of some milliseconds, alternating, as ratios within a round.

Clocks and neighbours change from second to second, so two figures are only compared when they were taken side by side:
every round samples each subject once, a ratio is formed within the round, and the median of the ratios is what counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from convsmith.runtime.threads import available_cpus

__all__ = [
    "Measurement",
    "PeerTime",
    "Sampler",
    "Spread",
    "alternate",
    "geometric_mean",
    "measure",
    "spread",
    "wait_until_idle",
]

SAMPLE_SECONDS = 3e-3
"""About how long one sample runs."""

SETTLE_SECONDS = 0.25
"""Longest wait before a sample for threads of the subject before: OpenMP's spin for about 5 ms, ONNX Runtime's 40."""

ROUNDS = 15


@dataclass(frozen=True)
class Spread:
    """The median of some figures, with their quartiles."""

    median: float
    low: float
    high: float

    def scaled(self, factor: float) -> Spread:
        """The same, times a positive factor."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class PeerTime:
    """Another library's time of a call, and how many times our time that is (above 1: we are faster)."""

    seconds: Spread
    speedup: Spread


@dataclass(frozen=True)
class Measurement:
    """A kernel's time of a call, operations a second (in 1e9), and share of the peak of the same rounds, if known."""

    seconds: Spread
    gflops: Spread
    peak_gflops: Spread | None
    of_peak: Spread | None
    peers: dict[str, PeerTime] = field(default_factory=dict)
    cpu_share: float = 1.0
    """CPU time of the process during the kernel's samples, as a share of what its threads can take on the CPUs."""


class Sampler:
    """Runs `call` as often as a sample takes; a sample is seconds a call. Warms up, and finds how often, when made."""

    def __init__(self, call: Callable[[], object], seconds: float = SAMPLE_SECONDS) -> None:
        self._call = call
        self._wall = self._cpu = 0.0
        self.repeats = 1
        self._run(1)
        while (took := self._run(self.repeats)) < seconds / 4:
            self.repeats = max(self.repeats * 2, min(math.ceil(self.repeats * seconds / 4 / max(took, 1e-9)), 1 << 20))
        self.repeats = max(1, math.ceil(self.repeats * seconds / took))

    def __call__(self) -> float:
        self._run(max(1, self.repeats // 16))  # back into the caches, which another subject has just used
        before = time.process_time()
        took = self._run(self.repeats)
        self._cpu += time.process_time() - before
        self._wall += took
        return took / self.repeats

    @property
    def busy_cpus(self) -> float:
        """CPU time for each second of the samples so far; 0 before the first."""
        return self._cpu / self._wall if self._wall else 0.0

    def _run(self, repeats: int) -> float:
        call = self._call
        turns = range(repeats)
        start = time.perf_counter()
        for _ in turns:
            call()
        return time.perf_counter() - start


def wait_until_idle(seconds: float = SETTLE_SECONDS) -> None:
    """Sleep until no thread of this process takes CPU time (worker threads spin for a while after their work)."""
    deadline = time.perf_counter() + seconds
    while (start := time.perf_counter()) < deadline:
        used = time.process_time()
        time.sleep(1e-3)
        if time.process_time() - used < 0.2 * (time.perf_counter() - start):
            return


def alternate(
    subjects: Mapping[str, Callable[[], float]], rounds: int = ROUNDS, settle: Callable[[], None] = wait_until_idle
) -> dict[str, list[float]]:
    """What each subject returned in each round. Who comes first changes from round to round."""
    names = list(subjects)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            settle()
            taken[name].append(subjects[name]())
    return taken


def measure(
    call: Callable[[], object],
    flops: float,
    peak: Callable[[], float] | None = None,
    peers: Mapping[str, Callable[[], object]] | None = None,
    rounds: int = ROUNDS,
    threads: int = 1,
) -> Measurement:
    """Time `call`, of `flops` operations, and each peer's same call, beside samples of the peak (1e9 a second).

    `threads` is how many threads `call` runs on.
    """
    peers = peers or {}
    subjects: dict[str, Callable[[], float]] = {" peak": peak} if peak else {}
    subjects[" kernel"] = kernel = Sampler(call)
    subjects |= {name: Sampler(peer) for name, peer in peers.items()}
    taken = alternate(subjects, rounds)
    ours, peaks = taken[" kernel"], taken.get(" peak")
    rates = [flops / seconds * 1e-9 for seconds in ours]
    return Measurement(
        seconds=spread(ours),
        gflops=spread(rates),
        peak_gflops=spread(peaks) if peaks else None,
        of_peak=spread([rate / top for rate, top in zip(rates, peaks)]) if peaks else None,
        peers={
            name: PeerTime(spread(taken[name]), spread([theirs / our for theirs, our in zip(taken[name], ours)]))
            for name in peers
        },
        cpu_share=kernel.busy_cpus / min(threads, available_cpus()),
    )


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), low, high)


def geometric_mean(values: Iterable[float]) -> float | None:
    """None where there are no values."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else None
