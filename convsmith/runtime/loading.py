"""The library that runs an artifact: on the host, or through a runtime that launches kernels on a device."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from convsmith.codegen.artifact import Artifact, Entry
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.forking import import_lock
from convsmith.runtime.arrays import Array
from convsmith.runtime.host import HostLibrary

__all__ = [
    "DeviceMemory", "LoadedCode", "LoadedFunction", "check_device", "device_name", "library_of", "memory_of",
]  # fmt: skip


class LoadedFunction(Protocol):
    """One entry, ready to run: `function(block)` with the address of an argument block, as `HostFunction` is.

    `whole` is the native function that runs all of the entry on the calling thread, if there is one.
    """

    @property
    def entry(self) -> Entry: ...

    @property
    def whole(self) -> Callable[[int], None] | None: ...

    def __call__(self, block: int, keep: object = None) -> None:
        """Run the entry and wait; `keep` holds the memory in use."""
        ...


class LoadedCode(Protocol):
    """The code of an artifact, loaded: a function for each entry by name."""

    def __getitem__(self, entry: str) -> LoadedFunction: ...


class DeviceMemory(Protocol):
    """Memory of device `number`, in which arrays of a call may lie."""

    @property
    def number(self) -> int: ...

    def reserve(self, nbytes: int) -> tuple[int, object]:
        """Return the address of new memory, and the object that keeps it."""
        ...

    def write(self, address: int, array: Array) -> None:
        """Copy a host array without gaps to memory of the device."""
        ...

    def on_stream(self, stream: int, resident: bool) -> AbstractContextManager[None]:
        """Within the context, launch the kernels of this thread on the caller's stream, without waiting for kernels
        that access only device memory; `resident` states that all arrays that calls pass are in this memory.
        """
        ...

    def stream_number(self) -> int | None:
        """Return a positive number of the stream on which this thread launches, which no other stream has had; None if
        its work is captured.
        """
        ...

    def wait(self, stream: int) -> None:
        """Wait for the kernels on a stream."""
        ...

    def is_capturing(self, stream: int) -> bool:
        """Return whether the work on a stream is captured in a graph, which makes waiting impossible."""
        ...


def memory_of(code: LoadedCode) -> DeviceMemory | None:
    """Return the memory of the device that code runs on; None if arrays of a call are in host memory."""
    memory: DeviceMemory | None = getattr(code, "memory", None)
    return memory


class _RunTime(NamedTuple):
    """A runtime that launches grids: its library of an artifact, the name of its device, and the check whether the
    device runs code for a target with certain needs.
    """

    library: Callable[[Artifact], LoadedCode]
    device_name: Callable[[], str]
    check_device: Callable[[str, Collection[str]], None]


def _opencl() -> _RunTime:
    with import_lock:
        from convsmith.runtime import opencl

    return _RunTime(opencl.OpenClLibrary, opencl.device_name, opencl.check_device)


def _cuda() -> _RunTime:
    with import_lock:
        from convsmith.runtime import cuda

    return _RunTime(cuda.CudaLibrary, cuda.device_name, cuda.check_device)


def _webgpu() -> _RunTime:
    with import_lock:
        from convsmith.runtime import webgpu

    return _RunTime(webgpu.WebGpuLibrary, webgpu.device_name, webgpu.check_device)


_DEVICES: dict[str, Callable[[], _RunTime]] = {"cuda": _cuda, "opencl": _opencl, "webgpu": _webgpu}
"""Runtimes by name."""


def device_name(runtime: str) -> str:
    """Return the name of the device that runs the kernels of a runtime. UnsupportedError if there is none."""
    return _DEVICES[runtime]().device_name()


def check_device(runtime: str, target: str, needs: Collection[str]) -> None:
    """Raise UnsupportedError if the runtime has no device that runs code for a target, which `needs` extensions."""
    _DEVICES[runtime]().check_device(target, needs)


def library_of(artifact: Artifact) -> LoadedCode:
    """Return the loaded code of an artifact. UnsupportedError if no runtime launches it."""
    launch = artifact.entries["main"].launch
    if launch.kind != "grid":
        return HostLibrary(artifact)
    if launch.runtime not in _DEVICES:
        raise UnsupportedError(
            f"kernel {artifact.problem!r} is launched by {launch.runtime!r}; known are {', '.join(_DEVICES)}",
            code="launch",
        )
    return _DEVICES[launch.runtime]().library(artifact)
