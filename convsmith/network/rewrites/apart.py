"""Why a kernel of a network does not also compute what it reads."""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.placement.parts import Part
from convsmith.network.rewrites.chaining import RowJoints, followers

__all__ = ["reasons_apart"]


def reasons_apart(
    whole: Graph, joined: Graph, parts: Mapping[str, Part], joints_of: RowJoints
) -> dict[str, str]:  # fmt: skip
    """Return, for each value of the graph `joined` whose node reads the result of another one, why they are two
    kernels, or which of its `parts` of others it reads in place. `whole` is the graph before chains.
    """
    held = {*parts, *(part.whole for part in parts.values())}
    followed, before = followers(whole, held), whole.makers()
    makers, readers = joined.makers(), whole.readers()
    found: dict[str, str] = {}
    for node in joined.nodes:
        between = next((name for name in node.arguments.values() if name in makers), None)
        if between is None:
            name = next((name for name in node.arguments.values() if name in parts), None)
            if name is not None:
                found[node.output] = f"it reads {name} in place, a part of {parts[name].whole}"
            continue
        if between in followed:
            (joint,) = joints_of((before[between], followed[between]))
            why = "the model keeps it apart, with the convolutions around" if joint.fused else joint.why
            found[node.output] = f"{between}{why[2:]}" if why.startswith("it ") else why
        else:
            found[node.output] = _reason(node, between, len(readers[between]), between in held, joined)
    return found


def _reason(node: NetworkNode, between: str, readers: int, is_part: bool, graph: Graph) -> str:
    """Return why no kernel computes both a node and the value `between`, which a number of `readers` read."""
    if between in graph.outputs:
        return f"{between} is an output"
    if readers > 1:
        return f"{readers} nodes read {between}"
    if is_part:
        return f"{between} is part of a concatenation"
    kinds = " and ".join(type(x.work).__name__ for x in (graph.makers()[between], node))
    return f"there are no kernels of {kinds} together"
