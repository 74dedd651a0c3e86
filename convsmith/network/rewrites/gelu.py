"""GELU in graphs: exporters write it as a product of a value, one half, and one plus the value's error function."""

from __future__ import annotations

from dataclasses import replace
from math import isclose, sqrt

from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.pointwise import Pointwise
from convsmith.problem.post_ops import Eltwise

__all__ = ["with_gelu"]

_TOLERANCE = 1e-6
"""Maximum relative difference of a model's constants, which are rounded to f32, from 1/2, 1 and sqrt(1/2)."""


def with_gelu(graph: Graph) -> Graph:
    """Return the graph with one step for each product `x * 0.5 * (1 + erf(x * sqrt(0.5)))`.

    The factors may have any order, and `x / sqrt(2)` may replace the product. Values inside the product that another
    node reads, or that are outputs, stay.
    """
    products = _GeluProducts(graph)
    return graph.changed([products.gelu(node) or node for node in graph.nodes])


class _GeluProducts:
    """Takes the values of a graph apart."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._makers, self._readers = graph, graph.makers(), graph.readers()

    def gelu(self, node: NetworkNode) -> NetworkNode | None:
        """Return the node that computes GELU in one step, if `node` is its last product; None otherwise."""
        if not _is(node, "mul"):
            return None
        half, factors, inside = self._factors(node)
        for x, other in (factors, factors[::-1]) if len(factors) == 2 and _close(half, 0.5) else ():
            argument = self._error_function(other)
            if argument is None or self._graph.values[x].shape != self._graph.values[node.output].shape:
                continue
            root, source, nodes = argument
            if source == x and _close(root, sqrt(0.5)):
                outputs = {part.output for part in (*nodes, *inside)}
                names = [name for part in self._graph.nodes if part.output in outputs for name in part.names]
                shape = self._graph.values[node.output].shape
                assert isinstance(node.work, Pointwise)
                work = replace(node.work, shapes=(shape,), binary="", steps=(Eltwise("gelu_erf"),))
                return NetworkNode(work, {"src_0": x}, node.output, (*names, *node.names))
        return None

    def _error_function(self, name: str) -> tuple[float, str, list[NetworkNode]] | None:
        """Return k, x and the nodes of a value `1 + erf(k * x)`; None for other values."""
        total = self._inner(name)
        if total is None or not _is(total, "add"):
            return None
        one, (term, *more) = self._parts(total)
        erf = self._inner(term)
        if more or not _close(one, 1.0) or erf is None or not _is(erf, "", ("erf",)):
            return None
        argument = erf.arguments["src_0"]
        before = self._inner(argument)
        factor, sources, inside = (1.0, [argument], []) if before is None else self._factors(before)
        nodes = [*inside, *([] if before is None else [before]), erf, total]
        return (factor, sources[0], nodes) if len(sources) == 1 else None

    def _factors(self, node: NetworkNode) -> tuple[float, list[str], list[NetworkNode]]:
        """Return a number and values whose product is the result of a node, and the products inside it."""
        if not (_is(node, "mul") or (_is(node, "div") and self._number(node.arguments["src_1"]) is not None)):
            return 1.0, [node.output], []
        number, found, inside = 1.0, list[str](), list[NetworkNode]()
        for array in ("src_0", "src_1"):
            name = node.arguments[array]
            known, before = self._number(name), self._inner(name)
            if known is not None:
                number = number / known if _is(node, "div") else number * known
            elif before is not None and (_is(before, "mul") or _is(before, "div")):
                factor, factors, nodes = self._factors(before)
                number, found = number * factor, [*found, *factors]
                inside += [*nodes, before]
            else:
                found.append(name)
        return number, found, inside

    def _parts(self, node: NetworkNode) -> tuple[float, list[str]]:
        """Return the number among the two operands of a node, 0 if there is none, and the other operands."""
        numbers = {name: self._number(name) for name in node.arguments.values()}
        given = [x for x in numbers.values() if x is not None]
        return (given[0] if given else 0.0), [name for name, x in numbers.items() if x is None] or [""]

    def _number(self, name: str) -> float | None:
        """Return the number that a constant of one element holds, if it is not zero; None for other values."""
        held = self._graph.constants.get(name)
        return float(held.reshape(-1)[0]) or None if held is not None and held.size == 1 else None

    def _inner(self, name: str) -> NetworkNode | None:
        """Return the node of a value that only one node reads; None if another node, or the caller, needs the value."""
        is_inner = len(self._readers.get(name, ())) == 1 and name not in self._graph.outputs
        return self._makers.get(name) if is_inner else None


def _is(node: NetworkNode, binary: str, steps: tuple[str, ...] = ()) -> bool:
    """Return whether a node is an element-wise operator, and its steps have these algorithms."""
    work = node.work
    return isinstance(work, Pointwise) and work.binary == binary and tuple(s.alg for s in work.steps) == steps


def _close(number: float, wanted: float) -> bool:
    return isclose(number, wanted, rel_tol=_TOLERANCE)
