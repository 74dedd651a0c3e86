"""Loads object code into this process and runs its entries.

An ORC LLJIT links artifacts; each becomes a library in it and is unloaded with its `HostLibrary`. A new LLJIT is
created after every 64 libraries, because LLVM frees the last traces of a library only with its LLJIT, which is
destroyed with the last of its libraries. Linking an object takes about 0.2 ms with JITLink. RuntimeDyld takes 0.25 ms
and aborts the process if a relocation does not fit, which JITLink reports; MCJIT with one engine per object takes 0.75
ms.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

from llvmlite import binding as llvm

from convsmith.codegen.artifact import ABI_VERSION, Artifact, Entry
from convsmith.diag.errors import ToolchainError, UnsupportedError, UsageError
from convsmith.diag.forking import RenewedLock
from convsmith.machine.host import cpu_features
from convsmith.runtime import threads
from convsmith.runtime.permissions import obtain_permissions

__all__ = ["HostFunction", "HostLibrary"]

# ctypes releases the GIL around functions of such types.
_WHOLE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CHUNK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

_jit_guard = RenewedLock()
_names = itertools.count()
_lljit: Any = None
_linked = 0

_LIBRARIES_OF_A_JIT = 64
"""Libraries per LLJIT. LLVM keeps 9 KB of each, even unloaded, until the LLJIT is destroyed."""


class HostFunction:
    """One entry, ready to run: `function(block)` with the address of an argument block.

    `whole` is the native function behind it when the entry is a call, else None.
    """

    __slots__ = ("_chunk", "_library", "_symbol", "entry", "whole")

    def __init__(self, library: HostLibrary, entry: Entry, symbol: int, chunk: int) -> None:
        self._library = library  # what the addresses point into
        self.entry = entry
        self._symbol = _WHOLE(symbol)
        self._chunk = _CHUNK(chunk)
        self.whole: Callable[[int], None] | None = self._symbol if entry.launch.kind == "call" else None

    def __call__(self, block: int, keep: object = None) -> None:
        """Run the entry and wait. `keep` holds the memory in use alive if an interrupt ends the wait early."""
        if self.whole is not None:
            self.whole(block)
        elif not threads.run_region(self._symbol, block, self.entry.launch.threads):
            threads.run_chunks(self._chunk, block, self.entry.launch.threads, keep)


class _ForeignFunction(HostFunction):
    """An entry that the CPU cannot run: each call raises UnsupportedError with the reason `why`."""

    __slots__ = ("_why",)

    def __init__(self, entry: Entry, why: str) -> None:
        self.entry, self.whole, self._why = entry, None, why

    def __call__(self, block: int, keep: object = None) -> None:
        raise UnsupportedError(self._why, code="target")


class HostLibrary:
    """The object code of an artifact, linked into this process while this object or one of its functions lives.

    Code that the CPU cannot run is not linked, and calls of its functions raise UnsupportedError. The constructor
    raises UnsupportedError for another obstacle, UsageError for an artifact of another ABI version, and ToolchainError
    if LLVM cannot link the code.
    """

    def __init__(self, artifact: Artifact) -> None:
        if artifact.abi != ABI_VERSION:
            message = f"artifact has ABI version {artifact.abi}; this convsmith runs {ABI_VERSION}"
            raise UsageError(message, code="bad-artifact")
        self.functions: dict[str, HostFunction]
        if why := _obstacle(artifact):
            self.functions = {name: _ForeignFunction(entry, why) for name, entry in artifact.entries.items()}
            return
        for entry in artifact.entries.values():
            _check_starts_here(artifact, entry)
        obtain_permissions(artifact)
        symbols = [symbol for entry in artifact.entries.values() for symbol in (entry.symbol, entry.chunk_symbol)]
        self._tracker = _link(artifact, symbols)
        self.functions = {
            name: HostFunction(self, entry, self._tracker[entry.symbol], self._tracker[entry.chunk_symbol])
            for name, entry in artifact.entries.items()
        }

    def __getitem__(self, entry: str) -> HostFunction:
        return self.functions[entry]


_STARTED_HERE = ("call", "tasks")
"""Kinds of launch that `HostFunction` starts."""


def _obstacle(artifact: Artifact) -> str:
    """Return why the CPU cannot run the code; empty where it can."""
    missing = [name for name in artifact.needs if name not in cpu_features()]
    if not missing:
        return ""
    return (
        f"kernel {artifact.problem!r} is made for {artifact.target}, which this CPU cannot run: it lacks "
        f"{', '.join(missing)}; generic code runs everywhere"
    )


def _check_starts_here(artifact: Artifact, entry: Entry) -> None:
    """UnsupportedError where host threads cannot run an entry, or its arguments do not lie in host memory."""
    launch, where = entry.launch, f"entry {entry.symbol} of kernel {artifact.problem!r}"
    if launch.kind not in _STARTED_HERE:
        raise UnsupportedError(
            f"{where} is started as a {launch.kind}; a host starts {' and '.join(_STARTED_HERE)}", code="launch"
        )
    if launch.runtime and launch.runtime not in threads.RUNTIMES:
        raise UnsupportedError(
            f"{where} starts its tasks through the runtime {launch.runtime!r}; known are {', '.join(threads.RUNTIMES)}",
            code="launch",
        )
    elsewhere = [f"{a.name} ({a.memory})" for a in entry.arguments if a.memory != "host"]
    if elsewhere:
        raise UnsupportedError(
            f"{where} has arguments that do not lie in host memory: {', '.join(elsewhere)}", code="launch"
        )


def _link(artifact: Artifact, symbols: list[str]) -> Any:
    builder = llvm.JITLibraryBuilder().add_object_img(artifact.code)
    for runtime in {entry.launch.runtime for entry in artifact.entries.values()} - {""}:
        for name, address in threads.RUNTIMES[runtime]().items():
            builder.import_symbol(name, address)
    builder.add_current_process()  # memset, memcpy and mathematical functions
    for symbol in symbols:
        builder.export_symbol(symbol)
    try:
        return builder.link(_jit(), f"convsmith.{next(_names)}")
    except RuntimeError as error:
        raise ToolchainError(
            f"LLVM cannot link the object code of {artifact.problem!r} ({len(artifact.code)} bytes, symbols "
            f"{', '.join(symbols)}): {error}",
            text=str(error),
        ) from None


def _jit() -> Any:
    """Return the LLJIT for the next library."""
    global _lljit, _linked
    with _jit_guard.lock:
        if _linked % _LIBRARIES_OF_A_JIT == 0:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            _lljit = llvm.create_lljit_compiler(use_jit_link=True)
        _linked += 1
        return _lljit
