"""Runs artifacts of SPIR-V on a device of OpenCL, through the package pyopencl.

A call's arrays lie in the memory of the host. A buffer of OpenCL stands over each of them during a launch: a device
that shares the host's memory reads and writes it in place, for another one the driver copies.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from functools import cache
from typing import Any

import numpy as np

from convsmith.codegen.artifact import Artifact, Entry
from convsmith.codegen.binder import element_type
from convsmith.diag.errors import ConfigError, ToolchainError, UnsupportedError
from convsmith.diag.forking import RenewedLock
from convsmith.runtime.arrays import Array

__all__ = ["OpenClFunction", "OpenClLibrary", "device_name"]

_PACKAGE = "pyopencl"
_guard = RenewedLock()
_started_in = 0
"""The process that has started OpenCL: a fork of it has none of its threads."""


def _package() -> Any:
    """Return pyopencl. UnsupportedError where it is not installed, or cannot load the system's OpenCL."""
    try:
        import pyopencl
    except ImportError as error:
        raise UnsupportedError(
            f"kernels of OpenCL are launched through the package {_PACKAGE}, which cannot be imported ({error}); "
            "pip install 'convsmith[opencl]' installs it",
            code="opencl",
        ) from None
    return pyopencl


class _Opened:
    """A context on a device, with one queue."""

    def __init__(self) -> None:
        self.cl = cl = _package()
        try:
            found = [d for platform in cl.get_platforms() for d in platform.get_devices()]
        except cl.Error as error:
            found, why = [], f" ({error})"
        else:
            why = ""
        able = [d for d in found if "SPIR-V" in _il_version(d)]
        if not able:
            names = ", ".join(d.name.strip() for d in found) or "none"
            raise UnsupportedError(
                f"no device of OpenCL takes SPIR-V{why}: those of this machine are {names}; a driver for CPUs is in "
                "the packages intel-opencl-rt and intel-cmplr-lib-rt; OCL_ICD_VENDORS must name a folder that names it",
                code="opencl",
            )
        self.device = min(able, key=lambda d: (not d.type & cl.device_type.GPU, able.index(d)))
        self.context = cl.Context([self.device])
        self.queue = cl.CommandQueue(self.context)


def _il_version(device: Any) -> str:
    """Return the intermediate languages that a device takes, as OpenCL lists them."""
    try:
        return str(device.il_version)
    except Exception:
        return ""


@cache
def _opened() -> _Opened:
    return _Opened()


def _open() -> _Opened:
    """Return the context of this process. UnsupportedError in a fork of a process that has one."""
    global _started_in
    with _guard.lock:
        if _started_in not in (0, os.getpid()):
            raise UnsupportedError(
                f"process {os.getpid()} was forked from process {_started_in} after that had launched kernels of "
                "OpenCL, whose threads a fork lacks; legal is a process that is spawned",
                code="opencl",
            )
        opened = _opened()
        _started_in = os.getpid()
        return opened


def device_name() -> str:
    """Return the name of the device that runs kernels. UnsupportedError where there is none."""
    return str(_open().device.name).strip()


class OpenClFunction:
    """One entry, ready to run: `function(block)` with the address of an argument block."""

    whole = None
    """An entry of a device is no native function of the host."""

    def __init__(self, library: OpenClLibrary, entry: Entry) -> None:
        self.entry, self._library = entry, library
        self._arguments = [(a, a.size * element_type(a).itemsize) for a in entry.arguments if a.role != "size"]
        written = ("out", "inout", "shared", "scratch", *(["packed"] if entry.packing else []))
        self._written = [n for n, (a, _) in enumerate(self._arguments) if a.role in written]
        launch = entry.launch
        self._threads = tuple(g * n for g, n in zip(launch.grid, launch.group))
        self._launching = threading.Lock()

    def __call__(self, block: int, keep: object = None) -> None:
        """Run the entry and wait. UnsupportedError: there is no device that runs it, or the device lacks memory."""
        opened, kernels = self._library.loaded()
        cl = opened.cl
        words = (ctypes.c_uint64 * len(self.entry.arguments)).from_address(block)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        try:
            buffers = [
                cl.Buffer(opened.context, flags, hostbuf=_memory(words[n], nbytes))
                for n, (_, nbytes) in enumerate(self._arguments)
            ]
            sizes = [np.uint64(words[n]) for n in range(len(buffers), len(words))]
            with self._launching:  # a kernel of OpenCL holds the arguments of one launch
                kernel = kernels[self.entry.symbol]
                kernel.set_args(*buffers, *sizes)
                cl.enqueue_nd_range_kernel(opened.queue, kernel, self._threads, self.entry.launch.group)
            for n in self._written:  # the driver copies what is not in place
                nbytes = self._arguments[n][1]
                seen, event = cl.enqueue_map_buffer(
                    opened.queue, buffers[n], cl.map_flags.READ, 0, (nbytes,), np.uint8, is_blocking=False
                )
                seen.base.release(opened.queue, [event])
            opened.queue.finish()
        except cl.MemoryError as error:
            total = sum(nbytes for _, nbytes in self._arguments)
            raise UnsupportedError(
                f"entry {self.entry.symbol}: {total} bytes of arguments; {opened.device.name.strip()} has "
                f"{opened.device.global_mem_size}, and not enough of it is free ({error})",
                code="memory",
            ) from None
        except cl.Error as error:
            raise ToolchainError(
                f"entry {self.entry.symbol}: {opened.device.name.strip()} refuses the launch: {error}", text=str(error)
            ) from None


def _memory(address: int, nbytes: int) -> Array:
    """Return memory of the host as an array of bytes."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class OpenClLibrary:
    """The SPIR-V of an artifact, which is built for the device of this process at the first call."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._loading = threading.Lock()
        self._kernels: tuple[_Opened, dict[str, Any]] | None = None
        self.functions = {name: OpenClFunction(self, entry) for name, entry in artifact.entries.items()}

    def loaded(self) -> tuple[_Opened, dict[str, Any]]:
        """Return the device's context and the kernels by symbol. UnsupportedError where there is no device,
        ConfigError where its groups or its shared memory are smaller than those of an entry, ToolchainError if the
        driver refuses the code.
        """
        with self._loading:
            if self._kernels is None:
                self._kernels = self._load(self._artifact)
        return self._kernels

    def _load(self, artifact: Artifact) -> tuple[_Opened, dict[str, Any]]:
        opened = _open()
        for entry in artifact.entries.values():
            _check_limits(entry, opened.device)
        cl = opened.cl
        try:
            with _guard.lock, warnings.catch_warnings():  # the filter of warnings is the process's
                warnings.simplefilter("ignore", cl.CompilerWarning)  # drivers report successful builds
                program = cl.Program(opened.context, artifact.code).build()
            return opened, {e.symbol: cl.Kernel(program, e.symbol) for e in artifact.entries.values()}
        except cl.Error as error:
            raise ToolchainError(
                f"OpenCL cannot build the SPIR-V of {artifact.problem!r} ({len(artifact.code)} bytes) for "
                f"{opened.device.name.strip()}: {error}",
                text=str(error),
            ) from None

    def __getitem__(self, entry: str) -> OpenClFunction:
        return self.functions[entry]


def _check_limits(entry: Entry, device: Any) -> None:
    """ConfigError where an entry needs more threads in a group, or more shared memory, than the device has."""
    launch, name = entry.launch, device.name.strip()
    threads = int(np.prod(launch.group))
    most = tuple(device.max_work_item_sizes)
    if threads > device.max_work_group_size or any(n > limit for n, limit in zip(launch.group, most)):
        raise ConfigError(
            "group", f"entry {entry.symbol}: groups of {' x '.join(map(str, launch.group))} = {threads} threads; legal "
            f"on {name} are {device.max_work_group_size}, and {' x '.join(map(str, most))} along the axes",
        )  # fmt: skip
    if launch.shared > device.local_mem_size:
        raise ConfigError(
            "shared",
            f"entry {entry.symbol}: {launch.shared} bytes of shared memory; {name} has {device.local_mem_size}",
        )
    largest = max((a.size * element_type(a).itemsize for a in entry.arguments if a.role != "size"), default=0)
    if largest > device.max_mem_alloc_size:
        raise UnsupportedError(
            f"entry {entry.symbol}: an argument of {largest} bytes; {name} has buffers of {device.max_mem_alloc_size}",
            code="memory",
        )
