"""Functions of one byte as tables: element-wise operators between bytes become one table of 256 entries.

A result of element-wise operators on bytes is a function of one byte if it depends on one value of bytes alone, element
by element: so are a sigmoid, a swish that a model writes as a product of a value and its sigmoid, each rounded to
bytes, and a conversion to another code. The table holds what the nodes compute one after the other, with each of their
roundings.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.on_bytes import BYTES, CODES, OnBytes
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.table import TABLE, ByteTable
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import Array

__all__ = ["with_tables"]

_CHEAP = ("relu", "clip", "linear", "abs", "square")
"""Steps that a kernel computes in fewer instructions than a lookup on machines without instructions for tables."""


class _ByteFunction(NamedTuple):
    """The byte of a value for each byte of the value `source`, of the nodes `names` of the model; `is_worth` tells
    whether a lookup is faster than the nodes on every machine.
    """

    source: str
    table: Array
    names: tuple[str, ...]
    is_worth: bool


def with_tables(graph: Graph) -> Graph:
    """Return the graph with a table for each element-wise function of one byte that is a function without a quick
    kernel, or that several nodes compute.
    """
    known: dict[str, _ByteFunction] = {}
    constants, nodes = dict(graph.constants), list[NetworkNode]()
    for node in graph.nodes:
        found = _function(node, graph, known)
        if found is not None:
            known[node.output] = found
        if found is None or not found.is_worth:
            nodes.append(node)
            continue
        assert isinstance(node.work, OnBytes)
        shape = graph.values[node.output].shape or (1,)
        constants[name := f"{node.output}@table"] = found.table
        work = ByteTable(_type(graph, found.source), node.work.types[-1], shape)
        nodes.append(NetworkNode(work, {"src": found.source, TABLE: name}, node.output, found.names))
    made = graph.changed(nodes, constants)
    return made.changed(tuple(made.live_nodes()))


def _function(node: NetworkNode, graph: Graph, known: dict[str, _ByteFunction]) -> _ByteFunction | None:
    """Return the function of one byte that a node computes with those before it; None if there is none."""
    work = node.work
    if not isinstance(work, OnBytes) or not isinstance(work.op, Pointwise) or {*work.types} - {*BYTES}:
        return None
    sources = [node.arguments[f"src_{n}"] for n in range(len(work.op.shapes))]
    count = prod(graph.values[node.output].shape)
    if any(name in graph.constants or prod(graph.values[name].shape) != count for name in sources):
        return None
    before = [known.get(name) or _ByteFunction(name, _bytes(_type(graph, name)), (), False) for name in sources]
    codes = [graph.constants.get(node.arguments[CODES])] if work.coded else []
    if len({x.source for x in before}) > 1 or any(x is None for x in codes):
        return None
    alone = Pointwise(work.op.type, ((256,),) * len(sources), work.op.binary, work.op.steps)
    table = OnBytes(alone, work.types, work.coded).reference(*(x.table for x in before), *codes)
    inner = tuple(dict.fromkeys(name for x in before for name in x.names))
    is_worth = bool(inner) or any(step.alg not in _CHEAP for step in work.op.steps)
    return _ByteFunction(before[0].source, table, tuple(dict.fromkeys((*inner, *node.names))), is_worth)


def _type(graph: Graph, name: str) -> str:
    return graph.values[name].type


def _bytes(type_: str) -> Array:
    """Return all bytes in the order of their bits as numbers of u8."""
    found: Array = np.arange(256, dtype=np.uint8).view(TYPES[type_].numpy)
    return found
