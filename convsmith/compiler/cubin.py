"""PTX to machine code of NVIDIA's GPUs, without a GPU: in process by nvJitLink, else by the assembler ptxas."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from convsmith.codegen import llvm_bind
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.forking import import_lock
from convsmith.diag.record import record
from convsmith.machine.base import Machine

__all__ = [
    "AssembledKernels",
    "Assembler",
    "KernelUse",
    "assemble_module",
    "assemble_ptx",
    "assembler_of",
    "disassemble",
    "find_tool",
]  # fmt: skip

_LEVEL = "-O3"
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_SPILLED = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@record(frozen=True)
class KernelUse:
    """The resources of a kernel: registers per thread, bytes of statically declared shared memory, bytes of stack per
    thread, and bytes that a thread spills to and fills from memory.
    """

    registers: int
    shared: int
    stack: int
    spilled: int
    filled: int

    def __str__(self) -> str:
        spills = f"{self.spilled} bytes spilled, {self.filled} filled" if self.spilled or self.filled else "no spills"
        return f"{self.registers} registers, {spills}"


@record(frozen=True)
class AssembledKernels:
    """A cubin, the use of its kernels by name, the assembler that made it, and its advisory warnings."""

    cubin: bytes
    uses: dict[str, KernelUse]
    assembler: str
    warnings: tuple[str, ...] = ()


def assemble_module(text: str, machine: Machine) -> tuple[bytes, dict[str, str]]:
    """Return the code of a module's text for `machine`, and notes for people; WGSL is its own code.

    Code for an assembler is a cubin with the PTX among the notes, or PTX if no assembler is installed.
    """
    if machine.device is not None and machine.device.code == "wgsl":
        return text.encode(), {}
    made = llvm_bind.object_code if machine.device is None or machine.device.code != "ptx" else llvm_bind.assembly
    code = made(text, machine.triple, machine.cpu, machine.features)
    if isinstance(code, bytes):
        return code, {}
    try:
        assembled = assemble_ptx(code, machine.cpu)
    except UnsupportedError:
        return code.encode(), {"ptx": code}
    uses = {f"use of {name}": str(use) for name, use in assembled.uses.items()}
    uses |= {f"registers of {name}": str(use.registers) for name, use in assembled.uses.items()}
    return assembled.cubin, {"ptx": code, "assembler": assembled.assembler, **uses}


@lru_cache(maxsize=64)
def assemble_ptx(ptx: str, architecture: str) -> AssembledKernels:
    """Return the machine code of `ptx` for `architecture` (sm_80). UnsupportedError if no assembler for it is
    installed, ToolchainError if the assembler rejects the text.

    nvJitLink joins modules, and gives threads equal shares of the registers whatever the text says.
    """
    assembler = assembler_of(architecture, "setmaxnreg" in ptx)
    cubin, log = assembler.run(ptx, architecture)
    warnings = re.findall(r"^.*(?:warning|C75\d\d).*$", log, re.M)
    return AssembledKernels(cubin, _uses(log), assembler.name, tuple(warnings))


def _uses(log: str) -> dict[str, KernelUse]:
    """Return the use of each kernel that the assembler's log reports."""
    found = {}
    parts = _ENTRY.split(log)
    for name, text in zip(parts[1::2], parts[2::2]):
        used, spilled = _USED.search(text), _SPILLED.search(text)
        if used is None or spilled is None:
            raise ToolchainError(f"the assembler's log says nothing of kernel {name}", text=log)
        stack, stores, loads = map(int, spilled.groups())
        found[name] = KernelUse(int(used[1]), int(used[2] or 0), stack, stores, loads)
    return found


def _nvjitlink() -> Any:
    """Return the binding of nvJitLink, or None if it is not installed."""
    try:
        _keep_names_local()
        with import_lock:
            from cuda.bindings import nvjitlink
        nvjitlink.version()
    except Exception:  # the binding is missing, or the library that it loads is
        return None
    return nvjitlink


@cache
def _keep_names_local() -> None:
    """Load nvJitLink before its binding does, which would make its symbols visible to all libraries: OpenCL drivers
    define functions of the same names.
    """
    for root in _packages():
        for path in Path(root, "cu13", "lib").glob("libnvJitLink.so.*"):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)


class Assembler(NamedTuple):
    """An assembler: its name with its version or path, and the function from PTX and an architecture to a cubin and a
    log.
    """

    name: str
    run: Callable[[str, str], tuple[bytes, str]]


@cache
def assembler_of(architecture: str, shares_registers: bool = False) -> Assembler:
    """Return an installed assembler that knows `architecture`, and lets threads share registers if that is asked for.
    UnsupportedError if there is none.
    """
    for assembler in _assemblers():
        if shares_registers and assembler.run is _link:
            continue
        try:
            assembler.run(_SAMPLE.format(architecture), architecture)
        except (ToolchainError, OSError):
            continue
        return assembler
    raise UnsupportedError(
        "no assembler by which threads share registers is installed: ptxas comes with pip install "
        "'nvidia-cuda-nvcc==13.0.*'" if shares_registers else
        f"no assembler for {architecture} is installed: nvJitLink comes with pip install 'convsmith[cuda]', ptxas for "
        "sm_70 with nvidia-cuda-nvcc-cu12==12.9.86",
        code="ptxas",
    )


_SAMPLE = ".version 8.0\n.target {}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"


def _assemblers() -> Iterator[Assembler]:
    """Yield the installed assemblers, the fastest first."""
    tool = _nvjitlink()
    if tool is not None:
        yield Assembler("nvJitLink {}.{}".format(*tool.version()), _link)
    for path in _tools("ptxas"):
        yield Assembler(str(path), partial(_run, str(path)))


def _link(ptx: str, architecture: str) -> tuple[bytes, str]:
    """Return the cubin that nvJitLink creates, and its log."""
    tool = _nvjitlink()
    options = [f"-arch={architecture}", _LEVEL, "-verbose"]
    try:
        handle = tool.create(len(options), options)
    except tool.nvJitLinkError as error:  # an unknown architecture
        raise ToolchainError(f"nvJitLink has no code for {architecture}: {error}") from None
    try:
        data = ptx.encode()
        try:
            tool.add_data(handle, tool.InputType.PTX, data, len(data), "kernel.ptx")
            tool.complete(handle)
        except tool.nvJitLinkError as error:
            log = bytearray(tool.get_error_log_size(handle))
            if log:
                tool.get_error_log(handle, log)
            said = bytes(log).decode(errors="replace").strip("\0 \n")
            what = f"nvJitLink refuses the PTX for {architecture}: {error}: {said[:400]}"
            raise ToolchainError(what, text=ptx) from None
        cubin, log = bytearray(tool.get_linked_cubin_size(handle)), bytearray(tool.get_info_log_size(handle))
        tool.get_linked_cubin(handle, cubin)
        if log:
            tool.get_info_log(handle, log)
        return bytes(cubin), bytes(log).decode(errors="replace")
    finally:
        tool.destroy(handle)


def _run(assembler: str, ptx: str, architecture: str) -> tuple[bytes, str]:
    """Return the cubin that ptxas creates, and its log."""
    with tempfile.TemporaryDirectory(prefix="convsmith-") as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [assembler, f"-arch={architecture}", _LEVEL, "-v", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        log = done.stdout + done.stderr
        if done.returncode:
            raise ToolchainError(f"ptxas refuses the PTX for {architecture}: {log.strip()[:400]}", text=ptx)
        return target.read_bytes(), log


def disassemble(cubin: bytes) -> str:
    """Return the instructions of a cubin as text. UnsupportedError if no disassembler for it is installed."""
    tool = find_tool("nvdisasm")
    if tool is None:
        raise UnsupportedError(
            "no disassembler is installed: nvdisasm comes with pip install nvidia-cuda-nvdisasm", code="nvdisasm"
        )
    with tempfile.TemporaryDirectory(prefix="convsmith-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([str(tool), "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnsupportedError(f"{tool} does not read this code: {done.stderr.strip()}", code="nvdisasm")
    return done.stdout


def find_tool(name: str) -> Path | None:
    """Return the path of a tool of NVIDIA's toolkit, or None if it is not installed."""
    return next(_tools(name), None)


def _packages() -> tuple[str, ...]:
    """Return the folders of NVIDIA's packages from the Python package index."""
    spec = importlib.util.find_spec("nvidia")
    return tuple(spec.submodule_search_locations or ()) if spec is not None else ()


def _tools(name: str) -> Iterator[Path]:
    """Yield the paths of a tool: in the packages of the index, newest first, then on the search path."""
    for root in _packages():
        for folder in ("cu13", "cuda_nvcc"):
            path = Path(root, folder, "bin", name)
            if path.is_file() and os.access(path, os.X_OK):
                yield path
    on_path = shutil.which(name)
    if on_path is not None:
        yield Path(on_path)
