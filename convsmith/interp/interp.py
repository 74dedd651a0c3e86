"""Run a kernel of any stage, statement by statement, on numpy arrays.

    run(kernel, {"src": src, "wei": wei, "dst": dst}, instructions)

Each array is one-dimensional: the memory of an argument, ``buffer.size`` elements in memory order, changed in place.
Illegal behaviour raises InterpError: an access outside of a buffer's coordinates or memory, also through a pointer; a
read of an ``alloc``ed element before its first write; a race between iterations of a parallel loop, between groups or
between threads; a barrier that not all threads reach; an element that an asynchronous copy has not delivered yet; a
register of another thread; a variable that is unbound or bound twice; an operation on operands of different types or
lanes.  A pointer table holds positions in the buffer that it points into, or ABSENT for a pointer to zeros.

Groups, and threads from barrier to barrier, run in an order drawn from ``seed``; the result does not depend on it,
except that atomic additions of floats round in that order.

An instruction is specified in the IR as a kernel whose parameters are the fragments of the operands, the accumulator
first, and whose body is the instruction's effect:

    kernel fma4(c: f32[4], a: f32[4], b: f32[4])
      for l in 0 .. 4: c[l] = fma(a[l], b[l], c[l])

``Invoke`` gathers the lanes of each operand into a fragment (inactive lanes are zero), runs the body, and writes the
active lanes of the accumulator back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from convsmith.interp.at_once import StepsAtOnce, steps_at_once
from convsmith.interp.clusters import ClusterMachine
from convsmith.interp.flight import Underway
from convsmith.interp.lanes import stored, within_lanes
from convsmith.interp.memory import BufferMemory, InterpError, Races
from convsmith.interp.values import AccessPlace
from convsmith.ir.buffer import UNKNOWN, Buffer
from convsmith.ir.index import Var
from convsmith.ir.stmt import (
    LANE,
    THREAD_LOOPS,
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Block,
    Call,
    Commit,
    Fence,
    For,
    If,
    Invoke,
    Kernel,
    Let,
    Meet,
    PointerLoad,
    Prefetch,
    Receive,
    Release,
    ShareRegisters,
    Stmt,
    Store,
    TensorCopy,
    Turn,
    Wait,
)
from convsmith.ir.types import PTR, S32
from convsmith.ir.value import Load, dtype_of, lanes_of, unit_distance
from convsmith.ir.walk import statements_of, variables_of
from convsmith.layout.block import ABSENT

InstructionSpec: TypeAlias = Kernel

Array: TypeAlias = npt.NDArray[Any]


def run(
    kernel: Kernel, arrays: Mapping[str, Array], instructions: Mapping[str, InstructionSpec] | None = None,
    sizes: Mapping[str, int] | None = None, scale: int = 1, seed: int = 0,
) -> None:  # fmt: skip
    """Run ``kernel`` on arrays and sizes named after its parameters; the arrays change in place.

    The machine's vectors have ``scale`` units.  ``seed`` determines the order of groups and threads.  InterpError if
    the kernel does something illegal.
    """
    given = sizes or {}
    if {v.name for v in kernel.sizes} != given.keys():
        raise InterpError(f"kernel {kernel.name}: takes the sizes {list(map(str, kernel.sizes))}, not {list(given)}")
    memories: dict[Buffer, BufferMemory] = {}
    for buffer in kernel.params:
        if buffer.name not in arrays:
            raise InterpError(f"kernel {kernel.name}: no array for parameter {buffer.name}")
        data = arrays[buffer.name]
        fits = data.ndim == 1 if UNKNOWN in buffer.shape else data.shape == (buffer.size,)
        if not fits or data.dtype != buffer.dtype.numpy:
            raise InterpError(
                f"kernel {kernel.name}: parameter {buffer.name} needs an array of shape ({buffer.size},) and type "
                f"{buffer.dtype.numpy}, not {data.shape} and {data.dtype}"
            )
        memories[buffer] = BufferMemory(buffer.name, data, None)
    with np.errstate(all="ignore"):
        env = {Var(name): size for name, size in given.items()}
        _Machine(kernel, memories, instructions or {}, env, scale, Random(seed)).run()


_T = TypeVar("_T")


class _Unit(NamedTuple):
    """The variables and the memory of one of the iterations that run at once."""

    env: dict[Var, int]
    memories: dict[Buffer, BufferMemory]


class _Machine(ClusterMachine):
    def __init__(
        self, kernel: Kernel, memories: dict[Buffer, BufferMemory], instructions: Mapping[str, Kernel],
        env: dict[Var, int], scale: int = 1, random: Random | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel.name, memories, env, random)
        self._kernel = kernel
        self._scale = scale
        self._functions = {f.name: f for f in kernel.functions}
        self._instructions = instructions
        self._steps_of_specs: dict[tuple[str, int], StepsAtOnce | None] = {}
        self._loops: dict[str, Callable[[For], None]] = {
            "grid": self._groups, "cluster": self._clusters, "pipelined": self._pipelined,
            "signalled": self._signalled, "team": self._teams, **dict.fromkeys(THREAD_LOOPS, self._threads),
        }  # fmt: skip
        self._statements: dict[type, Callable[[Any], None]] = {
            Block: self._block,
            For: self._for,
            If: self._if,
            Let: self._let,
            Alloc: self._alloc,
            PointerLoad: self._at,
            Store: self._store,
            Invoke: self._invoke,
            Call: self._call,
            AsyncCopy: self._async_copy,
            TensorCopy: self._tensor_copy,
            AtomicAdd: self._atomic_add,
            Barrier: self._lonely,
            Commit: self._commit,
            Wait: self._wait,
            Fence: self._fence,
            Receive: self._receive,
            Release: self._release,
            Meet: self._lonely,
            ShareRegisters: self._share_registers,
            Turn: self._take_or_pass,
            Prefetch: self._prefetch,
        }

    def run(self) -> None:
        if any(isinstance(s, For) and s.kind == "signalled" for s in statements_of(self._kernel.body)):
            self._flight = Underway()
        self._stmt(self._kernel.body)
        self._end_flight()

    # -- statements
    def _stmt(self, s: Stmt) -> None:
        self._statements[type(s)](s)

    def _block(self, s: Block) -> None:
        for x in s.stmts:
            self._stmt(x)

    def _for(self, s: For) -> None:
        if s.kind != "serial" and (run := self._loops.get(s.kind)) is not None:
            run(s)
            return
        lo, hi = self._index(s.lo), self._index(s.hi)
        if s.kind == "scalable" and self._scale > 1:
            self._scalable(s, lo, hi)
            return
        starts = [self._index(c.init) for c in s.carried]
        with self._bound(s.var, *(c.var for c in s.carried)):
            races = Races(s.var.name) if s.kind == "parallel" else None
            if races is not None:
                self._races.append(races)
            for i in range(lo, hi):
                self._env[s.var] = i
                for c, start in zip(s.carried, starts):
                    self._env[c.var] = start + (i - lo) * c.step
                if races is not None:
                    races.iteration = i
                self._stmt(s.body)
            if races is not None:
                self._races.pop()

    def _prefetch(self, s: Prefetch) -> None:
        """Compute the address alone, which may lie anywhere."""
        for i in s.index:
            self._index(i)

    def _scalable(self, s: For, lo: int, hi: int) -> None:
        """Run the iterations in groups of `scale`, the units of a vector."""
        with self._bound(s.var):
            for first in range(lo, hi, self._scale):
                rest = range(first, min(first + self._scale, hi))
                units = [_Unit({**self._env, s.var: i}, dict(self._memories)) for i in rest]
                self._at_once(s.body, units)

    def _at_once(self, s: Stmt, units: Sequence[_Unit]) -> None:
        """Run a statement for all units before the next statement; control flow must be the same in each."""
        if isinstance(s, Block):
            for x in s.stmts:
                self._at_once(x, units)
        elif isinstance(s, For):
            lo, hi = self._common(s, units, lambda: (self._index(s.lo), self._index(s.hi)))
            starts = [self._within(unit, lambda: [self._index(c.init) for c in s.carried]) for unit in units]
            for i in range(lo, hi):
                for unit, start in zip(units, starts):
                    moved = {c.var: x + (i - lo) * c.step for c, x in zip(s.carried, start)}
                    unit.env.update({s.var: i, **moved})
                self._at_once(s.body, units)
            for unit in units:
                for v in (s.var, *(c.var for c in s.carried)):
                    unit.env.pop(v, None)
        elif isinstance(s, If):
            if self._common(s, units, lambda: self._cond(s.cond)):
                self._at_once(s.body, units)
        elif isinstance(s, Let):
            for unit in units:
                unit.env[s.var] = self._within(unit, lambda: self._index(s.value))
            self._at_once(s.body, units)
            for unit in units:
                del unit.env[s.var]
        elif isinstance(s, Alloc):
            for unit in units:
                memory = unit.memories[s.buffer] = BufferMemory.fresh(s.buffer)
                self._shared[memory] = len(self._races)
            self._at_once(s.body, units)
            for unit in units:
                del self._shared[unit.memories.pop(s.buffer)]
        elif isinstance(s, PointerLoad):
            _, self._origins[s.buffer] = self._common(s, units, lambda: self._place_of(s))
            for unit in units:
                unit.memories[s.buffer], _ = self._within(unit, lambda: self._pointee(s))
            self._at_once(s.body, units)
            for unit in units:
                del unit.memories[s.buffer]
            del self._origins[s.buffer]
        elif isinstance(s, (Store, Invoke)):
            traces = []
            for unit in units:
                self._trace = []
                self._within(unit, lambda: self._stmt(s))
                traces.append(self._trace)
            self._trace = None
            self._require_units(traces)
        else:
            raise self._error(f"{type(s).__name__} stands in a scalable loop")

    def _require_units(self, traces: Sequence[list[AccessPlace]]) -> None:
        """Raise InterpError unless all units make the same access, or their lanes are evenly apart."""
        for before, after in pairwise(traces):
            for x, y in zip(before, after):
                apart = unit_distance(x.lanes) if x.lanes is not None else 0
                if x.memory is y.memory and y.base - x.base not in (0, apart):
                    raise self._error(
                        f"units of {x.memory.name} are {y.base - x.base} elements apart; legal is 0 or {apart}"
                    )

    def _common(self, s: Stmt, units: Sequence[_Unit], ask: Callable[[], _T]) -> _T:
        """Return the answer that all units give."""
        first, *others = [self._within(unit, ask) for unit in units]
        if any(x != first for x in others):
            raise self._error(f"iterations that run at once differ in {type(s).__name__.lower()}: {first}, {others}")
        return first

    def _within(self, unit: _Unit, do: Callable[[], _T]) -> _T:
        """Do something with the variables and the memory of a unit."""
        outer = self._env, self._memories
        self._env, self._memories = unit.env, unit.memories
        try:
            return do()
        finally:
            self._env, self._memories = outer

    def _if(self, s: If) -> None:
        if LANE in variables_of(s.cond):
            self._lanes(s)
        elif self._cond(s.cond):
            self._stmt(s.body)

    def _lanes(self, s: If) -> None:
        """Execute statements on vectors for the lanes for which the condition holds."""
        for x in s.body.stmts if isinstance(s.body, Block) else (s.body,):
            if not isinstance(x, Store | Invoke) or not (count := lanes_of(stored(x))):
                raise self._error(f"{type(x).__name__} stands under the condition {s.cond} on lanes")
            if run := self._holding(s.cond, count):
                self._on_lanes(within_lanes(x, run.start, run.stop), run.start, run.stop)

    def _on_lanes(self, s: Store | Invoke, low: int, end: int) -> None:
        """Execute ``s``; lanes of registers before ``low`` and from ``end`` on keep their values."""
        v = stored(s)
        if v.buffer.scope != "register":
            self._stmt(s)
            return
        memory, places = self._places(v.buffer, v.index, v.lanes)
        others = [p for n, p in enumerate(places) if not low <= n < end]
        kept, ready = memory.data[others], [memory.ready[p] for p in others] if memory.ready is not None else []
        self._stmt(s)
        memory.data[others] = kept
        for p, was in zip(others, ready):
            assert memory.ready is not None
            memory.ready[p] = was

    def _let(self, s: Let) -> None:
        value = self._index(s.value)
        with self._bound(s.var):
            self._env[s.var] = value
            self._stmt(s.body)

    def _alloc(self, s: Alloc) -> None:
        if s.buffer in self._memories:
            raise self._error(f"buffer {s.buffer} is allocated within its own life")
        memory = self._memories[s.buffer] = BufferMemory.fresh(s.buffer)
        self._shared[memory] = len(self._races)
        self._stmt(s.body)
        del self._memories[s.buffer], self._shared[memory]

    def _at(self, s: PointerLoad) -> None:
        """Bind the buffer to the memory of the source or of the zeros, from the entry's position on."""
        self._memories[s.buffer], self._origins[s.buffer] = self._pointee(s)
        self._stmt(s.body)
        del self._memories[s.buffer], self._origins[s.buffer]

    def _place_of(self, s: PointerLoad) -> tuple[int, int]:
        """Return what tells the elements that an entry points at from others."""
        memory, origin = self._pointee(s)
        return id(memory), origin

    def _pointee(self, s: PointerLoad) -> tuple[BufferMemory, int]:
        """Return the memory of the source or of the zeros, and the position in it that the entry points at."""
        if s.table.dtype is not (PTR if s.rows is None else S32) or s.buffer in self._memories:
            raise self._error(f"{s.table} holds {s.table.dtype}, or {s.buffer} is pointed to within its own life")
        table, places = self._places(s.table, s.index, None)
        self._read(table, places)
        entry = int(table.data[places[0]])
        if s.rows is not None:
            count, step = s.rows
            entry = (entry % count) * step if -count <= entry < count else ABSENT
        if entry == ABSENT:
            memory, (origin,) = self._places(s.zero, s.zero_at, None)
            return memory, origin
        return self._memory(s.source), entry + self._index(s.offset)

    def _store(self, s: Store) -> None:
        if s.buffer in self._origins:
            raise self._error(f"{s.buffer}, which {s.value} is stored to, is only pointed to")
        self._shares.clear()
        value = self._value(s.value)
        memory, places = self._places(s.buffer, s.index, s.lanes)
        if value.dtype != memory.data.dtype:
            raise self._error(f"a value of type {value.dtype} is stored to {s.buffer}, which holds {memory.data.dtype}")
        if value.ndim:
            if s.lanes is None or len(value) != s.lanes.count:
                lanes = s.lanes.count if s.lanes else "no"
                raise self._error(f"a value of {len(value)} lanes is stored to {lanes} lanes of {s.buffer}")
            value = value[s.lanes.first : s.lanes.active]
        self._write(memory, places, value)

    def _invoke(self, s: Invoke) -> None:
        spec = self._instructions.get(s.instruction)
        if spec is None:
            known = ", ".join(self._instructions) or "none"
            raise self._error(f"instruction {s.instruction} has no specification; known: {known}")
        if len(spec.params) != 1 + len(s.args):
            raise self._error(f"{s.instruction} takes {len(spec.params)} operands, not {1 + len(s.args)}")
        for param, operand in zip(spec.params, (s.dst, *s.args)):
            lanes, of = lanes_of(operand) or 1, dtype_of(operand)
            if (param.size, param.dtype) != (lanes, of):
                raise self._error(
                    f"operand {param} of {s.instruction} is {param.dtype} in {param.size} lanes, not {of} in {lanes}"
                )
        self._shares.clear()
        if self._flight is not None and any(p.scope == "shared" for p in spec.params):
            factors = [self._places(v.buffer, v.index, v.lanes) for v in s.args if isinstance(v, Load)]
            self._legal(self._flight.multiply(self._places(s.dst.buffer, s.dst.index, s.dst.lanes), factors))
            with self._by_engine():
                self._multiply(s, spec)
            return
        self._multiply(s, spec)

    def _multiply(self, s: Invoke, spec: InstructionSpec) -> None:
        given = zip(spec.params[1:], s.args)
        fragments = {p: BufferMemory(p.name, np.atleast_1d(self._value(a)), None) for p, a in given}
        target, places = self._places(s.dst.buffer, s.dst.index, s.dst.lanes)
        accumulator = BufferMemory.fresh(spec.params[0])
        accumulator.ready = bytearray(b"\1" * len(accumulator.data))
        if target.ready is not None:
            accumulator.ready[: len(places)] = bytes(target.ready[p] for p in places)
        accumulator.data[: len(places)] = target.data[places]
        memories = {spec.params[0]: accumulator, **fragments}
        steps = self._steps_of(spec, len(places)) if all(accumulator.ready) else None
        try:
            if steps is not None:
                steps.run({buffer: memory.data for buffer, memory in memories.items()})
            else:
                _Machine(spec, memories, {}, dict.fromkeys(spec.sizes, len(places))).run()
        except InterpError as error:
            raise self._error(f"{s.instruction}({s.dst}, ...): {error.message}") from error
        self._write(target, places, accumulator.data[: len(places)])

    def _steps_of(self, spec: InstructionSpec, lanes: int) -> StepsAtOnce | None:
        """The steps of a specification on so many lanes, which are found once."""
        if (spec.name, lanes) not in self._steps_of_specs:
            self._steps_of_specs[spec.name, lanes] = steps_at_once(spec, dict.fromkeys(spec.sizes, lanes))
        return self._steps_of_specs[spec.name, lanes]

    def _call(self, s: Call) -> None:
        function = self._functions.get(s.function)
        if function is None:
            raise self._error(f"function {s.function} is not defined")
        given, wanted = (len(s.pointers), len(s.indices)), (len(function.pointers), len(function.indices))
        if given != wanted:
            raise self._error(f"{s.function} takes (pointers, indices) {wanted}, not {given}")
        env: dict[Var, int] = {}
        memories: dict[Buffer, BufferMemory] = {}
        for (var, formal), (buffer, position) in zip(function.pointers, s.pointers):
            memory = self._memory(buffer)
            if memories.setdefault(formal, memory) is not memory:
                raise self._error(f"{s.function} gets two different buffers for {formal}")
            env[var] = self._index(position) + self._origins.get(buffer, 0)
        env.update(zip(function.indices, map(self._index, s.indices)))
        outer = self._env, self._memories, self._origins
        self._env, self._memories, self._origins = env, memories, {}
        self._stmt(function.body)
        self._env, self._memories, self._origins = outer

    @contextmanager
    def _bound(self, *variables: Var) -> Iterator[None]:
        for v in variables:
            if v in self._env:
                raise self._error(f"variable {v} is bound twice")
        yield
        for v in variables:
            self._env.pop(v, None)
