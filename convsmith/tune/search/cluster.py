"""Searches on the machines of a Dask cluster: every problem on each kind of machine, one search at a time per host.

A job is the search of one problem. It runs in its own process on a worker of the right kind of machine, and sends each
row as soon as it is measured. A job whose worker dies runs again on another worker of that kind, with the rows that are
known by then, so a lost worker costs only time. Needs the extra `convsmith[cluster]`.
"""

from __future__ import annotations

import fcntl
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from queue import SimpleQueue
from typing import Any

from convsmith.compiler.cache import CacheWarning, disk_cache
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.diag.record import record
from convsmith.diag.warning import warn
from convsmith.machine.registry import host_target
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem
from convsmith.tune.records.checked_rows import checked
from convsmith.tune.records.database import IN_MEMORY, Database
from convsmith.tune.records.measured import DatabaseWarning, Measured
from convsmith.tune.records.origin import compiler_key, machine_key, machine_text
from convsmith.tune.search.search import search
from convsmith.tune.search.workers import Workers
from convsmith.tune.vector_width import machine_of

__all__ = ["ClusterOutcome", "search_on_cluster"]

TOPIC = "convsmith-measurements"
ATTEMPTS = 4
"""Number of workers that may die during the job of one problem before the job is given up."""
CONNECT_SECONDS = 10.0
"""Seconds to wait for the scheduler."""


@record(frozen=True)
class ClusterOutcome:
    """The result of a job: the ``problem``, the key of the ``machine``, and the reason why it ``failed``; empty on
    success.
    """

    problem: Problem
    machine: str
    failed: str = ""


@record(frozen=True)
class _Job:
    """The search of one problem on one kind of machine."""

    line: str
    machine: str
    threads: int
    seconds: float
    target: str | None


class _Sending(Database):
    """A database in memory that also sends the rows that are written to it."""

    def __init__(self, send: Callable[[list[tuple[object, ...]]], None]) -> None:
        super().__init__(IN_MEMORY)
        self.send = send

    def put(self, rows: Iterable[Measured]) -> None:
        rows = list(rows)
        super().put(rows)
        self.send([astuple(row) for row in rows])


def describe_worker() -> tuple[str, str, str]:
    """Return the machine of this worker as a key and in words, and its compiler."""
    return machine_key(), machine_text(), compiler_key()


def run_job(job: _Job, known: Sequence[tuple[Any, ...]]) -> list[tuple[object, ...]]:
    """Search on a worker, send each row, and return all rows; ``known`` are the rows of earlier attempts."""
    from distributed import get_worker

    worker = get_worker()
    problem = parse_problem(job.line)
    level = host_target(job.target or machine_of(problem).name)
    with _one_at_a_time(), _Sending(lambda rows: worker.log_event(TOPIC, rows)) as database, Workers() as workers:
        Database.put(database, [Measured(*row) for row in known])
        search(problem, level, job.threads, job.seconds, database, workers)
        return [astuple(row) for row in database.rows()]


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold the host's lock of measurements; the system releases it when the process dies.

    The lock file is in the directory of the cache, where no other user can hold or replace it. Without a cache there is
    no lock.
    """
    cache = disk_cache()
    lock = cache.opened(f"measuring-{platform.node()}.lock") if cache is not None else None
    if lock is None:
        warn("without a cache, searches on one host disturb each other's times", CacheWarning)
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def checked_rows(arrived: Iterable[Any]) -> tuple[list[Measured], list[str]]:
    """Return the legal rows of the lists that workers have sent, and the flaws of the illegal rows."""
    rows, flaws = [], []
    for several in arrived:
        for values in several if isinstance(several, list | tuple) else [several]:
            try:
                rows.append(checked(values))
            except (TypeError, ValueError) as flaw:
                flaws.append(str(flaw))
    return rows, flaws


def search_on_cluster(
    address: str, problems: Sequence[Problem], threads: int, seconds: float, target: str | None, database: Database,
    tell: Callable[[ClusterOutcome], None],
) -> None:  # fmt: skip
    """Search every problem on each kind of machine of the cluster; write the rows to ``database`` as they come.

    ``seconds`` is the time for all searches together. ``tell`` receives each outcome. UsageError if no scheduler
    answers.
    """
    with import_lock:
        try:
            import distributed
        except ImportError:
            raise UnsupportedError("--cluster needs Dask: install convsmith[cluster]", code="no-dask") from None
    connect: Any = distributed.Client
    try:
        client = connect(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(f"--cluster={address}: no scheduler answers: {error}", code="cluster") from None
    try:
        _Coordinator(client, problems, threads, seconds, target, database, tell).run()
    finally:
        client.close()


class _Coordinator:
    """Hands out jobs, one at a time for each worker, and gathers their rows."""

    def __init__(
        self, client: Any, problems: Sequence[Problem], threads: int, seconds: float, target: str | None,
        database: Database, tell: Callable[[ClusterOutcome], None],
    ) -> None:  # fmt: skip
        self.client, self.database, self.tell = client, database, tell
        self.problems = problems
        self.threads, self.seconds, self.target = threads, seconds, target
        self.rows: dict[tuple[str, str, str], Measured] = {}
        self.arrived: SimpleQueue[Any] = SimpleQueue()
        self.machines: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.hosts: dict[str, set[str]] = {}
        self.has_warned = False

    def run(self) -> None:
        self.client.subscribe_topic(TOPIC, self._receive)
        try:
            self._label()
            if not self.labels:
                raise UsageError("the cluster has no worker", code="cluster")
            queue = [(job, 1) for machine in sorted(self.hosts) for job in self._jobs(machine)]
            running: dict[Any, tuple[_Job, int, str]] = {}
            while queue or running:
                self._label()
                self._start(queue, running)
                self._collect(queue, running)
                self._flush()
        finally:
            self.client.unsubscribe_topic(TOPIC)
            self._flush()

    def _jobs(self, machine: str) -> Iterator[_Job]:
        """Yield the jobs of a kind of machine; its hosts share the total time."""
        seconds = self.seconds * len(self.hosts[machine]) / len(self.problems)
        for problem in self.problems:
            yield _Job(str(problem), machine, self.threads, seconds, self.target)

    def _receive(self, event: tuple[float, Any]) -> None:
        """Take rows from a worker; runs in the client's thread."""
        self.arrived.put(event[1])

    def _flush(self) -> None:
        """Write the rows that have arrived; illegal rows are dropped, with one warning."""
        arrived = [self.arrived.get() for _ in range(self.arrived.qsize())]
        rows, flaws = checked_rows(arrived)
        if flaws and not self.has_warned:
            self.has_warned = True
            warn(f"rows of a worker are damaged and not used; the first one: {flaws[0]}", DatabaseWarning)
        self.rows |= {(row.problem, row.config, row.machine): row for row in rows}
        if rows:
            self.database.put(rows)

    def _label(self) -> None:
        """Identify the machines of new workers; forget workers that are gone."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        addresses = set(workers)
        self.labels = {a: m for a, m in self.labels.items() if a in addresses}
        new = [a for a in addresses if a not in self.labels]
        if not new:
            return
        for address, answer in self.client.run(describe_worker, workers=new, on_error="ignore").items():
            machine, text, _ = answer
            self.labels[address] = machine
            self.hosts.setdefault(machine, set()).add(workers[address]["host"])
            if machine not in self.machines:
                self.machines[machine] = text
                self.database.name_machine(machine, text)

    def _start(self, queue: list[tuple[_Job, int]], running: dict[Any, tuple[_Job, int, str]]) -> None:
        """Give a job to each idle worker of its kind of machine."""
        busy = {address for *_, address in running.values()}
        for job, attempt in list(queue):
            address = next((a for a, m in self.labels.items() if m == job.machine and a not in busy), None)
            if address is None:
                if job.machine not in self.labels.values() and not running:
                    queue.remove((job, attempt))
                    self._done(job, "no worker of this kind of machine is left")
                continue
            queue.remove((job, attempt))
            busy.add(address)
            known = [astuple(r) for r in self.rows.values() if (r.problem, r.machine) == (job.line, job.machine)]
            future = self.client.submit(
                run_job, job, known, workers=[address], allow_other_workers=False, pure=False, retries=0
            )
            running[future] = job, attempt, address

    def _collect(self, queue: list[tuple[_Job, int]], running: dict[Any, tuple[_Job, int, str]]) -> None:
        """Collect finished jobs; jobs whose worker is gone return to the queue."""
        time.sleep(0.05)
        for future, (job, attempt, address) in list(running.items()):
            if future.status == "finished":
                del running[future]
                self.arrived.put(future.result())
                self._done(job, "")
            elif future.status in ("error", "cancelled", "lost") or address not in self.labels:
                del running[future]
                error = future.exception() if future.status == "error" else None
                is_lost = error is None or type(error).__name__ in ("KilledWorker", "CommClosedError")
                future.cancel()
                if is_lost and attempt < ATTEMPTS:
                    queue.append((job, attempt + 1))
                else:
                    self._done(job, str(error or f"{attempt} workers died").partition("\n")[0])

    def _done(self, job: _Job, failed: str) -> None:
        self._flush()
        self.tell(ClusterOutcome(parse_problem(job.line), job.machine, failed))
