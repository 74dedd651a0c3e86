"""Nests that transform tiles of pixels: along each axis, a product with a constant matrix, for vectors of channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from convsmith.arith.linear_map import LinearCode
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, minimum
from convsmith.ir.stmt import Alloc, For, Stmt, Store, block
from convsmith.ir.types import DType
from convsmith.ir.value import Binary, Fma, Load, Unary, Value, const

Read = Callable[[Index, Sequence[Index]], Value]
"""Returns the element of a channel at a place of a tile."""
Write = Callable[[Index, Sequence[Index], Value], Stmt]
"""Returns the statement that stores the element of a channel at a place of a tile."""


@record(frozen=True)
class TileTransform:
    """The nest that multiplies each axis of a tile by a constant matrix.

    The product along one axis is straight-line code inside loops over the other axes; an array in the cache holds the
    result between two axes. Names of loops and arrays begin with ``name``. The ``channels`` are processed in
    groups of ``width``, one per lane; ``spread`` groups in sequence have places of their own in that array.
    """

    name: str
    dtype: DType
    width: int
    codes: Sequence[LinearCode]
    channels: int
    spread: int = 1

    @property
    def group(self) -> Var:
        """The loop over groups of channels."""
        return Var(f"{self.name}.o")

    @property
    def first(self) -> Index:
        """The first channel of a group."""
        return self.group * self.width

    @property
    def left(self) -> Index:
        """The channels of a group."""
        return minimum(as_index(self.width), as_index(self.channels) - self.first)

    def nest(self, body: Stmt) -> Stmt:
        """Return the loop over groups of channels around ``body``."""
        return For(self.group, as_index(0), as_index(-(-self.channels // self.width)), body)

    def body(self, read: Read, write: Write) -> Stmt:
        """Return the nests of a group of channels of a tile."""
        shape = [code.inputs for code in self.codes]
        spread = min(self.spread, -(-self.channels // self.width))
        start = self.first - self.group % spread * self.width
        parts: list[Stmt] = []
        between: list[Buffer] = []
        for n, code in enumerate(self.codes):
            last = n == len(self.codes) - 1
            if n:
                read = _reader(between[-1], start)
            shape[n] = len(code.results)
            if not last:
                between.append(make_buffer(f"{self.name}{n}", self.dtype, (*shape, self.width * spread), "cache"))
            put = write if last else _writer(between[-1], start)
            parts.append(self._pass(n, code, shape, read, put))
        body = block(*parts)
        for buffer in reversed(between):
            body = Alloc(buffer, body)
        return body

    def _pass(self, n: int, code: LinearCode, shape: Sequence[int], read: Read, write: Write) -> Stmt:
        """Return the nest of axis ``n``, in which the tile has the extents ``shape`` once the axis is done."""
        lane = Var(f"{self.name}{n}.l")
        others = [Var(f"{self.name}{n}.{d}") for d in range(len(shape))]

        def at(i: int) -> list[Index]:
            return [as_index(i) if d == n else v for d, v in enumerate(others)]

        values = make_buffer(f"{self.name}{n}_v", self.dtype, (code.inputs + len(code.steps), self.width), "register")
        held: list[Value] = [Load(values, (as_index(i), lane), None) for i in range(values.shape[0])]

        def hold(number: int, value: Value) -> Stmt:
            return Store(values, (as_index(number), lane), value)

        body = [hold(i, read(self.first + lane, at(i))) for i in range(code.inputs)]
        for number, terms in enumerate(code.steps, code.inputs):
            body.append(hold(number, _sum([(float(c), held[i]) for c, i in terms], self.dtype)))
        body += [write(self.first + lane, at(i), held[result]) for i, result in enumerate(code.results)]
        made = Alloc(values, For(lane, as_index(0), self.left, block(*body)))
        return loop_nest(((others[d], as_index(shape[d])) for d in range(len(shape)) if d != n), made)


def _reader(buffer: Buffer, first: Index) -> Read:
    return lambda channel, at: Load(buffer, (*at, channel - first), None)


def _writer(buffer: Buffer, first: Index) -> Write:
    return lambda channel, at, value: Store(buffer, (*at, channel - first), value)


def _sum(terms: Sequence[tuple[float, Value]], type_: DType) -> Value:
    """Return the sum of products of constants and values, 0 if it is empty."""
    if not terms:
        return const(type_, 0)
    start = next((n for n, (c, _) in enumerate(terms) if c == 1), 0)
    c, first = terms[start]
    is_negated = c == -1 and type_.kind == "float"
    total = first if c == 1 else Unary("neg", first) if is_negated else Binary("mul", first, const(type_, c))
    for n, (factor, value) in enumerate(terms):
        if n == start:
            continue
        if abs(factor) == 1:
            total = Binary("add" if factor == 1 else "sub", total, value)
        elif type_.kind != "float":
            total = Binary("add", total, Binary("mul", value, const(type_, factor)))
        else:
            total = Fma(const(type_, factor), value, total)
    return total


def loop_nest(loops: Iterable[tuple[Var, Index]], body: Stmt) -> Stmt:
    """Return the nest of ``loops``, each with its number of iterations, around ``body``."""
    for var, size in reversed(list(loops)):
        body = For(var, as_index(0), size, body)
    return body
