"""Machines of the kernels of a network whose weights are known, without the instructions that these weights rule out.

An instruction may compute its specification up to a limit of the weights. A kernel on its own has that instruction and
falls back on another kernel for larger weights; in a network it is known before kernels are compiled, and before their
configs are chosen, whether weights are larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from convsmith.machine.base import Machine
from convsmith.network.graph import NetworkNode, Work
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem
from convsmith.problem.types import is_integer
from convsmith.runtime.arrays import Array, is_within
from convsmith.tune.vector_width import machine_of

__all__ = ["KernelMachines"]


class KernelMachines:
    """Returns the machine for a problem: the given one, or by default that of the problem, where other kernels load
    weights of their own between two calls. Problems of nodes that were `examined` have no instructions with limits if
    weights of one of these nodes are beyond the limit, or are not `constants`.
    """

    def __init__(self, machine: Machine | None, constants: Mapping[str, Array]) -> None:
        self._machine, self._constants = machine, constants
        self._beyond: set[Work] = set()

    def __call__(self, problem: Problem) -> Machine:
        machine = (self._machine or machine_of(problem)).with_cold_weights
        if problem not in self._beyond:
            return machine
        return replace(machine, instructions=tuple(row for row in machine.instructions if not row.limit))

    def examine(self, nodes: Iterable[NetworkNode]) -> None:
        """Take the weights of `nodes` into account."""
        for node in nodes:
            work = node.work
            if isinstance(work, Conv | Matmul) and is_integer(work.dt[1]) and work not in self._beyond:
                machine = self._machine or machine_of(work)
                limit = min((row.limit for row in machine.instructions if row.limit), default=0)
                weights = self._constants.get(node.arguments["wei"])
                if limit and (weights is None or not is_within(weights, limit)):
                    self._beyond.add(work)
