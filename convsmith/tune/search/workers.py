"""The processes of a search: one for each CPU compiles configs, and one times the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from convsmith.runtime.threads import available_cpus
from convsmith.tune.search.process import REQUEST_SECONDS, WORKER, WorkerDied, WorkerProcess

__all__ = ["Workers"]


class Workers:
    """Worker processes that start at their first request.

    ``timing`` makes kernels of artifacts and times them. The compilers work in parallel, and no kernel is timed
    meanwhile, because they would disturb the measurement.
    """

    def __init__(self, command: Sequence[str] = WORKER, seconds: float = REQUEST_SECONDS) -> None:
        self.timing = WorkerProcess(command, seconds)
        self._compilers = [WorkerProcess(command, seconds) for _ in range(available_cpus())]
        self._threads = ThreadPoolExecutor(len(self._compilers))

    def compiled(
        self, problem: str, target: str, threads: int, configs: Sequence[str], end: float = float("inf")
    ) -> list[dict[str, Any] | WorkerDied | None]:
        """Return the answer for each config: its artifact or the reason of its refusal, or the compiler's death.

        Configs whose turn comes after the time ``end`` have the answer None, except the first config.
        """
        idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        for process in self._compilers:
            idle.put(process)

        def compile_one(number: int) -> dict[str, Any] | WorkerDied | None:
            if number and perf_counter() >= end:
                return None
            process = idle.get()
            try:
                return process.ask(
                    op="compile", problem=problem, target=target, threads=threads, config=configs[number]
                )
            except WorkerDied as death:
                return death
            finally:
                idle.put(process)

        return list(self._threads.map(compile_one, range(len(configs))))

    def close(self) -> None:
        """End the processes; requests that wait for one start no other."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in (self.timing, *self._compilers):
            process.close()
        self._threads.shutdown()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
