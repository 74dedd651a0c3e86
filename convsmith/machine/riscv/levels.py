"""Levels of RISC-V, highest first: vectors with more and more types of numbers, scalars, and those of 32 bits."""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import RegisterFile
from convsmith.ir.types import Half
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs, FarRates
from convsmith.machine.memory import core_caches
from convsmith.machine.riscv.instructions import UNIT, rows, separate
from convsmith.machine.rows import fused_multiply_add

TRIPLE = "riscv64-unknown-linux-gnu"
_BASE = ("m", "a", "f", "d", "c", "zba", "zbb", "zbs")
"""The features of RVA22 that kernels use."""
_SMALL = ("m", "c")
"""The features of a microcontroller, which has no floating-point numbers."""
_EXTENSIONS = (("rvv", ("v",)), ("zvfh", ("zfh", "zvfh")), ("zvfbfwma", ("zfbfmin", "zvfbfwma")))
"""Extensions after which levels are named, with LLVM's names of the features, lowest first."""
_REGISTERS = 32
_GROUP = 4
"""Registers of a group unless a config names another number. A tile of several vectors along channels is one group: the
same lanes take fewer instructions. Groups of four leave room for seven vectors of sums beside one of weights, which is
loaded once for seven products.
"""
_OTHER_GROUPS = (8, 2, 1)
"""Other numbers of registers of a group: many for tiles of few pixels or of many channels, few for channels that leave
a part of longer registers empty.
"""
_ISSUE = 1.4
"""Cycles to begin an instruction on a group, with the scalar load of its factor, beside a cycle for each register, as
in LLVM's description of a core that executes in order (`sifive-x280`) in steps on groups of one to eight registers.
"""
_SCALARS = 4
"""Numbers that are treated as a vector where there are no vectors: each takes a register."""
_COSTS = Costs(multiply_add=4.0, broadcast=1.0, latency=4.0, hidden=0.9, hidden_far=0.9, long_epilogue=512)
"""Costs of a core that multiplies and adds a register in a cycle. Sums may take all groups but one: operations on a
group follow each other for more cycles than one takes. Tiles have few vectors, so that an epilogue for each of them is
short code; a loop of its own would not be scalable.
"""
_CACHES = core_caches(32768, 1 << 18, rates=(16, 16))
_VECTOR_CACHES = core_caches(32768, 1 << 18, rates=(UNIT // 8, UNIT // 8))
"""Caches that load a unit of a register in a cycle, as a core multiplies it."""
_FAR = FarRates(2.5, 15.0, 5.0)
"""Rates of cache lines in a transform: memory delivers as many bytes to vectors as to scalars."""


def _features(needs: tuple[str, ...]) -> str:
    """Return LLVM's features. Without relaxation, branches within a function are final in object code."""
    return ",".join([*("+" + name for name in needs), "-relax"])


def _costs(registers: int) -> Costs:
    """Return the costs of vectors that are groups of ``registers``."""
    return replace(_COSTS, multiply_add=registers + _ISSUE, transform_far=_FAR)


def _scalars() -> Machine:
    """Return the level without vectors."""
    fused = fused_multiply_add("fmadd_s", "f32", _SCALARS, ("f",), "")
    return Machine(
        name="riscv64", triple=TRIPLE, cpu="generic-rv64", features=_features(_BASE), needs=_BASE,
        vectors=RegisterFile("vector", _REGISTERS // _SCALARS, 32 * _SCALARS), memories=_CACHES,
        costs=_COSTS, attributes=(), instructions=(fused,),
    )  # fmt: skip


def _vectors(count: int) -> Machine:
    """Return vectors of any length with the first ``count`` extensions, in groups of any size."""
    groupings = tuple(_grouped(count, registers) for registers in _OTHER_GROUPS)
    return replace(_grouped(count, _GROUP), groupings=groupings)


def _grouped(count: int, registers: int) -> Machine:
    """Return the level with the first ``count`` extensions whose vectors are groups of ``registers``."""
    needs = (*_BASE, *(feature for _, features in _EXTENSIONS[:count] for feature in features))
    half: Half = "computes" if "zvfh" in needs else ""
    return Machine(
        name=f"riscv64+{_EXTENSIONS[count - 1][0]}", triple=TRIPLE, cpu="generic-rv64", features=_features(needs),
        needs=needs,
        vectors=RegisterFile("vector", _REGISTERS // registers, UNIT * registers, group=registers, scalable=True),
        memories=_VECTOR_CACHES, costs=_costs(registers), attributes=(),
        instructions=rows(registers, needs), half=half, masked_bytes=1, has_vector_lengths=True,
        reads_scalars=True,
    )  # fmt: skip


def _microcontroller() -> Machine:
    """Return the level of 32 bits with integers alone."""
    return Machine(
        name="riscv32", triple="riscv32-unknown-elf", cpu="generic-rv32", features=_features(_SMALL), needs=_SMALL,
        vectors=RegisterFile("vector", _REGISTERS // _SCALARS - 1, 32 * _SCALARS),
        memories=core_caches(32768, 1 << 18, rates=(16, 16)), costs=_COSTS, attributes=(),
        instructions=(separate("f32", _SCALARS),),
        address_bits=32, extends_bytes=True,
    )  # fmt: skip


VECTORS, SCALARS, SMALL = tuple(map(_vectors, range(len(_EXTENSIONS), 0, -1))), _scalars(), _microcontroller()
LEVELS = (*VECTORS, SCALARS, SMALL)
