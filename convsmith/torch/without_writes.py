"""Traces of ATen's operators without operators that overwrite values."""

from __future__ import annotations

import torch
from torch import fx

__all__ = ["WritesToParts", "without_writes"]


class WritesToParts(Exception):
    """A program overwrites a value that it reads through another view later."""


def without_writes(graph: fx.Graph) -> None:
    """Replace each operator of `graph` that overwrites a value by the one that computes a new value, which later nodes
    read.

    Values that share memory have one number in `meta["memories"]`. WritesToParts if another value in the overwritten
    memory is read later.
    """
    place = {node: n for n, node in enumerate(graph.nodes)}
    sharing: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        for memory in node.meta.get("memories", ()):
            sharing.setdefault(memory, []).append(node)
    for node in graph.nodes:
        if not _writes(node):
            continue
        source, operator = node.args[0], _without_write(node.target)
        (memory, *_) = source.meta["memories"]
        others = (user for x in sharing[memory] if x is not source and place[x] < place[node] for user in x.users)
        is_whole = source.meta["val"].shape == node.meta["val"].shape
        if operator is None or not is_whole or any(place[user] > place[node] for user in others):
            raise WritesToParts(str(node.target))
        node.target = operator
        source.replace_all_uses_with(node, lambda user, at=place[node]: place[user] > at)


def _writes(node: fx.Node) -> bool:
    """Return whether a node overwrites one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _without_write(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the operator that computes what `target` writes to its first argument; None if there is none."""
    name = target._schema.name.partition("::")[2]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    found = None if packet is None else getattr(packet, target._overloadname, None)
    return found if isinstance(found, torch._ops.OpOverload) and not found._schema.is_mutable else None
