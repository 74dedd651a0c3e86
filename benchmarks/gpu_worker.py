"""The process in which `gpu.py` runs kernels, so that a kernel that hangs or breaks the GPU ends one row.

Run: python benchmarks/gpu_worker.py TARGET FOLDER

It reads requests as lines of JSON from its standard input, and answers each with one line:

    {"op": "make", "problem": LINE, "config": CONFIG}     a kernel in the cache of the FOLDER, and its config
    {"op": "verify", "problem": LINE, "config": CONFIG}   whether its results are exact on integers
    {"op": "time", "problem": LINE, "config": CONFIG, "rounds": N}   seconds beside the library's
    {"op": "tune", "problem": LINE, "seconds": N}         the config that a search finds
    {"op": "facts"}                                       device, versions and ceilings

The CONFIG is empty where the default is wanted. After an error that is none of convsmith's refusals the answer has the
key "lost", and the process ends: a fault of a kernel stays with the context of the GPU in which it happened.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["GpuWorker", "main"]


class GpuWorker:
    """Answers requests about kernels for a target."""

    def __init__(self, target: str) -> None:
        from convsmith.machine.registry import host_target

        self._target = host_target(target)

    @cached_property
    def subjects(self) -> Any:
        """The kernels and libraries that are timed."""
        from gpu_subjects import CudaSubjects, OpenClSubjects

        assert self._target.device is not None
        return (CudaSubjects if self._target.device.runtime == "cuda" else OpenClSubjects)(self._target)

    def answer(self, op: str, **request: Any) -> dict[str, Any]:
        """Return the answer to a request."""
        answer: dict[str, Any] = getattr(self, f"_{op}")(**request)
        return answer

    def _facts(self) -> dict[str, Any]:
        return dict(self.subjects.facts())

    def _kernel(self, problem: str, config: str) -> tuple[Any, Any]:
        from convsmith.frontend.kernel import CompiledKernel
        from convsmith.problem.lines import parse_problem
        from convsmith.schedule.config import Config

        parsed = parse_problem(problem)
        return parsed, CompiledKernel(parsed, self._target, Config.parse(config) if config else None)

    def _make(self, problem: str, config: str) -> dict[str, Any]:
        start = time.perf_counter()
        _, kernel = self._kernel(problem, config)
        return {"config": str(kernel.config), "made": time.perf_counter() - start}

    def _verify(self, problem: str, config: str) -> dict[str, Any]:
        from convsmith.measure.verification import verify_kernel

        _, kernel = self._kernel(problem, config)
        verdict = verify_kernel(kernel)
        return {"config": str(kernel.config), "wrong": "" if verdict.ok else verdict.detail}

    def _time(self, problem: str, config: str, rounds: int) -> dict[str, Any]:
        from convsmith.measure.timing import alternate, spread

        parsed, kernel = self._kernel(problem, config)
        ours, wrong = self.subjects.kernel(parsed, kernel)
        peer = self.subjects.peer(parsed)
        samples = alternate({"ours": ours} | ({} if peer is None else {"peer": peer}), rounds, lambda: None)
        answer = {
            "config": str(kernel.config), "wrong": wrong, "seconds": spread(samples["ours"]).median,
            "clock": self.subjects.clock(),
        }  # fmt: skip
        if peer is not None:
            answer["peer"] = spread(samples["peer"]).median
            answer["speedup"] = spread([b / a for a, b in zip(samples["ours"], samples["peer"])]).median
        return answer

    def _tune(self, problem: str, seconds: float) -> dict[str, Any]:
        from convsmith.problem.lines import parse_problem
        from convsmith.tune.records.database import IN_MEMORY, Database
        from convsmith.tune.search.search import search
        from convsmith.tune.search.workers import Workers

        canonical = parse_problem(problem).canonical()
        with Database(IN_MEMORY) as database, Workers() as workers:
            found = search(canonical, self._target, 1, seconds, database, workers)
        best = found.best
        return {"config": "" if best is None else str(best.config), "tried": sum(found.tried.values())}


def main() -> None:
    """Answer requests until the input ends."""
    target, folder = sys.argv[1:]
    os.environ["CONVSMITH_CACHE"] = folder
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, str(Path(__file__).parent))
    from convsmith.diag.errors import ConfigError, UnsupportedError, UsageError

    worker = GpuWorker(target)
    for line in sys.stdin:
        is_lost = False
        try:
            answer = worker.answer(**json.loads(line))
        except (ConfigError, UnsupportedError, UsageError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        except Exception as error:
            traceback.print_exc()
            answer, is_lost = {"error": f"{type(error).__name__}: {error}", "lost": True}, True
        print(json.dumps(answer), file=answers, flush=True)
        if is_lost:
            os._exit(1)


if __name__ == "__main__":
    main()
