"""Attention: each row of queries takes the mean of all values, weighted by the softmax of its products with the keys.

The nests keep the queries of a tile as columns, so that its scores have one row of adjacent elements for each key: sums
over keys, and their maxima, are those of vectors, and keys and values are read as they lie in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var, ge0, minimum
from convsmith.ir.types import dtype
from convsmith.ir.value import Binary, Const, Select, Value, const
from convsmith.network.operators.pointwise import stepped
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.statement.maths import exp2_of_negative, f32, mul, sub
from convsmith.statement.operator import (
    RESULT,
    Loader,
    Operator,
    OperatorNest,
    OperatorNests,
    array,
    nests_of,
    result_array,
)

__all__ = ["LANES", "MASK", "Attention", "Order", "Sizes"]

LANES = 16
"""Rows of a tile are a multiple of these: whole vectors, of any machine."""
MASK = "mask"
"""The array that is added to the scores."""

_ARRAYS = {"query": "bhmd", "key": "bhnd", "value": "bhne", RESULT: "bhme"}
"""The logical dims of the arrays: batch, head, row of queries, key, element of a key, element of a value."""
_SHARED = ("key", "value")
"""The arrays that several heads of the query may read."""
_INNER = {"columns": "bhtdr", "scores": "bhtnr", "most": "bhtr", "grown": "bhtnr", "total": "bhtr", "sums": "bhter"}
"""The dims of inner arrays, with tiles and rows of a tile in place of rows: queries, scores, the largest score of each
row, exponentials, the reciprocals of their sums, and sums of values."""

_LEAST, _SMALL = -3e38, 1e-30
"""Numbers below the largest score of any row that has a share, and below the sum of its exponentials."""

Order: TypeAlias = tuple[int, int, int, int]
"""The logical dim of each dim in memory."""
Sizes: TypeAlias = tuple[int, ...]
"""A number for each logical dim."""
_At: TypeAlias = Mapping[str, Var]
"""The variables of loops by the letters of dims."""


@record(frozen=True)
class Attention(Operator):
    """For each of ``batch`` x ``heads`` matrices, softmax(query * key^T * scale + mask) * value.

    The query has ``rows`` of ``depth`` elements, the key has ``keys`` rows of them, and the value ``keys`` rows of
    ``width``. ``orders`` are those of the dims (batch, head, row, element) in memory, for query, key, value and result.
    With ``wholes``, query, key and value are parts of arrays of these sizes, from ``starts`` on along each dim.
    Key and value have one head for ``shared`` heads of the query that follow each other.
    A mask, of the shape (batch, head, key, row), has sizes of 1 where it broadcasts. The element-wise ``steps`` follow.
    A row whose scores are all -inf is NaN, or zero with ``zeros``. Kernels compute ``tile`` rows at a time.
    """

    type: str
    batch: int
    heads: int
    rows: int
    keys: int
    depth: int
    width: int
    scale: float = 1.0
    orders: tuple[Order, Order, Order, Order] = ((0, 1, 2, 3),) * 4
    mask: tuple[int, ...] = ()
    tile: int = 32
    steps: tuple[Eltwise, ...] = ()
    zeros: bool = False
    wholes: tuple[Sizes, ...] = ()
    starts: tuple[Sizes, ...] = ()
    shared: int = 1

    @property
    def _sizes(self) -> Mapping[str, int]:
        """The sizes of dims by their letters."""
        tiles = -(-self.rows // self.tile)
        return {
            "b": self.batch, "h": self.heads, "m": self.rows, "n": self.keys, "d": self.depth, "e": self.width,
            "t": tiles, "r": self.tile,
        }  # fmt: skip

    def _ordered(self, name: str, of: Sequence[Any]) -> tuple[Any, ...]:
        """Return what belongs to the logical dims of an array in the order of its memory."""
        return tuple(of[n] for n in dict(zip(_ARRAYS, self.orders))[name])

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array in memory."""
        whole = dict(zip(_ARRAYS, self.wholes)).get(name)
        return self._ordered(name, whole or self._sizes_of(name))

    def _sizes_of(self, name: str) -> list[int]:
        """Return the sizes of the logical dims of an array, by its name."""
        sizes = {**self._sizes, "h": self.heads // self.shared} if name in _SHARED else self._sizes
        return [sizes[x] for x in _ARRAYS[name]]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The query, the key and the value, and a mask if there is one."""
        made = [array(name, self.type, self._shape(name)) for name in _ARRAYS if name != RESULT]
        return (*made, *([array(MASK, self.type, self.mask, holds="operand")] if self.mask else []))

    @property
    def result(self) -> Tensor:
        """The weighted means of the values."""
        return result_array(self.type, self._shape(RESULT))

    @property
    def products(self) -> tuple[Problem, ...]:
        """The scores, and the sums of values."""
        outer, rows, keys = (self.batch, self.heads), self.rows, self.keys
        depth, width = self.depth, self.width
        sizes = (((rows, depth), (depth, keys)), ((rows, keys), (keys, width)))
        return tuple(Matmul(src=(*outer, *src), wei=(*outer, *wei)) for src, wei in sizes)

    @property
    def around(self) -> tuple[int, ...]:
        """A tile of the rows of a matrix."""
        return (1, 1, self.tile)

    @property
    def inner(self) -> tuple[Tensor, ...]:
        """The arrays of a tile."""
        return tuple(array(name, self.type, [self._sizes[x] for x in dims]) for name, dims in _INNER.items())

    def nests(self) -> OperatorNests:
        """Return the nests of the inner arrays, and that of the result."""
        made: list[OperatorNest] = []

        def nest(
            to: str, value: Callable[[Loader, _At, Value | None], Value], terms: str = "",
            term: Callable[[Loader, _At], Value] | None = None, combination: str = "add",
        ) -> None:  # fmt: skip
            """Add the nest of an array, whose loops have names of their own."""
            letters, number = _INNER.get(to, _ARRAYS[RESULT]), len(made) or ""
            at = {x: Var(f"{x}{number}") for x in letters + terms}
            own = tuple(at[x] for x in letters)
            dims, over = (tuple((str(at[x]), self._sizes[x]) for x in word) for word in (letters, terms))
            made.append(
                OperatorNest(
                    dims, self._ordered(to, own) if to == RESULT else own, lambda load, found: value(load, at, found),
                    over, None if term is None else lambda load: term(load, at), combination, to=to,
                )
            )  # fmt: skip

        def inner(load: Loader, name: str, at: _At) -> Value:
            return load(name, [at[x] for x in _INNER[name]])

        starts = dict(zip(_ARRAYS, self.starts))

        def outer(load: Loader, name: str, at: Mapping[str, IndexLike]) -> Value:
            first = starts.get(name, (0, 0, 0, 0))
            if name in _SHARED and self.shared > 1:
                at = {**at, "h": at["h"] // self.shared}
            return load(name, self._ordered(name, [at[x] + n for x, n in zip(_ARRAYS[name], first)]))

        def column(load: Loader, at: _At, _: Value | None) -> Value:
            row = minimum(at["t"] * self.tile + at["r"], self.rows - 1)  # rows behind the last are computed too
            return mul(outer(load, "query", {**at, "m": row}), self._const(self.scale))

        def mean(load: Loader, at: _At, _: Value | None) -> Value:
            b, h, m, e = (at[x] for x in _ARRAYS[RESULT])
            return stepped(load("sums", (b, h, m // self.tile, e, m % self.tile)), self.steps, self.type)

        nest("columns", column)
        nest("scores", self._masked, "d", lambda load, at: mul(outer(load, "key", at), inner(load, "columns", at)))
        nest("most", self._most, "n", lambda load, at: inner(load, "scores", at), "max")
        nest("grown", lambda load, at, _: _grown(sub(inner(load, "scores", at), inner(load, "most", at))))
        nest("total", self._total, "n", lambda load, at: inner(load, "grown", at))
        nest(
            "sums", lambda load, at, x: mul(_found(x), inner(load, "total", at)), "n",
            lambda load, at: mul(outer(load, "value", at), inner(load, "grown", at)),
        )  # fmt: skip
        nest(RESULT, mean)
        return nests_of(self, made)

    def _const(self, number: float) -> Const:
        return const(dtype(self.type), number)

    def _masked(self, load: Loader, at: _At, found: Value | None) -> Value:
        """Return a score after the sum with the mask."""
        if not self.mask:
            return _found(found)
        row = at["t"] * self.tile + at["r"]
        where: Sequence[IndexLike] = (at["b"], at["h"], at["n"], row)
        number = load(MASK, [0 if size == 1 else x for x, size in zip(where, self.mask)])
        if self.mask[3] > 1 and self.rows % self.tile:
            number = Select(ge0(self.rows - 1 - row), number, self._const(0))
        return Binary("add", _found(found), number)

    def _most(self, _: Loader, at: _At, found: Value | None) -> Value:
        """Return the largest score of a row, or with ``zeros`` a number from which -inf has a distance."""
        return Binary("max", _found(found), self._const(_LEAST)) if self.zeros else _found(found)

    def _total(self, _: Loader, at: _At, found: Value | None) -> Value:
        """Return the reciprocal of the sum of exponentials, which is 1 or more unless all scores are -inf."""
        total = Binary("max", _found(found), self._const(_SMALL)) if self.zeros else _found(found)
        return Binary("div", self._const(1), total)

    def reference(self, *arrays: Any) -> Any:
        """Return the attention by numpy."""
        q, k, v = (x.transpose(np.argsort(order)) for x, order in zip(arrays[:3], self.orders))
        if self.wholes:
            shapes = (self._sizes_of(name) for name in _ARRAYS if name != RESULT)
            q, k, v = (
                x[tuple(slice(n, n + size) for n, size in zip(first, shape))]
                for x, first, shape in zip((q, k, v), self.starts, shapes)
            )
        k, v = (np.repeat(x, self.shared, 1) for x in (k, v))
        scores = (q * q.dtype.type(self.scale)) @ k.swapaxes(2, 3)
        if self.mask:
            scores = scores + arrays[3].swapaxes(2, 3)
        with np.errstate(invalid="ignore"):
            grown = np.exp(scores - scores.max(3, keepdims=True))
        if self.zeros:
            grown = np.nan_to_num(grown, nan=0)
        y = (grown @ v) / np.maximum(grown.sum(3, keepdims=True), _SMALL)
        for step in self.steps:
            y = step.apply(y)
        return np.ascontiguousarray(y.transpose(self.orders[3])).astype(v.dtype)


def _grown(distance: Value) -> Value:
    """Return the exponential of a distance of scores from the largest one, as a power of two. The exponent is rounded,
    so that small shares lose digits that sums with large ones lose anyway.
    """
    return exp2_of_negative(mul(distance, f32(math.log2(math.e))))


def _found(found: Value | None) -> Value:
    assert found is not None
    return found
