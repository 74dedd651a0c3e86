"""Element-wise operators that read the results of others, as one operator that reads each array once."""

from __future__ import annotations

from dataclasses import replace

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.pointwise import JoinedOperand, Pointwise

__all__ = ["with_joined_operands"]

_MOST = 8
"""Maximum number of inputs of one operator: a pointer for each of them is in a register."""


def with_joined_operands(graph: Graph) -> Graph:
    """Return the graph in which an operation on two values is part of the element-wise operator that computes one of
    them, if no other node reads that, and it has the shape of the result.
    """
    made, readers = dict[str, NetworkNode](), graph.readers()
    for node in graph.nodes:
        joined, source = None, ""
        if isinstance(node.work, Pointwise) and node.work.binary and not node.work.joined:
            sources = (node.arguments["src_0"], node.arguments["src_1"])
            inner = [s for s in made if sources.count(s) == 1 and len(readers[s]) == 1 and s not in graph.outputs]
            for source in reversed(inner):
                if (joined := _joined(made[source], node, sources.index(source))) is not None:
                    del made[source]
                    break
        made[node.output] = joined or node
    return graph.changed(tuple(made.values()))


def _joined(before: NetworkNode, node: NetworkNode, position: int) -> NetworkNode | None:
    """Return one node for both, where operand ``position`` of the second is the result of the first; None if it is not
    computed element by element, or broadcasts.
    """
    work, step = before.work, node.work
    assert isinstance(step, Pointwise)
    if not isinstance(work, Pointwise) or work.type != step.type or len(work.shapes) == _MOST:
        return None
    if not work.result.shape == step.shapes[position] == step.result.shape:
        return None
    other, shape = node.arguments[f"src_{1 - position}"], step.shapes[1 - position]
    known = [n for n, s in enumerate(work.shapes) if (before.arguments[f"src_{n}"], s) == (other, shape)]
    shapes, arguments = work.shapes, dict(before.arguments)
    if not known:
        arguments[f"src_{len(shapes)}"] = other
        shapes = (*shapes, shape)
    more = JoinedOperand(step.binary, known[0] if known else len(shapes) - 1, position == 1, step.steps)
    whole = replace(work, shapes=shapes, joined=(*work.joined, more), tags=("any",) * (len(shapes) + 1))
    return NetworkNode(whole, arguments, node.output, tuple(dict.fromkeys((*before.names, *node.names))))
