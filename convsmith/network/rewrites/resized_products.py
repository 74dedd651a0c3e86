"""Convolutions without taps of resized images, as convolutions of the images before the resize.

A convolution of one tap mixes channels, and a resize mixes pixels with weights whose sum is 1, so that their order
makes no difference but for rounding. A larger image has more pixels: the convolution behind the resize has more
products. Where the images are parts of a concatenation, the convolution is the sum of one convolution for each of
these parts, and one for all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from convsmith.machine.base import Machine
from convsmith.network.graph import Graph, NetworkNode, Work
from convsmith.network.image import NetworkValue
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.resize import Resize
from convsmith.network.placement.layout_choice import operator_cycles
from convsmith.network.placement.layouts import LAST
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import PER_TENSOR, BinaryPostOp
from convsmith.statement.operator import Operator
from convsmith.tune.compile import default_cycles

__all__ = ["is_product_of_pixels", "with_resized_products"]

_TYPES = ("f32", "f64")
"""Types in which resizes and products may change their order: sums differ by roundings alone."""
_MOST = 4
"""Maximum number of resized parts: the convolution adds as many images, each with a pointer of its own."""


class _ConvolvedPart(NamedTuple):
    """A value that a convolution reads: its channels from `start` to `end`, and the resize that computes it, if the
    convolution may come before that.
    """

    name: str
    start: int
    end: int
    resize: NetworkNode | None


def with_resized_products(graph: Graph, machine: Machine, threads: int = 1) -> Graph:
    """Return the graph with convolutions without taps before resizes in place of those behind them, where the model
    expects that kernels of ``machine`` take fewer cycles.
    """
    rewriter, nodes = _ResizedProducts(graph), list[NetworkNode]()
    for node in graph.nodes:
        made = rewriter.divided(node)
        resizes = [part.resize for part in rewriter.parts(node) if part.resize is not None] if made else []
        nodes += made if made and _pays(made, [node, *resizes], machine, threads) else [node]
    if nodes == [*graph.nodes]:
        return graph
    made_graph = replace(graph, values=rewriter.values).changed(nodes, rewriter.constants)
    return made_graph.changed(tuple(made_graph.live_nodes()))


def is_product_of_pixels(work: Work) -> bool:
    """Return whether a work is a convolution of one tap that reads each pixel once, in a type whose sums may have
    another order.
    """
    if not isinstance(work, Conv) or work.deconv or not work.forward or work.g > 1 or {*work.s, *work.k} != {1}:
        return False
    return not any((*work.p, *work.pr)) and all(t in _TYPES for t in work.dt)


def _pays(made: Sequence[NetworkNode], old: Sequence[NetworkNode], machine: Machine, threads: int) -> bool:
    """Return whether nodes take fewer cycles than old ones."""
    return _cycles(made, machine, threads) < _cycles(old, machine, threads)


def _cycles(nodes: Sequence[NetworkNode], machine: Machine, threads: int) -> float:
    """Return the cycles of nodes with channels last, without concatenations, which are in place."""
    found = 0.0
    for work in (node.work for node in nodes):
        if isinstance(work, Conv):
            found += default_cycles(replace(work, stag=LAST, dtag=LAST), machine, threads)
        elif isinstance(work, Operator) and not isinstance(work, Concat):
            found += operator_cycles(work.with_tags({"src": LAST, "dst": LAST}), machine)
    return found


class _ResizedProducts:
    """Divides convolutions of a graph; `values` and `constants` are those of the graph with what they add."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._makers, self._readers = graph, graph.makers(), graph.readers()
        self.values, self.constants = dict(graph.values), dict(graph.constants)

    def parts(self, node: NetworkNode) -> Sequence[_ConvolvedPart]:
        """Return what a convolution reads, in the order of its channels."""
        source = node.arguments.get("src", "")
        joined = self._makers.get(source)
        names = [source]
        if joined is not None and isinstance(joined.work, Concat) and joined.work.axis == 1 and self._is_inner(source):
            names = [*joined.arguments.values()]
        shapes = [self._graph.values[x].shape if x in self._graph.values else () for x in names]
        if any(len(shape) < 3 for shape in shapes):
            return ()
        ends = [*accumulate(shape[1] for shape in shapes)]
        return [
            _ConvolvedPart(x, end - shape[1], end, self._resize(x) if names.count(x) == 1 else None)
            for x, shape, end in zip(names, shapes, ends)
        ]

    def divided(self, node: NetworkNode) -> list[NetworkNode]:
        """Return the nodes that take the place of a convolution behind resizes; none if there are none."""
        weights: Any = self._graph.constants.get(node.arguments.get("wei", ""))
        if not is_product_of_pixels(node.work) or weights is None or node.output in self._graph.small:
            return []
        parts = self.parts(node)
        resized, others = ([x for x in parts if (x.resize is not None) == is_resized] for is_resized in (True, False))
        work = node.work
        assert isinstance(work, Conv)
        is_bare = len(resized) == 1 and not work.post_ops  # the resize may compute the result
        if not 0 < len(resized) <= _MOST or parts[-1].end != work.ic or not (others or is_bare):
            return []
        weights = weights.reshape(work.wei_shape)
        if not others:
            return [*self._before_resize(node, resized[0], weights, node.output, work)]
        plain = replace(work, dir="FWD_D", bia_dt="", post_ops=())
        made, added = list[NetworkNode](), list[str]()
        for n, part in enumerate(resized):
            added.append(self._added(f"{node.output}.resized{n}", work.product_shape, work.dt[2]))
            made += self._before_resize(node, part, weights, added[-1], plain)
        source = others[0].name
        channels = sum(x.end - x.start for x in others)
        if len(others) > 1:
            shapes = tuple(self.values[x.name].shape for x in others)
            whole = Concat.of(work.dt[0], shapes, 1)
            source = self._added(f"{node.output}.whole", whole.result.shape, work.dt[0])
            made.append(NetworkNode(whole, {f"src_{n}": x.name for n, x in enumerate(others)}, source, node.names))
        columns = np.concatenate([weights[:, x.start : x.end] for x in others], 1)
        held = self._held(f"{node.output}.whole.weights", columns)
        sums = tuple(BinaryPostOp("add", work.dt[2], PER_TENSOR) for _ in added)
        arguments = {"src": source, "wei": held} | {f"post_op_{n}": x for n, x in enumerate(added)}
        for array, x in node.arguments.items():
            if array.startswith("post_op_"):
                arguments[f"post_op_{len(added) + int(array.removeprefix('post_op_'))}"] = x
            elif array not in arguments:
                arguments[array] = x
        last = replace(work, ic=channels, post_ops=(*sums, *work.post_ops))
        return [*made, NetworkNode(last, arguments, node.output, node.names)]

    def _before_resize(
        self, node: NetworkNode, part: _ConvolvedPart, weights: Any, output: str, like: Conv
    ) -> Iterator[NetworkNode]:
        """Yield the convolution of a part before its resize, `like` another one, and the resize to `output`."""
        assert part.resize is not None and isinstance(part.resize.work, Resize)
        resize, size = part.resize.work, part.resize.work.shape[2:]
        work = replace(like, ic=part.end - part.start, i=size, o=size)
        small = self._added(f"{output}.small", work.product_shape, work.dt[2])
        held = self._held(f"{output}.weights", weights[:, part.start : part.end])
        bias = {"bia": node.arguments["bia"]} if work.bias else {}
        source = part.resize.arguments["src"]
        yield NetworkNode(work, {"src": source, "wei": held, **bias}, small, node.names)
        changed = replace(resize, shape=work.product_shape, sizes=(*work.product_shape[:2], *resize.sizes[2:]))
        yield NetworkNode(changed, {**part.resize.arguments, "src": small}, output, part.resize.names)

    def _resize(self, name: str) -> NetworkNode | None:
        """Return the node that enlarges the pixels of an image, which one other node reads; None for others."""
        node = self._makers.get(name)
        if node is None or not isinstance(node.work, Resize) or not self._is_inner(name):
            return None
        work, values = node.work, self._graph.values
        is_same = work.shape == values[node.arguments["src"]].shape and work.sizes == values[name].shape
        is_stored = {name, node.arguments["src"]} & {*self._graph.small}
        grows = prod(work.sizes) > prod(work.shape) and not {0, 1} & {*work.resized}
        return node if is_same and grows and not is_stored and work.type in _TYPES else None

    def _is_inner(self, name: str) -> bool:
        return len(self._readers.get(name, ())) == 1 and name not in self._graph.outputs

    def _added(self, name: str, shape: Sequence[int], type_: str) -> str:
        """Add a value, and return its name."""
        self.values[name] = NetworkValue(name, tuple(shape), type_)
        return name

    def _held(self, name: str, x: Any) -> str:
        """Add a constant, and return its name."""
        self.constants[name] = np.ascontiguousarray(x)
        return name
