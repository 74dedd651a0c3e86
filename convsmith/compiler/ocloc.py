"""The registers that kernels of SPIR-V use and spill on Intel's GPUs, as `ocloc` reports them without a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from convsmith.codegen.artifact import Artifact, build_options
from convsmith.diag.errors import ToolchainError

__all__ = ["TOOL", "spills_in_log", "uses_on_chip"]

TOOL = "ocloc"
"""The compiler of Intel's compute runtime, which makes the code of a GPU ahead of time."""
_SPILLED = re.compile(r"kernel (\w+)\s+compiled SIMD(\d+) allocated (\d+) regs and spilled around (\d+)")


def uses_on_chip(artifact: Artifact, chip: str) -> dict[str, str]:
    """Return the use of each kernel of an ``artifact`` of SPIR-V on ``chip``, one of ocloc's names of devices.

    It is empty if ocloc is not installed, or if ``chip`` is. ToolchainError if ocloc rejects the code.
    """
    tool = shutil.which(TOOL) if chip else None
    if tool is None:
        return {}
    log = _compiled(tool, artifact.code, chip, build_options(x.launch for x in artifact.entries.values()))
    return spills_in_log(log, (x.symbol for x in artifact.entries.values()))


def spills_in_log(log: str, kernels: Iterable[str]) -> dict[str, str]:
    """Return the use of each of the ``kernels`` by the ``log`` of ocloc, which warns of kernels that spill alone."""
    spilled = {name: numbers for name, *numbers in _SPILLED.findall(log)}
    found = {}
    for name in kernels:
        if name in spilled:
            lanes, registers, count = spilled[name]
            found[name] = f"{registers} registers for {lanes} lanes, about {count} registers spilled"
        else:
            found[name] = "no spills"
    return found


def _compiled(tool: str, spirv: bytes, chip: str, options: list[str]) -> str:
    """Return the log of ocloc at the path ``tool`` for a module."""
    with tempfile.TemporaryDirectory(prefix="convsmith-") as folder:
        Path(folder, "kernel.spv").write_bytes(spirv)
        words = ["compile", "-spirv_input", "-file", "kernel.spv", "-device", chip, "-out_dir", "out"]
        words += ["-options", " ".join(options)] if options else []
        done = subprocess.run([tool, *words], cwd=folder, capture_output=True, text=True, check=False)
    log = done.stdout + done.stderr
    if done.returncode:
        raise ToolchainError(f"{TOOL} refuses the SPIR-V for {chip}: {log.strip()[:400]}")
    return log
