"""Products of bytes whose sums a model converts to floats: their kernels write floats."""

from __future__ import annotations

from dataclasses import replace

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.choice import ChangeType
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul

__all__ = ["with_float_sums"]


def with_float_sums(graph: Graph) -> Graph:
    """Return the graph without conversions of sums in 32 bits to f32 where nothing else reads the sums."""
    readers, made = graph.readers(), dict[str, NetworkNode]()
    for node in graph.nodes:
        before = made.get(node.arguments.get("src", "")) if isinstance(node.work, ChangeType) else None
        if before is not None and isinstance(before.work, Conv | Matmul) and before.work.dt[2] == "s32":
            is_inner = len(readers[before.output]) == 1 and before.output not in graph.outputs
            if is_inner and node.work.to == "f32":  # type: ignore[union-attr]
                work = replace(before.work, dt=(*before.work.dt[:2], "f32"))
                del made[before.output]
                made[node.output] = NetworkNode(work, before.arguments, node.output, (*before.names, *node.names))
                continue
        made[node.output] = node
    return graph.changed(tuple(made.values()))
