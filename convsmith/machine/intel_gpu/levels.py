"""Levels of devices that take SPIR-V: facts that every device of OpenCL has."""

from __future__ import annotations

from convsmith.ir.instruction import RegisterFile
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.device import ComputeUnits, Device, SharedMemory
from convsmith.machine.intel_gpu.dialect import DIALECT
from convsmith.machine.memory import core_caches
from convsmith.machine.rows import scalar_multiply_add

TRIPLE = "spirv64v1.2-unknown-unknown"
_GROUPS = (1 << 31) - 1
_THREADS = 256
_PORTABLE = Device(
    runtime="opencl", dialect=DIALECT, grid=(_GROUPS, 65535, 65535), group=(_THREADS, _THREADS, _THREADS),
    threads=_THREADS,
    shared=SharedMemory(32 << 10, banks=16, width=4),
    units=ComputeUnits(16, threads=1024, registers=1 << 16, shared=1 << 16),
    code="spirv",
)  # fmt: skip
"""The full profile of OpenCL guarantees the shared memory; small GPUs have the other facts."""
_MULTIPLY_ADDS = tuple(scalar_multiply_add(f"mad_{t}", t, "OpExtInst") for t in ("f32", "f64"))
_COSTS = Costs(multiply_add=1.0, broadcast=1.0, latency=8.0)
"""Costs of a unit that starts a multiply-add of all threads of a warp in each cycle."""


def _level(name: str, device: Device) -> Machine:
    """Return the level ``name`` with the facts of ``device``."""
    return Machine(
        name=name, triple=TRIPLE, cpu="", features="", needs=(), vectors=RegisterFile("register", 64, 32),
        memories=core_caches(1 << 16, 1 << 20, rates=(64, 32)), costs=_COSTS, attributes=(),
        instructions=_MULTIPLY_ADDS, device=device,
    )  # fmt: skip


LEVELS = (_level("opencl", _PORTABLE),)
