"""Operators of networks beside convolutions and products: what they read and write, their naive nests, their meaning.

An operator is a value: its fields state shapes and layouts, equal operators have equal kernels, and its text names the
kernel in the cache. The nest defines what a kernel computes, and the numpy reference checks it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias

from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import IndexLike, Var, as_index
from convsmith.ir.stmt import Alloc, For, Kernel, NumberedRows, PointerLoad, Stmt, Store, block
from convsmith.ir.types import dtype
from convsmith.ir.value import COMBINATIONS, Binary, Load, Value, const, dtype_of
from convsmith.ir.walk import walk
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.statement.statement import Dim, Statement, View

__all__ = [
    "RESULT", "Loader", "Operator", "OperatorNest", "OperatorNests", "PickedRow", "array",
    "nests_in_steps", "nests_of", "result_array",
]  # fmt: skip

Loader: TypeAlias = Callable[[str, Sequence[IndexLike]], Value]
"""Returns the element of the array of a name at coordinates."""

RESULT = "dst"
"""Name of the array that an operator writes."""


class Operator(ABC):
    """An operator with inputs and one result, of fixed shapes; a record whose fields are plain values."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[Tensor, ...]:
        """The arrays that a kernel reads, in order."""

    @property
    @abstractmethod
    def result(self) -> Tensor:
        """The array that a kernel writes, `dst`."""

    @abstractmethod
    def nests(self) -> OperatorNests:
        """Return the naive nests."""

    @abstractmethod
    def reference(self, *arrays: Any) -> Any:
        """Return the result for `arrays`, one for each input, as numpy computes it."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """The arrays among the inputs that the operator has of its own, by name."""
        return {}

    @property
    def in_order(self) -> bool:
        """Whether nests read what earlier iterations of a loop around them wrote: threads do not share the nests."""
        return False

    @property
    def inner(self) -> tuple[Tensor, ...]:
        """The arrays that a kernel keeps for itself: nests write them, and later nests read them."""
        return ()

    @property
    def products(self) -> tuple[Problem, ...]:
        """The products of matrices that the operator computes, for reports."""
        return ()

    @property
    def around(self) -> tuple[int, ...]:
        """The tiles of the outermost dims of the last nest, one or several: inner arrays are computed for the elements
        of a tile at a time.
        """
        return (1,)

    @property
    def replaceable(self) -> tuple[str, ...]:
        """The names of the inputs whose memory the result may take, if shapes and layouts are the same: an element is
        not read after the one at its place is written.
        """
        return ()

    @property
    def free(self) -> tuple[str, ...]:
        """The names of the arrays whose layouts are free, in the order of the field `tags`; none without that field."""
        own = self.constants if hasattr(self, "tags") else {t.name for t in self.tensors}
        return tuple(t.name for t in self.tensors if t.name not in own)

    def with_tags(self, tags: Mapping[str, str]) -> Operator:
        """Return the operator with the layouts `tags` of arrays, by name; those of others are row-major."""
        made: Any = self
        if hasattr(made, "tags"):
            made = replace(made, tags=tuple(tags.get(n, "any") for n in self.free))
        assert isinstance(made, Operator)
        return made

    def flat(self) -> Operator:
        """Return an operator that computes the same elements in memory, over arrays of fewer dims if there is one."""
        return self

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every array that a kernel takes: the inputs, then the result."""
        return (*self.inputs, self.result)

    def __str__(self) -> str:
        assert is_dataclass(self)
        words = (f"{f.name}={getattr(self, f.name)}" for f in fields(self))
        return f"{type(self).__name__}({', '.join(words)})"


@record(frozen=True)
class OperatorNests:
    """The nests of an operator as one kernel, and a statement for each: its loops, outermost first, and its views."""

    kernel: Kernel
    statements: tuple[Statement, ...]


@record(frozen=True)
class PickedRow:
    """A row of the array ``source`` that the element at ``index`` of the array ``table``, of s32, numbers.

    The loader reads it as the array ``name`` of ``shape``. ``offset`` and the steps of ``rows`` count elements of the
    source in row-major order; a number beyond the rows picks the array ``zero``.
    """

    name: str
    source: str
    table: str
    index: tuple[IndexLike, ...]
    rows: NumberedRows
    offset: IndexLike
    shape: tuple[int, ...]
    zero: str = "zero"


@record(frozen=True)
class OperatorNest:
    """A nest over ``dims`` that stores ``value`` at ``coords`` of the array ``to``, the result or an inner array.

    With the ``terms`` of a reduction, the element is ``value`` of the combination, by a key of `COMBINATIONS`, of one
    ``term`` for each of their points. All functions receive the loader; ``value`` receives the combination too. The
    loader knows the ``picks`` too, in the terms if there are some.
    """

    dims: tuple[tuple[str, int], ...]
    coords: tuple[IndexLike, ...]
    value: Callable[[Loader, Value | None], Value]
    terms: tuple[tuple[str, int], ...] = ()
    term: Callable[[Loader], Value] | None = None
    combination: str = "add"
    picks: tuple[PickedRow, ...] = ()
    to: str = RESULT


def nests_of(op: Operator, nests: Sequence[OperatorNest]) -> OperatorNests:
    """Return ``nests``, one after the other, as the kernel of ``op``; names of loops are unique among them."""
    return nests_in_steps(op, nests, [], "", 0)


def nests_in_steps(
    op: Operator, first: Sequence[OperatorNest], repeated: Sequence[OperatorNest], step: str, count: int
) -> OperatorNests:
    """Return the nests ``first``, and ``repeated`` nests within a loop over the variable ``step`` of ``count`` steps,
    as the kernel of ``op``. A step may read elements of the result that steps before it stored.
    """
    buffers = {t.name: _buffer(t) for t in op.tensors}
    own, nests = {t.name: t for t in op.inner}, (*first, *repeated)
    inner = {nest.to: replace(_buffer(own[nest.to]), scope="cache") for nest in nests if nest.to in own}
    made = [_nest(n, nest, op, {**buffers, **inner}) for n, nest in enumerate(nests)]
    bodies = [body for body, _ in made]
    parts = bodies[: len(first)]
    if repeated:
        parts.append(For(Var(step), as_index(0), as_index(count), block(*bodies[len(first) :])))
    whole = block(*parts)
    for buffer in reversed(inner.values()):
        whole = Alloc(buffer, whole)
    kernel = Kernel("operator", tuple(buffers.values()), whole)
    return OperatorNests(kernel, tuple(st for _, st in made))


def array(name: str, type_: str, shape: Sequence[int], tag: str = "any", holds: str = "src") -> Tensor:
    """Return an array that an operator reads. A scalar has the shape (1,)."""
    whole = tuple(shape) or (1,)
    return Tensor(name, "in", type_, whole, tuple(f"d{n}" for n in range(len(whole))), tag, holds=holds)


def result_array(type_: str, shape: Sequence[int], tag: str = "any") -> Tensor:
    """Return the array that an operator writes."""
    return replace(array(RESULT, type_, shape, tag, RESULT), role="out")


def _buffer(t: Tensor) -> Buffer:
    return Buffer(t.name, dtype(t.dtype), t.layout.padded_shape, t.layout.blocks)


def _nest(n: int, nest: OperatorNest, op: Operator, buffers: Mapping[str, Buffer]) -> tuple[Stmt, Statement]:
    """Return nest ``n`` of an operator as statements of the IR, and what schedules read of it."""
    out, result = buffers[nest.to], next(t for t in (*op.inner, op.result) if t.name == nest.to)
    acc_type = dtype("f64" if op.result.dtype == "f64" else "f32")

    rows = {x.name: make_buffer(x.name, buffers[x.source].dtype, x.shape) for x in nest.picks}

    def load(name: str, coords: Sequence[IndexLike]) -> Value:
        return Load(rows.get(name) or buffers[name], tuple(map(as_index, coords)), None)

    def picking(body: Stmt) -> Stmt:
        for x in reversed(nest.picks):
            table, source, zero = (buffers[name] for name in (x.table, x.source, x.zero))
            start = (as_index(0),) * len(zero.shape)
            at = tuple(map(as_index, x.index))
            body = PointerLoad(rows[x.name], table, at, as_index(x.offset), source, zero, start, body, x.rows)
        return body

    to = tuple(map(as_index, nest.coords))
    if nest.term is None:
        value = nest.value(load, None)
        if all(dtype_of(x).bits == out.dtype.bits for x in walk(value) if isinstance(x, Value)):
            acc_type = out.dtype
        body: Stmt = picking(Store(out, to, value))
    else:
        acc = make_buffer(f"acc{n or ''}", acc_type, (), "register")
        here = Load(acc, (), None)
        start = Store(acc, (), const(acc_type, COMBINATIONS[nest.combination]))
        step: Stmt = Store(acc, (), Binary(nest.combination, here, nest.term(load)))
        body = Alloc(acc, block(start, _loops(nest.terms, picking(step)), Store(out, to, nest.value(load, here))))
    dims = (*(Dim(name, size, "m") for name, size in nest.dims), *(Dim(name, size, "k") for name, size in nest.terms))
    views = tuple(View(t.name, t.dtype, t.layout, (), ()) for t in (*op.inputs, *op.inner))
    written = View(nest.to, result.dtype, result.layout, to, ())
    name = "operator" if n == 0 else f"operator{n + 1}"
    st = Statement(dims, views, written, tuple(name for name, _ in nest.terms), acc_type.name, name=name)
    return _loops(nest.dims, body), st


def _loops(dims: Sequence[tuple[str, int]], body: Stmt) -> Stmt:
    for name, size in reversed(dims):
        body = For(Var(name), as_index(0), as_index(size), body)
    return body


