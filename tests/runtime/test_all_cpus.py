"""Work that threads for all CPUs share: each item once, the first error, and no thread that is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from convsmith.runtime import all_cpus
from convsmith.runtime.all_cpus import on_all_cpus, on_other_cpus

CPUS = (1, 2, 5)
LONGEST = 60.0
"""Seconds after which a test fails that waits for threads."""


@pytest.fixture(params=CPUS, autouse=True)
def cpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(all_cpus, "available_cpus", lambda: request.param)
    before = threading.active_count()
    yield request.param
    assert threading.active_count() == before


@pytest.mark.parametrize("count", [0, 1, 100])
def test_each_item_is_worked_on_once(count: int) -> None:
    found = list[int]()
    on_all_cpus(found.append, range(count))
    assert sorted(found) == [*range(count)]


def test_a_thread_for_each_cpu_takes_part(cpus: int) -> None:
    meeting, found = threading.Barrier(cpus), set[int]()

    def work(n: int) -> None:
        meeting.wait(LONGEST)
        found.add(threading.get_ident())

    on_all_cpus(work, range(cpus))
    assert len(found) == cpus


def test_other_cpus_work_while_the_block_runs(cpus: int) -> None:
    begun, own = threading.Event(), list[bool]()

    def work(_: int) -> None:
        own.append(threading.current_thread() is threading.main_thread())
        begun.set()

    with on_other_cpus(work, range(3)):
        assert begun.wait(LONGEST if cpus > 1 else 0) is (cpus > 1)
    assert len(own) == 3 and (cpus > 1 or all(own))


def test_the_first_error_of_a_call_is_raised() -> None:
    def work(n: int) -> None:
        if n == 3:
            raise KeyError(n)

    with pytest.raises(KeyError, match="3"):
        on_all_cpus(work, range(9))


def test_an_error_in_the_block_ends_the_work(cpus: int) -> None:
    found = list[int]()
    with pytest.raises(ZeroDivisionError), on_other_cpus(found.append, range(1000)):
        raise ZeroDivisionError
    assert len(found) <= 1000 and (cpus > 1 or not found)


@pytest.mark.usefixtures("cpus")
def test_work_is_done_where_the_system_has_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(all_cpus.Thread, "start", refuse)
    found = list[int]()
    on_all_cpus(found.append, range(9))
    assert found == [*range(9)]
