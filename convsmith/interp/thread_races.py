"""The threads of a group, and the detection of races between them.

A thread counts the barriers at which it has arrived and those that it has passed.  An access of thread X is ordered
before one of thread Y if Y has passed a barrier at which X arrived after its access; two accesses to one element of
which at least one writes must be ordered, unless both are atomic additions.  Each element therefore remembers its last
writer, and the readers and adders since, each with its number of arrivals.

An asynchronous copy is pending from its start until its thread waits for it. No thread may read or write its elements
meanwhile; afterwards they count as written by the thread at the wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from convsmith.interp.memory import BufferMemory
from convsmith.ir.stmt import Barrier

__all__ = ["PendingCopy", "Thread", "ThreadRaces"]


class PendingCopy(NamedTuple):
    """A copy of ``value`` to elements of memory; ``source`` are the elements that it reads, None where it zeroes."""

    thread: Thread
    target: BufferMemory
    places: list[int]
    value: Any
    source: tuple[BufferMemory, list[int]] | None


class Thread:
    """An iteration of a nest of thread loops: its number, its warp's and its coordinates; the state of its copies and
    barriers."""

    __slots__ = ("arrived", "coordinates", "groups", "number", "open_copies", "passed", "text", "waits_at", "warp")

    def __init__(self, number: int, coordinates: tuple[int, ...], names: Sequence[str], lanes: int = 1) -> None:
        self.number = number
        self.warp = number // lanes
        self.coordinates = coordinates
        self.text = "thread " + ", ".join(f"{v} = {x}" for v, x in zip(names, coordinates))
        self.arrived = 0
        self.passed = 0
        self.open_copies: list[PendingCopy] = []
        self.groups: list[list[PendingCopy]] = []
        self.waits_at: Barrier | None = None

    def __str__(self) -> str:
        return self.text


class _Uses:
    """The uses of one element that later uses must be ordered after."""

    __slots__ = ("adders", "pending", "readers", "sources", "writer")

    def __init__(self) -> None:
        self.writer: tuple[Thread, int] | None = None
        self.readers: dict[Thread, int] = {}
        self.adders: dict[Thread, int] = {}
        self.pending: PendingCopy | None = None
        self.sources: list[PendingCopy] = []


class ThreadRaces:
    """Watches the memory that the threads of one nest share; ``now`` is the thread that runs."""

    def __init__(self, threads: Sequence[Thread]) -> None:
        self.now = threads[0] if threads else None
        self._elements: dict[tuple[BufferMemory, int], _Uses] = {}

    def touch(self, memory: BufferMemory, places: Iterable[int], write: bool) -> str | None:
        """Record an access; return a message if it races with another thread or a pending copy, otherwise None."""
        now = self.now
        assert now is not None
        if memory.scope in ("register", "fragment"):
            return self._own(memory, places, now)
        for place in places:
            element = self._element(memory, place)
            other = _conflict(element, now, write, write)
            if other is not None:
                return f"{now} {'writes' if write else 'reads'} element {place}, which {other}"
            if write:
                element.writer = now, now.arrived
                element.readers.clear()
                element.adders.clear()
            else:
                element.readers[now] = now.arrived
        return None

    def add(self, memory: BufferMemory, places: Iterable[int]) -> str | None:
        """Record an atomic addition; return a message if it races with another access, otherwise None."""
        now = self.now
        assert now is not None
        for place in places:
            element = self._element(memory, place)
            other = _conflict(element, now, write=True, adds=False)
            if other is not None:
                return f"{now} adds to element {place}, which {other}"
            element.adders[now] = now.arrived
        return None

    def start(self, copy: PendingCopy) -> None:
        """Mark the elements of a copy as pending."""
        for place in copy.places:
            self._element(copy.target, place).pending = copy
        for place in copy.source[1] if copy.source else ():
            self._element(copy.source[0], place).sources.append(copy)  # type: ignore[index]

    def finish(self, copy: PendingCopy) -> None:
        """Let a copy arrive, as an access of its thread at this time."""
        thread = copy.thread
        for place in copy.places:
            element = self._element(copy.target, place)
            element.pending = None
            element.writer = thread, thread.arrived
        for place in copy.source[1] if copy.source else ():
            element = self._element(copy.source[0], place)  # type: ignore[index]
            element.sources.remove(copy)
            element.readers[thread] = thread.arrived

    def _element(self, memory: BufferMemory, place: int) -> _Uses:
        element = self._elements.get((memory, place))
        if element is None:
            element = self._elements[memory, place] = _Uses()
        return element

    def _own(self, memory: BufferMemory, places: Iterable[int], now: Thread) -> str | None:
        """Return a message if a register belongs to another thread, a fragment to another warp.

        The first that uses it owns it.
        """
        if memory.owners is None:
            memory.owners = {}
        for place in places:
            owner = memory.owners.setdefault(place, now)
            if owner.number != now.number and (memory.scope == "register" or owner.warp != now.warp):
                return f"{now} uses element {place}, a register of {owner}"
        return None


def _conflict(element: _Uses, now: Thread, write: bool, adds: bool) -> str | None:
    """Return the earlier access that an access of ``now`` races with; atomic additions conflict if ``adds``."""
    copy = element.pending
    if copy is not None:
        return f"an asynchronous copy of {copy.thread} writes, before that thread waits for the copy"
    if write and element.sources:
        return f"an asynchronous copy of {element.sources[0].thread} reads, before that thread waits for the copy"
    if element.writer is not None:
        thread, at = element.writer
        if thread is not now and now.passed <= at:
            return f"{thread} writes with no barrier between"
    if write:
        for thread, at in element.readers.items():
            if thread is not now and now.passed <= at:
                return f"{thread} reads with no barrier between"
    if adds or not write:
        for thread, at in element.adders.items():
            if thread is not now and now.passed <= at:
                return f"{thread} adds to with no barrier between"
    return None
