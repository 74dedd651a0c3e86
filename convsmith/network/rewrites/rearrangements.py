"""Rows of moves as one operator: reshapes, transposes and slices between images read the first image once.

A reshape takes a row-major array. Between images that have their channels last, such as the ones that ShuffleNet
shuffles, each move of a row would be a kernel, with copies to and from row-major arrays around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

from convsmith.network.graph import Graph, NetworkNode, result_of
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.rearrange import Rearrange
from convsmith.network.operators.slice import Slice
from convsmith.network.placement.layouts import FIRST, LAST, is_image, takes_any
from convsmith.problem.conv import Conv
from convsmith.statement.operator import Operator

__all__ = ["with_rearrangements"]

Shape = tuple[int, ...]


def with_rearrangements(graph: Graph, cycles: Callable[[Operator], float]) -> Graph:
    """Return the graph with one operator for each row of moves that reads an image and takes more `cycles` than the
    operator. The copies of images between layouts are counted for convolutions beside the row.
    """
    makers, readers = graph.makers(), graph.readers()
    wanted, nodes = {*graph.outputs}, list[NetworkNode]()
    for node in reversed(graph.nodes):
        if node.output not in wanted:
            continue
        if _is_move(node):
            row = _RowOfMoves(graph, node, cycles)
            row.extend(makers)
            if row.best is not None and row.best_cost < row.cost(makers, readers):
                node = row.best
        nodes.append(node)
        wanted |= {*node.arguments.values()}
    return graph.changed(tuple(reversed(nodes)))


class _PartOfDim(NamedTuple):
    """A part of dim `dim` of an array: `size` elements, `stride` apart along the dim."""

    dim: int
    stride: int
    size: int


class _JoinedDim(NamedTuple):
    """A dim that joins `digits`, outermost first, of which it has `size` elements from `start` on."""

    digits: tuple[_PartOfDim, ...]
    start: int
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether it has all elements."""
        return prod(digit.size for digit in self.digits) == self.size


class _RowOfMoves:
    """The moves before a value, and the operator that computes it of the image that is the farthest before it."""

    def __init__(self, graph: Graph, node: NetworkNode, cycles: Callable[[Operator], float]) -> None:
        self._graph, self._node, self._cycles = graph, node, cycles
        self._moves: list[NetworkNode] = []
        self.best: NetworkNode | None = None
        self.best_cost = 0.0
        self._count = 0

    def extend(self, makers: dict[str, NetworkNode]) -> None:
        """Find the row and its operator."""
        graph, names = self._graph, list[str]()
        maker: NetworkNode | None = self._node
        while maker is not None and _is_move(maker) and not {maker.output, maker.arguments["src"]} & graph.small.keys():
            self._moves.insert(0, maker)
            names[:0] = maker.names
            source = graph.values.get(maker.arguments["src"])
            if source is None:
                return
            dims = _moved(source.shape, self._moves, graph) if is_image(source.shape) else None
            if dims is not None and len(self._moves) > 1 and any(isinstance(x.work, Reshape) for x in self._moves):
                work = _operator(source.type, source.shape, dims)
                if work is not None:
                    self._count, own = len(self._moves), tuple(dict.fromkeys(names))
                    self.best = replace(self._node, work=work, arguments={"src": source.name}, names=own)
                    tags = product((FIRST, LAST), (FIRST, LAST) if is_image(work.sizes) else (FIRST,))
                    self.best_cost = min(self._cycles(replace(work, tags=pair)) for pair in tags)
            maker = makers.get(source.name)

    def cost(self, makers: dict[str, NetworkNode], readers: dict[str, list[NetworkNode]]) -> float:
        """Return the cycles of the moves, and of the copies between layouts before and behind them."""
        assert self.best is not None
        moves = self._moves[-self._count :]
        found = sum(self._cycles(x.work) for x in moves if isinstance(x.work, Transpose | Slice))
        root, result = self._graph.values[self.best.arguments["src"]], self._graph.values[self._node.output]
        maker = makers.get(root.name)
        if maker is not None and takes_any(maker.work, result_of(maker.work).name, root):
            found += self._copy(root.type, root.shape, (LAST, FIRST))
        if any(isinstance(x.work, Conv) for x in readers.get(result.name, ())) and is_image(result.shape):
            found += self._copy(result.type, result.shape, (FIRST, LAST))
        return found

    def _copy(self, type_: str, shape: Shape, tags: tuple[str, str]) -> float:
        work = Transpose(type_, shape, tuple(range(len(shape))), tags)
        return 0.0 if work.keeps_order else self._cycles(work)


def _is_move(node: NetworkNode) -> bool:
    return isinstance(node.work, Reshape | Transpose | Slice)


def _moved(shape: Shape, moves: Sequence[NetworkNode], graph: Graph) -> list[_JoinedDim] | None:
    """Return the dims of the last of several moves that an array of `shape` goes through; None if they are not parts of
    those of the array.
    """
    dims: list[_JoinedDim] | None = [_JoinedDim((_PartOfDim(n, 1, size),), 0, size) for n, size in enumerate(shape)]
    for node in moves:
        work = node.work
        if not isinstance(work, Reshape):
            assert isinstance(work, Transpose | Slice)
            dims = None if dims is None else _reshaped(dims, work.shape)
        if dims is None:
            return None
        if isinstance(work, Transpose):
            dims = [dims[axis] for axis in work.axes]
        elif isinstance(work, Slice):
            if any(step != 1 for step, size in zip(work.steps, work.sizes) if size > 1):
                return None
            cut = zip(dims, work.starts, work.sizes)
            dims = [_JoinedDim(x.digits, x.start + start, size) for x, start, size in cut]
        dims = _reshaped(dims, graph.values[node.output].shape)
    return dims


def _reshaped(dims: Sequence[_JoinedDim], shape: Shape) -> list[_JoinedDim] | None:
    """Return the dims of an array after its reshape to `shape`; None if they are not parts of the same dims."""
    if tuple(x.size for x in dims) == shape:
        return [*dims]
    if not all(x.is_whole for x in dims):
        return None
    left = [digit for x in dims for digit in x.digits if digit.size > 1]
    made: list[_JoinedDim] = []
    for size in shape:
        own: list[_PartOfDim] = []
        rest = size
        while rest > 1:
            if not left:
                return None
            dim, stride, count = left.pop(0)
            taken = min(count, rest)
            if count % taken or rest % taken:
                return None
            own.append(_PartOfDim(dim, stride * (count // taken), taken))
            if count > taken:
                left.insert(0, _PartOfDim(dim, stride, count // taken))
            rest //= taken
        made.append(_JoinedDim(tuple(own), 0, size))
    return None if left else made


def _operator(type_: str, shape: Shape, dims: Sequence[_JoinedDim]) -> Rearrange | None:
    """Return the operator that computes an array of `dims` from one of `shape`; None if a row-major array, or one that
    has its channels last, is the result already.
    """
    digits = [digit for x in dims for digit in x.digits if digit.size > 1]
    own = [sorted((x for x in digits if x.dim == n), key=lambda x: -x.stride) for n in range(len(shape))]
    numbers = {x: n for n, x in enumerate(x for part in own for x in part)}
    if any(prod(x.size for x in part) != size for part, size in zip(own, shape)):
        return None
    for order in (range(len(shape)), [0, *range(2, len(shape)), 1]):
        if all(x.is_whole for x in dims) and digits == [x for n in order for x in own[n]]:
            return None
    parts = tuple(tuple(x.size for x in part) for part in own)
    joined = tuple(tuple(numbers[x] for x in dim.digits if x.size > 1) for dim in dims)
    return Rearrange(type_, shape, parts, joined, tuple(x.start for x in dims), tuple(x.size for x in dims))
