"""A device that a process opens once, and the code of an artifact that is loaded on it at the first call."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.forking import RenewedLock
from convsmith.diag.system import at_fork

__all__ = ["ALIGNMENT", "DeviceFunction", "DeviceLibrary", "OpenedOnce", "nbytes_of"]

ALIGNMENT = 16
"""Bytes that divide the addresses of a kernel's arrays on a device."""
Gpu = TypeVar("Gpu")
Code = TypeVar("Code")
Function = TypeVar("Function", bound="DeviceFunction")


class OpenedOnce(Generic[Gpu]):
    """The device of this process, which `make` opens at the first call.

    A forked child lacks the runtime's threads, so it cannot use the device that its parent has opened: a call in the
    child raises UnsupportedError, which names the runtime as ``name``.
    """

    def __init__(self, make: Callable[[], Gpu], name: str, code: str) -> None:
        self._make, self._name, self._code = make, name, code
        self.guard = RenewedLock()
        self._opened: Gpu | None = None
        self._usable: Gpu | None = None
        """The device, in the process that has opened it."""
        self._process = 0
        at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        self._usable = None

    def __call__(self) -> Gpu:
        usable = self._usable
        if usable is not None:
            return usable
        with self.guard.lock:
            if self._opened is None:
                self._opened, self._process = self._make(), os.getpid()
                self._usable = self._opened
            if self._usable is None:
                raise UnsupportedError(
                    f"process {os.getpid()} was forked from process {self._process} after that had started "
                    f"{self._name}, which a fork cannot use; legal is a process that is spawned",
                    code=self._code,
                )
            return self._usable


def nbytes_of(argument: Argument) -> int:
    """Return the bytes of an argument's array."""
    return argument.nbytes


class DeviceFunction(ABC):
    """One entry, ready to run: `function(block)` with the address of an argument block."""

    whole = None
    """False: the entry of a device is not a native function of the host."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.arrays = [(a, nbytes_of(a)) for a in entry.arguments if a.role != "size"]
        """The arguments in memory, which precede the sizes, with their bytes."""
        written = ("out", "inout", "shared", "scratch", *(["packed"] if entry.packing else []))
        self.written = [n for n, (a, _) in enumerate(self.arrays) if a.role in written]
        """Positions of the arrays that the entry writes."""
        self.has_host_memory = any(a.role in ("scratch", "table", "zero") for a in entry.arguments)
        """Whether an argument block brings memory of the host, beside the arrays of a call."""
        self.launching = threading.Lock()

    def bound(self, block: int, keep: object) -> Callable[[], object]:
        """Return the function that runs the entry on the argument block at the address `block`, which `keep` holds
        alive. Only one thread at a time may call it.
        """
        return partial(self, block, keep)

    @abstractmethod
    def __call__(self, block: int, keep: object = None) -> None:
        """Run the entry and wait. UnsupportedError if no device runs it, or the device lacks memory."""


class DeviceLibrary(ABC, Generic[Gpu, Code, Function]):
    """An artifact whose code is loaded on the device of this process at the first call."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._loading = threading.Lock()
        self._code: Code | None = None
        self.functions = {name: self.function(entry) for name, entry in artifact.entries.items()}

    @abstractmethod
    def opened(self) -> Gpu:
        """Return the opened device of this process. UnsupportedError if there is no usable device."""

    @abstractmethod
    def function(self, entry: Entry) -> Function:
        """Return the function of an entry."""

    @abstractmethod
    def load(self, gpu: Gpu) -> Code:
        """Return the code of the artifact, loaded on a device."""

    def loaded(self) -> tuple[Gpu, Code]:
        """Return the device and the code on it.

        UnsupportedError if there is no device, the code does not run on it, or this process is a fork of the process
        that opened it; ConfigError if the groups or the shared memory of an entry exceed the device's, ToolchainError
        if the driver rejects the code.
        """
        gpu = self.opened()
        if self._code is not None:
            return gpu, self._code
        with self._loading:
            if self._code is None:
                self._code = self.load(gpu)
        return gpu, self._code

    def __getitem__(self, entry: str) -> Function:
        return self.functions[entry]
