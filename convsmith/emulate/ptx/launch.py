"""Kernels as functions of a PTX text, a grid and arguments, which return the arrays in global memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from convsmith.emulate.ptx.block import ThreadBlock
from convsmith.emulate.ptx.cluster import CLUSTERS, BlockCluster, clusters_of
from convsmith.emulate.ptx.copies import copy_instruction
from convsmith.emulate.ptx.flow import meeting_points
from convsmith.emulate.ptx.matrices import MATRICES
from convsmith.emulate.ptx.mbarriers import mbarrier_instruction
from convsmith.emulate.ptx.memory import PARAM, SHARED_START, GlobalMemory, Region
from convsmith.emulate.ptx.moves import MOVES
from convsmith.emulate.ptx.operands import Operands
from convsmith.emulate.ptx.parser import Address, Group, PtxError, PtxInstruction, PtxKernel, Symbol, parse_ptx
from convsmith.emulate.ptx.register_shares import set_registers
from convsmith.emulate.ptx.scalars import scalar
from convsmith.emulate.ptx.tensor_copies import PtxTensorMap
from convsmith.emulate.ptx.warp import Execute, Operation
from convsmith.emulate.ptx.warpgroups import wgmma_instruction

Maker = Callable[[PtxInstruction, Operands], Execute]
TABLE: dict[str, Maker] = {**MOVES, **MATRICES, **CLUSTERS, "cp": copy_instruction, "mbarrier": mbarrier_instruction,
                           "setmaxnreg": set_registers, "wgmma": wgmma_instruction}  # fmt: skip
"""Instructions by the first word of their opcode; arithmetic is in `scalars.FUNCTIONS`."""

Shape = int | Sequence[int]


class Blank:
    """An array argument whose contents are not initialised."""

    def __init__(self, size: int, dtype: Any) -> None:
        self.size, self.dtype = size, np.dtype(dtype)


def run(text: str, name: str, grid: Shape, arguments: Sequence[Any], threads: Shape | None = None, shared: int = 0,
        seed: int = 0) -> list[np.ndarray | None]:  # fmt: skip
    """Execute a kernel of a PTX text; return the arrays after it, in the order of `arguments`.

    An argument is an array (copied to global memory), a `Blank`, bytes (a parameter passed by value, such as a tensor
    map), or a number. `shared` counts the bytes of dynamic shared memory. The `seed` decides the schedule. PtxError if
    the program has a fault.
    """
    kernel = _kernel(text, name)
    rng = np.random.default_rng(seed)
    memory, parameters, regions = GlobalMemory(), b"", []
    if len(arguments) != len(kernel.parameters):
        raise PtxError(f"kernel {name} has {len(kernel.parameters)} parameters, not {len(arguments)}")
    offsets: dict[str, int] = {}
    maps: dict[int, PtxTensorMap] = {}
    for (label, size, align), value in zip(kernel.parameters, arguments):
        region, data = _passed(memory, label, size, value)
        regions.append((region, value))
        parameters = parameters.ljust(-(-len(parameters) // align) * align, b"\0")
        offsets[label] = len(parameters)
        if isinstance(value, PtxTensorMap):
            maps[PARAM + len(parameters)] = value
        parameters += data
    places, shared_bytes, local_bytes = _variables(kernel, memory, offsets, shared)
    operations = _operations(text, name, tuple(places.items()))
    block = _extent(threads) if threads is not None else kernel.threads
    if block is None or (kernel.threads is not None and block != kernel.threads):
        raise PtxError(f"kernel {name} runs with {kernel.threads} threads, not {block}")
    extent = _extent(grid)
    tensors = {n: region for n, (region, _) in enumerate(regions) if region is not None}
    given = Region("parameters", PARAM, len(parameters), parameters, shared=False)
    clusters = clusters_of(extent, kernel.cluster or (1, 1, 1))
    for place in rng.permutation(len(clusters)):
        BlockCluster([
            ThreadBlock(operations, number, extent, block, memory, given, shared_bytes, local_bytes, rng, maps, tensors,
                        rank, len(clusters[place]))
            for rank, number in enumerate(clusters[place])
        ]).run()  # fmt: skip
    return [None if region is None else _content(region, value) for region, value in regions]


_parsed = lru_cache(maxsize=8)(parse_ptx)


def _kernel(text: str, name: str) -> PtxKernel:
    """Return the kernel `name` of a PTX text. PtxError if the text has no kernel of that name."""
    kernels = _parsed(text).kernels
    if name not in kernels:
        raise PtxError(f"the text has kernels {', '.join(kernels) or 'none'}, not {name}")
    return kernels[name]()


def _extent(shape: Shape) -> tuple[int, int, int]:
    x, y, z = (*([shape] if isinstance(shape, int) else shape), 1, 1)[:3]
    return x, y, z


def _passed(memory: GlobalMemory, label: str, size: int, value: Any) -> tuple[Region | None, bytes]:
    """Return the region of an array argument, and the bytes of the parameter."""
    if isinstance(value, np.ndarray | Blank):
        content = np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else None
        nbytes = value.size * value.dtype.itemsize
        region = memory.add(label, nbytes, content)
        return region, region.base.to_bytes(8, "little")
    if isinstance(value, PtxTensorMap):
        return None, bytes(128)
    if isinstance(value, bytes):
        if len(value) != size:
            raise PtxError(f"parameter {label} has {size} bytes, not {len(value)}")
        return None, value
    if isinstance(value, float):
        return None, np.dtype(f"f{size}").type(value).tobytes()
    return None, (int(value) % (1 << 8 * size)).to_bytes(size, "little")


def _content(region: Region, value: np.ndarray | Blank) -> np.ndarray:
    array = region.data[: region.size].view(value.dtype)
    return array.reshape(value.shape) if isinstance(value, np.ndarray) else array


def _variables(kernel: PtxKernel, memory: GlobalMemory, offsets: dict[str, int], dynamic: int
               ) -> tuple[dict[str, tuple[str, int]], int, int]:  # fmt: skip
    """Return the state space and address of each variable and parameter, and the bytes of shared and local memory."""
    places = {label: ("param", offset) for label, offset in offsets.items()}
    used = {x.name for ins in kernel.code for x in _symbols(ins)}
    top, local = 0, 0
    late = []
    for label, v in kernel.variables.items():
        if label not in used:
            continue
        if v.space == "shared" and v.size:
            top = -(-top // v.align) * v.align
            places[label] = ("shared", SHARED_START + top)
            top += v.size
        elif v.space == "shared":
            late.append((label, v))
        elif v.space == "local":
            local = -(-local // v.align) * v.align
            places[label] = ("local", local)
            local += v.size
        else:
            places[label] = (v.space, memory.add(label, v.size, v.content or None).base)
    for label, v in late:
        top = -(-top // v.align) * v.align
        places[label] = ("shared", SHARED_START + top)
    return places, top + dynamic, local


def _symbols(ins: PtxInstruction) -> list[Symbol]:
    """Return the variables, parameters and labels that an instruction names."""
    atoms: list[object] = []
    for x in ins.arguments:
        atoms += x.items if isinstance(x, Group) else [x.base] if isinstance(x, Address) else [x]
    return [x for x in atoms if isinstance(x, Symbol)]


@lru_cache(maxsize=8)
def _operations(text: str, name: str, places: tuple[tuple[str, tuple[str, int]], ...]) -> list[Operation]:
    """Return the instructions of a kernel of a PTX text, with the addresses of its variables."""
    kernel = _kernel(text, name)
    made = Operands(kernel, dict(places))
    meetings = meeting_points(kernel)
    operations = []
    for n, ins in enumerate(kernel.code):
        root = ins.words[0]
        if root == "bra":
            (target,) = ins.arguments
            assert isinstance(target, Symbol)
            place = kernel.labels[target.name]
            operations.append(Operation(None, ins.guard, ins.is_negated, ins, place, meetings.get(n, -1)))
        elif root in ("ret", "exit"):
            operations.append(Operation(None, ins.guard, ins.is_negated, ins))
        else:
            try:
                execute = TABLE[root](ins, made) if root in TABLE else scalar(ins, made)
            except (PtxError, KeyError, ValueError) as error:
                raise PtxError(f"{ins}: {error}") from error
            if execute is None:
                raise PtxError(f"{ins}: the interpreter has no such instruction")
            operations.append(Operation(execute, ins.guard, ins.is_negated, ins))
    return operations
