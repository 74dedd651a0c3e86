"""Einsum as nodes of a graph: transposes, sums, products with broadcast, and products of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from string import ascii_letters
from typing import NamedTuple

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.printable import printable
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.reduce import Reduce
from convsmith.onnx.graph_node import GraphNode
from convsmith.problem.matmul import Matmul

__all__ = ["add_einsum"]


class _Labelled(NamedTuple):
    """A value whose axes have the `labels`."""

    name: str
    labels: str


def add_einsum(node: GraphNode) -> None:
    """Add an Einsum: operands from left to right, each pair as products of matrices if they share a sum."""
    terms, result = _parsed(node)
    sizes: dict[str, int] = {}
    for n, term in enumerate(terms):
        shape = node.shape(n)
        for label, size in zip(term, shape):
            if sizes.setdefault(label, size) != size and 1 not in (size, sizes[label]):
                raise UsageError(f"{label} has {sizes[label]} and {size} elements; legal is one size", code="shape")
            sizes[label] = max(size, sizes[label])
    made = _EinsumNodes(node, sizes)
    found = made.summed(_Labelled(node.inputs[0], terms[0]), {*"".join(terms[1:]), *result})
    for n, term in enumerate(terms[1:], 1):
        later = {*"".join(terms[n + 1 :]), *result}
        other = made.summed(_Labelled(node.inputs[n], term), {*found.labels, *later})
        found = made.product(found, other, later)
    found = made.turned(made.summed(found, {*result}), result)
    shape = tuple(sizes[x] for x in result)
    node.add(Reshape(node.type(), prod(shape)), {"src": found.name}, shape)


def _parsed(node: GraphNode) -> tuple[list[str], str]:
    """Return the labels of the operands and of the result, with letters in place of an ellipsis."""
    text = node.attribute("equation", "").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    count = len(node.inputs)
    if len(terms) != count:
        raise UsageError(f"equation {printable(text)!r} has {len(terms)} terms for {count} inputs", code="attribute")
    unused = [x for x in ascii_letters if x not in text]
    longest = max((len(node.shape(n)) - len(x) + 3 for n, x in enumerate(terms) if "..." in x), default=0)
    rest = "".join(unused[:longest])
    for n, term in enumerate(terms):
        if "..." in term:
            own = len(node.shape(n)) - len(term) + 3
            terms[n] = term.replace("...", rest[len(rest) - own :])
        wrong = len(terms[n]) != len(node.shape(n)) or (not terms[n].isalpha() and bool(terms[n]))
        if wrong or len({*terms[n]}) < len(terms[n]):
            raise UnsupportedError(
                f"equation {printable(text)!r}: term {printable(term)} of {node.shape(n)}; available are different "
                "letters, one for each axis", code="attribute",
            )  # fmt: skip
    if arrow:
        result = right.replace("...", rest)
    else:
        every = "".join(terms)
        result = rest + "".join(sorted(x for x in {*every} - {*rest} if every.count(x) == 1))
    if not {*result} <= {*"".join(terms)} or len({*result}) < len(result):
        raise UsageError(f"equation {printable(text)!r}: legal results have labels of the terms", code="attribute")
    return terms, result


class _EinsumNodes:
    """Adds the nodes of an Einsum, whose labels have `sizes`."""

    def __init__(self, node: GraphNode, sizes: Mapping[str, int]) -> None:
        self._node, self._sizes = node, sizes

    def _shape(self, x: _Labelled) -> tuple[int, ...]:
        """Return the shape of a value; an axis of one element broadcasts."""
        held = self._node.reader.value(x.name).shape
        return held if len(held) == len(x.labels) else tuple(self._sizes[label] for label in x.labels)

    def summed(self, x: _Labelled, kept: set[str]) -> _Labelled:
        """Return the sum along the axes whose labels are not kept."""
        axes = tuple(n for n, label in enumerate(x.labels) if label not in kept)
        if not axes:
            return x
        shape, labels = self._shape(x), "".join(label for label in x.labels if label in kept)
        result = tuple(size for n, size in enumerate(shape) if n not in axes)
        work = Reduce("sum", self._node.type(), shape, axes)
        return _Labelled(self._node.between(work, {"src": x.name}, result), labels)

    def turned(self, x: _Labelled, labels: Sequence[str]) -> _Labelled:
        """Return a value with its axes in the order of `labels`."""
        axes = tuple(x.labels.index(label) for label in labels)
        if axes == tuple(range(len(axes))):
            return x
        work = Transpose(self._node.type(), self._shape(x), axes)
        return _Labelled(self._node.between(work, {"src": x.name}), "".join(labels))

    def product(self, a: _Labelled, b: _Labelled, later: set[str]) -> _Labelled:
        """Return the product of two values, summed along the labels of both that no later part has."""
        terms = [x for x in a.labels if x in b.labels and x not in later]
        if not terms:
            return self._elements(a, b)
        batch = [x for x in a.labels if x in b.labels and x in later]
        rows, columns = ([x for x in one.labels if x not in other.labels] for one, other in ((a, b), (b, a)))
        left, right = self._whole(a, [*batch, *rows, *terms]), self._whole(b, [*batch, *terms, *columns])
        n, m, k, c = (prod(self._sizes[x] for x in part) for part in (batch, rows, terms, columns))
        t = self._node.type()
        shape = tuple(self._sizes[x] for x in (*batch, *rows, *columns))
        sizes = ((m, k), (k, c)) if n == 1 else ((n, m, k), (n, k, c))
        work = Matmul(src=sizes[0], wei=sizes[1], dt=(t, t, t))
        labels = "".join((*batch, *rows, *columns))
        return _Labelled(self._node.between(work, {"src": left, "wei": right}, shape), labels)

    def _elements(self, a: _Labelled, b: _Labelled) -> _Labelled:
        """Return the product of elements, with broadcast."""
        labels = a.labels + "".join(x for x in b.labels if x not in a.labels)
        shapes, names = [], []
        for x in (a, b):
            own = self.turned(x, [label for label in labels if label in x.labels])
            shape = dict(zip(own.labels, self._shape(own)))
            shapes.append(tuple(shape.get(label, 1) for label in labels) or (1,))
            names.append(own.name)
        if names[0] in self._node.reader.constants:
            shapes, names = shapes[::-1], names[::-1]
        work = Pointwise(self._node.type(), (shapes[0], shapes[1]), "mul")
        whole = tuple(self._sizes[x] for x in labels)
        return _Labelled(self._node.between(work, {"src_0": names[0], "src_1": names[1]}, whole), labels)

    def _whole(self, x: _Labelled, labels: Sequence[str]) -> str:
        """Return a value with its axes in the order of `labels`, none of which broadcasts."""
        made = self.turned(x, labels)
        wrong = [label for label, size in zip(made.labels, self._shape(made)) if size != self._sizes[label]]
        if wrong:
            raise UnsupportedError(f"axis {wrong[0]} broadcasts in a sum; available are equal sizes", code="shape")
        return made.name
