"""A driver of OpenCL that runs SPIR-V on this CPU: that of the package intel-opencl-rt, for this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

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

_PACKAGE, _LIBRARY = "intel-opencl-rt", "libintelocl.so"


@cache
def driver() -> Path | None:
    """The driver's library, or None where the package is not installed."""
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    found = [Path(str(f.locate())).resolve() for f in files if f.name == _LIBRARY]
    return next((f for f in found if f.exists()), None)


@cache
def _vendors() -> str:
    """A folder that names the driver, as OpenCL's loader reads one when it is loaded."""
    folder = Path(tempfile.mkdtemp(prefix="convsmith-opencl-"))
    (folder / "intel.icd").write_text(f"{driver()}\n", encoding="utf-8")
    return str(folder)


def require_opencl() -> None:
    """Make OpenCL find the driver. Skip the test where there is no driver, or no package that launches kernels."""
    if driver() is None:
        pytest.skip(f"the package {_PACKAGE} is not installed: nothing runs SPIR-V here")
    os.environ.setdefault("OCL_ICD_VENDORS", _vendors())
    pytest.importorskip("pyopencl")


def load_first() -> None:
    """Load the driver, where there is one. OpenVINO brings an older TBB, with which the driver cannot be loaded."""
    if driver() is None or find_spec("pyopencl") is None:
        return
    os.environ.setdefault("OCL_ICD_VENDORS", _vendors())
    import pyopencl

    with suppress(pyopencl.Error):  # a test that needs the driver says what is missing
        pyopencl.get_platforms()


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
