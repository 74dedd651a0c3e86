"""Moves that a rewrite of a graph adds: an array in the order of memory, with its dims in another order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from convsmith.network.graph import NetworkNode
from convsmith.network.image import NetworkValue
from convsmith.network.operators.move import Reshape, Transpose

__all__ = ["add_transposed"]


def add_transposed(
    source: str, kind: str, in_memory: Sequence[int], axes: Sequence[int], prefix: str, names: Sequence[str],
    values: dict[str, NetworkValue], nodes: list[NetworkNode],
) -> str:  # fmt: skip
    """Add the nodes that transpose the value `source`, of type `kind`, as an array of shape ``in_memory`` by ``axes``,
    and their values, and return the name of the last one. Names of values begin with ``prefix``.
    """
    sizes = tuple(in_memory)
    made: Sequence[tuple[Reshape | Transpose, tuple[int, ...]]] = (
        (Reshape(kind, prod(sizes)), sizes),
        (Transpose(kind, sizes, tuple(axes)), tuple(sizes[n] for n in axes)),
    )
    for n, (work, shape) in enumerate(made):
        name = f"{prefix}{n}"
        values[name] = NetworkValue(name, shape, kind)
        nodes.append(NetworkNode(work, {"src": source}, name, tuple(names)))
        source = name
    return source
