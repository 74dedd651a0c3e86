"""Groups and threads in the interpreter: grid loops, nests of thread loops, barriers, asynchronous copies, atomics.

Groups run one after the other in random order and must not touch each other's elements.  The threads of a nest without
barriers run one after the other too, and :class:`ThreadRaces` compares their accesses as if they ran at once; a join
ends the nest.  Threads that meet at barriers are coroutines, resumed in random order: statements with barriers in them
run as generators, all others by the plain recursion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np

from convsmith.arith.tensor_maps import copied_rows
from convsmith.interp.flight import Underway
from convsmith.interp.memory import BufferMemory, Races
from convsmith.interp.thread_races import PendingCopy, Thread, ThreadRaces
from convsmith.interp.values import ValueMachine
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var
from convsmith.ir.stmt import (
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Block,
    Commit,
    Fence,
    For,
    If,
    Let,
    Receive,
    Release,
    ShareRegisters,
    Stmt,
    TensorCopy,
    Turn,
    Wait,
)
from convsmith.ir.text import head_text
from convsmith.ir.threads import nest_of, pipeline_parts, slots_of
from convsmith.ir.walk import statements_of

__all__ = ["DeviceMachine"]


class _Coroutine(NamedTuple):
    """A thread, its own variables and memory, and the rest of its statements."""

    thread: Thread
    env: dict[Var, int]
    memories: dict[Buffer, BufferMemory]
    steps: Iterator[bool]


class DeviceMachine(ValueMachine, ABC):
    """Runs the loops and effects of devices; a subclass runs all other statements."""

    def __init__(
        self, name: str, memories: dict[Buffer, BufferMemory], env: dict[Var, int], random: Random | None = None
    ) -> None:
        super().__init__(name, memories, env)
        self._random = random or Random(0)
        self._nests: list[ThreadRaces] = []
        self._first_numbers = [0]
        self._synchronises: dict[Stmt, bool] = {}
        self._met: list[tuple[Barrier, Thread]] = []
        self._flight: Underway | None = None
        self._step: Var | None = None
        self._watches = True

    @contextmanager
    def _by_engine(self) -> Iterator[None]:
        """Run accesses that no thread makes."""
        flight, self._watches = self._watches, False
        yield
        self._watches = flight

    def _touch(self, memory: BufferMemory, places: list[int], write: bool) -> None:
        super()._touch(memory, places, write)
        if self._flight is not None and self._watches:
            flaw = self._flight.touch(memory, places, write)
            if flaw:
                raise self._error(f"{memory.name}: {flaw}")

    @abstractmethod
    def _stmt(self, s: Stmt) -> None:
        """Run a statement."""

    def _begin(self, *variables: Var) -> None:
        for v in variables:
            if v in self._env:
                raise self._error(f"variable {v} is bound twice")

    # -- groups
    def _groups(self, s: For) -> None:
        """Run the iterations of a grid loop in random order."""
        order = list(range(self._index(s.lo), self._index(s.hi)))
        self._random.shuffle(order)
        self._begin(s.var)
        races = Races(s.var.name, "grid")
        self._races.append(races)
        outer = self._flight
        for i in order:
            self._env[s.var] = races.iteration = i
            if outer is not None:
                self._flight = Underway()
            self._stmt(s.body)
            self._end_flight()
        self._flight = outer
        self._env.pop(s.var, None)
        self._races.pop()

    # -- pipelines
    def _pipelined(self, s: For) -> None:
        """Run a pipelined loop: copies for later iterations come before other statements of earlier ones, in random
        order, as many ahead as the buffers have room for.
        """
        parts = pipeline_parts(s)
        if parts is None:
            raise self._error(f"the pipelined loop {s.var} does not begin with copies through tensor maps")
        lo, hi = self._index(s.lo), self._index(s.hi)
        room = slots_of(parts.copies)
        copying, using = (parts.around(Block(group)) for group in (parts.copies, parts.uses))
        copied, used = lo, lo
        self._begin(s.var)
        while used < hi:
            copies_next = copied < min(hi, used + room) and (copied == used or self._random.random() < 0.7)
            self._env[s.var] = copied if copies_next else used
            self._stmt(copying if copies_next else using)
            copied, used = copied + copies_next, used + (not copies_next)
        self._env.pop(s.var, None)

    def _signalled(self, s: For) -> None:
        """Run a signalled loop of a group that is alone, which never stops."""
        for _ in self._signalled_steps(s):
            raise self._error(f"{head_text(s)} stands where groups of a cluster do not run side by side")

    def _signalled_steps(self, s: For) -> Iterator[bool]:
        """Run a signalled loop: copies for later iterations start in random order, as soon as slots are released. Stop
        where other groups of the cluster may go on, and yield whether they must.
        """
        parts, flight = pipeline_parts(s), self._flight
        if parts is None or flight is None:
            raise self._error(f"the signalled loop {s.var} does not begin with copies through tensor maps")
        lo, hi = self._index(s.lo), self._index(s.hi)
        copying, using = (parts.around(Block(group)) for group in (parts.copies, parts.uses))
        copied, used = lo, lo
        self._begin(s.var)
        self._legal(flight.enter(lo))
        outer, self._step = self._step, s.var
        slots, is_shared = slots_of(parts.copies), any(x.groups > 1 for x in parts.copies)
        has_moved = True
        while used < hi:
            can_copy = copied < hi and flight.has_room(slots, is_shared)
            can_use = used < copied and flight.has_arrived(used, is_shared)
            if not (can_copy or can_use):
                flight.waits_for = f"the copies of step {copied if used == copied else used} of {s.var}"
                if flight.is_alone:
                    raise self._error(f"{flight.waits_for} wait for a slot, and no step is released")
                yield not has_moved
                has_moved = False
                continue
            copies_next = can_copy and (not can_use or self._random.random() < 0.7)
            self._env[s.var] = copied if copies_next else used
            flight.started += copies_next
            self._stmt(copying if copies_next else using)
            copied, used = copied + copies_next, used + (not copies_next)
            has_moved = True
            if not flight.is_alone:
                yield False
        self._step = outer
        self._env.pop(s.var, None)

    def _legal(self, flaw: str | None) -> None:
        if flaw is not None:
            raise self._error(flaw)

    def _ordered(self, s: Stmt) -> Underway:
        """Return what is under way around a statement that orders it."""
        if self._flight is None:
            raise self._error(f"`{head_text(s)}` stands in a kernel without a signalled loop")
        return self._flight

    def _end_flight(self) -> None:
        if self._flight is not None:
            self._legal(self._flight.end())

    def _fence(self, s: Fence) -> None:
        self._ordered(s).fence(s.of)

    def _share_registers(self, s: ShareRegisters) -> None:
        self._legal(self._ordered(s).share_registers(s.count, s.copiers))

    def _teams(self, s: For) -> None:
        """Run the iterations of a loop over teams, one after the other."""
        lo, hi = self._index(s.lo), self._index(s.hi)
        self._begin(s.var)
        for i in range(lo, hi):
            self._env[s.var] = i
            self._ordered(s).begin_turn()
            self._stmt(s.body)
            self._legal(self._ordered(s).end_turn())
        self._env.pop(s.var, None)

    def _take_or_pass(self, s: Turn) -> None:
        self._legal(self._ordered(s).turn(s.part))

    def _receive(self, s: Receive) -> None:
        flight = self._ordered(s)
        if self._step is None:
            raise self._error(f"`{s}` stands outside of a signalled loop")
        flight.receive(self._env[self._step])

    def _release(self, s: Release) -> None:
        self._legal(self._ordered(s).release(self._index(s.step), s.to_cluster))

    def _tensor_copy(self, s: TensorCopy) -> None:
        if s.is_store:
            self._tensor_store(s)
            return
        if s.cond is not None and not self._cond(s.cond):
            return
        at, offsets = ([self._index(i) for i in group] for group in (s.at, s.offsets))
        source, (first,) = self._places(s.src.buffer, s.src.index, None)
        target, (start,) = self._places(s.dst.buffer, s.dst.index, None)
        if start + s.map.size > len(target.data):
            raise self._error(f"`{s}` copies {s.map.size} elements to element {start} of {len(target.data)}")
        value = np.zeros(s.map.size, target.data.dtype)
        channels = range(at[0], at[0] + s.map.box[0])
        from_, to = [], []
        for n, row in enumerate(copied_rows(s.map, at, offsets)):
            for m, channel in enumerate(channels):
                if row is not None and 0 <= channel < s.map.dims[0]:
                    from_.append(first + row + channel * s.map.strides[0])
                    to.append(n * len(channels) + m)
        self._read(source, from_)
        value[to] = source.data[from_]
        places = range(start, start + s.map.size)
        with self._by_engine():
            for flight, memory in self._receivers(s, target):
                if flight is not None and self._flight is not None and self._step is not None:
                    step = self._env[self._step]
                    number = self._flight.number(step)
                    flaw = flight.fill(number, step, memory, places, s.groups > 1, s.cond is not None)
                    self._legal(flaw)
                self._write(memory, list(places), value)

    def _receivers(self, s: TensorCopy, target: BufferMemory) -> list[tuple[Underway | None, BufferMemory]]:
        """Return the memory that a copy fills, each with what the group that owns it has under way."""
        return [(self._flight, target)]

    def _tensor_store(self, s: TensorCopy) -> None:
        """Store the elements of a tile that lie within a tensor."""
        at = [self._index(i) for i in s.at]
        target, (first,) = self._places(s.dst.buffer, s.dst.index, None)
        source, (start,) = self._places(s.src.buffer, s.src.index, None)
        if start + s.map.size > len(source.data):
            raise self._error(f"`{s}` stores {s.map.size} elements from element {start} of {len(source.data)}")
        if self._flight is not None:
            self._legal(self._flight.store(source, range(start, start + s.map.size)))
        columns = np.arange(at[0], at[0] + s.map.box[0])
        inside = np.flatnonzero((columns >= 0) & (columns < s.map.dims[0]))
        from_, to = [], []
        for n, row in enumerate(copied_rows(s.map, at, ())):
            if row is not None:
                from_ += (start + n * len(columns) + inside).tolist()
                to += (first + row + columns[inside] * s.map.strides[0]).tolist()
        with self._by_engine():
            self._read(source, from_)
            self._write(target, to, source.data[from_])

    # -- threads
    def _threads(self, s: For) -> None:
        """Run the nest of thread loops that starts at ``s``."""
        nest = nest_of(s)
        variables = [loop.var for loop in nest]
        ranges = [range(self._index(loop.lo), self._index(loop.hi)) for loop in nest]
        self._begin(*variables)
        names = [v.name for v in variables]
        count = prod(map(len, ranges))
        lanes = max(prod(len(r) for loop, r in zip(nest, ranges) if loop.kind == "lane"), 1)
        first = self._first_numbers[-1] * count
        threads = [Thread(first + n, at, names, lanes) for n, at in enumerate(product(*ranges))]
        races = ThreadRaces(threads)
        body = nest[-1].body
        self._races.append(races)
        if any(isinstance(x, (Barrier, AsyncCopy, Commit, Wait)) for x in statements_of(body)) and not self._nests:
            self._nests.append(races)
            self._schedule(body, variables, threads, races)
            self._nests.pop()
        else:
            self._random.shuffle(threads)
            for thread in threads:
                races.now = thread
                self._env.update(zip(variables, thread.coordinates))
                self._first_numbers.append(thread.number)
                self._stmt(body)
                self._first_numbers.pop()
            for v in variables:
                self._env.pop(v, None)
        self._races.pop()

    def _schedule(self, body: Stmt, variables: Sequence[Var], threads: Sequence[Thread], races: ThreadRaces) -> None:
        """Run the threads in rounds of random order, from barrier to barrier, until all end."""
        outer = self._env, self._memories
        live: list[_Coroutine] = []
        for thread in threads:
            env = {**self._env, **dict(zip(variables, thread.coordinates))}
            live.append(_Coroutine(thread, env, dict(self._memories), self._steps(body)))
        self._met = []
        while live:
            least = min(x.thread.arrived for x in live)
            ended = len(live) < len(threads)
            ready = [x for x in live if x.thread.waits_at is None or (least > x.thread.passed and not ended)]
            if not ready:
                self._never_met(live, threads)
            self._random.shuffle(ready)
            for x in ready:
                if x.thread.waits_at is not None:
                    x.thread.passed += 1
                    x.thread.waits_at = None
                self._env, self._memories, races.now = x.env, x.memories, x.thread
                self._first_numbers.append(x.thread.number)
                running = next(x.steps, _ENDED)
                self._first_numbers.pop()
                if running is _ENDED:
                    self._require_ended(x.thread)
                    live.remove(x)
        self._env, self._memories = outer

    def _never_met(self, live: Sequence[_Coroutine], threads: Sequence[Thread]) -> None:
        """Raise the error of a barrier that not all threads reach."""
        waiting = min(live, key=lambda x: x.thread.arrived)
        running = {x.thread for x in live}
        ended = next(t for t in threads if t not in running)
        self._env = waiting.env
        raise self._error(f"{waiting.thread} waits at a barrier that {ended} does not reach")

    def _require_ended(self, thread: Thread) -> None:
        """Require that a thread that ends has neither copies pending nor a barrier to wait for."""
        copies = [*thread.open_copies, *(copy for group in thread.groups for copy in group)]
        if copies:
            raise self._error(f"{thread} ends before it waits for its asynchronous copy to {copies[0].target.name}")
        if thread.arrived > thread.passed:
            raise self._error(f"{thread} arrives at a barrier and ends without a wait")

    # -- statements with barriers in them
    def _steps(self, s: Stmt) -> Iterator[bool]:
        """Run a statement and stop where others must go on."""
        if not self._stops(s):
            self._stmt(s)
        elif isinstance(s, Block):
            for x in s.stmts:
                yield from self._steps(x)
        elif isinstance(s, For) and s.kind in ("serial", "unrolled"):
            lo, hi = self._index(s.lo), self._index(s.hi)
            starts = [self._index(c.init) for c in s.carried]
            self._begin(s.var, *(c.var for c in s.carried))
            for i in range(lo, hi):
                self._env[s.var] = i
                self._env.update((c.var, start + (i - lo) * c.step) for c, start in zip(s.carried, starts))
                yield from self._steps(s.body)
            for v in (s.var, *(c.var for c in s.carried)):
                self._env.pop(v, None)
        elif isinstance(s, If):
            if self._cond(s.cond):
                yield from self._steps(s.body)
        elif isinstance(s, Let):
            value = self._index(s.value)
            self._begin(s.var)
            self._env[s.var] = value
            yield from self._steps(s.body)
            del self._env[s.var]
        elif isinstance(s, Alloc):
            memory = self._memories[s.buffer] = self._allocated(s.buffer)
            self._shared[memory] = len(self._races)
            yield from self._steps(s.body)
            del self._memories[s.buffer], self._shared[memory]
        else:
            yield from self._stop(s)

    def _allocated(self, buffer: Buffer) -> BufferMemory:
        return BufferMemory.fresh(buffer)

    def _stops(self, s: Stmt) -> bool:
        """Return whether `_steps` stops within a statement of a thread: at a barrier."""
        known = self._synchronises.get(s)
        if known is None:
            known = self._synchronises[s] = any(isinstance(x, Barrier) for x in statements_of(s))
        return known

    def _stop(self, s: Stmt) -> Iterator[bool]:
        """Run a statement that itself stops."""
        if not isinstance(s, Barrier):
            raise self._error(f"a barrier stands within `{head_text(s)}`, which does not synchronise threads")
        yield from self._meet(s)

    def _meet(self, s: Barrier) -> Iterator[bool]:
        thread = self._nests[-1].now
        assert thread is not None
        if s.part != "wait":
            if thread.arrived > thread.passed:
                raise self._error(f"{thread} arrives at a barrier twice without a wait between")
            if thread.arrived == len(self._met):
                self._met.append((s, thread))
            first, other = self._met[thread.arrived]
            if first is not s:
                raise self._error(f"{thread} arrives at a barrier while {other} arrives at another one")
            thread.arrived += 1
        elif thread.arrived == thread.passed:
            raise self._error(f"{thread} waits at a barrier at which it has not arrived")
        if s.part != "arrive":
            thread.waits_at = s
            yield True

    def _lonely(self, s: Barrier) -> None:
        raise self._error(f"`{s}` stands outside of a nest of loops over threads")

    # -- asynchronous copies and atomic additions
    def _copying(self, s: Stmt) -> tuple[ThreadRaces, Thread]:
        if not self._nests:
            raise self._error(f"`{s}` stands outside of a nest of loops over threads")
        thread = self._nests[-1].now
        assert thread is not None
        return self._nests[-1], thread

    def _async_copy(self, s: AsyncCopy) -> None:
        races, thread = self._copying(s)
        self._shares.clear()
        source = None
        target, places = self._places(s.dst.buffer, s.dst.index, s.dst.lanes)
        if s.cond is None or self._cond(s.cond):
            memory, at = source = self._places(s.src.buffer, s.src.index, s.src.lanes)
            if len(at) != len(places) or memory.data.dtype != target.data.dtype:
                raise self._error(f"`{s}` copies {len(at)} {memory.data.dtype} to {len(places)} {target.data.dtype}")
            self._read(memory, at)
        self._write(target, places, target.data[places])
        value = source[0].data[source[1]] if source else target.data.dtype.type(0)
        copy = PendingCopy(thread, target, places, value, source)
        races.start(copy)
        thread.open_copies.append(copy)

    def _commit(self, s: Commit) -> None:
        if s.of != "copies":
            flight = self._ordered(s)
            (flight.commit if s.of == "products" else flight.commit_stores)()
            return
        _, thread = self._copying(s)
        thread.groups.append(thread.open_copies)
        thread.open_copies = []

    def _wait(self, s: Wait) -> None:
        if s.of != "copies":
            flight = self._ordered(s)
            (flight.wait if s.of == "products" else flight.wait_for_stores)(s.pending)
            return
        races, thread = self._copying(s)
        while len(thread.groups) > s.pending:
            for copy in thread.groups.pop(0):
                copy.target.data[copy.places] = copy.value
                races.finish(copy)

    def _atomic_add(self, s: AtomicAdd) -> None:
        self._shares.clear()
        value = self._value(s.value)
        memory, places = self._places(s.buffer, s.index, s.lanes)
        if value.dtype != memory.data.dtype:
            raise self._error(f"a value of type {value.dtype} is added to {s.buffer}, which holds {memory.data.dtype}")
        if value.ndim and (s.lanes is None or len(value) != s.lanes.count):
            raise self._error(f"a value of {len(value)} lanes is added to {len(places)} elements of {s.buffer}")
        for n, place in enumerate(places):
            if memory.ready is not None and not memory.ready[place]:
                raise self._error(f"element {place} of {memory.name} is added to before it is written")
            memory.data[place] += value[n] if value.ndim else value
        for races in self._races[self._shared.get(memory, 0) :]:
            race = races.add(memory, places)
            if race:
                raise self._error(f"{memory.name}: {race}")


_ENDED: Any = object()
