"""Kernels of convsmith's IR, and artifacts, through the interpreter of PTX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact, Entry, MapArgument
from convsmith.codegen.binder import element_type
from convsmith.codegen.device_module import device_text
from convsmith.compiler.facts import facts
from convsmith.compiler.launch import launch_of
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import DTYPES
from convsmith.machine.base import Machine
from ptx.launch import run
from ptx.tensor_copies import TensorMap


def kernel_ptx(kernel: Kernel, machine: Machine) -> str:
    """Return the PTX of one kernel."""
    text = device_text({kernel.name: kernel}, facts(machine))
    return llvm_bind.assembly(text, machine.triple, machine.cpu, machine.features)


def run_kernel(kernel: Kernel, machine: Machine, arrays: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return the arrays after a kernel, by the names of its parameters."""
    launch, names = launch_of(kernel, 1, machine), [b.name for b in kernel.params]
    given = [arrays[name] for name in names]
    found = run(kernel_ptx(kernel, machine), kernel.name, launch.grid, given, launch.group, launch.shared, seed)
    return {name: array for name, array in zip(names, found) if array is not None}


def run_entry(code: bytes, entry: Entry, arrays: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return the arrays after an entry of an artifact, by the names of its arguments."""
    launch, names = entry.launch, [a.name for a in entry.arguments]
    given = [arrays[name] for name in names] + [tensor_map(x, names) for x in launch.maps]
    found = run(code.decode(), entry.symbol, launch.grid, given, launch.group, launch.shared, seed)
    return {name: array for name, array in zip(names, found) if array is not None}


def tensor_map(made: MapArgument, names: Sequence[str]) -> TensorMap:
    """Return the map of the tensor that an argument, one of ``names``, points to."""
    m, size = made.map, DTYPES[made.dtype].bytes
    steps = tuple(n * size for n in m.strides[1:])
    return TensorMap(
        names.index(made.of), size, m.dims, steps, m.box, made.swizzle, m.pixels, m.lower, m.upper, m.steps
    )


def run_artifact(artifact: Artifact, memory: dict[str, np.ndarray], seed: int) -> None:
    """Run the entries that pack, and those of every call, on memory by the names of tensors, which they write."""
    packs = [artifact.entries[name] for names in artifact.packs.values() for name in names]
    for entry in (*packs, *artifact.steps.values()):
        for a in entry.arguments:
            if a.role in ("shared", "scratch", "packed"):
                memory.setdefault(a.name, np.zeros(a.size, element_type(a)))
        memory.update(run_entry(artifact.notes["ptx"].encode(), entry, memory, seed))
