"""Types of bytes inside a graph: a byte with the middle as its zero point, or s8 with the least, has none in the other
type, in which the same bytes differ by 128.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from convsmith.network.graph import Graph
from convsmith.network.operators.quantise import Dequantise, Quantise
from convsmith.network.quantised.codes import Code, code_of

__all__ = ["without_zero_points"]

_HALF = 128


def without_zero_points(graph: Graph) -> Graph:
    """Return the graph whose inner bytes, between conversions from and to floats, have the type in which their zero
    point is 0, if there is one. Kernels are faster without zero points.
    """
    readers, constants, values = graph.readers(), dict(graph.constants), dict(graph.values)
    changed: dict[str, str] = {}
    for node in graph.nodes:
        code, users = code_of(node.work, node.arguments, constants), readers.get(node.output, [])
        if code is None or not isinstance(node.work, Quantise) or node.output in graph.outputs:
            continue
        codes = [code_of(x.work, x.arguments, constants) for x in users if isinstance(x.work, Dequantise)]
        if len(codes) == len(users) and all(x == code for x in codes) and _other(code).point == 0:
            changed[node.output] = _other(code).type
    nodes = []
    for node in graph.nodes:
        name = node.output if isinstance(node.work, Quantise) else node.arguments.get("src", "")
        if name in changed and isinstance(node.work, Quantise | Dequantise):
            constants[point := f"{name}@no_point"] = np.zeros(1, np.float32)
            values[name] = replace(values[name], type=changed[name])
            arguments = {**node.arguments, "zero_point": point}
            node = replace(node, work=replace(node.work, type=changed[name]), arguments=arguments)
        nodes.append(node)
    return replace(graph, values=values).changed(nodes, constants)


def _other(code: Code) -> Code:
    """Return the code of the same numbers in the other type."""
    if code.type == "s8":
        return code._replace(type="u8", point=code.point + _HALF)
    return code._replace(type="s8", point=code.point - _HALF)
