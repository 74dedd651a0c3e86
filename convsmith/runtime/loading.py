"""The library that runs an artifact: of the host, or of a run time that launches kernels on a device."""

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

    `whole` is the native function behind it, where one runs all of the entry on the thread that calls.
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
        """Copy an array of the host, which has no gaps, to memory of the device."""
        ...

    def on_stream(self, stream: int) -> AbstractContextManager[None]:
        """Launch the kernels of this thread on a stream of the caller's within the context, and wait for none that
        reads and writes memory of the device alone.
        """
        ...

    def stream_number(self) -> int | None:
        """Return a number above 0 that no other stream has had, of the stream on which this thread launches; None if
        its work is captured.
        """
        ...

    def wait(self, stream: int) -> None:
        """Wait for the kernels on a stream."""
        ...

    def is_capturing(self, stream: int) -> bool:
        """Return whether the work on a stream is captured in a graph, so that nothing can wait for it."""
        ...


def memory_of(code: LoadedCode) -> DeviceMemory | None:
    """Return the memory of the device that code runs on; None if arrays of a call lie in memory of the host."""
    memory: DeviceMemory | None = getattr(code, "memory", None)
    return memory


class _RunTime(NamedTuple):
    """A run time that launches grids: its library of an artifact, the name of its device, and the check whether the
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


_DEVICES: dict[str, Callable[[], _RunTime]] = {"cuda": _cuda, "opencl": _opencl}
"""Run times by their names."""


def device_name(runtime: str) -> str:
    """Return the name of the device that runs the kernels of a run time. UnsupportedError where there is none."""
    return _DEVICES[runtime]().device_name()


def check_device(runtime: str, target: str, needs: Collection[str]) -> None:
    """UnsupportedError where the run time has no device, or none that runs code for a target that `needs` extensions.
    """
    _DEVICES[runtime]().check_device(target, needs)


def library_of(artifact: Artifact) -> LoadedCode:
    """Return the loaded code of an artifact. UnsupportedError where no run time launches it."""
    launch = artifact.entries["main"].launch
    if launch.kind != "grid":
        return HostLibrary(artifact)
    if launch.runtime not in _DEVICES:
        raise UnsupportedError(
            f"kernel {artifact.problem!r} is launched by {launch.runtime!r}; known are {', '.join(_DEVICES)}",
            code="launch",
        )
    return _DEVICES[launch.runtime]().library(artifact)
