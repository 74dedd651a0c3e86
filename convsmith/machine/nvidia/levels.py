"""Levels of NVIDIA's GPUs that code is compiled for, newest first."""

from __future__ import annotations

from convsmith.ir.instruction import Instruction, RegisterFile
from convsmith.machine.base import Machine, dot
from convsmith.machine.costs import Costs
from convsmith.machine.device import ComputeUnits, Device, SharedMemory
from convsmith.machine.device_costs import CopyEngine, DeviceCosts
from convsmith.machine.memory import core_caches
from convsmith.machine.nvidia.dialect import TESTED_BARRIER, TRIED_BARRIER, dialect
from convsmith.machine.nvidia.fragments import MATRIX_LOADS, PAIRED, PRODUCTS, SMALL_AS_HALVES, SMALL_PRODUCTS
from convsmith.machine.nvidia.matrix_stores import MATRIX_STORES
from convsmith.machine.nvidia.quads import QUAD_TRANSPOSITIONS
from convsmith.machine.nvidia.warpgroups import GROUP_PRODUCTS
from convsmith.machine.rows import scalar_multiply_add

TRIPLE = "nvptx64-nvidia-cuda"
_PTX = "+ptx86"
"""The version of PTX: drivers and assemblers of CUDA 12.7 and later take it."""
_SHARED_BYTES = 128
"""Bytes that a multiprocessor reads from shared memory in a cycle."""
_LOAD = 33
"""Cycles from a load of fragments from shared memory to their use, as published for an A100."""
_ISSUED = 4
"""Instructions of warps that a multiprocessor issues in a cycle."""
_COPY_REACH = 1 << 12
"""Bytes that the 12-bit constant in the global address of `LDGSTS` spans, from machine code of sm_80 and sm_90a."""
_GROUPS = ((1 << 31) - 1, 65535, 65535)
_GROUP = (1024, 1024, 64)


def _dot_bytes(a: str, b: str) -> Instruction:
    """Return the row of dp4a: a sum of four products of bytes."""
    intrinsic = f"i32 @llvm.nvvm.idp4a.{a[0]}.{b[0]}"
    llvm = (
        "bitcast <4 x i8> {a} to i32\n"
        "bitcast <4 x i8> {b} to i32\n"
        f"call {intrinsic}(i32 {{0}}, i32 {{1}}, i32 {{c}})"
    )
    return dot(
        f"dp4a_{a}_{b}", 1, 4, (a, b, "s32"), llvm, f"declare {intrinsic}(i32, i32, i32)", ("sm_61",),
        f"IDP.4A.{a}.{b}".upper(),
    )  # fmt: skip


_SCALARS = (
    scalar_multiply_add("fma_f32", "f32", "FFMA"),
    scalar_multiply_add("fma_f64", "f64", "DFMA"),
    *(_dot_bytes(a, b) for a, b in (("s8", "s8"), ("u8", "s8"), ("s8", "u8"), ("u8", "u8"))),
)
_ENGINE = CopyEngine(
    widths=(128, 64, 32), pixels=1024, box=256, dims=5, alignment=16, steps=8,
    corners=((-(1 << 15), (1 << 15) - 1), (-128, 127), (-16, 15)), offsets=((1 << 16) - 1, 255, 31),
    slots=(2, 4, 8), addresses=32, copiers=24, reserved=2048, columns=256,
    latency=860.0, row_latency=7.45, row_read=1.0, row_copy=1.965, row_arrival=1.0, port=0.93, result=0.267,
    meeting=300.0, staged=0.03, clusters=(2, 4),
)  # fmt: skip
"""The tensor memory accelerator, with the limits of CUDA's tensor maps. Its costs were fitted on an H200, but for those
of clusters, and of results in shared memory: it stores 128 bytes in a cycle, and the round trip of an arrival to
another unit is an estimate.
"""
_GENERATIONS = ("sm_61", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")


def _level(
    name: str, units: ComputeUnits, shared: int, l2: int, products: tuple[Instruction, ...], rate: float
) -> Machine:
    """Return the level `name`; a group has up to `shared` bytes of shared memory, the chip `l2` bytes of cache.

    ``rate`` is the ratio of ``mma.sync`` to f32 multiply-adds, from the peak rates of the data sheets.
    """
    needs = _GENERATIONS[: _GENERATIONS.index(name) + 1]
    packed = (("s32",) if "sm_75" in needs else ()) + (("f32",) if "sm_90" in needs else ())
    split = TRIED_BARRIER if "sm_90" in needs else TESTED_BARRIER if "sm_80" in needs else None
    device = Device(
        runtime="cuda", grid=_GROUPS, group=_GROUP, threads=1024,
        dialect=dialect("sm_80" in needs, packed, has_byte_floats="sm_89" in needs, pipelines="sm_90a" in needs,
                        split_barrier=split),
        shared=SharedMemory(shared, banks=32, width=4), units=units, warps=(32,), code="ptx",
        fragment_rate=rate, engine=_ENGINE if "sm_90a" in needs else None,
        copy_reach=_COPY_REACH if "sm_80" in needs else 0,
        costs=DeviceCosts(
            warp_shared=32 * _SHARED_BYTES / units.multiply_adds, warp_load=_LOAD * units.multiply_adds / 32,
            warp_issue=units.multiply_adds / 32 / _ISSUED,
        ),
    )  # fmt: skip
    return Machine(
        name=name, triple=TRIPLE, cpu=name, features=_PTX, needs=needs, vectors=RegisterFile("register", 255, 32),
        memories=core_caches(128 << 10, l2, rates=(128, 64)), costs=Costs(multiply_add=1.0, broadcast=1.0, latency=4.0),
        attributes=(), instructions=(*_SCALARS, *products), device=device, half="converts",
        matrix_loads=MATRIX_LOADS if "sm_75" in needs else (),
        matrix_stores=MATRIX_STORES if "sm_90a" in needs else (),
        transpositions=QUAD_TRANSPOSITIONS if "sm_90a" in needs else (),
    )  # fmt: skip


def _units(count: int, shared: int, *rates: int, threads: int = 2048) -> ComputeUnits:
    """Return the facts of `count` multiprocessors, on each of which ``threads`` reside. ``rates`` are per cycle of the
    boost clock, from the data sheet: multiply-adds of a unit, multiply-adds of its tensor cores, and bytes of memory.
    """
    return ComputeUnits(count, threads, 1 << 16, shared, *rates)


# The facts of a level are those of an H200, an L4, an A10, an A100 and a V100.
LEVELS = (
    _level("sm_90a", _units(132, 228 << 10, 128, 2048, 1830), 227 << 10, 50 << 20,
           (*PRODUCTS, *SMALL_AS_HALVES, *GROUP_PRODUCTS), rate=10),
    _level("sm_89", _units(58, 100 << 10, 128, 512, 147, threads=1536), 99 << 10, 48 << 20,
           (*PRODUCTS, *SMALL_PRODUCTS), rate=4),
    _level("sm_86", _units(72, 100 << 10, 128, 512, 354, threads=1536), 99 << 10, 6 << 20, PRODUCTS, rate=4),
    _level("sm_80", _units(108, 164 << 10, 64, 1024, 1103), 163 << 10, 40 << 20, PRODUCTS, rate=16),
    _level("sm_70", _units(80, 96 << 10, 64, 512, 588), 96 << 10, 6 << 20, PAIRED, rate=8),
)
