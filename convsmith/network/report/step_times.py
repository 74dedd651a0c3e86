"""The time of each step of a network: steps run one by one, in order, on the memory of one call, so that each finds the
caches as the step before it leaves them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

from convsmith.diag.record import record
from convsmith.measure.timing import ROUNDS, SAMPLE_SECONDS, Spread, spread
from convsmith.network.driver import driver_artifact, entries_of
from convsmith.network.graph import products_of
from convsmith.network.network import prepared_driver
from convsmith.network.program import NetworkProgram
from convsmith.network.report.step_bounds import StepBound, step_bounds
from convsmith.runtime.arrays import Array, address_of, aligned_empty
from convsmith.runtime.host import HostLibrary

__all__ = ["NetworkTimes", "StepTime", "network_times"]

_Call = Callable[[], object]


@record(frozen=True)
class StepTime:
    """The seconds of a step, their ratio to the seconds of all steps, its operations, which are 0 if it is no
    convolution or product, and the bound of its seconds.
    """

    seconds: Spread
    share: float
    flops: int
    bound: StepBound

    @property
    def lost(self) -> float:
        """The seconds by which the step takes longer than its bound."""
        return max(self.seconds.median - self.bound.seconds, 0.0)

    @property
    def gflops(self) -> float | None:
        """1e9 operations per second; None for steps that are no convolution or product."""
        return self.flops / self.seconds.median * 1e-9 if self.flops and self.seconds.median else None


@record(frozen=True)
class NetworkTimes:
    """The seconds of one call of a network, and the times of its `steps`, in order."""

    whole: Spread
    steps: tuple[StepTime, ...]

    def slowest(self, count: int) -> list[int]:
        """Return the indices of the `count` steps that take most time, the slowest first."""
        return sorted(range(len(self.steps)), key=lambda n: -self.steps[n].share)[:count]


def network_times(
    program: NetworkProgram, libraries: Sequence[HostLibrary], arrays: Sequence[Array], rounds: int = ROUNDS
) -> NetworkTimes:
    """Return the times of a network whose kernels are `libraries`, on inputs and outputs in order, from `rounds`.

    In each round all steps run in order, then the whole network. The time of a call without a step is subtracted from
    that of each step.
    """
    memory, addresses = aligned_empty(max(program.workspace, 1)), [address_of(x) for x in arrays]

    def bound(part: NetworkProgram) -> _Call:
        call = prepared_driver(driver_artifact(part), entries_of(part), libraries, part.weights, len(arrays))
        frame = call.frame(address_of(memory), addresses, (memory, arrays))
        (run,) = frame.runs
        return lambda kept=frame: run()  # type: ignore[misc]

    empty, *calls = (bound(replace(program, steps=steps)) for steps in ((), *((step,) for step in program.steps)))
    parts = [empty, empty, *calls, bound(program)]  # the first call finds the caches as the whole network leaves them
    for _ in range(2):  # the first calls fill caches and start threads
        passes = max(1, ceil(SAMPLE_SECONDS / max(sum(_pass(parts, 1)), 1e-9)))
    _, nothing, *samples = zip(*(_pass(parts, passes) for _ in range(rounds)))
    *of_steps, whole = [spread([max(x - y, 0.0) for x, y in zip(own, nothing)]) for own in samples]
    total = sum(x.median for x in of_steps) or 1.0
    bounds = step_bounds(program)
    return NetworkTimes(
        whole, tuple(StepTime(x, x.median / total, _flops(program, n), bounds[n]) for n, x in enumerate(of_steps))
    )


def _pass(calls: Sequence[_Call], passes: int) -> list[float]:
    """Return the seconds of each call, in their order, as the mean of `passes`."""
    sums = [0.0] * len(calls)
    for _ in range(passes):
        before = time.perf_counter()
        for n, call in enumerate(calls):
            call()
            after = time.perf_counter()
            sums[n] += after - before
            before = after
    return [x / passes for x in sums]


def _flops(program: NetworkProgram, n: int) -> int:
    """Return the operations of the products of step `n`; 0 if it packs an operand."""
    step = program.steps[n]
    work = program.kernels[step.kernel].work
    return 0 if step.operand else sum(x.flops_dense for x in products_of(work))
