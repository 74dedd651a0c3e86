"""Run a kernel of any stage, statement by statement, on numpy arrays.

    run(kernel, {"src": src, "wei": wei, "dst": dst}, instructions)

Each array is one-dimensional: the memory of an argument, ``buffer.size`` elements in memory order, changed in place.
Illegal behaviour raises InterpError: an access outside of a buffer's coordinates or memory, also through a pointer; a
read of an ``alloc``ed element before its first write; a race between iterations of a parallel loop; a variable that is
unbound or bound twice; an operation on operands of different types or lanes.  A pointer table holds positions in the
buffer that it points into, or ABSENT for a pointer to zeros.

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
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from convsmith.arith.evaluate import evaluate, holds
from convsmith.interp.arithmetic import BINARY, COMPARISONS, UNARY, cast, fma, sum_groups
from convsmith.interp.memory import BufferMemory, InterpError, Races, address
from convsmith.ir.buffer import UNKNOWN, Buffer
from convsmith.ir.index import Cond, Index, Var
from convsmith.ir.stmt import Alloc, At, Block, Call, For, If, Invoke, Kernel, Let, Stmt, Store
from convsmith.ir.types import PTR
from convsmith.ir.value import (
    BITWISE,
    Binary,
    Bits,
    Cast,
    Const,
    Fma,
    Lanes,
    Load,
    Repeat,
    Select,
    Sum,
    Sums,
    Unary,
    Value,
    Where,
    dtype_of,
    lanes_of,
)
from convsmith.layout.block import ABSENT

InstructionSpec: TypeAlias = Kernel

Array: TypeAlias = npt.NDArray[Any]


def run(
    kernel: Kernel, arrays: Mapping[str, Array], instructions: Mapping[str, InstructionSpec] | None = None,
    sizes: Mapping[str, int] | None = None, scale: int = 1,
) -> None:  # fmt: skip
    """Run ``kernel`` on arrays and sizes named after its parameters; the arrays change in place.

    The machine's vectors have ``scale`` units.  InterpError if the kernel does something illegal.
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
        _Machine(kernel, memories, instructions or {}, env, scale).run()


_T = TypeVar("_T")


class _Unit(NamedTuple):
    """The variables and the memory of one of the iterations that run at once."""

    env: dict[Var, int]
    memories: dict[Buffer, BufferMemory]


class _Place(NamedTuple):
    """The first position that an access touches, and its lanes."""

    memory: BufferMemory
    base: int
    lanes: Lanes | None


class _Machine:
    def __init__(
        self, kernel: Kernel, memories: dict[Buffer, BufferMemory], instructions: Mapping[str, Kernel],
        env: dict[Var, int], scale: int = 1,
    ) -> None:  # fmt: skip
        self._kernel = kernel
        self._scale = scale
        self._trace: list[_Place] | None = None
        self._functions = {f.name: f for f in kernel.functions}
        self._instructions = instructions
        self._memories = memories
        self._env = env
        self._races: list[Races] = []
        self._shared: dict[BufferMemory, int] = {}
        self._origins: dict[Buffer, int] = {}
        self._addresses: dict[Buffer, Callable[[Sequence[int]], int]] = {}
        self._constants: dict[Const, Any] = {}
        self._shares: dict[Value, Any] = {}
        self._statements: dict[type, Callable[[Any], None]] = {
            Block: self._block,
            For: self._for,
            If: self._if,
            Let: self._let,
            Alloc: self._alloc,
            At: self._at,
            Store: self._store,
            Invoke: self._invoke,
            Call: self._call,
        }
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
            Repeat: self._repeat,
            Sum: self._sum,
            Sums: self._sums,
        }

    def run(self) -> None:
        self._stmt(self._kernel.body)

    def _error(self, message: str) -> InterpError:
        where = ", ".join(f"{v} = {x}" for v, x in self._env.items())
        return InterpError(f"kernel {self._kernel.name}{' at ' + where if where else ''}: {message}")

    # -- statements
    def _stmt(self, s: Stmt) -> None:
        self._statements[type(s)](s)

    def _block(self, s: Block) -> None:
        for x in s.stmts:
            self._stmt(x)

    def _for(self, s: For) -> None:
        lo, hi = self._index(s.lo), self._index(s.hi)
        if s.kind == "scalable" and self._scale > 1:
            self._scalable(s, lo, hi)
            return
        starts = [self._index(c.init) for c in s.carried]
        with self._bound(s.var, *(c.var for c in s.carried)):
            if s.kind == "parallel":
                self._races.append(Races(s.var.name))
            for i in range(lo, hi):
                self._env[s.var] = i
                for c, start in zip(s.carried, starts):
                    self._env[c.var] = start + (i - lo) * c.step
                if s.kind == "parallel":
                    self._races[-1].iteration = i
                self._stmt(s.body)
            if s.kind == "parallel":
                self._races.pop()

    def _scalable(self, s: For, lo: int, hi: int) -> None:
        """Run as many iterations at a time as a vector has units."""
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

    def _require_units(self, traces: Sequence[list[_Place]]) -> None:
        """Raise InterpError unless each access of the units is one for all, or has their lanes side by side."""
        for before, after in pairwise(traces):
            for x, y in zip(before, after):
                apart = x.lanes.count if x.lanes is not None and x.lanes.stride == 1 else 0
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
        if self._cond(s.cond):
            self._stmt(s.body)

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

    def _at(self, s: At) -> None:
        """Bind the buffer to the memory of the source or of the zeros, from the entry's position on."""
        if s.table.dtype is not PTR or s.buffer in self._memories:
            raise self._error(f"{s.table} holds {s.table.dtype}, or {s.buffer} is pointed to within its own life")
        table, places = self._places(s.table, s.index, None)
        self._read(table, places)
        entry = int(table.data[places[0]])
        if entry == ABSENT:
            memory, (origin,) = self._places(s.zero, s.zero_at, None)
        else:
            memory, origin = self._memory(s.source), entry + self._index(s.offset)
        self._memories[s.buffer], self._origins[s.buffer] = memory, origin
        self._stmt(s.body)
        del self._memories[s.buffer], self._origins[s.buffer]

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
            value = value[: s.lanes.active]
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
        given = zip(spec.params[1:], s.args)
        fragments = {p: BufferMemory(p.name, np.atleast_1d(self._value(a)), None) for p, a in given}
        target, places = self._places(s.dst.buffer, s.dst.index, s.dst.lanes)
        accumulator = BufferMemory.fresh(spec.params[0])
        accumulator.ready = bytearray(b"\1" * len(accumulator.data))
        if target.ready is not None:
            accumulator.ready[: len(places)] = bytes(target.ready[p] for p in places)
        accumulator.data[: len(places)] = target.data[places]
        try:
            _Machine(spec, {spec.params[0]: accumulator, **fragments}, {}, dict.fromkeys(spec.sizes, len(places))).run()
        except InterpError as error:
            raise self._error(f"{s.instruction}({s.dst}, ...): {error.message}") from error
        self._write(target, places, accumulator.data[: len(places)])

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

    # -- accesses
    def _memory(self, buffer: Buffer) -> BufferMemory:
        memory = self._memories.get(buffer)
        if memory is None:
            raise self._error(f"buffer {buffer} is not in scope")
        return memory

    def _places(self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None) -> tuple[BufferMemory, list[int]]:
        """Return the memory of ``buffer`` and the positions in it that the active lanes of an access touch."""
        memory = self._memory(buffer)
        at = [self._index(i) for i in index]
        if len(at) != len(buffer.shape):
            raise self._error(f"{buffer}{at} has {len(at)} coordinates for {len(buffer.shape)} dims")
        for x, n in zip(at, buffer.shape):
            if not 0 <= x < n and (lanes is None or lanes.active):
                raise self._error(f"{buffer}{at} is outside of the shape {list(buffer.shape)}")
        place = self._addresses.get(buffer)
        if place is None:
            place = self._addresses[buffer] = address(buffer)
        base = place(at) + self._origins.get(buffer, 0)
        if self._trace is not None:
            self._trace.append(_Place(memory, base, lanes))
        places = [base] if lanes is None else [base + o for o in lanes.offsets[: lanes.active]]
        size = len(memory.data)
        for p in places:
            if not 0 <= p < size:
                raise self._error(f"{buffer}{at} touches element {p} of the {size} elements of {memory.name}")
        return memory, places

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
        memory.data[places] = value
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
        out[: len(places)] = memory.data[places]
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
        out = self._value(v.yes if self._cond(v.cond) else v.no)
        lanes = 0 if out.ndim else lanes_of(v)
        return np.full(lanes, out) if lanes else out

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
        if len({x.dtype for x in out}) > 1 or len({len(x) for x in out if x.ndim}) > 1:
            kinds = ", ".join(f"{x.dtype}{[len(x)] if x.ndim else ''}" for x in out)
            raise self._error(f"the operands of {v} differ: {kinds}")
