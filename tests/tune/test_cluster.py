"""Searches on a cluster of several worker processes of this machine, one of which is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convsmith.diag.errors import UsageError
from convsmith.problem import parse_problem
from convsmith.tune.records.database import Database
from convsmith.tune.records.origin import machine_key
from convsmith.tune.search.cluster import ClusterOutcome, search_on_cluster

distributed = pytest.importorskip("distributed")

PROBLEMS = [parse_problem(f"--stag=axb --dtag=axb mb1ic8ih{n}oc40oh{n}kh3ph1").canonical() for n in (5, 6, 7)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as made:
        yield made


def test_a_killed_worker_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    """A worker is killed while it searches. What it had measured is kept, and every problem is finished."""
    outcomes: list[ClusterOutcome] = []
    killed: list[int] = []
    with Database(tmp_path / "m.db") as database:
        searching = threading.Event()

        def kill() -> None:
            with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
                while not searching.is_set():
                    processing = client.processing()
                    busy = [address for address, jobs in processing.items() if jobs]
                    if busy:
                        time.sleep(0.5)
                        (pid,) = client.run(os.getpid, workers=busy[:1]).values()
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                        return
                    time.sleep(0.02)

        killer = threading.Thread(target=kill)
        killer.start()
        search_on_cluster(cluster.scheduler_address, PROBLEMS, 1, 1.5, None, database, outcomes.append)
        searching.set()
        killer.join()
        assert killed
        assert [o.failed for o in outcomes] == [""] * 3
        assert {o.problem for o in outcomes} == set(PROBLEMS)
        rows = database.rows()
        assert {row.problem for row in rows} == {str(p) for p in PROBLEMS}
        assert {row.machine for row in rows} == {machine_key()} == set(database.machines())


def test_an_address_without_a_scheduler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convsmith.tune.search.cluster.CONNECT_SECONDS", 0.5)
    message = r"--cluster=tcp://127\.0\.0\.1:1: no scheduler answers"
    with Database(tmp_path / "m.db") as database, pytest.raises(UsageError, match=message):
        search_on_cluster("tcp://127.0.0.1:1", PROBLEMS, 1, 1.0, None, database, lambda outcome: None)
