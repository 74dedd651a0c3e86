"""`Emulator`: runs artifacts for other machines than the one at hand, or reports what is missing to do so.

An emulator loads an artifact as the runtime does: a function for each entry, called with the address of an argument
block (`runtime/loading.py`), so a `HostKernel` on emulated code supports every kind of call. The argument block and the
arrays that it points to are in this process; `EmulatedFunction` presents them as `Memory`, which an emulator copies to
its machine and back.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set

from convsmith.codegen.artifact import ABI_VERSION, Argument, Artifact, Entry
from convsmith.diag.errors import UsageError
from convsmith.diag.record import record
from convsmith.machine.base import Machine
from convsmith.runtime.arrays import Array
from convsmith.runtime.device_library import nbytes_of
from convsmith.runtime.host_block import memory_at
from convsmith.runtime.loading import LoadedCode

__all__ = ["EmulatedCode", "EmulatedFunction", "Emulator", "Memory", "Piece", "RunEntry"]


@record(frozen=True)
class Piece:
    """The memory of an argument: its bytes in this process.

    `is_written` states whether the entry writes it. `is_blank` states that no entry has written it before: its contents
    are meaningless, and an emulator fills it with a pattern that exposes reads.
    """

    argument: Argument
    contents: Array
    is_written: bool
    is_blank: bool


@record(frozen=True)
class Memory:
    """The arguments that a call gives an entry, by the names of arguments: memory, and values of sizes.

    The entry's own memory (scratch, tables of pointers, absent pixels) is not included: a `Binder` adds it on the
    emulated machine.
    """

    pieces: Mapping[str, Piece]
    sizes: Mapping[str, int]


RunEntry = Callable[[Entry, Memory], None]
"""Runs an entry on memory, and stores the results in the contents of the pieces that the entry writes."""


class Emulator(ABC):
    """A way of running artifacts for another machine."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The emulator in words, such as qemu-hexagon."""

    @abstractmethod
    def runs(self, machine: Machine) -> bool:
        """Return whether this emulator is for a target's architecture, installed or not."""

    @abstractmethod
    def check(self, machine: Machine) -> None:
        """Raise UnsupportedError if the emulator is not installed (code `emulator`; the message names the package to
        install), or if it has no processor with the features of a target (code `target`).
        """

    @abstractmethod
    def load(self, artifact: Artifact) -> LoadedCode:
        """Return the code of an artifact, whose functions run in the emulator.

        UnsupportedError if no emulated processor has the features that it needs, UsageError for an artifact of another
        ABI version, ToolchainError if its code cannot be linked. The functions raise ToolchainError for a fault of the
        emulated code (code `fault`), and if the emulator ends without results.
        """

    def doubt(self, artifact: Artifact) -> str:
        """Return the reason why wrong results may be a fault of the emulator; empty if it is known to be correct for
        the code.
        """
        return ""


class EmulatedFunction:
    """One entry, ready to run in an emulator: `function(block)` with the address of an argument block."""

    whole = None
    """False, because no native function of this process runs the entry."""

    def __init__(self, entry: Entry, run: RunEntry, blank: Set[str]) -> None:
        self.entry, self._run, self._blank = entry, run, blank

    def __call__(self, block: int, keep: object = None) -> None:
        """Run the entry and wait."""
        entry = self.entry
        words = (ctypes.c_uint64 * len(entry.arguments)).from_address(block)
        pieces, sizes = {}, {}
        for argument, word in zip(entry.arguments, words):
            if argument.role == "size":
                sizes[argument.name] = word
            elif argument.role not in ("scratch", "table", "zero"):
                contents = memory_at(word, nbytes_of(argument))
                name = argument.name
                pieces[name] = Piece(argument, contents, _is_written(argument, entry), name in self._blank)
        self._run(entry, Memory(pieces, sizes))


def _is_written(argument: Argument, entry: Entry) -> bool:
    return argument.role in ("out", "inout", "shared") or (argument.role == "packed" and bool(entry.packing))


class EmulatedCode:
    """The functions of an artifact's entries; `run` runs one of them. UsageError for another ABI version."""

    def __init__(self, artifact: Artifact, run: RunEntry) -> None:
        if artifact.abi != ABI_VERSION:
            message = f"artifact has ABI version {artifact.abi}; this convsmith runs {ABI_VERSION}"
            raise UsageError(message, code="bad-artifact")
        packing = [name for names in artifact.packs.values() for name in names]
        self._functions: dict[str, EmulatedFunction] = {}
        written: set[str] = set()
        for name in (*packing, *artifact.steps):
            entry = artifact.entries[name]
            own = {a.name for a in entry.arguments if a.role in ("packed", "shared") and _is_written(a, entry)}
            self._functions[name] = EmulatedFunction(entry, run, own - written)
            written |= own

    def __getitem__(self, entry: str) -> EmulatedFunction:
        return self._functions[entry]
