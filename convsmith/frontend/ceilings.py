"""The machine's ceilings as kept figures: each is measured once, and stored with its date in the cache directory.

A figure that is measured while a page prints describes the load of that moment. A kept figure is the highest of
several samples, and a sample counts only where its threads got the CPU time that they asked for. Measuring a ceiling
again (`convsmith machine`) replaces the kept figure.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from convsmith.compiler.cache import disk_cache
from convsmith.diag.forking import RenewedLock
from convsmith.frontend.peak import Types, peak_sample, read_level_bytes, read_sample, release_read_buffers
from convsmith.runtime.machine import cache_sizes, cpu_features, cpu_model
from convsmith.runtime.threads import default_threads

__all__ = ["Ceiling", "measure_peak", "measure_read", "peak_ceiling", "read_ceiling"]

SAMPLES = 15
"""Samples of each figure; a sample takes about 2 ms, or what it takes to read its buffer once."""
LEAST_SAMPLES = 3
"""Samples of a figure whose samples are long."""
LONGEST = 0.3
"""Seconds after which no further sample is taken, once there are `LEAST_SAMPLES`."""
LEAST_SHARE = 0.9
"""Ratio of CPU time to wall-clock time of a sample, per thread, below which the sample does not count."""

_METHOD = 1
"""Number of the method of measurement. Figures of another method are not used."""

_in_process: dict[str, Ceiling] = {}
_lock = RenewedLock()


class Ceiling(NamedTuple):
    """`rate` operations or bytes per nanosecond, measured on `date` (year-month-day, UTC).

    `is_steady` says that at least one sample got its CPU time; other figures are too low, and are not kept.
    """

    rate: float
    date: str
    is_steady: bool


def peak_ceiling(isa: str, threads: int, types: Types) -> Ceiling:
    """Return the kept multiply-add peak in operations per nanosecond; the first call for its arguments measures it.

    UnsupportedError: the CPU lacks the instruction set, or the set has no instruction for the types.
    """
    key = _key("peak", isa, str(threads), *types)
    return _kept(key) or measure_peak(isa, threads, types)


def read_ceiling(level: str, threads: int) -> Ceiling:
    """Return the kept read bandwidth of a cache level (or "DRAM") in bytes per nanosecond, measured once."""
    return _kept(_key("read", level, str(threads))) or measure_read(level, threads)


def measure_peak(isa: str, threads: int, types: Types, samples: int = SAMPLES) -> Ceiling:
    """Measure the multiply-add peak, and keep it."""
    key = _key("peak", isa, str(threads), *types)
    return _measured(key, lambda: peak_sample(isa, threads, types).gflops, threads, samples)


def measure_read(level: str, threads: int, samples: int = SAMPLES) -> Ceiling:
    """Measure the read bandwidth of a cache level or of "DRAM", and keep it."""
    nbytes = read_level_bytes()[level](threads)
    found = _measured(_key("read", level, str(threads)), lambda: read_sample(nbytes, threads).gbs, threads, samples)
    release_read_buffers()
    return found


def _measured(key: str, sample: Callable[[], float], threads: int, samples: int) -> Ceiling:
    steady: list[float] = []
    starved: list[float] = []
    running = min(threads, default_threads())
    sample()  # compiles the loop, and touches its memory
    start = time.perf_counter()
    for number in range(samples):
        wall, cpu = time.perf_counter(), time.process_time()
        if number >= LEAST_SAMPLES and wall - start > LONGEST:
            break
        rate = sample()
        share = (time.process_time() - cpu) / (time.perf_counter() - wall) / running
        (steady if share >= LEAST_SHARE else starved).append(rate)
    found = Ceiling(max(steady or starved), datetime.now(UTC).date().isoformat(), bool(steady))
    if found.is_steady:
        with _lock.lock:
            _in_process[key] = found
        if (cache := disk_cache()) is not None:
            cache.put(key, json.dumps(found).encode())
    return found


def _kept(key: str) -> Ceiling | None:
    with _lock.lock:
        if key in _in_process:
            return _in_process[key]
    cache = disk_cache()
    content = cache.get(key) if cache is not None else None
    found = _parsed(content) if content is not None else None
    if found is not None:
        with _lock.lock:
            _in_process[key] = found
    return found


def _parsed(content: bytes) -> Ceiling | None:
    """The figure of an entry; None where it is no such figure."""
    try:
        rate, date, is_steady = json.loads(content)
        datetime.fromisoformat(date)
    except (ValueError, TypeError):
        return None
    good = isinstance(rate, float) and math.isfinite(rate) and rate > 0 and is_steady is True
    return Ceiling(rate, date, is_steady) if good else None


def _key(*what: str) -> str:
    """The entry's key: the machine's facts that a figure depends on, and which figure it is."""
    facts = (str(_METHOD), cpu_model(), *sorted(cpu_features()), repr(cache_sizes()), *what)
    return "ceiling-" + hashlib.sha256("\0".join(facts).encode()).hexdigest()
