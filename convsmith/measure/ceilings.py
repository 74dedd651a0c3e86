"""The machine's ceilings as kept figures: each is measured once, and stored with its date in the cache directory.

A figure that is measured while a page prints describes the load of that moment. A kept figure is the highest of
several samples, and a sample counts only where its threads got the CPU time that they asked for. Measuring a ceiling
again (`convsmith machine --measure`) replaces the kept figure.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from convsmith.compiler.cache import disk_cache
from convsmith.diag.expect import is_day, is_positive, json_list
from convsmith.diag.forking import RenewedLock
from convsmith.diag.record import record
from convsmith.machine.host import cache_sizes, cpu, cpu_features
from convsmith.machine.registry import host_targets
from convsmith.measure.peak import Types, peak_sample, read_level_bytes, read_sample, release_read_buffers
from convsmith.measure.timing import MIN_SHARE, Watch
from convsmith.runtime.threads import available_cpus

__all__ = ["Ceiling", "Figure", "known_ceilings", "peak_ceiling", "read_ceiling"]

SAMPLES = 15
"""Samples per figure; a sample takes about 2 ms, or the time to read its buffer once if that is longer."""
MIN_SAMPLES = 3
"""Minimum number of samples of a figure whose samples are long."""
LONGEST = 0.3
"""Seconds after which no further sample is taken, once there are `MIN_SAMPLES`."""

_METHOD = 1
"""Number of the method of measurement. Figures of another method are not used."""

_in_process: dict[str, Figure] = {}
_lock = RenewedLock()


class Figure(NamedTuple):
    """`rate` operations or bytes per nanosecond, measured on `date` (year-month-day, UTC).

    `is_steady` says that at least one sample got its CPU time; other figures are too low, and are not kept.
    """

    rate: float
    date: str
    is_steady: bool


@record(frozen=True)
class Ceiling:
    """A limit of the machine: operations of an instruction set (`table` is "fma_gflops", `name` the level), or bytes
    read from a cache level ("read_gbs"). `sample` measures it once on a given number of threads, in 1e9 per second.
    """

    table: str
    name: str
    types: str
    sample: Callable[[int], float]

    def kept(self, threads: int) -> Figure | None:
        """Return the kept figure; None if the ceiling was never measured on that number of threads."""
        return _kept(self._key(threads))

    def figure(self, threads: int) -> Figure:
        """Return the kept figure; the first call for a number of threads measures it, in 30 to 300 ms."""
        return self.kept(threads) or self.measure(threads)

    def measure(self, threads: int, samples: int = SAMPLES) -> Figure:
        """Measure the ceiling, and keep the figure."""
        try:
            return _measured(self._key(threads), partial(self.sample, threads), threads, samples)
        finally:
            release_read_buffers()

    def _key(self, threads: int) -> str:
        """Return the key of a cache entry: the figure's identity and the facts about the machine that it depends on."""
        facts = (str(_METHOD), cpu().model, *sorted(cpu_features()), repr(cache_sizes()))
        what = (self.table, self.name, self.types, str(threads))
        return "ceiling-" + hashlib.sha256("\0".join((*facts, *what)).encode()).hexdigest()


def peak_ceiling(target: str, types: Types) -> Ceiling:
    """Return the ceiling of multiply-adds.

    Its figures raise UnsupportedError where the CPU lacks the instruction set, or the set has no row for the types.
    """
    return Ceiling("fma_gflops", target, ":".join(types), lambda threads: peak_sample(target, threads, types).gflops)


def read_ceiling(level: str) -> Ceiling:
    """Return the ceiling of reads from a cache level, or from "DRAM"."""
    size = read_level_bytes()[level]
    return Ceiling("read_gbs", level, "", lambda threads: read_sample(size(threads), threads).gbs)


def known_ceilings() -> list[Ceiling]:
    """Return the ceilings of each type of product on each instruction set that runs here, then of each cache level.

    L3 and DRAM are read in parts of one buffer, of up to 4 times the last cache.
    """
    kinds = ((t.name, types) for t in host_targets() for types in dict.fromkeys(row.types for row in t.instructions))
    return [*(peak_ceiling(target, types) for target, types in kinds), *map(read_ceiling, read_level_bytes())]


def _measured(key: str, sample: Callable[[], float], threads: int, samples: int) -> Figure:
    steady: list[float] = []
    starved: list[float] = []
    running = min(threads, available_cpus())
    sample()  # compiles the loop, and touches its memory
    start = time.perf_counter()
    for number in range(samples):
        if number >= MIN_SAMPLES and time.perf_counter() - start > LONGEST:
            break
        watch = Watch()
        rate = sample()
        (steady if watch.cpus / running >= MIN_SHARE else starved).append(rate)
    figure = Figure(max(steady or starved), datetime.now(UTC).date().isoformat(), bool(steady))
    if figure.is_steady:
        with _lock.lock:
            _in_process[key] = figure
        if (cache := disk_cache()) is not None:
            cache.put(key, json.dumps(figure).encode())
    return figure


def _kept(key: str) -> Figure | None:
    with _lock.lock:
        if key in _in_process:
            return _in_process[key]
    cache = disk_cache()
    figure = cache.decoded(key, _decoded) if cache is not None else None
    if figure is not None:
        with _lock.lock:
            _in_process[key] = figure
    return figure


def _decoded(content: bytes) -> Figure:
    """Return the figure of an entry; ValueError if the entry is malformed."""
    rate, date, is_steady = json_list(content, 3)
    if not (is_positive(rate) and is_day(date) and is_steady is True):
        raise ValueError("no figure of a ceiling")
    return Figure(rate, date, is_steady)
