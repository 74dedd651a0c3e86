"""Ceilings are measured once, kept with their date, and measured again on request; a starved sample is not kept."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from damaged import JSON

import convsmith as cs
from convsmith.compiler.cache import CacheWarning, disk_cache
from convsmith.machine.host import cache_sizes
from convsmith.machine.registry import host_targets
from convsmith.measure import ceilings, peak, timing
from convsmith.measure.peak import PeakSample, ReadSample

LINE = "mb1ic16ih9oc16oh9kh3ph1"
TYPES = ("f32", "f32", "f32")


class Clock:
    """Wall-clock and CPU time that pass as told: each sample takes 1 s and gets `share` of it."""

    def __init__(self) -> None:
        self.share, self.wall, self.cpu = 1.0, 0.0, 0.0

    def sample(self) -> None:
        self.wall += 1.0
        self.cpu += self.share

    def perf_counter(self) -> float:
        return self.wall

    def process_time(self) -> float:
        return self.cpu


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """A clock, and samples whose rates are 1, 2, 3, ... operations a nanosecond; no figure is known."""
    clock, rates = Clock(), itertools.count(1)

    def peak(isa: str, threads: int, types: object) -> PeakSample:
        clock.sample()
        return PeakSample(1e-9, next(rates))

    def read(nbytes: int, threads: int) -> ReadSample:
        clock.sample()
        return ReadSample(1e-9, next(rates))

    for module in (ceilings, timing):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(ceilings, "peak_sample", peak)
    monkeypatch.setattr(ceilings, "read_sample", read)
    monkeypatch.setattr(ceilings, "_in_process", {})
    monkeypatch.setattr(ceilings, "_METHOD", -1)  # keys of no other test
    yield clock
    cache = disk_cache()
    assert cache is not None
    cache.clear()


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process knows; what is on disk stays."""
    monkeypatch.setattr(ceilings, "_in_process", {})


def test_a_peak_is_measured_once_and_found_by_other_processes(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ceilings.peak_ceiling("generic", TYPES).figure(1)
    assert first.is_steady and re.fullmatch(r"\d{4}-\d\d-\d\d", first.date)
    measured = clock.wall
    assert ceilings.peak_ceiling("generic", TYPES).figure(1) == first
    forget(monkeypatch)
    assert ceilings.peak_ceiling("generic", TYPES).figure(1) == first and clock.wall == measured


FIGURES = (
    b'["fast", "2026-01-01", true]', b'[NaN, "2026-01-01", true]', b'[0.0, "2026-01-01", true]',
    b'[1.5, "yesterday", true]', b'[1.5, 3, true]', b'[1.5, "2026-01-01", false]',
)  # fmt: skip
"""Entries that resemble a figure."""


@pytest.mark.parametrize("content", (*JSON, *FIGURES))
def test_a_damaged_figure_is_measured_again(content: bytes, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    ceiling, cache = ceilings.peak_ceiling("generic", TYPES), disk_cache()
    assert cache is not None
    ceiling.figure(1)
    forget(monkeypatch)
    cache.put(ceiling._key(1), content)
    measured = clock.wall
    with pytest.warns(CacheWarning, match="is damaged: .*; it is removed and made anew") as caught:
        assert ceiling.figure(1).is_steady
    assert len(caught) == 1 and clock.wall > measured


def test_the_highest_sample_counts_and_the_first_does_not(clock: Clock) -> None:
    # 15 samples of 1 s each: after three the time for one figure is over. The first run compiles the loop.
    assert ceilings.peak_ceiling("generic", TYPES).figure(1).rate == pytest.approx(1 + ceilings.MIN_SAMPLES)


def test_figures_are_kept_apart(clock: Clock) -> None:
    kinds = itertools.product(("generic", "avx2"), (1, 2), (TYPES, ("f64", "f64", "f64")))
    peaks = [ceilings.peak_ceiling(isa, types).figure(n) for isa, n, types in kinds]
    reads = [ceilings.read_ceiling(level).figure(n) for level in ("L1", "DRAM") for n in (1, 2)]
    assert len({c.rate for c in (*peaks, *reads)}) == 12


def test_measuring_again_replaces_the_kept_figure(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    old = ceilings.read_ceiling("L1").figure(1)
    new = ceilings.read_ceiling("L1").measure(1)
    assert new.rate > old.rate and ceilings.read_ceiling("L1").figure(1) == new
    forget(monkeypatch)
    assert ceilings.read_ceiling("L1").figure(1) == new


def test_a_starved_measurement_is_marked_and_not_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.share = 0.5
    starved = ceilings.peak_ceiling("generic", TYPES).figure(1)
    assert not starved.is_steady
    clock.share = 1.0
    steady = ceilings.peak_ceiling("generic", TYPES).figure(1)
    assert steady.is_steady and steady.rate > starved.rate
    clock.share = 0.5
    ceilings.peak_ceiling("generic", TYPES).measure(1)
    forget(monkeypatch)
    assert ceilings.peak_ceiling("generic", TYPES).figure(1) == steady


def test_without_a_cache_figures_are_kept_in_the_process(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "disk_cache", lambda: None)
    assert ceilings.read_ceiling("L1").figure(1) == ceilings.read_ceiling("L1").figure(1)


def test_explain_gives_the_kept_figures_and_their_date(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    k = cs.compile(LINE, target="generic", threads=1)
    page = k.explain()
    assert f"measured {ceilings.peak_ceiling('generic', TYPES).figure(1).date}:" in page
    clock.share = 0.1
    assert k.explain() == page
    assert "the machine was busy" in cs.compile(LINE, target="generic", threads=2).explain()


def test_measured_rates_of_this_machine_are_plausible() -> None:
    peak, read = ceilings.peak_ceiling("generic", TYPES).measure(1, 3), ceilings.read_ceiling("L1").measure(1, 3)
    assert 0.1 < peak.rate < 1e4 and 0.1 < read.rate < 1e4


def test_known_ceilings() -> None:
    known = ceilings.known_ceilings()
    products = [(c.name, c.types) for c in known if c.table == "fma_gflops"]
    assert set(products) == {(t.name, ":".join(row.types)) for t in host_targets() for row in t.instructions}
    assert len(set(products)) == len(products)
    assert [c.name for c in known if c.table == "read_gbs"] == [*cache_sizes(), "DRAM"]
    assert all(c.measure(1, 1).rate > 0 for c in known)
    assert peak._read_loop.cache_info().currsize == 0  # the buffers are free again
