"""Levels of devices that take SPIR-V: facts that every OpenCL device has, and facts of Intel's Xe GPUs."""

from __future__ import annotations

from convsmith.ir.instruction import Instruction, RegisterFile
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.device import ComputeUnits, Device, SharedMemory
from convsmith.machine.device_costs import DeviceCosts
from convsmith.machine.intel_gpu.dialect import dialect
from convsmith.machine.intel_gpu.fragments import DOTS, HALF_MULTIPLY_ADDS, HALVES, MULTIPLY_ADDS, PRODUCTS
from convsmith.machine.intel_gpu.messages import EXTENSIONS, MESSAGES, ROW_MESSAGES
from convsmith.machine.memory import core_caches
from convsmith.machine.rows import scalar_multiply_add

TRIPLE = "spirv64v1.2-unknown-unknown"
_GROUPS = (1 << 31) - 1
_THREADS = 256
_PORTABLE = Device(
    runtime="opencl", dialect=dialect(), grid=(_GROUPS, 65535, 65535), group=(_THREADS, _THREADS, _THREADS),
    threads=_THREADS,
    shared=SharedMemory(32 << 10, banks=16, width=4),
    units=ComputeUnits(16, threads=1024, registers=1 << 16, shared=1 << 16),
    code="spirv",
)  # fmt: skip
"""The full profile of OpenCL guarantees the shared memory; the other facts are those of small GPUs."""
_MULTIPLY_ADDS = tuple(scalar_multiply_add(f"mad_{t}", t, "OpExtInst") for t in ("f32", "f64"))
_HALF_MULTIPLY_ADD = scalar_multiply_add("mad_f16", "f16", "mad")
_COSTS = Costs(multiply_add=1.0, broadcast=1.0, latency=8.0)
"""Costs of a unit that starts a multiply-add of all threads of a warp in each cycle."""


def _level(
    name: str, device: Device, registers: int = 64, caches: tuple[int, int] = (1 << 16, 1 << 20),
    products: tuple[Instruction, ...] = (), others: tuple[Instruction, ...] = (),
) -> Machine:  # fmt: skip
    """Return the level ``name`` with the facts of ``device``, the ``registers`` of a thread and the bytes of caches.
    Devices with ``products`` of fragments have block messages, and maybe ``others``.
    """
    messages, needs = ((*MESSAGES, *others), {HALVES}) if products else ((), set())
    return Machine(
        name=name, triple=TRIPLE, cpu="", features=EXTENSIONS if products else "",
        needs=tuple(sorted(needs.union(*(row.needs for row in (*products, *messages))))),
        vectors=RegisterFile("register", registers, 32), memories=core_caches(*caches, rates=(64, 32)), costs=_COSTS,
        attributes=(), instructions=(*_MULTIPLY_ADDS, *products), device=device, messages=messages,
        half="computes" if products else "",
    )  # fmt: skip


_XE_REGISTERS = 128
"""Registers of 32 bits of a lane of Xe."""
_XE_MULTIPLY_ADDS = 128
"""Multiply-adds of f32 that a core of Xe computes in a cycle."""


def _xe(
    chip: str, lanes: int, cores: int, shared: int, rate: float, memory_bytes: int, resident: int = 1024,
    threads: int = 1024, files: tuple[int, ...] = (2 * _XE_REGISTERS,), ahead: int = 2, beside: int = 28,
) -> Device:  # fmt: skip
    """Return the facts of the ``chip``, a GPU of Xe cores, whose sub-groups have ``lanes`` and whose groups have at
    most ``threads``; a core has room for ``resident`` threads. A thread may have one of the ``files`` of registers,
    which takes the room of others. Its compiler loads the factors of ``ahead`` products before the first one, and needs
    registers ``beside`` them.

    ``rate`` is the ratio of dpas or dp4a to f32 multiply-adds, and ``memory_bytes`` the bytes of all cores per cycle;
    both follow from the peak rates of the data sheets. The port of a core to shared memory takes a message in a cycle.
    """
    return Device(
        runtime="opencl", dialect=dialect(lanes), grid=(_GROUPS, 65535, 65535), group=(threads,) * 3, threads=threads,
        shared=SharedMemory(shared, banks=16, width=4),
        units=ComputeUnits(
            cores, resident, resident * _XE_REGISTERS, 128 << 10, _XE_MULTIPLY_ADDS, round(_XE_MULTIPLY_ADDS * rate),
            memory_bytes,
        ),
        code="spirv",
        warps=(lanes,), fragment_rate=rate,
        costs=DeviceCosts(warp_message=_XE_MULTIPLY_ADDS / lanes, warp_ahead=ahead, warp_beside=beside),
        register_files=files, chip=chip,
    )  # fmt: skip


LEVELS = (
    _level("opencl", _PORTABLE),
    _level("xe_hpc", _xe("pvc", 16, 64, 128 << 10, rate=16, memory_bytes=1024, beside=33), _XE_REGISTERS,
           (512 << 10, 204 << 20), (*PRODUCTS[16], *MULTIPLY_ADDS[16]), ROW_MESSAGES),
    _level("xe_hpg", _xe("dg2", 8, 32, 64 << 10, rate=8, memory_bytes=267), _XE_REGISTERS, (192 << 10, 16 << 20),
           (*PRODUCTS[8], *MULTIPLY_ADDS[8])),
    _level("xe_lp", _xe("tgllp", 8, 6, 64 << 10, rate=2, memory_bytes=50, resident=896, threads=512, files=(), ahead=1),
           _XE_REGISTERS, (64 << 10, 3840 << 10), (*DOTS, *MULTIPLY_ADDS[8], *HALF_MULTIPLY_ADDS, _HALF_MULTIPLY_ADD)),
)  # fmt: skip
"""Devices of OpenCL. Each Xe level describes its smallest supported device: a stack of a Data Center GPU Max, an Arc
A770, and the GPU of an eleventh-generation Core.
"""
