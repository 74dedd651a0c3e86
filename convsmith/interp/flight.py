"""Copies, products and stores that one group has under way in a signalled loop, and the statements that order them.

A copy has arrived once its step is received, and may be overwritten once its step is released; only in between may
statements access its elements. Products have ended once a thread has waited for their
group. Until then only other products may access their sums, and nothing may write their factors. A store of a tensor
reads shared memory until a thread has waited for its group. A thread's own access to a fragment, and its store to
shared memory, are visible to a product or to the store of a tensor only behind a fence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from convsmith.interp.memory import BufferMemory
from convsmith.ir.stmt import FENCED

__all__ = ["Underway"]

Place = tuple[BufferMemory, int]


class _Started(NamedTuple):
    """The elements that a product adds to, and those that it reads from shared memory."""

    sums: list[Place]
    factors: list[Place]


class Underway:
    """The asynchronous operations of one group; methods return a message if an operation is illegal."""

    def __init__(self) -> None:
        self._fences = dict.fromkeys(FENCED, 0)
        self._accessed: dict[Place, int] = {}
        self._stored: dict[Place, int] = {}
        self._absent: dict[Place, str] = {}
        self._slots: dict[int, list[Place]] = {}
        self._staying: set[Place] = set()
        self._open: list[_Started] = []
        self._groups: list[list[_Started]] = []
        self._summing: dict[Place, int] = {}
        self._reading: dict[Place, int] = {}
        self._leaving: dict[Place, int] = {}
        self._open_stores: list[Place] = []
        self._groups_of_stores: list[list[Place]] = []
        self.started = self.released = 0
        """Numbers of steps of all loops whose copies have started, and that were released."""
        self._first = self._before = 0
        self._has_shared_registers = False
        self._turn = ""
        self.cluster: Sequence[Underway] = (self,)
        """The groups of the cluster, in their order, each with what it has under way; they run the same steps."""
        self.met = 0
        self.waits_for = ""
        self.has_ended = False
        self._returned: dict[Underway, int] = {}
        self._is_open = self._is_reached = False

    @property
    def is_alone(self) -> bool:
        """Whether the group is in no cluster."""
        return len(self.cluster) == 1

    # -- accesses of threads
    def touch(self, memory: BufferMemory, places: Iterable[int], write: bool) -> str | None:
        """Record an access of threads."""
        if memory.scope not in ("fragment", "shared"):
            return None
        for place in places:
            key = memory, place
            if key in self._absent:
                return f"element {place} is accessed {self._absent[key]}"
            if key in self._summing:
                return f"element {place} is accessed while a product adds to it, which no thread has waited for"
            if write and key in self._leaving:
                return f"element {place} is written while it is stored to a tensor, which no thread has waited for"
            if write and key in self._reading:
                return f"element {place} is written while a product reads it, which no thread has waited for"
            if memory.scope == "fragment":
                self._accessed[key] = self._fences["registers"]
            elif write:
                self._stored[key] = self._fences["shared"]
        return None

    def fence(self, of: str) -> None:
        """Make earlier accesses visible."""
        self._fences[of] += 1

    def _is_unfenced(self, memory: BufferMemory, place: int) -> bool:
        """Return whether a thread has stored an element since the last fence of shared memory."""
        return self._stored.get((memory, place), -1) >= self._fences["shared"]

    # -- products
    def multiply(
        self, sums: tuple[BufferMemory, Sequence[int]], factors: Sequence[tuple[BufferMemory, Sequence[int]]]
    ) -> str | None:
        """Start a product."""
        memory, places = sums
        for place in places:
            if self._accessed.get((memory, place), 0) >= self._fences["registers"]:
                return f"a product adds to element {place}, and no fence of registers stands before it"
        for memory, places in factors:
            for place in places:
                if (memory, place) in self._absent:
                    return f"a product reads element {place} of {memory.name} {self._absent[memory, place]}"
                if self._is_unfenced(memory, place):
                    return f"a product reads element {place} of {memory.name}, and no fence of shared memory orders it"
        made = _Started([(sums[0], x) for x in sums[1]], [(m, x) for m, at in factors for x in at])
        _count(self._summing, made.sums, 1)
        _count(self._reading, made.factors, 1)
        self._open.append(made)
        return None

    def commit(self) -> None:
        """Close the group of products."""
        self._groups.append(self._open)
        self._open = []

    def wait(self, pending: int) -> None:
        """End all groups of products but the latest ``pending``."""
        while len(self._groups) > pending:
            for made in self._groups.pop(0):
                _count(self._summing, made.sums, -1)
                _count(self._reading, made.factors, -1)

    # -- stores
    def store(self, memory: BufferMemory, places: range) -> str | None:
        """Start a store of elements of shared memory to a tensor."""
        for place in places:
            if (memory, place) in self._absent:
                return f"element {place} is stored to a tensor {self._absent[memory, place]}"
            if self._is_unfenced(memory, place):
                return f"element {place} is stored to a tensor, and no fence of shared memory orders it"
        made = [(memory, x) for x in places]
        _count(self._leaving, made, 1)
        self._open_stores += made
        return None

    def commit_stores(self) -> None:
        """Close the group of stores."""
        self._groups_of_stores.append(self._open_stores)
        self._open_stores = []

    def wait_for_stores(self, pending: int) -> None:
        """End all groups of stores but the latest ``pending``."""
        while len(self._groups_of_stores) > pending:
            _count(self._leaving, self._groups_of_stores.pop(0), -1)

    # -- registers
    def share_registers(self, count: int, copiers: int) -> str | None:
        """Give lanes ``count`` registers, and leave ``copiers`` to threads that start copies."""
        if self._has_shared_registers:
            return "the group has shared its registers already"
        if self.started:
            return "the group shares its registers after its first copies have started"
        if not 0 < copiers < count:
            return f"lanes take {count} registers where threads that start copies keep {copiers}"
        self._has_shared_registers = True
        return None

    # -- teams
    def begin_turn(self) -> None:
        """Begin an iteration of a loop over teams."""
        self._turn = "before its turn"

    def turn(self, part: str) -> str | None:
        """Take or pass the turn of an iteration."""
        legal = {"take": "before its turn", "pass": "behind its loop"}[part]
        if self._turn != legal:
            return f"turn {part} stands {self._turn}; legal is a place {legal}"
        self._turn = "in its turn" if part == "take" else "behind its turn"
        return None

    def end_turn(self) -> str | None:
        """End an iteration of a loop over teams."""
        turn, self._turn = self._turn, ""
        if turn in ("behind its turn", "before its turn"):
            return None
        return f"an iteration of a team loop ends {turn}, and passes it to no other"

    # -- steps
    def enter(self, first: int) -> str | None:
        """Enter a signalled loop at its ``first`` step."""
        if not self._fences["barriers"]:
            return "no fence of barriers stands before the loop"
        if self.released != self.started:
            return f"{self.started - self.released} steps of the loop before were not released"
        if self._turn not in ("", "in its turn"):
            return f"the loop stands {self._turn}: steps of the iteration before may not have been received"
        self._turn = self._turn and "behind its loop"
        self._first, self._before = first, self.started
        return None

    def number(self, step: int) -> int:
        """Return the number of a step of the present loop among the steps of all loops."""
        return self._before + step - self._first

    def has_room(self, slots: int, is_shared: bool) -> bool:
        """Return whether one of the ``slots`` is free for the next copies: in this group, and in all groups of the
        cluster if copies are multicasts.
        """
        returned = (self._returned.get(x, 0) for x in self.cluster if x is not self and is_shared)
        return self.started - min((self.released, *returned)) < slots

    def has_arrived(self, step: int, is_shared: bool) -> bool:
        """Return whether the other groups of the cluster have started their copies of a step, if they are multicasts.
        """
        return not is_shared or all(x.started > self.number(step) for x in self.cluster)

    def fill(
        self, number: int, step: int, memory: BufferMemory, places: range, is_multicast: bool, stays: bool = False
    ) -> str | None:  # fmt: skip
        """Start a copy to this group of the ``number``-th step of all loops, whose elements may stay."""
        if stays:
            self._staying.update((memory, x) for x in places)
        if is_multicast:
            self._is_reached = True
            if not self._is_open:
                return f"step {step} is brought to a group that has met no others since its fence of barriers"
            if self.has_ended:
                return f"step {step} is brought to a group that has ended"
        self._slots.setdefault(number, []).extend((memory, x) for x in places)
        for place in places:
            if (memory, place) in self._reading:
                return f"a copy of step {step} fills element {place}, which a product reads"
            self._absent[memory, place] = f"before step {step} is received"
            self._stored.pop((memory, place), None)
        return None

    def receive(self, step: int) -> None:
        """Let the copies of a step arrive."""
        for key in self._slots[self.number(step)]:
            self._absent.pop(key, None)

    def release(self, step: int, to_cluster: bool) -> str | None:
        """Free the slots of a step, for the copies of all groups if ``to_cluster``; steps are released in order."""
        if step < self._first:
            return None
        following = self._first + self.released - self._before
        if step != following:
            return f"step {step} is released; the next one to release is {following}"
        for key in self._slots.pop(self.number(step)):
            if key in self._absent:
                return f"step {step} is released before it is received"
            if key in self._reading:
                return f"step {step} is released while a product reads element {key[1]} of {key[0].name}"
            if key not in self._staying:
                self._absent[key] = f"after step {step} was released"
        self.released += 1
        for other in self.cluster if to_cluster else ():
            other._returned[self] = other._returned.get(self, 0) + 1
            other._is_reached = True
        return None

    # -- clusters
    def arrive(self) -> None:
        """Arrive where the groups of the cluster meet."""
        self.met += 1
        self.waits_for = f"the others at meeting {self.met}"
        if self.has_met():
            for x in self.cluster:
                x._is_open, x._is_reached = bool(x._fences["barriers"]), False

    def has_met(self) -> bool:
        """Return whether all groups have arrived where this one has."""
        return all(x.met >= self.met for x in self.cluster)

    def end(self) -> str | None:
        """End the group."""
        self.has_ended = True
        if self._is_reached:
            return "the group ends, and has not met the others since their last multicasts and releases"
        if self._leaving:
            return "the group ends before it waits for its stores to a tensor"
        return "the group ends before it waits for its products" if self._open or self._summing else None


def _count(counts: dict[Place, int], places: Iterable[Place], by: int) -> None:
    for x in places:
        counts[x] = counts.get(x, 0) + by
        if not counts[x]:
            del counts[x]
