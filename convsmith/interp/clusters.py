"""Clusters in the interpreter: groups that run side by side, whose copies may reach each other's shared memory.

The groups of a cluster are coroutines, resumed in random order: statements with a signalled loop or a meeting in them
run as generators, all others by the plain recursion.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from typing import NamedTuple

from convsmith.interp.device import DeviceMachine
from convsmith.interp.flight import Underway
from convsmith.interp.memory import BufferMemory, Races
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var
from convsmith.ir.stmt import Alloc, For, Meet, Stmt, TensorCopy
from convsmith.ir.walk import statements_of

__all__ = ["ClusterMachine"]


class _Member(NamedTuple):
    """A group of a cluster: its iteration, its variables and memory, what it has under way, and the rest of its
    statements; ``own`` is its shared memory.
    """

    number: int
    env: dict[Var, int]
    memories: dict[Buffer, BufferMemory]
    own: dict[Buffer, BufferMemory]
    flight: Underway
    steps: Iterator[bool]


class ClusterMachine(DeviceMachine, ABC):
    """Runs the groups of clusters at once."""

    _members: tuple[_Member, ...] = ()
    _now: _Member | None = None

    def _clusters(self, s: For) -> None:
        """Run the iterations of a cluster loop side by side."""
        races = Races(s.var.name, "cluster")
        self._begin(s.var)
        self._races.append(races)
        buffers = [x.buffer for x in statements_of(s.body) if isinstance(x, Alloc) and x.buffer.scope == "shared"]
        members = []
        for n in range(self._index(s.lo), self._index(s.hi)):
            own = {b: BufferMemory.fresh(b) for b in buffers}
            self._shared |= dict.fromkeys(own.values(), len(self._races))
            env = {**self._env, s.var: n}
            members.append(_Member(n, env, dict(self._memories), own, Underway(), self._steps(s.body)))
        flights = tuple(x.flight for x in members)
        for flight in flights:
            flight.cluster = flights
        outer = self._env, self._memories, self._flight, self._step
        self._members = tuple(members)
        self._side_by_side(races)
        self._members, self._now = (), None
        self._env, self._memories, self._flight, self._step = outer
        for x in members:
            for memory in x.own.values():
                self._shared.pop(memory, None)
        self._races.pop()

    def _side_by_side(self, races: Races) -> None:
        """Run the groups of the cluster in random order, from stop to stop, until all end."""
        steps: dict[int, Var | None] = {}
        live, stuck = list(self._members), set[int]()
        while live:
            if len(stuck) == len(live):
                x = live[0]
                self._env = x.env
                raise self._error(f"group {x.number} of a cluster waits for {x.flight.waits_for}; none can go on")
            x = self._random.choice([x for x in live if x.number not in stuck])
            self._now, self._env, self._memories, self._flight = x, x.env, x.memories, x.flight
            self._step, races.iteration = steps.get(x.number), x.number
            is_stuck = next(x.steps, None)
            steps[x.number] = self._step
            if is_stuck is None:
                self._end_flight()
                live.remove(x)
            stuck = stuck | {x.number} if is_stuck else set()

    # -- stops
    def _stops(self, s: Stmt) -> bool:
        if self._nests or not self._members:
            return super()._stops(s)
        return any(isinstance(x, Meet) or (isinstance(x, For) and x.kind == "signalled") for x in statements_of(s))

    def _stop(self, s: Stmt) -> Iterator[bool]:
        if self._nests or not self._members:
            yield from super()._stop(s)
        elif isinstance(s, Meet):
            yield from self._meet_others()
        elif isinstance(s, For) and s.kind == "signalled":
            yield from self._signalled_steps(s)
        else:
            raise self._error("the groups of a cluster meet, and have steps, outside of all loops over threads")

    def _meet_others(self) -> Iterator[bool]:
        assert self._flight is not None
        self._flight.arrive()
        yield False
        while not self._flight.has_met():
            yield True

    # -- memory of all groups
    def _allocated(self, buffer: Buffer) -> BufferMemory:
        own = self._now.own if self._now is not None and not self._nests else {}
        return own[buffer] if buffer in own else super()._allocated(buffer)

    def _receivers(self, s: TensorCopy, target: BufferMemory) -> list[tuple[Underway | None, BufferMemory]]:
        if s.groups == 1:
            return super()._receivers(s, target)
        if s.groups != len(self._members):
            raise self._error(f"`{s}` reaches {s.groups} groups; the cluster has {len(self._members)}")
        return [(x.flight, x.own[s.dst.buffer]) for x in self._members]
