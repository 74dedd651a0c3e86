"""Layouts in a graph: arrays of works in given layouts, with copies where a work and a value differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from convsmith.diag.record import record
from convsmith.layout.layout import Layout
from convsmith.network.graph import Graph, NetworkNode, Work, result_of
from convsmith.network.image import NetworkValue
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import PER_TENSOR, BinaryPostOp
from convsmith.statement.operator import Operator

__all__ = ["FIRST", "LAST", "Layouts", "is_image", "layout_of", "same_memory", "tagged", "takes_any", "with_layouts"]

FIRST, LAST = "abx", "axb"
"""The layout tags of arrays with channels first, which is row-major, and last."""


@record(frozen=True)
class Layouts:
    """The layouts of a graph: of its `values`, and, where a work differs, of the array that it reads, by the value that
    it computes and the array's name, or of the array that it `writes`.
    """

    values: Mapping[str, str]
    reads: Mapping[tuple[str, str], str] = field(default_factory=dict)
    writes: Mapping[str, str] = field(default_factory=dict)


def is_image(shape: tuple[int, ...]) -> bool:
    """Return whether arrays of `shape` may have their channels, the second dim, last in memory."""
    return 3 <= len(shape) <= 5


def layout_of(shape: tuple[int, ...], tag: str) -> Layout:
    """Return the layout of arrays of ``shape``; those of fewer than two dims have only one."""
    return Layout.of_tag(tag if len(shape) > 1 else "a", shape or (1,))


def same_memory(shape: tuple[int, ...], one: str, two: str) -> bool:
    """Return whether arrays of `shape` have the same memory in two layouts."""
    return one == two or _steps(shape, one) == _steps(shape, two)


def _steps(shape: tuple[int, ...], tag: str) -> list[tuple[int, int]]:
    """Return the strides of the dims of several elements."""
    strides = layout_of(shape, tag).strides
    return [(n, stride) for n, (size, stride) in enumerate(zip(shape, strides)) if size > 1]


def takes_any(work: Work, array: str, value: NetworkValue) -> bool:
    """Return whether an array of `work` takes any layout of its `value`; others are row-major."""
    if isinstance(work, Conv) and array in ("wei", "bia"):
        return False
    if isinstance(work, Matmul | Reshape) or (isinstance(work, Operator) and array not in work.free):
        return False
    return is_image(value.shape) and next(t.shape for t in work.tensors if t.name == array) == value.shape


def with_layouts(graph: Graph, layouts: Layouts) -> Graph:
    """Return the graph whose works have `layouts`, with a copy of a value for each other layout that works read or
    compute.
    """
    nodes: list[NetworkNode] = []
    copies: dict[tuple[str, str], str] = {}
    values = dict(graph.values)

    def copied(value: NetworkValue, tag: str, wanted: str, name: str) -> None:
        """Add the copy of a value to another layout."""
        work = Transpose(value.type, value.shape, tuple(range(len(value.shape))), (tag, wanted))
        nodes.append(NetworkNode(work, {"src": value.name}, name, (f"copy of {value.name}",)))
        values[name] = replace(value, name=name)

    for node in graph.nodes:
        arguments, taken = dict(node.arguments), dict[str, str]()
        for array, name in node.arguments.items():
            if name in graph.constants:
                continue
            value, tag = values[name], layouts.values.get(name, FIRST)
            wanted = layouts.reads.get((node.output, array), tag)
            wanted = wanted if takes_any(node.work, array, value) else FIRST
            if not same_memory(value.shape, tag, wanted):
                if (name, wanted) not in copies:
                    copies[name, wanted] = f"{name}@{wanted}"
                    copied(value, tag, wanted, copies[name, wanted])
                arguments[array] = copies[name, wanted]
            taken[array] = wanted
        value, tag = values[node.output], layouts.values.get(node.output, FIRST)
        written = layouts.writes.get(node.output, tag)
        written = written if takes_any(node.work, result_of(node.work).name, value) else FIRST
        work = tagged(node.work, {**taken, "dst": written})
        if same_memory(value.shape, tag, written):
            nodes.append(replace(node, work=work, arguments=arguments))
            continue
        inner = replace(value, name=f"{value.name}@{written}")
        values[inner.name] = inner
        nodes.append(replace(node, work=work, arguments=arguments, output=inner.name))
        copied(inner, written, tag, value.name)
    return Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes), graph.constants, values)


def tagged(work: Work, tags: Mapping[str, str]) -> Work:
    """Return a problem or an operator with layouts of its arrays, by name."""
    if isinstance(work, Operator):
        several = {t.name for t in work.tensors if len(t.shape) > 1}
        return work.with_tags({name: tag for name, tag in tags.items() if name in several}).flat()
    if isinstance(work, Conv):
        post_ops = tuple(
            replace(op, tag=tags[f"post_op_{n}"]) if isinstance(op, BinaryPostOp) and op.mask == PER_TENSOR else op
            for n, op in enumerate(work.post_ops)
        )
        return replace(work, stag=tags["src"], dtag=tags["dst"], post_ops=post_ops)
    return work
