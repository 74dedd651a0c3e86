"""Programs: the kernels of a network, the steps that call them, and the memory behind each pointer of a step."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from convsmith.codegen.artifact import Artifact
from convsmith.diag.record import record
from convsmith.exporter.interface import Interface
from convsmith.machine.base import Machine
from convsmith.network.graph import Work
from convsmith.network.image import NetworkValue
from convsmith.runtime.arrays import Array

__all__ = ["TENSORS", "WEIGHTS", "WORKSPACE", "MemoryPlace", "NetworkProgram", "ProgramKernel", "ProgramStep"]


WEIGHTS, WORKSPACE, TENSORS = 0, 1, 2
"""Areas of memory by number: packed weights, the memory of one call, and, from `TENSORS`, inputs and then outputs."""


class MemoryPlace(NamedTuple):
    """An address: `offset` bytes from the start of an area, by its number."""

    area: int
    offset: int = 0


@record(frozen=True)
class ProgramKernel:
    """A kernel for a `machine` that steps call, by the functions of its `interface`."""

    work: Work
    artifact: Artifact
    interface: Interface
    machine: Machine


@record(frozen=True)
class ProgramStep:
    """A call of the kernel `kernel`, a number, or of the function that packs its `operand`, with a place for each
    parameter; it computes the nodes `names` of the model.

    While it runs, values of `alive` bytes of the workspace are needed. `apart` says why it is not one kernel with the
    step that computes what it reads; it is empty if no other step does.
    """

    kernel: int
    operand: str
    places: tuple[MemoryPlace, ...]
    names: tuple[str, ...]
    alive: int = 0
    apart: str = ""


@record(frozen=True)
class NetworkProgram:
    """A network as steps: kernels, inputs and outputs, the packed weights, and the bytes of the workspace of a call,
    for `threads` of the machine `target`.

    In one step, values of `bound` bytes are alive: no workspace is smaller.
    """

    name: str
    kernels: tuple[ProgramKernel, ...]
    steps: tuple[ProgramStep, ...]
    inputs: tuple[NetworkValue, ...]
    outputs: tuple[NetworkValue, ...]
    weights: Array = field(repr=False)
    workspace: int
    bound: int
    target: Machine
    threads: int

    @property
    def needs(self) -> tuple[str, ...]:
        """The features of a CPU that kernels use."""
        return tuple(dict.fromkeys(x for kernel in self.kernels for x in kernel.artifact.needs))
