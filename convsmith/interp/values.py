"""The values of expressions: accesses to memory, checked, and arithmetic on numpy scalars and vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from convsmith.arith.evaluate import evaluate, holds
from convsmith.interp.arithmetic import BINARY, COMPARISONS, UNARY, cast, fma, sum_groups
from convsmith.interp.lanes import read_within_lanes
from convsmith.interp.memory import BufferMemory, InterpError, Races, address
from convsmith.interp.places import Position, index_function, position_function
from convsmith.interp.thread_races import ThreadRaces
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Var
from convsmith.ir.stmt import LANE
from convsmith.ir.value import (
    BITWISE,
    Binary,
    Bits,
    Cast,
    Const,
    Fma,
    Lanes,
    Load,
    Lookup,
    Repeat,
    Select,
    Sum,
    Sums,
    Unary,
    Value,
    Where,
    dtype_of,
    lanes_of,
)  # fmt: skip
from convsmith.ir.walk import variables_of

__all__ = ["AccessPlace", "ValueMachine"]

_USES = 16
"""Uses of an index in a run by which a function for it takes less time than its tree."""


class AccessPlace(NamedTuple):
    """The first position that an access touches, and its lanes."""

    memory: BufferMemory
    base: int
    lanes: Lanes | None


class ValueMachine:
    """Evaluates expressions of the kernel ``name``, given its ``memories`` and the variables of ``env``."""

    def __init__(self, name: str, memories: dict[Buffer, BufferMemory], env: dict[Var, int]) -> None:
        self._name = name
        self._memories = memories
        self._env = env
        self._trace: list[AccessPlace] | None = None
        self._races: list[Races | ThreadRaces] = []
        self._shared: dict[BufferMemory, int] = {}
        self._origins: dict[Buffer, int] = {}
        self._addresses: dict[Buffer, Callable[[Sequence[Any]], Any]] = {}
        self._positions: dict[tuple[Buffer, tuple[Index, ...]], Position] = {}
        self._indices: dict[Index, Position] = {}
        self._uses: dict[Any, int] = {}
        self._constants: dict[Const, Any] = {}
        self._shares: dict[Value, Any] = {}
        self._values: dict[type, Callable[[Any], Any]] = {
            Load: self._load,
            Const: self._const,
            Binary: self._binary,
            Unary: self._unary,
            Fma: self._fma,
            Cast: self._cast,
            Bits: self._bits,
            Select: self._select,
            Where: self._where,
            Lookup: self._lookup,
            Repeat: self._repeat,
            Sum: self._sum,
            Sums: self._sums,
        }

    def _error(self, message: str) -> InterpError:
        where = ", ".join(f"{v} = {x}" for v, x in self._env.items())
        return InterpError(f"kernel {self._name}{' at ' + where if where else ''}: {message}")

    # -- accesses
    def _memory(self, buffer: Buffer) -> BufferMemory:
        memory = self._memories.get(buffer)
        if memory is None:
            raise self._error(f"buffer {buffer} is not in scope")
        return memory

    def _places(self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None) -> tuple[BufferMemory, list[int]]:
        """Return the memory of ``buffer`` and the positions in it that the active lanes of an access touch."""
        memory = self._memory(buffer)
        base = self._position(buffer, index)
        if base is None:
            base = self._checked_position(buffer, index, lanes)
        base += self._origins.get(buffer, 0)
        if self._trace is not None:
            self._trace.append(AccessPlace(memory, base, lanes))
        places = [base] if lanes is None else [base + o for o in lanes.touched]
        size = len(memory.data)
        for p in places:
            if not 0 <= p < size:
                at = [self._index(i) for i in index]
                raise self._error(f"{buffer}{at} touches element {p} of the {size} elements of {memory.name}")
        return memory, places

    def _position(self, buffer: Buffer, index: tuple[Index, ...]) -> int | None:
        """Return the position of an element by a function that is made after some accesses; None if there is none, or
        if the access is not one of an element of ``buffer``.
        """
        key = buffer, index
        position = self._positions.get(key)
        if position is not None:
            return position(self._env)
        uses = self._uses[key] = self._uses.get(key, 0) + 1
        if uses == _USES and len(index) == len(buffer.shape):
            self._positions[key] = position_function(buffer, index)
        return None

    def _checked_position(self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None) -> int:
        at = [self._index(i) for i in index]
        if len(at) != len(buffer.shape):
            raise self._error(f"{buffer}{at} has {len(at)} coordinates for {len(buffer.shape)} dims")
        for x, n in zip(at, buffer.shape):
            if not 0 <= x < n and (lanes is None or (lanes.active and not lanes.first)):
                raise self._error(f"{buffer}{at} is outside of the shape {list(buffer.shape)}")
        place = self._addresses.get(buffer)
        if place is None:
            place = self._addresses[buffer] = address(buffer)
        return place(at)  # type: ignore[no-any-return]

    def _read(self, memory: BufferMemory, places: list[int]) -> None:
        """Require that the elements are initialised, and record the read."""
        if memory.ready is not None:
            for p in places:
                if not memory.ready[p]:
                    raise self._error(f"element {p} of {memory.name} is read before it is written")
        self._touch(memory, places, False)

    def _write(self, memory: BufferMemory, places: list[int], value: Any) -> None:
        if len(places) > 1 and len(set(places)) < len(places):
            raise self._error(f"two lanes write the same element of {memory.name}: elements {places}")
        self._touch(memory, places, True)
        memory.data[places[0] if len(places) == 1 and not value.ndim else places] = value
        if memory.ready is not None:
            for p in places:
                memory.ready[p] = 1

    def _touch(self, memory: BufferMemory, places: list[int], write: bool) -> None:
        for races in self._races[self._shared.get(memory, 0) :]:
            race = races.touch(memory, places, write)
            if race:
                raise self._error(f"{memory.name}: {race}")

    # -- expressions
    def _index(self, e: Index) -> int:
        function = self._indices.get(e)
        if function is not None and (found := function(self._env)) is not None:
            return found
        uses = self._uses[e] = self._uses.get(e, 0) + 1
        if uses == _USES:
            self._indices[e] = index_function(e)
        try:
            return evaluate(e, self._env)  # type: ignore[no-any-return]
        except KeyError as error:
            raise self._error(f"variable {error.args[0]} in {e} is not bound") from None

    def _cond(self, c: Cond) -> bool:
        try:
            return bool(holds(c, self._env))
        except KeyError as error:
            raise self._error(f"variable {error.args[0]} in {c} is not bound") from None

    def _value(self, v: Value) -> Any:
        """Return the value of ``v``; a value that occurs several times in a statement is computed once."""
        out = self._shares.get(v)
        if out is None:
            out = self._shares[v] = self._values[type(v)](v)
        return out

    def _const(self, v: Const) -> Any:
        out = self._constants.get(v)
        if out is None:
            out = self._constants[v] = np.frombuffer(v.bits, v.dtype.numpy)[0]
        return out

    def _load(self, v: Load) -> Any:
        memory, places = self._places(v.buffer, v.index, v.lanes)
        self._read(memory, places)
        if v.lanes is None:
            return memory.data[places[0]]
        out = np.zeros(v.lanes.count, memory.data.dtype)
        out[v.lanes.first : v.lanes.active] = memory.data[places]
        return out

    def _binary(self, v: Binary) -> Any:
        a, b = self._operands(v, v.a, v.b)
        if v.op == "div" and a.dtype.kind != "f":
            raise self._error(f"{v} divides integers")
        if v.op in BITWISE and a.dtype.kind == "f":
            raise self._error(f"{v} takes floats for integers")
        if v.op in ("shl", "shr") and not (np.all(b >= 0) and np.all(b < 8 * b.itemsize)):
            raise self._error(f"{v} shifts {a.dtype} by {b}")
        return BINARY[v.op](a, b)

    def _fma(self, v: Fma) -> Any:
        return fma(*self._operands(v, v.a, v.b, v.c))

    def _cast(self, v: Cast) -> Any:
        return cast(self._value(v.a), v.dtype)

    def _select(self, v: Select) -> Any:
        lanes = lanes_of(v)
        if lanes and LANE in variables_of(v.cond):
            holding = self._holding(v.cond, lanes)
            yes = self._value(read_within_lanes(v.yes, holding.start, holding.stop))
            return np.where([n in holding for n in range(lanes)], yes, self._value(v.no))
        out = self._value(v.yes if self._cond(v.cond) else v.no)
        return np.full(lanes, out) if lanes and not out.ndim else out

    def _holding(self, cond: Cond, count: int) -> range:
        """Return the lanes of so many for which a condition holds."""
        found = []
        for n in range(count):
            self._env[LANE] = n
            if self._cond(cond):
                found.append(n)
        del self._env[LANE]
        run = range(found[0], found[-1] + 1) if found else range(0)
        if found != [*run]:
            raise self._error(f"the condition {cond} holds for lanes {found}, which are no run")
        return run

    def _where(self, v: Where) -> Any:
        a, b = self._operands(v, v.a, v.b)
        yes, no = self._value(v.yes), self._value(v.no)
        self._alike(v, yes, no)
        return np.where(COMPARISONS[v.op](a, b), yes, no)[()]

    def _unary(self, v: Unary) -> Any:
        (a,) = self._operands(v, v.a)
        if a.dtype.kind != "f":
            raise self._error(f"{v} is not for {a.dtype}")
        return UNARY[v.op](a)

    def _bits(self, v: Bits) -> Any:
        a = self._value(v.a)
        if a.nbytes % v.dtype.bytes:
            raise self._error(f"{v} reads {a.dtype} as {v.dtype}")
        out = np.atleast_1d(a).view(v.dtype.numpy)
        return out if lanes_of(v) else out[0]

    def _lookup(self, v: Lookup) -> Any:
        memory, (first,) = self._places(v.first.buffer, v.first.index, None)
        a = self._value(v.a)
        places = [first + int(x) for x in np.atleast_1d(a)]
        if beyond := [x for x in places if x >= len(memory.data)]:
            raise self._error(f"{v} touches element {beyond[0]} of the {len(memory.data)} elements of {memory.name}")
        self._read(memory, places)
        found = memory.data[places]
        return found if a.ndim else found[0]

    def _repeat(self, v: Repeat) -> Any:
        return np.tile(self._value(v.a), v.times)

    def _sum(self, v: Sum) -> Any:
        return self._summed(v, v.a, v.group)

    def _summed(self, v: Value, of: Value, group: int) -> Any:
        (a,) = self._operands(v, of)
        if not a.ndim or group < 1 or group & (group - 1) or len(a) % group:
            raise self._error(f"{v} needs groups of 2**n lanes, not {group} of {len(a) if a.ndim else 'a scalar'}")
        return sum_groups(a, group)

    def _sums(self, v: Sums) -> Any:
        return np.array([self._summed(v, a, lanes_of(a)) for a in v.args])

    def _operands(self, v: Value, *parts: Value) -> list[Any]:
        """Return the operands after a check that their types agree and that all vectors have the same lanes."""
        out = [self._value(p) for p in parts]
        self._alike(v, *out)
        if not dtype_of(parts[0]).computes:
            raise self._error(f"{v} computes on {out[0].dtype}, which is for memory only")
        return out

    def _alike(self, v: Value, *out: Any) -> None:
        first = out[0]
        if not first.ndim and all(x.dtype is first.dtype and not x.ndim for x in out):
            return
        if len({x.dtype for x in out}) > 1 or len({len(x) for x in out if x.ndim}) > 1:
            kinds = ", ".join(f"{x.dtype}{[len(x)] if x.ndim else ''}" for x in out)
            raise self._error(f"the operands of {v} differ: {kinds}")
