"""The process that compiles and times candidates, so that a kernel that kills its process kills no search.

It reads requests as lines of JSON from its standard input, and answers each with one line:

    {"op": "compile", "problem": LINE, "target": NAME, "threads": N, "config": CONFIG}   an artifact in base64
    {"op": "open", "problem": LINE, "target": NAME}         the problem of the requests that follow
    {"op": "make", "config": CONFIG, "artifact": ARTIFACT}  compare results, warm up
    {"op": "sample", "config": CONFIG}                      seconds per call of one sample

The first config of a problem is the reference of results. All configs of a problem read and write the same memory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any

from convsmith.codegen.artifact import FINITE, Artifact
from convsmith.compiler.service import compile_or_load
from convsmith.diag.errors import ConfigError, ConvsmithError
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_target
from convsmith.measure.calls import aligned_inputs, bound_call
from convsmith.measure.timing import Sampler, wait_until_idle
from convsmith.measure.verification import real_arrays
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem
from convsmith.runtime.host_kernel import HostKernel
from convsmith.schedule.config import Config

__all__ = ["Worker", "main"]

SAMPLE_SECONDS = 2e-3
"""Approximate duration of one sample in seconds."""
WARM_UP = 1 / 16
"""Ratio of the warm-up calls before a sample to the calls in it; small, because a worker runs only kernels of this
project.
"""
INEXACT = 1e-3
"""Maximum difference of an inexact result from the exact one, relative to the largest element, that is not a fault."""


class _Loaded:
    """An artifact as a kernel with the calls that measurements need."""

    def __init__(self, problem: Problem, target: Machine, artifact: Artifact) -> None:
        self.problem = problem
        self.target = target
        self._host = HostKernel(artifact)
        self.pack = self._host.pack
        self.bind = self._host.bind

    def bind_each(self, **arrays: Any) -> Callable[[], object]:
        """Return a function that computes on these arrays by name."""
        return self._host.bind_each(arrays)

    @property
    def packable(self) -> Collection[str]:
        """The names of the operands that `pack_each` packs."""
        return self._host.packable

    def resident(self, arrays: Mapping[str, Any]) -> Callable[[], object] | None:
        """Return a call on copies of these arrays in memory of the device, if it has its own."""
        return self._host.resident(arrays)

    def pack_each(self, **operands: Any) -> dict[str, Any]:
        """Return packed operands by name."""
        return self._host.pack_each(operands)

    def run(self, **arrays: Any) -> dict[str, Any]:
        return self._host.run(arrays)


class Worker:
    """Answers requests about one problem at a time."""

    def __init__(self) -> None:
        self._problem: Problem | None = None
        self._expected: dict[str, Any] | None = None
        self._is_exact = True
        self._samplers: dict[str, Sampler] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request. A config that makes no kernel gives {"status": "refused"} with the reason."""
        if request["op"] == "compile":
            return _compiled(request["problem"], request["target"], request["threads"], request["config"])
        if request["op"] == "open":
            return self._open(request["problem"], request["target"])
        if request["op"] == "make":
            return self._make(request["config"], request["artifact"])
        wait_until_idle()
        return {"seconds": self._samplers[request["config"]]()}

    def _open(self, line: str, target: str) -> dict[str, Any]:
        self._problem = problem = parse_problem(line).canonical()
        self._target = host_target(target)
        # All configs compute with the same weights: the weights of kernels that are limited to small weights.
        limit = min((row.limit for row in self._target.instructions if row.limit), default=FINITE)
        limits = {t.name: limit for t in problem.inputs if t.holds == "wei"}
        self._integers = aligned_inputs(problem, random_arrays(problem, limits=limits))
        self._inputs = aligned_inputs(problem, real_arrays(problem, limits=limits))
        self._outputs: dict[str, Any] | None = None
        self._expected, self._is_exact, self._samplers = None, True, {}
        return {}

    def _make(self, text: str, artifact: str) -> dict[str, Any]:
        problem = self._problem
        assert problem is not None
        config = Config.parse(text)
        kernel = _Loaded(problem, self._target, Artifact.from_bytes(b64decode(artifact)))
        results = kernel.run(**{name: array.copy() for name, array in self._integers.items()})
        is_exact = self._is_exact and not config.has_transform
        if self._expected is None:
            self._expected, self._is_exact = results, is_exact
        elif not all(_equal(results[name], self._expected[name], is_exact) for name in results):
            return {"status": "wrong", "note": "its results differ from those of the first config"}
        call, outputs = bound_call(problem, kernel, self._inputs, self._outputs)
        self._outputs = outputs
        self._samplers[text] = sampler = Sampler(call, SAMPLE_SECONDS, WARM_UP)
        return {"status": "ok", "repeats": sampler.repeats}


def _compiled(line: str, target: str, threads: int, text: str) -> dict[str, Any]:
    """Return the artifact of a config as text, or the reason why it makes no kernel."""
    try:
        artifact = compile_or_load(
            parse_problem(line).canonical(), target=host_target(target), choose=_no_choice, config=Config.parse(text),
            threads=threads,
        )
    except ConfigError as error:
        return {"status": "refused", "note": f"{error.code}: {error}"}
    except ConvsmithError as error:
        return {"status": "refused", "note": f"{type(error).__name__}: {error}".partition("\n")[0]}
    return {"status": "ok", "artifact": b64encode(artifact.to_bytes()).decode()}


def _equal(one: Any, expected: Any, is_exact: bool) -> bool:
    """Return whether two results on integers are equal; transforms that are not exact may differ by `INEXACT`."""
    same = (one == expected) | ((one != one) & (expected != expected))
    if is_exact or same.all():
        return bool(same.all())
    one, expected = one.astype("f8"), expected.astype("f8")
    return bool(abs(one - expected).max() <= INEXACT * abs(expected).max())


def _no_choice(*_: object) -> Config:
    raise AssertionError("each config is given")


def main(make: Callable[[], Worker] = Worker) -> None:
    """Answer requests until standard input ends; the process then ends immediately, because no answer is expected."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process without a traceback
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # only answers go to the pipe
    requests: SimpleQueue[str] = SimpleQueue()
    Thread(target=_read, args=(requests,), daemon=True).start()
    worker = make()
    while True:
        answer = worker.answer(json.loads(requests.get()))
        try:
            answers.write(json.dumps(answer) + "\n")
        except BrokenPipeError:
            os._exit(0)


def _read(requests: SimpleQueue[str]) -> None:
    """Read requests; end the process, even while a kernel runs, when the process that sends them has ended."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
