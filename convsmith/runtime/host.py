"""Loads object code into this process and runs its entries.

`ObjectCode` links objects of x86-64 in 0.04 ms, to memory that is unmapped with the `HostLibrary`. Objects of other
processors, and of systems that do not use ELF, are linked by an ORC LLJIT, which takes 0.2 ms and four times that for
the first object of a process; each becomes a library in it. A new LLJIT is created after every 64 libraries, because
LLVM frees the last traces of a library only with its LLJIT, which is destroyed with the last of its libraries.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convsmith.codegen.artifact import ABI_VERSION, Artifact, Entry, object_format
from convsmith.diag.errors import ToolchainError, UnsupportedError, UsageError
from convsmith.diag.forking import RenewedLock, import_lock
from convsmith.machine.host import lacking
from convsmith.runtime import threads
from convsmith.runtime.executable_memory import ExecutableMemory, function_address
from convsmith.runtime.object_code import ObjectCode, is_linked_here
from convsmith.runtime.permissions import obtain_permissions

__all__ = ["HostFunction", "HostLibrary", "obstacle"]

# ctypes releases the GIL while functions of these types run.
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

    `addresses` are those of the symbols of `code`, which keeps the memory behind them alive. `whole` is the native
    function behind the entry when it is a call, else None.
    """

    __slots__ = ("_chunk", "_code", "_on_python_threads", "_symbol", "entry", "whole")

    def __init__(self, code: object, entry: Entry, addresses: Mapping[str, int]) -> None:
        self._code = code  # the library would make a cycle with its functions
        self.entry = entry
        self._symbol = _WHOLE(addresses[entry.symbol])
        self.whole: Callable[[int], None] | None = self._symbol if entry.launch.kind == "call" else None
        self._chunk = _CHUNK(addresses[entry.chunk_symbol])
        self._on_python_threads: Any = None

    @property
    def address(self) -> int:
        """The address of a native function that runs all of the entry, on the threads of its launch. These are Python's
        in a process without an OpenMP runtime, as in the forked child of one that has it.
        """
        function: Any = self._symbol
        if self.whole is None and threads.openmp() is None:
            chunk, count = self._chunk, self.entry.launch.threads
            function = self._on_python_threads = self._on_python_threads or _WHOLE(
                lambda block: threads.run_chunks(chunk, block, count, None)
            )
        return ctypes.cast(function, ctypes.c_void_p).value or 0

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
    """The object code of an artifact, linked into this process while one of its functions lives.

    Code that the CPU cannot run is not linked, and calls of its functions raise UnsupportedError. The constructor
    raises UnsupportedError for another obstacle, UsageError for an artifact of another ABI version, and ToolchainError
    if the code cannot be linked.
    """

    def __init__(self, artifact: Artifact) -> None:
        if artifact.abi != ABI_VERSION:
            message = f"artifact has ABI version {artifact.abi}; this convsmith runs {ABI_VERSION}"
            raise UsageError(message, code="bad-artifact")
        self.functions: dict[str, HostFunction]
        if why := obstacle(artifact):
            self.functions = {name: _ForeignFunction(entry, why) for name, entry in artifact.entries.items()}
            return
        for entry in artifact.entries.values():
            _check_starts_here(artifact, entry)
        obtain_permissions(artifact)
        entries = artifact.entries
        symbols = [symbol for entry in entries.values() for symbol in (entry.symbol, entry.chunk_symbol)]
        code, addresses = _link(artifact, symbols)
        self.functions = {name: HostFunction(code, entry, addresses) for name, entry in entries.items()}

    def __getitem__(self, entry: str) -> HostFunction:
        return self.functions[entry]


_FORMATS = ("elf", {"darwin": "mach-o", "win32": "coff"}.get(sys.platform, "elf"))
"""Formats of object code that LLVM links in a process: ELF, which levels of CPUs have, and that of this system."""
_STARTED_HERE = ("call", "tasks")
"""Kinds of launch that `HostFunction` starts."""


def obstacle(artifact: Artifact) -> str:
    """Return the reason why this machine cannot run the code; empty if it can."""
    if missing := lacking(artifact.needs):
        return (
            f"kernel {artifact.problem!r} is made for {artifact.target}, which this CPU cannot run: it lacks "
            f"{', '.join(missing)}; generic code runs everywhere"
        )
    form = object_format(artifact.code)
    if form and form not in _FORMATS:
        return f"kernel {artifact.problem!r} is made for another system, whose object code is {form.upper()}"
    return ""


def _check_starts_here(artifact: Artifact, entry: Entry) -> None:
    """Raise UnsupportedError if host threads cannot run an entry, or its arguments are not in host memory."""
    launch = entry.launch
    elsewhere = [f"{a.name} ({a.memory})" for a in entry.arguments if a.memory != "host"]
    if launch.kind in _STARTED_HERE and (not launch.runtime or launch.runtime in threads.RUNTIMES) and not elsewhere:
        return
    where = f"entry {entry.symbol} of kernel {artifact.problem!r}"
    if launch.kind not in _STARTED_HERE:
        raise UnsupportedError(
            f"{where} is started as a {launch.kind}; a host starts {' and '.join(_STARTED_HERE)}", code="launch"
        )
    if launch.runtime and launch.runtime not in threads.RUNTIMES:
        raise UnsupportedError(
            f"{where} starts its tasks through the runtime {launch.runtime!r}; known are {', '.join(threads.RUNTIMES)}",
            code="launch",
        )
    raise UnsupportedError(
        f"{where} has arguments that do not lie in host memory: {', '.join(elsewhere)}", code="launch"
    )


def _link(artifact: Artifact, symbols: Sequence[str]) -> tuple[object, Mapping[str, int]]:
    """Return an object that keeps the code loaded, and the addresses of `symbols`."""
    runtimes = {entry.launch.runtime for entry in artifact.entries.values()} - {""}
    starts = {name: address for runtime in runtimes for name, address in threads.RUNTIMES[runtime]().items()}
    link = _linked_here if is_linked_here(artifact.code) else _linked_by_llvm
    try:
        return link(artifact.code, symbols, starts)
    except (RuntimeError, ToolchainError) as error:
        raise ToolchainError(
            f"the object code of {artifact.problem!r} cannot be linked ({len(artifact.code)} bytes, symbols "
            f"{', '.join(symbols)}): {error}",
            text=str(error),
        ) from None


def _linked_here(
    code: bytes, symbols: Sequence[str], starts: Mapping[str, int]
) -> tuple[ExecutableMemory, Mapping[str, int]]:
    """Return the memory of linked object code of this processor, and the addresses of `symbols`."""
    linked = ObjectCode(code)
    found = {name: starts.get(name) or function_address(name) for name in linked.calls}
    outside = {name: address for name, address in found.items() if address is not None}
    functions = linked.functions
    absent = [name for name in symbols if name not in functions]
    if absent or len(outside) < len(found):
        lacking = sorted({*absent, *(found.keys() - outside.keys())})
        raise ToolchainError(f"neither the object code nor this process has {', '.join(lacking)}", code="symbol")
    memory = ExecutableMemory(linked.size)
    memory.hold(linked.at(memory.address, outside))
    return memory, {name: memory.address + functions[name] for name in symbols}


def _linked_by_llvm(
    code: bytes, symbols: Sequence[str], starts: Mapping[str, int]
) -> tuple[object, Mapping[str, int]]:
    """Return LLVM's library of object code, and the addresses of `symbols`."""
    with import_lock:
        from llvmlite import binding as llvm

    builder = llvm.JITLibraryBuilder().add_object_img(code)
    for name, address in starts.items():
        builder.import_symbol(name, address)
    builder.add_current_process()  # memset, memcpy and mathematical functions
    for symbol in symbols:
        builder.export_symbol(symbol)
    library = builder.link(_jit(), f"convsmith.{next(_names)}")
    return library, {symbol: library[symbol] for symbol in symbols}


def _jit() -> Any:
    """Return the LLJIT for the next library."""
    global _lljit, _linked
    with import_lock:
        from llvmlite import binding as llvm

    with _jit_guard.lock:
        if _linked % _LIBRARIES_OF_A_JIT == 0:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            _lljit = llvm.create_lljit_compiler(use_jit_link=True)
        _linked += 1
        return _lljit
