"""The library that runs an artifact: of the host, or of a run time that launches kernels on a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from convsmith.codegen.artifact import Artifact, Entry
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.forking import import_lock
from convsmith.runtime.host import HostLibrary

__all__ = ["DeviceMemory", "LoadedCode", "LoadedFunction", "library_of", "memory_of"]


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

    def on_stream(self, stream: int) -> AbstractContextManager[None]:
        """Launch the kernels of this thread on a stream of the caller's within the context."""
        ...


def memory_of(code: LoadedCode) -> DeviceMemory | None:
    """Return the memory of the device that code runs on; None if arrays of a call lie in memory of the host."""
    memory: DeviceMemory | None = getattr(code, "memory", None)
    return memory


def _opencl(artifact: Artifact) -> LoadedCode:
    with import_lock:
        from convsmith.runtime.opencl import OpenClLibrary

    return OpenClLibrary(artifact)


def _cuda(artifact: Artifact) -> LoadedCode:
    with import_lock:
        from convsmith.runtime.cuda import CudaLibrary

    return CudaLibrary(artifact)


_DEVICES: dict[str, Callable[[Artifact], LoadedCode]] = {"cuda": _cuda, "opencl": _opencl}
"""Libraries by the run time that launches their grids."""


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
    return _DEVICES[launch.runtime](artifact)
