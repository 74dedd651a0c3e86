"""Traces of ATen's operators without operators that overwrite values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from convsmith.diag.errors import UnsupportedError

__all__ = ["WritesToParts", "without_writes"]


class WritesToParts(Exception):
    """A program overwrites a value that it reads through another view later."""


def without_writes(graph: fx.Graph, given: Mapping[fx.Node, str]) -> None:
    """Replace each operator of `graph` that overwrites a value by the one that computes a new value, which later nodes
    read.

    Values that share memory have one storage in the trace. UnsupportedError if memory of the values `given`, which have
    names, is overwritten; WritesToParts if another value in the same memory is read later.
    """
    place = {node: n for n, node in enumerate(graph.nodes)}
    sharing: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        for memory in _memories(node):
            sharing.setdefault(memory, []).append(node)
    fixed = {memory: name for node, name in given.items() for memory in _memories(node)}
    for node in graph.nodes:
        if not _writes(node):
            continue
        source, operator = node.args[0], _without_write(node.target)
        (memory, *_) = _memories(source)
        if memory in fixed:
            raise UnsupportedError(f"it changes {fixed[memory]}", code="effects")
        others = (user for x in sharing[memory] if x is not source and place[x] < place[node] for user in x.users)
        is_whole = source.meta["val"].shape == node.meta["val"].shape
        if operator is None or not is_whole or any(place[user] > place[node] for user in others):
            raise WritesToParts(str(node.target))
        node.target = operator
        source.replace_all_uses_with(node, lambda user, at=place[node]: place[user] > at)


def _memories(node: fx.Node) -> set[int]:
    """Return the identities of the storages of a node's values."""
    value = node.meta.get("val")
    tensors = value if isinstance(value, list | tuple) else (value,)
    return {x.untyped_storage()._cdata for x in tensors if isinstance(x, Tensor)}


def _writes(node: fx.Node) -> bool:
    """Return whether a node overwrites one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _without_write(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the operator that computes what `target` writes to its first argument; None if there is none."""
    name = target._schema.name.partition("::")[2]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    found = None if packet is None else getattr(packet, target._overloadname, None)
    return found if isinstance(found, torch._ops.OpOverload) and not found._schema.is_mutable else None
