"""The times by which a layer is given to our kernel or left to torch: least of undisturbed samples, kept with their
quality.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from damaged import JSON

import convsmith as cs
from convsmith.compiler.cache import CacheWarning, cache_key, disk_cache
from convsmith.machine.x86.levels import LEVELS

pytest.importorskip("torch")

from convsmith.torch import choice
from convsmith.torch.choice import (
    ALIKE,
    CLEAR,
    LEFT,
    LONG_SECONDS,
    MAX_ROUNDS,
    ROUNDS,
    LeastTimes,
    Times,
    kept_times,
    least_seconds,
)

STEADY, STARVED = 1.0, 0.6


@pytest.fixture
def cache(tmp_path: Any) -> Iterator[None]:
    with cs.settings.scope(cache=str(tmp_path / "cache")):
        yield


def times_of(runs: list[LeastTimes]) -> tuple[Times, list[int]]:
    """Return the times of one layer from the cache or from the next of `runs`, and the rounds that were asked for."""
    rounds: list[int] = []

    def measure(most: int) -> LeastTimes:
        rounds.append(most)
        return runs.pop(0)

    return kept_times("a layer", LEVELS[0], measure), rounds


@pytest.mark.parametrize("content", JSON)
def test_damaged_times_are_measured_again(content: bytes, cache: None) -> None:
    store = disk_cache()
    assert store is not None
    times_of([LeastTimes(2.0, 3.0, True)])
    store.put(cache_key("least times of", "a layer", LEVELS[0].key), content)
    with pytest.warns(CacheWarning, match="is damaged: .*; it is removed and made anew") as caught:
        assert times_of([LeastTimes(4.0, 5.0, True)]) == (Times(4.0, 5.0, True), [MAX_ROUNDS])
    assert len(caught) == 1 and times_of([]) == (Times(4.0, 5.0, False), [])


def test_steady_times_are_measured_once(cache: None) -> None:
    runs = [LeastTimes(2.0, 3.0, True)]
    assert times_of(runs) == ((2.0, 3.0, True), [MAX_ROUNDS])
    assert times_of(runs) == ((2.0, 3.0, False), [])


def test_times_under_load_are_measured_again_until_they_are_steady(cache: None) -> None:
    """Each later run can only shorten them, and takes few rounds."""
    runs = [LeastTimes(9.0, 3.0, False), LeastTimes(4.0, 8.0, False), LeastTimes(2.0, 5.0, True)]
    assert times_of(runs) == ((9.0, 3.0, True), [MAX_ROUNDS])
    assert times_of(runs) == ((4.0, 3.0, True), [ROUNDS])
    assert times_of(runs) == ((2.0, 3.0, True), [ROUNDS])
    assert times_of(runs) == ((2.0, 3.0, False), [])


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[tuple[float, float]]]]:
    """Seconds and CPUs of the samples of the calls "a" and "b"; the last ones are repeated."""
    script: dict[str, list[tuple[float, float]]] = {}

    def sample(call: Any, count: int, _: object) -> choice._Sample:
        rows = script[call()]
        return choice._Sample(*(rows.pop(0) if len(rows) > 1 else rows[0]))

    monkeypatch.setattr(choice, "_sample", sample)
    yield script


def measured() -> LeastTimes:
    return least_seconds(lambda: "a", lambda: "b")


def test_samples_without_their_cpus_do_not_count(samples: dict[str, list[tuple[float, float]]]) -> None:
    samples["a"] = [(0.5, STARVED), (0.5, STARVED), (0.5, STARVED), (1.0, STEADY)]
    samples["b"] = [(3.0, 2.0), (1.0, 1.0), (2.0, 1.9)]  # two threads, of which one waited in the second sample
    assert measured() == (1.0, 2.0, True)


def test_rounds_follow_until_the_two_shortest_samples_are_alike(samples: dict[str, list[tuple[float, float]]]) -> None:
    falling = [(x, STEADY) for x in (9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 4.0 / ALIKE**0.5)]
    samples["a"], samples["b"] = list(falling), [(6.5, STEADY)]
    assert measured() == (4.0 / ALIKE**0.5, 6.5, True)
    samples["a"] = list(falling)
    assert least_seconds(lambda: "a", lambda: "b", most=ROUNDS) == (4.0, 6.5, False)


@pytest.mark.parametrize(("other", "rounds"), [(CLEAR, 1), (CLEAR * 0.99, ROUNDS)])
def test_a_clear_difference_ends_a_measurement(
    other: float, rounds: int, samples: dict[str, list[tuple[float, float]]]
) -> None:
    """The first call, of a second, is a sample."""
    samples["a"], samples["b"] = [(1.0, STEADY)] * MAX_ROUNDS, [(other, STEADY)] * MAX_ROUNDS
    assert measured() == (1.0, other, True)
    assert [MAX_ROUNDS - len(samples[x]) for x in "ab"] == [rounds + 1, rounds + 1]


def test_short_calls_have_two_rounds(samples: dict[str, list[tuple[float, float]]]) -> None:
    short = LONG_SECONDS / 2
    samples["a"], samples["b"] = [(short, STEADY)] * MAX_ROUNDS, [(short * CLEAR, STEADY)] * MAX_ROUNDS
    assert measured() == (short, short * CLEAR, True)
    assert [MAX_ROUNDS - len(samples[x]) for x in "ab"] == [4, 4]  # two calls count how often to repeat them


@pytest.mark.parametrize(("cpus", "rounds"), [(STEADY, 1), (STARVED, MAX_ROUNDS)])
def test_a_certain_difference_needs_no_samples_that_are_alike(
    cpus: float, rounds: int, samples: dict[str, list[tuple[float, float]]]
) -> None:
    unlike = [1.0 / ALIKE ** (2 * n) for n in range(MAX_ROUNDS + 2)]  # each is shorter than the one before
    samples["a"], samples["b"] = [(x, cpus) for x in unlike], [(2 * x, STEADY) for x in unlike]
    assert measured() == (unlike[rounds], 2 * unlike[rounds], cpus == STEADY)


@pytest.mark.parametrize("cpus", [STARVED, 0.0])
def test_a_machine_that_is_busy_all_the_time_gives_times_that_are_not_steady(
    cpus: float, samples: dict[str, list[tuple[float, float]]]
) -> None:
    samples["a"], samples["b"] = [(1.0, cpus)], [(2.0, STEADY)]
    assert measured() == (1.0, 2.0, False)


def test_a_layer_stays_where_it_is_clearly_faster_there() -> None:
    assert Times(1.0, LEFT * 0.99, True).stays and not Times(1.0, LEFT * 1.01, True).stays
