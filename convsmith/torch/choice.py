"""The choice between our functions and PyTorch for a part of a network: both are timed in alternation.

The cache keeps the times. Times that were disturbed by other processes are marked there, and the next `optimize`
measures them again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from convsmith.compiler.cache import cache_key, disk_cache
from convsmith.diag.expect import is_positive, json_list
from convsmith.machine.base import Machine
from convsmith.measure.timing import MIN_SHARE, Watch

__all__ = ["LeastTimes", "Times", "kept_times", "least_seconds"]

ROUNDS, MAX_ROUNDS = 5, 20
"""Minimum number of rounds of a measurement whose result is not clear, and maximum number; each round runs both kernels
once.
"""
CLEAR = 1.25
"""Ratio of the two alternatives' times from which the result of a measurement is clear, after two samples of each."""
LONGEST = 0.5
"""Seconds after which no further round is run beyond the first `ROUNDS`."""
SHORT_SECONDS = 2e-3
"""Minimum duration of a sample in seconds; short calls are repeated."""
LONG_SECONDS = 0.02
"""Seconds of a first call from which it is a sample, as no second one counts how often calls are repeated."""
ALIKE = 1.05
"""Maximum ratio of the two shortest samples of a steady measurement; a larger ratio indicates load of other processes.
"""
LEFT = 0.95
"""Ratio of PyTorch's time to ours below which PyTorch keeps the part."""


class LeastTimes(NamedTuple):
    """Seconds per call of two alternatives; `is_steady` is false if other processes used the CPUs all the time, so that
    another measurement may choose the other one.
    """

    first: float
    second: float
    is_steady: bool


class Times(NamedTuple):
    """Seconds per call of our functions and of the alternative; `measured` is false if the times come from the cache.
    """

    ours: float
    other: float
    measured: bool

    @property
    def stays(self) -> bool:
        """Whether the alternative is so much faster that the part stays as it is."""
        return self.other < LEFT * self.ours


def kept_times(what: str, target: Machine, measure: Callable[[int], LeastTimes]) -> Times:
    """Return the times of `what` on a target: cached times if they are steady. Otherwise `measure` is called with a
    number of rounds, and the shorter of the cached and the new times are returned.
    """
    cache, key = disk_cache(), cache_key("least times of", what, target.key)
    kept = None if cache is None else cache.decoded(key, _decoded)
    if kept is not None and kept.is_steady:
        return Times(kept.first, kept.second, False)
    times = measure(MAX_ROUNDS if kept is None else ROUNDS)
    if kept is not None:
        times = times._replace(first=min(kept.first, times.first), second=min(kept.second, times.second))
    if cache is not None:
        cache.put(key, json.dumps(times).encode())
    return Times(times.first, times.second, True)


def _decoded(content: bytes) -> LeastTimes:
    """Return the times of an entry of the cache; ValueError if the entry is malformed."""
    first, second, is_steady = json_list(content, 3)
    if not (is_positive(first) and is_positive(second) and type(is_steady) is bool):
        raise ValueError("no times of two calls")
    return LeastTimes(first, second, is_steady)


def least_seconds(
    *calls: Callable[[], object], most: int = MAX_ROUNDS, finish: Callable[[], object] = lambda: None
) -> LeastTimes:
    """Return the shortest undisturbed seconds per call of two functions, from alternating samples.

    A sample ends when `finish` has waited for what the calls put on a device.

    If the shortest samples are not steady, further rounds follow, at most `most` in all.
    """
    counts, samples = [], list[list[_Sample]]()
    for call in calls:
        first = _sample(call, 1, finish)
        is_long = first.seconds >= LONG_SECONDS
        seconds = first.seconds if is_long else _sample(call, 1, finish).seconds
        counts.append(max(1, int(SHORT_SECONDS / max(seconds, 1e-7))))
        samples.append([first] if is_long else [])
    end = time.perf_counter() + LONGEST
    for turn in range(most):
        order = list(zip(calls, counts, samples))
        for call, count, taken in order if turn % 2 else reversed(order):
            taken.append(_sample(call, count, finish))
        is_steady, is_certain = all(map(_are_steady, samples)), _is_certain(*samples)
        is_over = turn + 1 >= ROUNDS and (is_steady or time.perf_counter() > end)
        if is_certain or is_over or (is_steady and _is_clear(samples)):
            break
    least = [_undisturbed(taken)[0] for taken in samples]
    return LeastTimes(least[0], least[1], is_steady or is_certain)


class _Sample(NamedTuple):
    """Seconds of a call, and the number of CPUs that this process used during it."""

    seconds: float
    cpus: float


def _sample(call: Callable[[], object], count: int, finish: Callable[[], object]) -> _Sample:
    watch, start = Watch(), time.perf_counter()
    for _ in range(count):
        call()
    finish()
    return _Sample((time.perf_counter() - start) / count, watch.cpus)


def _undisturbed(samples: Sequence[_Sample]) -> list[float]:
    """Return, in ascending order, the seconds of the samples that had all CPUs that they can use, or of all samples if
    none had.
    """
    wanted = _wanted(samples)
    return sorted([x.seconds for x in samples if x.cpus >= wanted] or [x.seconds for x in samples])


def _is_clear(samples: Sequence[Sequence[_Sample]]) -> bool:
    """Return whether one alternative is so much faster than the other that further rounds do not change the choice."""
    least = sorted(_undisturbed(taken)[0] for taken in samples)
    return least[-1] >= CLEAR * least[0]


def _is_certain(one: Sequence[_Sample], two: Sequence[_Sample]) -> bool:
    """Return whether two samples or more of each alternative had all CPUs, and each sample of one alternative is
    clearly longer than each of the other.
    """
    if min(len(one), len(two)) < 2 or any(x.cpus < _wanted(taken) for taken in (one, two) for x in taken):
        return False
    (least, most), (other_least, other_most) = ((min(t).seconds, max(t).seconds) for t in (one, two))
    return max(least / other_most, other_least / most) >= CLEAR


def _wanted(samples: Sequence[_Sample]) -> float:
    """Return the number of CPUs that an undisturbed sample has."""
    return MIN_SHARE * max(1.0, *(x.cpus for x in samples))


def _are_steady(samples: Sequence[_Sample]) -> bool:
    """Return whether the two shortest undisturbed samples agree."""
    had = any(x.cpus >= MIN_SHARE for x in samples)
    least = _undisturbed(samples)
    return had and len(least) > 1 and least[1] < ALIKE * least[0]
