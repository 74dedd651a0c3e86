"""Bounds of the scratch memory of kernels that decide how much memory a network needs.

Transforms compute blocks of tiles whose arrays are scratch memory. Blocks of several sizes take almost the same time,
and in the step in which most is alive, a smaller block makes the workspace of the whole network smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from convsmith.codegen.memory import KernelMemory
from convsmith.diag.errors import ConfigError
from convsmith.machine.base import Machine
from convsmith.network.graph import NetworkNode, Work
from convsmith.network.placement.memory import Life, alive_bytes
from convsmith.problem.problem import Problem
from convsmith.tune.compile import default_cycles

__all__ = ["bounded", "with_bounded_scratch"]

_LEAST_SAVED = 1 / 16
"""Part of a network's memory that a bound has to save."""
_MOST_CYCLES = 1.02
"""Ratio of a kernel's expected cycles with a bound to those without up to which it is bounded."""

BoundOf = Callable[[Problem, KernelMemory, int], Problem | None]
"""Returns a problem whose kernel needs fewer bytes in a call, by up to a number of bytes, given the memory of its
default kernel; None if such a kernel is slower."""


def with_bounded_scratch(
    nodes: Sequence[NetworkNode], lives: Iterable[Life], memory_of: Callable[[Work], KernelMemory], bound: BoundOf
) -> tuple[NetworkNode, ...]:
    """Return `nodes`, in which a problem has a bound of its memory if its kernel alone decides the memory of all, for
    values with these `lives`. `memory_of` returns the memory of a kernel.
    """
    made, values = list(nodes), alive_bytes(lives, len(nodes))
    while made:
        alive = [n + memory_of(node.work).call for n, node in zip(values, made)]
        most = max(alive)
        work = made[alive.index(most)].work
        others = max((n for n, node in zip(alive, made) if node.work != work), default=0)
        saved = min(most - others, memory_of(work).call)
        if not isinstance(work, Problem) or work.workspace is not None or saved < _LEAST_SAVED * most:
            break
        other = bound(work, memory_of(work), saved)
        if other is None:
            break
        made = [replace(node, work=other) if node.work == work else node for node in made]
    return tuple(made)


def bounded(problem: Problem, memory: KernelMemory, saved: int, machine: Machine, threads: int) -> Problem | None:
    """Return `problem` with a bound that saves up to so many bytes of a call of its default kernel, whose memory is
    given; None if kernels within the bound are slower, if packing needs as much memory as a call, and for problems of
    which the model expects no time, such as chains.
    """
    packed = memory.whole - max(memory.call, memory.packing)
    permitted = packed + max(memory.call - saved, memory.packing)
    if permitted >= memory.whole:
        return None
    other, most = replace(problem, workspace=permitted), _MOST_CYCLES * default_cycles(problem, machine, threads)
    try:
        return other if most and default_cycles(other, machine, threads) <= most else None
    except ConfigError:  # no kernel needs so little
        return None
