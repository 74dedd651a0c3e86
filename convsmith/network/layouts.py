"""Layouts of the values of a graph: channels last inside, row-major at its inputs and outputs, with copies between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convsmith.layout.layout import Layout
from convsmith.network.graph import Graph, Node, Work
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pointwise import Pointwise
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import PER_TENSOR, BinaryPostOp
from convsmith.statement.operator import Operator

__all__ = ["FIRST", "LAST", "same_memory", "with_layouts"]

FIRST, LAST = "abx", "axb"
"""The layout tags of arrays with channels first, which is row-major, and last."""


def same_memory(shape: tuple[int, ...], one: str, two: str) -> bool:
    """Return whether arrays of `shape` have the same memory in two layouts."""
    return one == two or _steps(shape, one) == _steps(shape, two)


def _steps(shape: tuple[int, ...], tag: str) -> list[tuple[int, int]]:
    """Return the strides of the dims of several elements."""
    layout = Layout.of_tag(tag, shape or (1,))
    return [(n, stride) for n, (size, stride) in enumerate(zip(shape, layout.strides)) if size > 1]


def channels_last(graph: Graph) -> dict[str, str]:
    """Return the layout of each value: channels last for images between convolutions and operators that take both."""
    border = {*graph.outputs, *(x.name for x in graph.inputs)}
    tags = {}
    for name, value in graph.values.items():
        tags[name] = FIRST if name in border or len(value.shape) < 3 else LAST
    for node in graph.nodes:
        if is_row_major(node.work):
            tags[node.output] = FIRST
    return tags


def is_row_major(work: Work) -> bool:
    """Return whether a problem or an operator reads and computes row-major arrays only."""
    return isinstance(work, Matmul | Reshape)


def with_layouts(graph: Graph, tags: Mapping[str, str]) -> Graph:
    """Return the graph with values in the layouts `tags`: each work reads and computes arrays in them, after copies of
    operands that it takes in another layout only.
    """
    nodes: list[Node] = []
    copies: dict[tuple[str, str], str] = {}
    values = dict(graph.values)
    for node in graph.nodes:
        arguments = dict(node.arguments)
        taken: dict[str, str] = {}
        for array, name in node.arguments.items():
            if name in graph.constants:
                continue
            value, tag = values[name], tags.get(name, FIRST)
            wanted = FIRST if is_row_major(node.work) or not _follows(node, array, graph) else tag
            if not same_memory(value.shape, tag, wanted):
                if (name, wanted) not in copies:
                    copies[name, wanted] = copied = f"{name}@{wanted}"
                    axes = tuple(range(len(value.shape)))
                    work = Transpose(value.type, value.shape, axes, (tag, wanted))
                    nodes.append(Node(work, {"src": name}, copied, (f"copy of {name}",)))
                    values[copied] = replace(value, name=copied)
                arguments[array] = copies[name, wanted]
            taken[array] = wanted
        work = tagged(node.work, {**taken, "dst": tags.get(node.output, FIRST)})
        nodes.append(replace(node, work=work, arguments=arguments))
    return Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes), graph.constants, values)


def _follows(node: Node, array: str, graph: Graph) -> bool:
    """Return whether an array of a node has the dims of its value, so that it takes any layout of the value."""
    shape = next(t.shape for t in node.work.tensors if t.name == array)
    return shape == graph.values[node.arguments[array]].shape


def tagged(work: Work, tags: Mapping[str, str]) -> Work:
    """Return a problem or an operator with layouts of its arrays, by name."""
    if isinstance(work, Operator):
        return _flat(work.with_tags(tags))
    if isinstance(work, Conv):
        post_ops = tuple(
            replace(op, tag=tags[f"post_op_{n}"]) if isinstance(op, BinaryPostOp) and op.mask == PER_TENSOR else op
            for n, op in enumerate(work.post_ops)
        )
        return replace(work, stag=tags["src"], dtag=tags["dst"], post_ops=post_ops)
    return work


def _flat(op: Operator) -> Operator:
    """Return an element-wise operator on arrays of the same memory as one on vectors."""
    if not isinstance(op, Pointwise) or len({t.shape for t in op.tensors}) > 1 or len({*op.tags}) > 1:
        return op
    size = op.result.layout.size
    return replace(op, shapes=((size,),) * len(op.shapes), tags=("any",) * len(op.tags))
