"""Norms of groups of channels, as models state them: an image is reshaped so that each group is a channel, normalised,
and reshaped back; then each channel is scaled and moved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.move import Reshape
from convsmith.network.operators.norm import FACTORS, GroupNorm
from convsmith.network.operators.pointwise import Pointwise
from convsmith.runtime.arrays import Array

__all__ = ["with_group_norms"]


def with_group_norms(graph: Graph) -> Graph:
    """Return the graph in which such a norm is one operator on the image itself, of any layout, with the products and
    sums of constants for each channel as its factors.
    """
    joiner = _GroupNorms(graph)
    for node in graph.nodes:
        if isinstance(node.work, GroupNorm):
            joiner.join(node)
    if not joiner.made:
        return graph
    nodes = list[NetworkNode]()
    for node in graph.nodes:
        nodes += joiner.made.get(node.output, () if node.output in joiner.gone else (node,))
    return replace(graph, values=joiner.values).changed(nodes, joiner.constants)


class _GroupNorms:
    """The nodes that are ``made`` in place of others, by the outputs of these, the outputs of nodes that are ``gone``,
    and the values and constants of the graph with those of new nodes.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, self._makers, self._readers = graph, graph.makers(), graph.readers()
        self.values, self.constants = dict(graph.values), dict(graph.constants)
        self.made, self.gone = dict[str, list[NetworkNode]](), set[str]()

    def join(self, node: NetworkNode) -> None:
        """Join a norm with the reshapes around it, if it has one before and one behind it."""
        work, before = node.work, self._makers.get(node.arguments["src"])
        behind = self._reader(node.output)
        assert isinstance(work, GroupNorm)
        if before is None or behind is None or not all(isinstance(x.work, Reshape) for x in (before, behind)):
            return
        name = before.arguments["src"]
        image, result = self.values.get(name), self.values[behind.output]
        groups, is_small = work.shape[1], {before.output, node.output} & self._graph.small.keys()
        is_whole = work.groups == groups and work.factors == FACTORS
        if image is None or is_small or len(image.shape) < 3 or not is_whole:
            return
        shape = image.shape
        if shape[0] != work.shape[0] or result.shape[:2] != shape[:2] or shape[1] % groups:
            return
        held = [self.constants.get(node.arguments[x]) for x in FACTORS]
        if any(x is None for x in held):
            return
        each = shape[1] // groups
        scale, shift = (np.repeat(np.asarray(x), each) for x in held)
        names, last = [*before.names, *node.names, *behind.names], behind
        while (found := self._factor(last)) is not None:
            last, alg, x = found
            names += last.names
            scale, shift = (scale * x, shift * x) if alg == "mul" else (scale, shift + x)
            self.gone.add(self._makers[last.arguments["src_0"]].output)
        self.gone |= {node.output, behind.output, last.output}
        given = {word: f"{last.output}.{word}" for word in FACTORS}
        self.constants |= dict(zip(given.values(), (scale, shift)))
        norm = GroupNorm(work.type, shape, work.epsilon, FACTORS, groups=groups)
        inner = last.output if result.shape == shape else f"{last.output}.image"
        made = [NetworkNode(norm, {"src": name, **given}, inner, tuple(dict.fromkeys(names)))]
        if inner != last.output:
            self.values[inner] = replace(result, name=inner, shape=shape)
            made.append(NetworkNode(behind.work, {"src": inner}, last.output, last.names))
        self.made[last.output] = made

    def _reader(self, name: str) -> NetworkNode | None:
        """Return the node that alone reads a value of the graph's inside; None for others."""
        readers = self._readers.get(name, [])
        is_inner = len(readers) == 1 and name not in self._graph.outputs and name not in self._graph.small
        return readers[0] if is_inner else None

    def _factor(self, node: NetworkNode) -> tuple[NetworkNode, str, Array] | None:
        """Return the node that alone reads the result of another one, if it multiplies each channel by a constant or
        adds one, with the operation and a number for each channel.
        """
        reader, shape = self._reader(node.output), self.values[node.output].shape
        work = None if reader is None else reader.work
        if reader is None or not isinstance(work, Pointwise) or work.binary not in ("mul", "add"):
            return None
        held: Any = self.constants.get(reader.arguments["src_1"])
        is_plain = not work.steps and not work.joined and work.shapes[0] == work.result.shape == shape
        if held is None or not is_plain or reader.arguments["src_0"] != node.output:
            return None
        along = (1, shape[1], *(1,) * (len(shape) - 2))
        if (1,) * (len(shape) - held.ndim) + held.shape != along:
            return None
        return reader, work.binary, held.reshape(-1)
