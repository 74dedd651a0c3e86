"""Levels of devices that take WGSL: what every adapter of WebGPU guarantees, and what those with sub-groups have."""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction, RegisterFile
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.device import ComputeUnits, Device, SharedMemory
from convsmith.machine.memory import core_caches
from convsmith.machine.rows import scalar_multiply_add
from convsmith.machine.webgpu.quads import LANES_OF_QUAD, PACKED_DOTS, QUAD_DOTS, QUAD_MULTIPLY_ADDS, SUBGROUPS

STORED = ("f32", "s32", "s8", "u8", "f16", "bf16")
"""Types of arrays. Those of 8 and 16 bits share the words of an array."""
_THREADS = 256
_DOT_RATE = 2.0
"""Makes a dot product of four bytes take the time of one multiply-add."""
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



def _level(name: str, needs: tuple[str, ...], products: tuple[Instruction, ...], device: Device) -> Machine:
    """Return a level with ``products`` of fragments."""
    return Machine(
        name=name, triple="", cpu="", features="", needs=needs, vectors=RegisterFile("register", 64, 32),
        memories=core_caches(1 << 16, 1 << 20, rates=(64, 32)),
        costs=Costs(multiply_add=1.0, broadcast=1.0, latency=8.0), attributes=(),
        instructions=(scalar_multiply_add("fma_f32", "f32", "fma"), *products), device=device, stored=STORED,
    )  # fmt: skip


LEVELS = (
    _level("webgpu+subgroups", (SUBGROUPS, PACKED_DOTS), (*QUAD_MULTIPLY_ADDS, *QUAD_DOTS),
           replace(_DEVICE, warps=(LANES_OF_QUAD,), fragment_rate=_DOT_RATE)),
    _level("webgpu", (), (), _DEVICE),
)  # fmt: skip
"""Devices of WebGPU, highest first."""
