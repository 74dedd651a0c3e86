"""Runs SPIR-V artifacts on an OpenCL device, through the package pyopencl.

The arrays of a call are in host memory. During a launch, each array is wrapped in an OpenCL buffer: a device that
shares the host's memory accesses it in place, for other devices the driver copies. An array at an address that is not
sufficiently aligned is copied first.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Collection
from typing import Any

import numpy as np

from convsmith.codegen.artifact import Entry, build_options
from convsmith.diag.errors import ConfigError, ToolchainError, UnsupportedError
from convsmith.runtime.arrays import Array
from convsmith.runtime.device_library import ALIGNMENT, DeviceFunction, DeviceLibrary, OpenedOnce, nbytes_of
from convsmith.runtime.host_block import memory_at
from convsmith.runtime.opencl_drivers import CPU_PACKAGES, platforms

__all__ = ["OpenClFunction", "OpenClLibrary", "OpenedDevice", "check_device", "device_name"]

_PACKAGE = "pyopencl"


def _package() -> Any:
    """Return pyopencl. UnsupportedError if it is not installed, or cannot load the system's OpenCL."""
    try:
        import pyopencl
    except ImportError as error:
        raise UnsupportedError(
            f"kernels of OpenCL are launched through the package {_PACKAGE}, which cannot be imported ({error}); "
            "pip install 'convsmith[opencl]' installs it",
            code="opencl",
        ) from None
    return pyopencl


class OpenedDevice:
    """A context on a device, with one queue."""

    def __init__(self) -> None:
        self.cl = cl = _package()
        try:
            found = [d for platform in platforms(cl) for d in platform.get_devices()]
        except cl.Error as error:
            found, why = [], f" ({error})"
        else:
            why = ""
        able = [d for d in found if "SPIR-V" in _il_version(d)]
        if not able:
            names = ", ".join(d.name.strip() for d in found) or "none"
            raise UnsupportedError(
                f"no device of OpenCL takes SPIR-V{why}: those of this machine are {names}; pip install {CPU_PACKAGES} "
                "installs a driver for CPUs",
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


_opened = OpenedOnce(OpenedDevice, "OpenCL", "opencl")


def device_name() -> str:
    """Return the name of the device that runs kernels. UnsupportedError if there is none."""
    return str(_opened().device.name).strip()


class OpenClFunction(DeviceFunction):
    """One entry on a device of OpenCL."""

    def __init__(self, library: OpenClLibrary, entry: Entry) -> None:
        super().__init__(entry)
        self._library = library
        self._threads = tuple(g * n for g, n in zip(entry.launch.grid, entry.launch.group))

    def __call__(self, block: int, keep: object = None) -> None:
        opened, kernels = self._library.loaded()
        cl = opened.cl
        words = (ctypes.c_uint64 * len(self.entry.arguments)).from_address(block)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        try:
            given = [memory_at(words[n], nbytes) for n, (_, nbytes) in enumerate(self.arrays)]
            aligned = [*map(_aligned, given)]
            buffers = [cl.Buffer(opened.context, flags, hostbuf=x) for x in aligned]
            sizes = [np.uint64(words[n]) for n in range(len(buffers), len(words))]
            with self.launching:  # an OpenCL kernel object holds the arguments of one launch
                kernel = kernels[self.entry.symbol]
                kernel.set_args(*buffers, *sizes)
                cl.enqueue_nd_range_kernel(opened.queue, kernel, self._threads, self.entry.launch.group)
            for n in self.written:  # the driver copies buffers that are not used in place
                nbytes = self.arrays[n][1]
                seen, event = cl.enqueue_map_buffer(
                    opened.queue, buffers[n], cl.map_flags.READ, 0, (nbytes,), np.uint8, is_blocking=False
                )
                seen.base.release(opened.queue, [event])
            opened.queue.finish()
            for n in self.written:
                if aligned[n] is not given[n]:
                    given[n][:] = aligned[n]
        except cl.MemoryError as error:
            total = sum(nbytes for _, nbytes in self.arrays)
            raise UnsupportedError(
                f"entry {self.entry.symbol}: {total} bytes of arguments; {opened.device.name.strip()} has "
                f"{opened.device.global_mem_size}, and not enough of it is free ({error})",
                code="memory",
            ) from None
        except cl.Error as error:
            raise ToolchainError(
                f"entry {self.entry.symbol}: {opened.device.name.strip()} refuses the launch: {error}", text=str(error)
            ) from None


def _aligned(array: Array) -> Array:
    """Return an array of bytes, or a copy of it, at an address that kernels may rely on."""
    if array.ctypes.data % ALIGNMENT == 0:
        return array
    room = np.empty(array.size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + array.size]
    copy[:] = array
    return copy


class OpenClLibrary(DeviceLibrary[OpenedDevice, "dict[str, Any]", OpenClFunction]):
    """The SPIR-V of an artifact, which a device builds to a dictionary of kernels by symbol."""

    def opened(self) -> OpenedDevice:
        return _opened()

    def function(self, entry: Entry) -> OpenClFunction:
        return OpenClFunction(self, entry)

    def needed(self, needs: Collection[str]) -> Collection[str]:
        """Return the extensions that the device must have, among the extensions that the code needs."""
        return needs

    def build(self, gpu: OpenedDevice) -> Any:
        """Return the program of the artifact's code, built for a device."""
        return gpu.cl.Program(gpu.context, self.artifact.code).build(options=self.options())

    def options(self) -> list[str]:
        """Return the options of the driver's compiler: a program has one number of registers of a thread."""
        return build_options(entry.launch for entry in self.artifact.entries.values())

    def load(self, gpu: OpenedDevice) -> dict[str, Any]:
        artifact, cl = self.artifact, gpu.cl
        _check_extensions(artifact.target, self.needed(artifact.needs), gpu.device)
        for entry in artifact.entries.values():
            _check_limits(entry, gpu.device)
        try:
            with _opened.guard.lock, warnings.catch_warnings():  # the filter of warnings is global to the process
                warnings.simplefilter("ignore", cl.CompilerWarning)  # drivers also report successful builds
                program = self.build(gpu)
            return {e.symbol: cl.Kernel(program, e.symbol) for e in artifact.entries.values()}
        except cl.Error as error:
            raise ToolchainError(
                f"OpenCL cannot build the SPIR-V of {artifact.problem!r} ({len(artifact.code)} bytes) for "
                f"{gpu.device.name.strip()}: {error}",
                text=str(error),
            ) from None


def check_device(target: str, needs: Collection[str]) -> None:
    """Raise UnsupportedError if no OpenCL device runs code for a target, which `needs` extensions."""
    _check_extensions(target, needs, _opened().device)


def _check_extensions(target: str, needs: Collection[str], device: Any) -> None:
    """Raise UnsupportedError if the device lacks instructions that code for the target may contain."""
    missing = [name for name in needs if name not in device.extensions.split()]
    if missing:
        raise UnsupportedError(
            f"code for {target} needs {', '.join(missing)}, which {device.name.strip()} lacks; available is code for "
            "opencl",
            code="opencl",
        )


def _check_limits(entry: Entry, device: Any) -> None:
    """Raise ConfigError if an entry needs more threads per group, or more shared memory, than the device has."""
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
    largest = max((nbytes_of(a) for a in entry.arguments if a.role != "size"), default=0)
    if largest > device.max_mem_alloc_size:
        raise UnsupportedError(
            f"entry {entry.symbol}: an argument of {largest} bytes; {name} has buffers of {device.max_mem_alloc_size}",
            code="memory",
        )
