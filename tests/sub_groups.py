"""Sub-groups of Xe GPUs without one: kernels through OpenCL, and the disassembly of what ocloc makes of SPIR-V."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from convsmith.emulate.opencl import OPENCL
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.measure.verification import verify_kernel
from convsmith.problem import Problem
from convsmith.schedule.config import Config

DEVICES = ("xe_hpc", "xe_hpg", "xe_lp")
"""Levels whose kernels ocloc compiles."""
BLOCK_MESSAGES = {
    "xe_hpc": {"global": (r"load\.ugm\.d32x\d+t\.a64", r"store\.ugm\.d\d+x\d+t\.a64"),
               "shared": (r"load\.slm\.d32x\d+t", r"load\.slm\.d32x8\.a32")},
} | {
    name: {"global": ("oword block read", "oword block write"), "shared": ("oword block read", "untyped surface")}
    for name in ("xe_hpg", "xe_lp")
}  # fmt: skip
"""Block loads and stores of global memory, block loads and loads of vectors of shared memory, as devices call them."""


def run_emulated(problem: Problem, machine: Machine, config: Config | None, seed: int = 0) -> Config:
    """Run a kernel for a device through OpenCL, where it must be exact, and return its config. Functions of broadcasts
    stand in for dpas; all else is the code that a GPU runs.
    """
    kernel = CompiledKernel(problem, machine, config, load=OPENCL.load)
    verdict = verify_kernel(kernel, seed)
    assert verdict.ok, f"{problem} {kernel.config}: {verdict.detail}"
    return kernel.config


@cache
def _disassembler() -> Path | None:
    """The library with which ocloc disassembles, or None where it is not installed."""
    places = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    return next((x for p in places for x in sorted(Path(p).glob("libiga64.so*"))), None)


def assembly(spirv: bytes, machine: Machine, folder: Path) -> str:
    """Return the instructions that ocloc makes of SPIR-V for a device. Skip the test where it is not installed."""
    library = _disassembler()
    if shutil.which("ocloc") is None or library is None:
        pytest.skip("ocloc or libiga64 is not installed: nothing makes code of Xe GPUs of SPIR-V here")
    (folder / "lib").mkdir()
    (folder / "lib" / "libiga64.so").symlink_to(library)
    (folder / "kernel.spv").write_bytes(spirv)
    env = os.environ | {"LD_LIBRARY_PATH": str(folder / "lib")}
    assert machine.device is not None
    chip = machine.device.chip

    def run(*words: str) -> None:
        subprocess.run(["ocloc", *words, "-device", chip], cwd=folder, env=env, check=True, capture_output=True)

    run("compile", "-spirv_input", "-file", "kernel.spv", "-out_dir", "out")
    (made,) = (folder / "out").glob("*.bin")
    run("disasm", "-file", str(made), "-dump", "dump")
    return "\n".join(x.read_text() for x in sorted((folder / "dump").glob("*.asm")))
