"""Kernels of convsmith's IR, and artifacts, through the interpreter of PTX."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from emulated import run_emulated

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact
from convsmith.codegen.device_module import device_text
from convsmith.compiler.facts import facts
from convsmith.compiler.launch import launch_of
from convsmith.emulate.ptx.emulator import PtxInterpreter
from convsmith.emulate.ptx.launch import run
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine


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


def run_artifact(artifact: Artifact, memory: dict[str, np.ndarray], seed: int) -> None:
    """Run the entries of an artifact on memory by the names of tensors, which they write, under one schedule."""
    run_emulated(artifact, memory, PtxInterpreter(seed))
