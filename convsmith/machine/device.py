"""Facts of devices, on which a kernel is a grid of groups of threads.

A thread computes with registers of its own. The threads of a group share memory and wait for each other at barriers;
the threads of a warp (a sub-group in OpenCL) run together, one in each lane. Groups run in any order.
"""

from __future__ import annotations

from typing import Literal

from convsmith.diag.record import record
from convsmith.ir.dialect import Dialect
from convsmith.machine.device_costs import CopyEngine, DeviceCosts

__all__ = ["ComputeUnits", "Device", "SharedMemory", "ThreadLevel"]


@record(frozen=True)
class SharedMemory:
    """The memory that the threads of a group share."""

    bytes: int
    """Bytes that one group may have."""
    banks: int
    """Accesses to different banks are served at the same time."""
    width: int
    """Bytes of a bank: neighbours at this distance lie in different banks."""

    def __str__(self) -> str:
        return f"shared memory of {self.bytes >> 10} KiB in {self.banks} banks"


@record(frozen=True)
class ComputeUnits:
    """The processors of a device that run groups: the reference facts are those of the smallest supported device."""

    count: int
    threads: int
    """Threads of all groups that reside on a unit at a time."""
    registers: int
    """32-bit registers of a unit, which the resident threads share."""
    shared: int
    """Bytes of shared memory of a unit, which the resident groups share."""
    multiply_adds: int = 0
    """Multiply-adds of f32 that a unit computes in a cycle, by the data sheet; 0 if unknown."""
    of_fragments: int = 0
    """Multiply-adds of 16-bit elements by instructions on fragments, in a cycle; shorter elements have as many more."""
    memory_bytes: int = 0
    """Bytes that all units together read from memory in a cycle, by the data sheet."""
    groups: int = 32
    """Maximum number of groups that reside on a unit at a time."""
    register_step: int = 8
    """Granularity, in registers of a thread, in which a unit allocates registers."""

    def turns(self, groups: int) -> int:
        """Return the number of ``groups`` that the busiest unit runs one after the other."""
        return -(-groups // self.count)

    def residing(self, threads: int, shared: int, registers: int = 0) -> dict[str, int]:
        """Return the number of groups that reside on a unit at a time by each limit: groups of ``threads`` in whole
        warps, each thread with ``registers``, and bytes of ``shared`` memory. What is 0 is no limit.
        """
        limits = {"threads": self.threads // threads, "groups": self.groups}
        if shared:
            limits["shared memory"] = self.shared // shared
        if registers:
            limits["registers"] = self.registers // (threads * -(-registers // self.register_step) * self.register_step)
        return limits

    def registers_of(self, threads: int) -> int:
        """Return the maximum number of registers of each of the ``threads`` of a group."""
        return self.registers // threads // self.register_step * self.register_step

    def excess(self, groups: int) -> float:
        """Return the time of ``groups`` relative to the time in which every unit is always busy."""
        return self.turns(groups) * self.count / groups


@record(frozen=True)
class ThreadLevel:
    """A level at which a device numbers its threads: ``name`` is the kind of the loops that it runs.

    A nest has at most as many loops of the kind as ``most`` has entries, and the innermost of them runs at most
    ``most[0]`` times.
    """

    name: str
    most: tuple[int, ...]


_COSTS = DeviceCosts()


@record(frozen=True)
class Device:
    """Facts of a machine that launches kernels on a device.

    ``runtime`` names the library that launches them. ``code`` is SPIR-V, PTX for an assembler, or WGSL; ``dialect`` is
    LLVM's text for the former two, which LLVM compiles. ``grid`` and ``group`` are the largest numbers of groups and
    of threads of a group along each dim, innermost first; ``threads`` is the largest number of threads of a group.
    ``warps`` are the legal numbers of threads of a warp, the preferred one first; empty if kernels cannot rely on
    warps. Instructions on fragments of 16-bit numbers do ``fragment_rate`` multiply-adds in the time of one
    multiply-add of f32, and proportionally more on shorter numbers; 0 without such instructions.
    """

    runtime: str
    dialect: Dialect | None
    grid: tuple[int, ...]
    group: tuple[int, ...]
    threads: int
    shared: SharedMemory
    units: ComputeUnits
    code: Literal["spirv", "ptx", "wgsl"]
    warps: tuple[int, ...] = ()
    fragment_rate: float = 0.0
    costs: DeviceCosts = _COSTS
    access: int = 16
    """Maximum bytes that a thread moves in one access."""
    copy_reach: int = 0
    """Bytes that the constant in the address of an asynchronous copy spans; 0 where it is unknown."""
    engine: CopyEngine | None = None
    """The engine that copies tiles of a tensor to shared memory; None on devices without one."""
    register_files: tuple[int, ...] = ()
    """Numbers of registers that a thread may have at launch, more than usual."""
    chip: str = ""
    """The name under which a compiler ahead of time knows the device; empty if none does."""

    @property
    def copy_sizes(self) -> tuple[int, ...]:
        """Numbers of bytes that an asynchronous copy of a thread may have; empty on devices without such copies."""
        return tuple(dict(self.dialect.copies)) if self.dialect is not None else ()

    @property
    def levels(self) -> tuple[ThreadLevel, ...]:
        """The levels of threads, outermost first: grid, group, and, where the device has them, warp and lane."""
        levels = (ThreadLevel("grid", self.grid), ThreadLevel("group", self.group))
        if not self.warps:
            return levels
        warps = ThreadLevel("warp", (self.threads // min(self.warps),))
        return (*levels, warps, ThreadLevel("lane", (max(self.warps),)))
