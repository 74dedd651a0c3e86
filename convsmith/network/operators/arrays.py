"""Parts that operators share: the arrays that they read, and nests over the elements of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convsmith.ir.index import IndexLike, Var
from convsmith.ir.value import Value
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import Loader, Operator, OperatorNest, OperatorNests, array, nests_of

__all__ = ["ArrayOperator", "ArraysOperator", "flat_size", "nest_over_result", "nest_that_moves"]


class ArrayOperator(Operator):
    """Base class of operators that read one array, `src`, of a `type` and a `shape`, in the first of the layouts
    `tags`.
    """

    type: str
    shape: tuple[int, ...]
    tags: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source."""
        return (array("src", self.type, self.shape, self.tags[0]),)


class ArraysOperator(Operator):
    """Base class of operators that read arrays `src_0`, `src_1` and so on, of one `type` and of `shapes`, in the first
    of the layouts `tags`.
    """

    type: str
    shapes: tuple[tuple[int, ...], ...]
    tags: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arrays, in order."""
        rows = enumerate(zip(self.shapes, self.tags))
        return tuple(array(f"src_{n}", self.type, shape, tag) for n, (shape, tag) in rows)


def flat_size(op: Operator, tags: Sequence[str]) -> int:
    """Return the number of elements of the arrays of an element-wise operator whose layouts are `tags`, if all of its
    sources and its result have the same memory, without gaps; 0 otherwise.
    """
    layout = op.result.layout
    shapes = {t.shape for t in op.tensors if t.name in op.free}
    return layout.size if len(shapes) == 1 and len({*tags}) == 1 and layout.is_dense else 0


def nest_over_result(op: Operator, value: Callable[[Loader, Sequence[Var]], Value]) -> OperatorNests:
    """Return one nest over the elements of the result, each of which is ``value`` at its coordinates."""
    shape = op.result.shape
    at = [Var(f"d{n}") for n in range(len(shape))]
    dims = tuple((str(x), size) for x, size in zip(at, shape))
    return nests_of(op, [OperatorNest(dims, tuple(at), lambda load, _: value(load, at))])


def nest_that_moves(op: ArrayOperator, source: Callable[[Sequence[Var]], Sequence[IndexLike]]) -> OperatorNests:
    """Return one nest over the elements of the result, each of which is the element of the source at ``source`` of its
    coordinates.
    """
    return nest_over_result(op, lambda load, at: load("src", source(at)))
