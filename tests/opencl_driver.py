"""A driver of OpenCL that runs SPIR-V on this CPU: that of the package intel-opencl-rt, for this process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec

import numpy as np
import pytest

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact, Entry
from convsmith.codegen.device_module import device_text
from convsmith.compiler.arguments import buffer_argument
from convsmith.compiler.facts import facts
from convsmith.compiler.launch import launch_of
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.runtime.host_block import HostBlock
from convsmith.runtime.loading import library_of
from convsmith.runtime.opencl_drivers import CPU_PACKAGES, cpu_driver, platforms


def require_opencl() -> None:
    """Skip the test where there is no driver for CPUs, or no package that launches kernels."""
    if cpu_driver() is None:
        pytest.skip(f"pip install {CPU_PACKAGES} installs a driver: nothing runs SPIR-V here")
    pytest.importorskip("pyopencl")


def load_first() -> None:
    """Load the driver, where there is one. OpenVINO brings an older TBB, with which the driver cannot be loaded."""
    if cpu_driver() is None or find_spec("pyopencl") is None:
        return
    import pyopencl

    with suppress(pyopencl.Error):  # a test that needs the driver says what is missing
        platforms(pyopencl)


def artifact_of(kernel: Kernel, machine: Machine) -> Artifact:
    """The artifact of one kernel, whose parameters are its arguments."""
    text = device_text({kernel.name: kernel}, facts(machine))
    written = kernel.written
    arguments = tuple(buffer_argument(b, "inout" if b in written else "in") for b in kernel.params)
    entry = Entry(kernel.name, arguments, launch_of(kernel, 1, machine))
    code = llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features)
    return Artifact(code, machine.name, {"main": entry}, kernel.name, f"--target={machine.name}")


def run_kernel(kernel: Kernel, arrays: Mapping[str, np.ndarray]) -> None:
    """Run a kernel on a device of OpenCL, on arrays by name."""
    artifact = artifact_of(kernel, target("opencl"))
    function = library_of(artifact)["main"]
    block = HostBlock(function.entry, {name: array.ctypes.data for name, array in arrays.items()})
    function(block.address)
