"""The shortest time of each step of a network: that of its multiply-adds, or of moving its bytes.

Weights come from the memory that holds all weights, values from the one that holds the workspace. The rates are the
machine's kept ceilings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from convsmith.machine.host import cache_sizes
from convsmith.measure.ceilings import peak_ceiling, read_ceiling
from convsmith.measure.peak import Types, peak_types
from convsmith.network.graph import products_of
from convsmith.network.program import TENSORS, WEIGHTS, WORKSPACE, MemoryPlace, NetworkProgram, ProgramStep
from convsmith.problem.problem import Problem
from convsmith.tune.vector_width import machine_of

__all__ = ["StepBound", "step_bounds"]

_Peaks: TypeAlias = dict[tuple[str, Types], float]
"""Multiply-adds, as operations per nanosecond, by level and types."""


class StepBound(NamedTuple):
    """The seconds that the multiply-adds of a step take at the machine's peak, and those that its bytes take."""

    products: float
    bytes: float

    @property
    def seconds(self) -> float:
        """The shortest time of the step; a transform of a convolution, which has fewer multiply-adds, may take less."""
        return max(self.products, self.bytes)

    @property
    def side(self) -> str:
        """The side that takes this time: the multiply-adds or the bytes."""
        return "multiply-adds" if self.products >= self.bytes else "bytes"


def step_bounds(program: NetworkProgram) -> tuple[StepBound, ...]:
    """Return the bound of each step. The first call measures ceilings, which takes up to 300 ms each."""
    weights, values = _rate(program, program.weights.size + program.workspace), _rate(program, program.workspace)
    rates = {WEIGHTS: weights, WORKSPACE: values}
    peaks: _Peaks = {}
    found = []
    for step in program.steps:
        seconds = sum(nbytes / rates.get(area, values) for area, nbytes in _moved(program, step))
        found.append(StepBound(_products(program, step, peaks), seconds))
    return tuple(found)


def _rate(program: NetworkProgram, nbytes: int) -> float:
    """Return the bytes a second that threads read from the nearest memory that holds so many."""
    level = next((level for level, size in cache_sizes().items() if nbytes <= size), "DRAM")
    return read_ceiling(level).figure(program.threads).rate * 1e9


def _moved(program: NetworkProgram, step: ProgramStep) -> Iterator[tuple[int, int]]:
    """Yield the area and the bytes of each array that a step reads or writes, without the workspace of its kernel. An
    array that it reads as several, such as queries and keys in one product, counts once.
    """
    parameters = program.kernels[step.kernel].interface.function(step.operand).parameters
    moved: dict[tuple[bool, MemoryPlace], int] = {}
    for p, place in zip(parameters, step.places):
        if p.tensor is not None or p.of:
            key = p.is_written, place
            moved[key] = max(moved.get(key, 0), p.nbytes)
    for (_, (area, _)), nbytes in moved.items():
        yield min(area, TENSORS), nbytes


def _products(program: NetworkProgram, step: ProgramStep, peaks: _Peaks) -> float:
    """Return the seconds of the multiply-adds of a step."""
    work = program.kernels[step.kernel].work
    return 0.0 if step.operand else sum(_seconds(x, program.threads, peaks) for x in products_of(work))


def _seconds(problem: Problem, threads: int, peaks: _Peaks) -> float:
    """Return the seconds of the multiply-adds of a problem; 0 if the machine's peak is not known. A figure that is
    measured under load is not kept, so `peaks` holds it for the other problems of a program.
    """
    machine = machine_of(problem)
    types = peak_types(problem, machine)
    if types is None:
        return 0.0
    if (machine.name, types) not in peaks:
        peaks[machine.name, types] = peak_ceiling(machine.name, types).figure(threads).rate
    return problem.flops_real / (peaks[machine.name, types] * 1e9)
