"""Attention in graphs: a product, a softmax and a product become one operator, whose scores stay in a cache.

Scales, masks and transposes around the products become part of the operator, which reads queries, keys and values as
they lie in memory: those of one head for several heads of the query, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.attention import LANES, MASK, Attention, Order
from convsmith.network.operators.choice import ChooseByMask, Compare
from convsmith.network.operators.expand import Expand
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.slice import Slice
from convsmith.network.operators.softmax import Softmax
from convsmith.network.rewrites.repeated_views import RepeatedView
from convsmith.network.rewrites.strided_views import ArrayBox, StridedView
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import PER_TENSOR, BinaryPostOp, Eltwise
from convsmith.runtime.arrays import Array

__all__ = ["with_attention"]

_LOWEST = -1e30
"""Largest number in place of a score that stands for no share: the sum of it and a score is a number as low."""
_FEWEST_ROWS = 8
"""Fewest rows of queries that are worth the lanes of a vector along rows."""
_MOVES = (Reshape, Transpose, Slice, Expand)
"""Operators that views replace."""
_MOST_TILE = 64
"""Most rows of a tile."""

Shape: TypeAlias = tuple[int, ...]


def with_attention(graph: Graph, near_bytes: int, lanes: int, pays: Callable[[Attention], bool]) -> Graph:
    """Return the graph with operators in place of two products with a softmax between them, where one ``pays``. The
    scores of a tile of rows, and their exponentials, have room in ``near_bytes`` of a cache, as far as the smallest
    tile allows. Vectors have so many ``lanes``.
    """
    finder, nodes, gone = _AttentionFinder(graph, near_bytes, lanes), list[NetworkNode](), set[str]()
    for node in graph.nodes:
        found = finder.attention(node) if isinstance(node.work, Matmul) else None
        if found is not None and pays(found[-1].work):  # type: ignore[arg-type]
            gone.add(found[-1].output)
            nodes += found
        elif node.output not in gone:
            nodes.append(node)
    if not gone:
        return graph
    whole = replace(graph, values=finder.values).changed(nodes, finder.constants)
    return whole.changed(tuple(whole.live_nodes()))


class _ScoreStep(NamedTuple):
    """A step between scores and their softmax: the product with the number ``scale``, or the sum with the array
    ``added``, whose shape broadcasts to that of the scores. With a number ``lowest``, the array holds truth values, and
    scores without truth become that number.
    """

    scale: float = 1.0
    added: str = ""
    shape: Shape = ()
    lowest: float | None = None


class _OperandView(NamedTuple):
    """An array of four logical dims in the memory of a value, times the number ``scale``. Its second dim has one
    element for ``shared`` heads of the query.
    """

    name: str
    box: ArrayBox
    scale: float = 1.0
    shared: int = 1

    def swapped(self) -> _OperandView:
        """Return the view whose last two dims have changed places."""
        turned = (0, 1, 3, 2)
        order, wholes, starts = self.box
        of = (tuple(x[n] for n in turned) for x in (wholes, starts))
        return self._replace(box=ArrayBox(tuple(turned[n] for n in order), *of))


class _AttentionFinder:
    """Finds attention in a graph; ``values`` and ``constants`` are those of the graph with what operators add."""

    def __init__(self, graph: Graph, near_bytes: int, lanes: int) -> None:
        self._graph, self._near, self._lanes = graph, near_bytes, lanes
        self._makers, self._readers = graph.makers(), graph.readers()
        self.values, self.constants = dict(graph.values), dict(graph.constants)

    def attention(self, node: NetworkNode) -> list[NetworkNode] | None:
        """Return the operator of attention in place of the product ``node`` of shares and values, behind the nodes that
        prepare its mask; None if it is another product.
        """
        work, names = node.work, list(node.names)
        assert isinstance(work, Matmul)
        if not _is_plain(work) or not all(isinstance(op, Eltwise) for op in work.post_ops):
            return None
        softmax, zeros = self._softmax(node.arguments["src"], names)
        if softmax is None or not isinstance(softmax.work, Softmax) or softmax.work.log:
            return None
        steps: list[_ScoreStep] = []
        name = softmax.arguments["src"]
        while (maker := self._inner(name)) is not None and not isinstance(maker.work, Matmul):
            names = [*maker.names, *names]
            if isinstance(maker.work, Reshape):
                name = maker.arguments["src"]
                continue
            found = self._steps(maker)
            if found is None:
                return None
            name, own = found
            steps = [*own, *steps]
        if maker is None or not isinstance(maker.work, Matmul) or not _is_plain(maker.work):
            return None
        product = maker.work
        own_steps = self._post_ops(maker)
        batch = product.product_shape[:-2]
        rows, keys = product.product_shape[-2:]
        is_same = product.src[:-2] == product.wei[:-2] and prod(work.src[:-2]) == prod(batch)
        if own_steps is None or not is_same or work.src[:-2] != work.wei[:-2] or rows < _FEWEST_ROWS:
            return None
        if work.src[-2:] != (rows, keys) or softmax.work.shape != (prod(batch) * rows, keys, 1):
            return None
        return self._operator(node, maker, [*own_steps, *steps], zeros, [*maker.names, *names])

    def _operator(
        self, node: NetworkNode, product: NetworkNode, steps: Sequence[_ScoreStep], zeros: bool, names: Sequence[str]
    ) -> list[NetworkNode] | None:
        """Return the nodes of attention, of which ``product`` computes the scores, and ``node`` the result."""
        first, second = product.work, node.work
        assert isinstance(first, Matmul) and isinstance(second, Matmul)
        rows, keys = first.product_shape[-2:]
        depth, width = first.src[-1], second.wei[-1]
        whole = first.product_shape[:-2]
        masks = [x for x in steps if x.added]
        given = ((product, "src", rows, depth), (product, "wei", depth, keys), (node, "wei", keys, width))
        batch = _pair(whole) if len(whole) >= 2 or masks else self._divided(prod(whole), given)
        by_sharing = (
            [
                self._view(x.arguments[array], (*batch, *size), x is product, shares and array == "wei")
                for x, array, *size in given
            ]
            for shares in (True, False)
        )
        query, key, value = next(x for x in by_sharing if x[1].shared == x[2].shared)
        key, held = key.swapped(), (batch[0], batch[1] // key.shared)
        sizes = ((*batch, rows, depth), (*held, keys, depth), (*held, keys, width))
        boxes = [x.box for x in (query, key, value)]
        is_whole = all(box.wholes == size for box, size in zip(boxes, sizes))
        wholes, starts = ((), ()) if is_whole else (tuple(x.wholes for x in boxes), tuple(x.starts for x in boxes))
        scale = query.scale * key.scale
        for n, step in enumerate(steps):
            if step.scale != 1 and any(x.added for x in steps[:n]):
                return None
            scale *= step.scale
        before: list[NetworkNode] = []
        mask = self._mask(masks, (*batch, rows, keys), node, before) if masks else ("", ())
        if mask is None:
            return None
        output, order = self._written(node.output, (*batch, rows, width))
        tile = self._tile(rows, keys)
        made = Attention(
            "f32", *batch, rows, keys, depth, width, scale, (*(x.order for x in boxes), order), mask[1], tile,  # type: ignore[arg-type]
            second.post_ops, zeros, wholes, starts, key.shared,  # type: ignore[arg-type]
        )
        arguments = {"query": query.name, "key": key.name, "value": value.name}
        arguments |= {MASK: mask[0]} if mask[0] else {}
        return [*before, NetworkNode(made, arguments, output, tuple(dict.fromkeys(names)))]

    def _tile(self, rows: int, keys: int) -> int:
        """Return the rows of a tile: at least two vectors if there are so many rows, of those the ones with which the
        fewest rows are computed, and as many as possible.
        """
        whole = -(-rows // LANES) * LANES
        most = max(min(whole, self._near // (2 * 4 * keys) // LANES * LANES, _MOST_TILE), LANES)
        least = min(2 * self._lanes, most)
        tiles = [n for n in range(LANES, most + 1, LANES) if n >= least]
        return min(tiles, key=lambda n: (-(-rows // n) * n, -n))

    # -- steps between scores and shares
    def _inner(self, name: str) -> NetworkNode | None:
        """Return the node that computes a value of f32 that one other node reads; None for others."""
        is_inner = len(self._readers.get(name, ())) == 1 and name not in self._graph.outputs
        return self._makers.get(name) if is_inner and name not in self._graph.small else None

    def _softmax(self, name: str, names: list[str]) -> tuple[NetworkNode | None, bool]:
        """Return the node that computes shares, behind reshapes, whose names are added, and whether zeros are chosen in
        place of NaN; None if there is no such node.
        """
        zeros = False
        while (maker := self._inner(name) or (self._makers.get(name) if zeros else None)) is not None:
            names[:0] = maker.names
            if isinstance(maker.work, ChooseByMask) and not zeros and self._chooses_zeros(maker):
                zeros, name = True, maker.arguments["no"]
            elif isinstance(maker.work, Reshape):
                name = maker.arguments["src"]
            else:
                return maker, zeros
        return None, zeros

    def _chooses_zeros(self, node: NetworkNode) -> bool:
        """Return whether a node computes zero where a value, which it reads otherwise, is NaN, and nothing else reads
        the value.
        """
        source, is_nan = node.arguments["no"], self._inner(node.arguments["mask"])
        if is_nan is None or not isinstance(is_nan.work, Compare) or is_nan.work.comparison != "ne":
            return False
        is_own = {*is_nan.arguments.values()} == {source} and len(self._readers[source]) == 2
        return is_own and source not in self._graph.outputs and self._number(node.arguments["yes"]) == 0

    def _number(self, name: str) -> float | None:
        """Return the only element of a constant; None for other values."""
        held: Any = self.constants.get(name)
        return float(held.reshape(())) if held is not None and held.size == 1 else None

    def _post_ops(self, node: NetworkNode) -> list[_ScoreStep] | None:
        """Return the steps of a product; None if there are others."""
        assert isinstance(node.work, Matmul)
        found: list[_ScoreStep] = []
        for n, op in enumerate(node.work.post_ops):
            other = node.arguments.get(f"post_op_{n}", "")
            number = self._number(other)
            if isinstance(op, Eltwise) and (step := _linear(op)) is not None:
                found.append(step)
            elif isinstance(op, BinaryPostOp) and op.alg == "mul" and number is not None:
                found.append(_ScoreStep(number))
            elif isinstance(op, BinaryPostOp) and (op.alg, op.mask, op.dtype) == ("add", PER_TENSOR, "f32"):
                found.append(_ScoreStep(added=other, shape=node.work.product_shape))
            else:
                return None
        return found

    def _steps(self, node: NetworkNode) -> tuple[str, list[_ScoreStep]] | None:
        """Return the name of the scores that a node reads, and its steps; None if it has others."""
        work = node.work
        if isinstance(work, ChooseByMask):
            lowest = self._number(node.arguments["no"])
            if work.type != "f32" or lowest is None or lowest > _LOWEST or work.shapes[1] != work.result.shape:
                return None
            hidden = _ScoreStep(added=node.arguments["mask"], shape=work.shapes[0], lowest=lowest)
            return node.arguments["yes"], [hidden]
        if not isinstance(work, Pointwise) or work.type != "f32":
            return None
        operations = [(work.binary, 1, work.steps, False)] if work.binary else [("", 0, work.steps, False)]
        operations += [(x.alg, x.source, x.steps, x.is_first) for x in work.joined]
        source = 0
        if work.binary in ("add", "mul") and work.shapes[0] != work.result.shape:
            source, operations[0] = 1, (work.binary, 0, work.steps, False)
        if work.shapes[source] != work.result.shape:
            return None
        found: list[_ScoreStep] = []
        for alg, other, after, is_first in operations:
            if alg:
                step = self._operation(alg, node.arguments[f"src_{other}"], work.shapes[other], is_first)
                if step is None:
                    return None
                found.append(step)
            for x in after:
                if (step := _linear(x)) is None:
                    return None
                found.append(step)
        return node.arguments[f"src_{source}"], found

    def _operation(self, alg: str, other: str, shape: Shape, is_first: bool) -> _ScoreStep | None:
        """Return the step of an operation on scores and another value; None if there is none."""
        number = self._number(other)
        if number is not None and alg == "mul":
            return _ScoreStep(number)
        if number is not None and alg == "div" and not is_first:
            return _ScoreStep(1 / number)
        return _ScoreStep(added=other, shape=shape) if alg == "add" else None

    # -- masks
    def _mask(
        self, steps: Sequence[_ScoreStep], scores: Shape, node: NetworkNode, before: list[NetworkNode]
    ) -> tuple[str, Shape] | None:
        """Return the name and the shape of the mask of attention, (batch, head, key, row), after the nodes ``before``
        it; None if the steps have no such mask.
        """
        if all(x.added in self.constants for x in steps):
            held: Any = sum(self._held(x) for x in steps)
            wide = _of_scores(held.shape, scores)
            if wide is None:
                return None
            held = held.reshape(wide)
            for axis in range(4):
                first = held.take([0], axis)
                held = first if (held == first).all() else held
            if not held.any():
                return "", ()
            name = f"{node.output}.mask"
            self.constants[name] = np.ascontiguousarray(held.swapaxes(2, 3))
            return name, self.constants[name].shape
        if len(steps) > 1:
            return None
        (step,) = steps
        shape = _of_scores(step.shape, scores)
        if shape is None:
            return None
        name = step.added
        if step.lowest is not None:
            numbers = {"shown": 0.0, "hidden": step.lowest}
            given = {f"{node.output}.{word}": np.full(1, x, np.float32) for word, x in numbers.items()}
            self.constants |= given
            work: Any = ChooseByMask("f32", (shape, (1,), (1,)))
            name = self._added(work, dict(zip(("mask", "yes", "no"), (name, *given))), node, before, "numbers")
        if min(shape[2:]) > 1:
            name = self._added(Transpose("f32", shape, (0, 1, 3, 2)), {"src": name}, node, before, "columns")
        return name, (*shape[:2], shape[3], shape[2])

    def _held(self, step: _ScoreStep) -> Array:
        """Return a constant mask as numbers that are added."""
        held: Any = self.constants[step.added]
        held = held.reshape(step.shape)
        return held if step.lowest is None else np.where(held != 0, np.float32(0), np.float32(step.lowest))

    def _added(
        self, work: Any, arguments: dict[str, str], node: NetworkNode, before: list[NetworkNode], word: str
    ) -> str:
        """Add a node of the mask of ``node``, and return the name of its result."""
        name = f"{node.output}.{word}"
        self.values[name] = replace(self.values[node.output], name=name, shape=work.result.shape)
        before.append(NetworkNode(work, arguments, name, (node.name,)))
        return name

    # -- transposes
    def _divided(self, batch: int, given: Sequence[tuple[NetworkNode, str, int, int]]) -> tuple[int, int]:
        """Return the sizes of batch and heads whose product is ``batch``, as a transpose around the products has them.
        """
        for node, array, *size in given:
            for maker in self._before(node.arguments[array]):
                shape = maker.work.result.shape if isinstance(maker.work, Transpose) else ()
                if len(shape) == 4 and prod(shape[:2]) == batch and [*shape[2:]] == size:
                    return shape[0], shape[1]
        return batch, 1

    def _before(self, name: str) -> Iterator[NetworkNode]:
        """Yield the nodes before a value that may become part of its view."""
        while (maker := self._makers.get(name)) is not None and maker.output not in self._graph.small:
            yield maker
            if self._scale(maker) is None and not isinstance(maker.work, _MOVES):
                return
            name = self._source(maker)

    def _source(self, node: NetworkNode) -> str:
        """Return the name of the value that a move or a scale reads."""
        given = node.arguments
        return given["src"] if "src" in given else next(x for x in given.values() if self._number(x) is None)

    def _scale(self, node: NetworkNode) -> float | None:
        """Return the number by which a node multiplies another value; None for others."""
        work = node.work
        if not isinstance(work, Pointwise) or all(self._number(x) is not None for x in node.arguments.values()):
            return None
        found = self._steps(node)
        if found is None or self._number(found[0]) is not None or any(step.added for step in found[1]):
            return None
        return prod(step.scale for step in found[1])

    def _view(self, name: str, shape: Shape, scales: bool, shares: bool = False) -> _OperandView:
        """Return the view of a row-major array of ``shape`` in memory from which moves, and ``scales`` too, compute it:
        the value farthest from the array of which it is a box, or, if it ``shares``, of which heads repeat a box.
        """
        moves: list[NetworkNode] = []
        scale, found = 1.0, _OperandView(name, ArrayBox((0, 1, 2, 3), shape, (0, 0, 0, 0)))
        for maker in self._before(name):
            number = self._scale(maker)
            if number is not None and not scales:
                return found
            if number is None and not isinstance(maker.work, _MOVES):
                return found
            scale *= 1.0 if number is None else number
            moves.append(maker)
            name = self._source(maker)
            box, shared = self._boxed(name, moves, shape)
            if box is not None and (shares or shared == 1):
                found = _OperandView(name, box, scale, shared)
        return found

    def _boxed(self, name: str, moves: Sequence[NetworkNode], shape: Shape) -> tuple[ArrayBox | None, int]:
        """Return what an array of ``shape``, which ``moves`` compute, the last first, is in the memory of the value
        ``name``, and how many of its heads that follow each other are the same; None and 1 if it is no box of it.
        """
        if name not in self._graph.values:
            return None, 1
        whole = self._graph.values[name].shape
        array: RepeatedView | None = RepeatedView(StridedView.dense(whole))
        for maker in reversed(moves):
            array = None if array is None else array.after(maker.work, self._graph.values[maker.output].shape)
        array = None if array is None else array.reshaped(shape)
        if array is None or (array.times > 1 and array.axis != 1):
            return None, 1
        return array.view.boxed(prod(whole)), array.times

    def _written(self, name: str, shape: Shape) -> tuple[str, Order]:
        """Return the value that attention writes in place of its result of ``shape``, and the order of its dims: that
        behind the transpose that alone reads the result.
        """
        result: tuple[str, Order] = (name, (0, 1, 2, 3))
        while name not in self._graph.outputs and name not in self._graph.small:
            readers = self._readers.get(name, ())
            if len(readers) != 1 or not isinstance(readers[0].work, Reshape | Transpose):
                break
            (reader,) = readers
            name = reader.output
            if isinstance(reader.work, Transpose):
                order = _permuted(result[1], shape, reader.work.shape, reader.work.axes)
                if order is None or name in self._graph.small:
                    break
                result = name, order
        return result


def _is_plain(work: Matmul) -> bool:
    """Return whether a product has no bias, and computes f32."""
    return work.dt == ("f32",) * 3 and work.bia_mask is None and work.stag == work.dtag == work.wtag == "any"


def _linear(step: Eltwise) -> _ScoreStep | None:
    """Return the product with a number that a step is; None for others."""
    is_scale = step.alg == "linear" and step.beta == 0
    return _ScoreStep(step.alpha * step.scale) if is_scale else None


def _pair(batch: Shape) -> tuple[int, int]:
    """Return the sizes of batch and heads of a product with several, or fewer, dims of a batch."""
    return prod(batch[:-1]), prod(batch[-1:])


def _of_scores(mask: Shape, scores: Shape) -> Shape | None:
    """Return the shape of a mask in the four dims of scores; None if it does not broadcast to them."""
    if len(mask) > 4 and prod(mask[:-4]) > 1:
        return None
    shape = (*(1,) * (4 - len(mask)), *mask[-4:])
    return shape if all(size in (1, whole) for size, whole in zip(shape, scores)) else None


def _permuted(order: Order, shape: Shape, read: Shape, axes: Sequence[int]) -> Order | None:
    """Return the ``order`` of the dims of an array of ``shape`` after a move, in whose result dim n is dim ``axes[n]``
    of the array of dims ``read`` in memory; None if these are others. Dims of one element come first.
    """
    several = [n for n in order if shape[n] > 1]
    places = [n for n, size in enumerate(read) if size > 1]
    if [shape[n] for n in several] != [read[n] for n in places]:
        return None
    of = dict(zip(places, several))
    moved = [of[axis] for axis in axes if axis in of]
    a, b, c, d = (*(n for n in order if shape[n] == 1), *moved)
    return a, b, c, d
