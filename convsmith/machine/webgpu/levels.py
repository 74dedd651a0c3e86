"""The level of devices that take WGSL: what every adapter of WebGPU guarantees."""

from __future__ import annotations

from convsmith.ir.instruction import RegisterFile
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.device import ComputeUnits, Device, SharedMemory
from convsmith.machine.memory import core_caches
from convsmith.machine.rows import scalar_multiply_add

STORED = ("f32", "s32", "s8", "u8", "f16", "bf16")
"""Types of arrays. Those of 8 and 16 bits share the words of an array."""
_THREADS = 256
_GROUPS = 65535
_DEVICE = Device(
    runtime="webgpu", dialect=None, grid=(_GROUPS,) * 3, group=(_THREADS, _THREADS, 64), threads=_THREADS,
    shared=SharedMemory(16 << 10, banks=32, width=4),
    units=ComputeUnits(16, threads=1024, registers=1 << 16, shared=1 << 16),
    code="wgsl", access=4,
)  # fmt: skip
"""The default limits of WebGPU; the other facts are those of small GPUs. A thread reads one element of 32 bits at a
time, because an array of a shader has one type.
"""

LEVELS = (
    Machine(
        name="webgpu", triple="", cpu="", features="", needs=(), vectors=RegisterFile("register", 64, 32),
        memories=core_caches(1 << 16, 1 << 20, rates=(64, 32)),
        costs=Costs(multiply_add=1.0, broadcast=1.0, latency=8.0), attributes=(),
        instructions=(scalar_multiply_add("fma_f32", "f32", "fma"),), device=_DEVICE,
        stored=STORED,
    ),
)  # fmt: skip
"""Devices of WebGPU."""
