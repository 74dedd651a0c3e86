"""`AddressedKernel`: a kernel on addresses of memory that its caller has checked.

A library that knows the shapes and strides of its arrays calls kernels thus: a call writes one word for each array and
runs the entries. Memory that entries pass to each other, and that of operands which each call packs, is kept for the
next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from convsmith.codegen.artifact import Argument
from convsmith.codegen.binder import element_type
from convsmith.diag.errors import InternalError
from convsmith.runtime.entry_call import EntryCall, PackedParts
from convsmith.runtime.host_block import HostBlock, HostMemory
from convsmith.runtime.loading import DeviceMemory

__all__ = ["AddressedKernel"]


class _Link(NamedTuple):
    """An argument of an entry: address number `source` of a call, plus `offset` bytes."""

    entry: int
    position: int
    source: int
    offset: int


class _Frame(NamedTuple):
    """Memory of one call at a time: a function that runs each entry, and the places of the words that a call writes."""

    runs: tuple[Callable[[], object], ...]
    followers: tuple[HostBlock, ...]
    words: tuple[tuple[Any, int, int, int], ...]


class AddressedKernel:
    """The `entries` of a kernel in their order, called with the addresses of the arrays `names`.

    An array of `packed` is given packed, as `parts` describes its memory; the other operands in `parts` are packed by
    each call. `shared` are the arguments that entries pass to each other, in memory of the device if there is a
    `device`. Several threads may call it at once.
    """

    def __init__(
        self, entries: Sequence[EntryCall], names: Sequence[str], packed: Mapping[str, PackedParts],
        parts: Mapping[str, PackedParts], shared: Mapping[str, Argument], device: DeviceMemory | None = None,
    ) -> None:  # fmt: skip
        self._entries, self._parts, self._shared = tuple(entries), dict(parts), dict(shared)
        self._device = device
        self._reserved: list[object] = []
        places = {name: (index, 0) for index, name in enumerate(names) if name not in packed}
        for name, memory in packed.items():
            places |= {part: (names.index(name), offset) for part, offset in memory.offsets.items()}
        self._links = tuple(
            _Link(n, position, *places[name])
            for n, entry in enumerate(entries)
            for name, position in entry.positions.items()
            if name in places
        )
        self._frames: list[_Frame] = []
        self._interrupted: list[object] = []
        self._check(places)

    def __call__(self, addresses: Sequence[int], keep: object) -> None:
        """Run the entries on memory at `addresses`, in the order of `names`. `keep` holds that memory alive."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._frame()
        for words, position, source, offset in frame.words:
            words[position] = addresses[source] + offset
        try:
            for block in frame.followers:
                block.follow()
            for run in frame.runs:
                run()
        except BaseException:
            self._interrupted.append((frame, keep))  # workers may still use the memory
            raise
        self._frames.append(frame)

    def _frame(self) -> _Frame:
        """Return new blocks, with memory of the kernel's own behind the arguments that a call does not give."""
        memory = HostMemory()
        own = {name: self._between(memory, argument) for name, argument in self._shared.items()}
        for parts in self._parts.values():
            own |= parts.addresses(self._reserve(memory, parts.size * parts.dtype.itemsize))
        blocks = [entry.block() for entry in self._entries]
        for block in blocks:
            block.give(own)
        return _Frame(
            tuple(entry.bound(block, memory) for entry, block in zip(self._entries, blocks)),
            tuple(block for block in blocks if block.followers),
            tuple((blocks[link.entry].words, *link[1:]) for link in self._links),
        )

    def _between(self, memory: HostMemory, argument: Argument) -> int:
        """Return the address of new memory for an argument that entries pass to each other."""
        if self._device is None:
            return memory.reserve(argument, argument.size)
        return self._reserve(memory, argument.size * element_type(argument).itemsize)

    def _reserve(self, memory: HostMemory, nbytes: int) -> int:
        """Return the address of new memory of the device, or of the host's `memory` where there is no device."""
        if self._device is None:
            return memory.reserve_bytes(nbytes)
        address, owner = self._device.reserve(nbytes)
        self._reserved.append(owner)
        return address

    def _check(self, places: Mapping[str, object]) -> None:
        """Raise InternalError if a call would leave an argument without memory."""
        own = {*self._shared, *(name for parts in self._parts.values() for name in parts.offsets)}
        for entry in self._entries:
            missing = [name for name in entry.required if name not in places and name not in own]
            if missing:
                raise InternalError(f"a call by address gives nothing for {', '.join(missing)}")
