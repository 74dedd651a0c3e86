"""`HostBlock`: the argument block of an entry that runs in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np

from convsmith.codegen.artifact import Argument, Entry
from convsmith.codegen.binder import AddressMemory, BoundEntry
from convsmith.runtime.arrays import Array, address_of, aligned_empty

__all__ = ["HostBlock", "HostMemory", "LentScratch", "memory_at"]


def memory_at(address: int, nbytes: int) -> Array:
    """Return memory of the host as an array of bytes."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class HostMemory(AddressMemory):
    """Memory of this process, which owns the arrays that it reserves."""

    def __init__(self) -> None:
        self._reserved: list[Array] = []

    def reserve(self, argument: Argument, elements: int) -> int:
        return self.reserve_bytes(argument.bytes_of(elements))

    def reserve_bytes(self, nbytes: int) -> int:
        """Return the address of `nbytes` bytes of new memory."""
        memory = aligned_empty(nbytes)
        self._reserved.append(memory)
        return address_of(memory)

    def read(self, place: int, nbytes: int) -> bytes:
        return ctypes.string_at(place, nbytes)

    def write(self, place: int, contents: Array) -> None:
        whole = np.ascontiguousarray(contents)
        ctypes.memmove(place, address_of(whole), whole.nbytes)


class LentScratch(HostMemory):
    """Memory whose scratch belongs to the caller, at the address `scratch`: consecutive calls share it."""

    def __init__(self, scratch: int) -> None:
        super().__init__()
        self._scratch = scratch

    def reserve(self, argument: Argument, elements: int) -> int:
        return self._scratch if argument.role == "scratch" else super().reserve(argument, elements)


class HostBlock(BoundEntry[int]):
    """The words of an entry at `address`, and the entry's own memory that they point to."""

    __slots__ = ("_memory", "address")

    def __init__(
        self, entry: Entry, places: Mapping[str, int] | None = None, memory: HostMemory | None = None
    ) -> None:
        words = (ctypes.c_uint64 * len(entry.arguments))()
        self._memory = memory or HostMemory()
        super().__init__(entry, self._memory, words)  # type: ignore[arg-type]  # an array is a sequence
        self.address = ctypes.addressof(words)
        self.give(places or {})
