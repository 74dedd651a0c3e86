"""The norm of groups of channels in steps whose blocks of pixels threads share: the sums of each block, the squares of
each block, then the normalised pixels.

The sums of blocks are a pool. Each thread adds up those of all blocks for itself, before the first pixel of its block:
they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var
from convsmith.ir.types import dtype
from convsmith.ir.value import Select, Value, const
from convsmith.network.operators.norm import GroupNests, GroupNorm, Norm, present_sum
from convsmith.network.operators.pool import Pool
from convsmith.problem.tensor import Tensor
from convsmith.statement.maths import mul, sub
from convsmith.statement.operator import (
    RESULT,
    Loader,
    OperatorNest,
    OperatorNests,
    array,
    nests_of,
    result_array,
)

__all__ = ["BlockSquares", "NormByBlocks", "block_sums"]


_PARTS = ("sums", "squares")
"""The arrays with a number for each block."""


def block_sums(norm: GroupNorm, rows: int) -> Pool:
    """Return the sums over blocks of `rows` rows of pixels, (N, C, blocks, 1 ...), in the layout of the norm's source.
    """
    pixels, blocks = norm.shape[2:], _blocks(norm.shape, rows)
    window, nothing = (rows, *pixels[1:]), (0,) * len(pixels)
    return Pool(
        "sum", norm.type, norm.shape, (blocks, *(1,) * (len(pixels) - 1)), window, window, (1,) * len(pixels),
        nothing, nothing, tags=(norm.tags[0], norm.tags[0]),
    )  # fmt: skip


def _blocks(shape: Sequence[int], rows: int) -> int:
    return -(-shape[2] // rows)


def _parts(shape: Sequence[int], rows: int) -> tuple[int, ...]:
    """Return the shape of an array with a number for each block of a channel."""
    return (*shape[:2], _blocks(shape, rows), *(1,) * (len(shape) - 3))


class _BlockNests(GroupNests):
    """Nests that add up the numbers of the blocks of each channel, and of all channels of its group."""

    def __init__(self, shape: Sequence[int], groups: int, rows: int) -> None:
        super().__init__(shape, groups)
        self._dims, self._pixels = (*shape[:2], _blocks(shape, rows)), shape[2:]
        self._is_each = groups == shape[1]

    def add(self, source: str, to: str, value: Callable[[Value, int], Value]) -> None:
        """Add the nests of the array `to`, which is ``value`` of the sum of a group and of its number of elements."""
        names = [f"{name}{len(self.made)}" for name in ("n", "c", "b")]
        at = [Var(name) for name in names]
        read: tuple[IndexLike, ...] = (*at, *(0,) * (len(self._pixels) - 1))
        dims = tuple(zip(names, self._dims))

        def stored(_: Loader, found: Value | None) -> Value:
            total = present_sum(found)
            return value(total, prod(self._pixels)) if self._is_each else total

        own = to if self._is_each else f"sum_{to}"
        self.made.append(
            OperatorNest(dims[:2], tuple(at[:2]), stored, dims[2:], lambda load: load(source, read), to=own)
        )
        if not self._is_each:
            self.of_groups(own, f"group_{to}", to, value)


def _inner(type_: str, shape: Sequence[int], groups: int, names: Sequence[str]) -> tuple[Tensor, ...]:
    """Return the inner arrays of `_BlockNests` for the arrays of `names`."""
    n, c = shape[:2]
    found: dict[str, tuple[int, int]] = {}
    for name in names:
        if groups != c:
            found |= {f"sum_{name}": (n, c), f"group_{name}": (n, groups)}
        found[name] = (n, c)
    return tuple(array(name, type_, size) for name, size in found.items())


@record(frozen=True)
class BlockSquares(Norm):
    """The sums of the squares of what elements differ from the mean of their group, for each block of `rows` rows of
    pixels of a channel, from the `sums` of the elements of blocks.
    """

    factors: tuple[str, ...] = ()
    tags: tuple[str, ...] = ("any", "any", "any")
    groups: int = 1
    rows: int = 1

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source, (N, C, *pixels), and the sums of blocks, (N, C, blocks, 1 ...)."""
        sums = array("sums", self.type, _parts(self.shape, self.rows), self.tags[1], holds="operand")
        return (array("src", self.type, self.shape, self.tags[0]), sums)

    @property
    def result(self) -> Tensor:
        """The sums of squares, (N, C, blocks, 1 ...)."""
        return result_array(self.type, _parts(self.shape, self.rows), self.tags[2])

    @property
    def free(self) -> tuple[str, ...]:
        """All arrays."""
        return ("src", "sums", RESULT)

    @property
    def replaceable(self) -> tuple[str, ...]:
        """None: elements become fewer."""
        return ()

    @property
    def around(self) -> tuple[int, ...]:
        """A block."""
        return (1, 1)

    @property
    def inner(self) -> tuple[Tensor, ...]:
        """The means of channels, and what they are computed from."""
        return _inner(self.type, self.shape, self.groups, ("mean",))

    def nests(self) -> OperatorNests:
        """Return the nests of the means, and of the squares of blocks."""
        nests = _BlockNests(self.shape, self.groups, self.rows)
        nests.add("sums", "mean", self._mean)
        (n, c), (height, *width) = self.shape[:2], self.shape[2:]
        names = [f"{name}{len(nests.made)}" for name in ("n", "b", "c", "r", *(f"x{k}_" for k in range(len(width))))]
        image, block, channel, row, *along = (Var(name) for name in names)
        pixel = block * self.rows + row
        dims = tuple(zip(names, (n, _blocks(self.shape, self.rows), c, self.rows, *width)))

        def square(load: Loader) -> Value:
            away = sub(load("src", (image, channel, pixel, *along)), load("mean", (image, channel)))
            present = pixel < height
            return Select(present, mul(away, away), const(dtype(self.type), 0))

        at: tuple[IndexLike, ...] = (image, channel, block, *(0,) * len(width))
        nests.made.append(OperatorNest(dims[:3], at, lambda _, found: present_sum(found), dims[3:], square))
        return nests_of(self, nests.made)

    def reference(self, *arrays: Any) -> Any:
        """Return the sums by numpy, in f64."""
        x, sums = (y.astype(np.float64) for y in arrays)
        n, c, *pixels = self.shape
        means = sums.reshape(n, self.groups, -1).sum(-1) / (c // self.groups * prod(pixels))
        wide = np.repeat(means, c // self.groups, 1).reshape(n, c, *(1,) * len(pixels))
        starts = range(0, pixels[0], self.rows)
        found = np.add.reduceat(np.square(x - wide), starts, 2)
        return found.sum(tuple(range(3, found.ndim)), keepdims=True).astype(arrays[0].dtype)


@record(frozen=True)
class NormByBlocks(Norm):
    """The norm of each group of adjacent channels of an image, from the `sums` and the `squares` of blocks of `rows`
    rows of pixels of each channel.
    """

    tags: tuple[str, ...] = ("any", "any", "any", "any")
    groups: int = 1
    rows: int = 1

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source, (N, C, *pixels), the sums and squares of blocks, (N, C, blocks, 1 ...), and the factors, (C,)."""
        parts = _parts(self.shape, self.rows)
        more = (array(name, self.type, parts, tag, holds="operand") for name, tag in zip(_PARTS, self.tags[1:3]))
        factors = (array(name, self.type, (self.shape[1],), holds="operand") for name in self.factors)
        return (array("src", self.type, self.shape, self.tags[0]), *more, *factors)

    @property
    def result(self) -> Tensor:
        """The normalised elements."""
        return result_array(self.type, self.shape, self.tags[3])

    @property
    def free(self) -> tuple[str, ...]:
        """The arrays whose layouts are free: not those of factors."""
        return ("src", *_PARTS, RESULT)

    @property
    def around(self) -> tuple[int, ...]:
        """The rows of pixels of a block."""
        return (1, self.rows)

    @property
    def inner(self) -> tuple[Tensor, ...]:
        """The means and the factors of channels, and what they are computed from."""
        return _inner(self.type, self.shape, self.groups, ("mean", "factor"))

    def nests(self) -> OperatorNests:
        """Return the nests of the means and factors of channels, and of the result."""
        nests = _BlockNests(self.shape, self.groups, self.rows)
        nests.add("sums", "mean", self._mean)
        nests.add("squares", "factor", self._factor)
        at, dims = nests.place()
        outer = (dims[0], dims[2], dims[1], *dims[3:])

        def result(load: Loader, _: Value | None) -> Value:
            away = sub(load("src", at), load("mean", at[:2]))
            return self._scaled(load, mul(away, load("factor", at[:2])), at[1])

        nests.made.append(OperatorNest(outer, tuple(at), result))
        return nests_of(self, nests.made)

    def reference(self, *arrays: Any) -> Any:
        """Return the norm by numpy, in f64."""
        x, sums, squares = (y.astype(np.float64) for y in arrays[:3])
        n, c, *pixels = self.shape
        each = c // self.groups

        def of_channels(parts: Any) -> Any:
            means = parts.reshape(n, self.groups, -1).sum(-1) / (each * prod(pixels))
            return np.repeat(means, each, 1).reshape(n, c, *(1,) * len(pixels))

        given = self._along(arrays[3:])
        found = (x - of_channels(sums)) / np.sqrt(of_channels(squares) + self.epsilon)
        y: Any = (found * given.get("scale", 1) + given.get("shift", 0)).astype(arrays[0].dtype)
        for step in self.steps:
            y = step.apply(y).astype(arrays[0].dtype)
        return y
