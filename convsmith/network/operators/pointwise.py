"""Element-wise operators: one input, or two that broadcast, followed by any number of steps on one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var
from convsmith.ir.types import dtype
from convsmith.ir.value import Binary, Value, const
from convsmith.network.operators.arrays import ArraysOperator, flat_size, nest_over_result
from convsmith.problem.post_ops import OPERATORS, Eltwise
from convsmith.problem.tensor import Tensor
from convsmith.statement.elementwise import elementwise
from convsmith.statement.maths import mul
from convsmith.statement.operator import Loader, Operator, OperatorNests, result_array

__all__ = ["BINARY", "JoinedOperand", "Pointwise", "aligned", "broadcast", "stepped"]

BINARY = ("add", "sub", "mul", "div", "max", "min")
"""Operators on two values, which `problem/post_ops.py` defines in numpy."""


@record(frozen=True)
class JoinedOperand:
    """The operation `alg`, of `BINARY`, on a value and on input `source`, which is the first operand if `is_first`, and
    `steps` on its result.
    """

    alg: str
    source: int
    is_first: bool = False
    steps: tuple[Eltwise, ...] = ()

    def ordered(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return a value and an element of the input in the order of the operation."""
        return (y, x) if self.is_first else (x, y)


@record(frozen=True)
class Pointwise(ArraysOperator):
    """The `steps` on each element of one input, or on `binary` of two inputs, then operations with further inputs that
    are `joined`. The `shapes` of all inputs broadcast.

    Steps are element-wise algorithms with their parameters, `problem.post_ops.Eltwise`.
    """

    type: str
    shapes: tuple[tuple[int, ...], ...]
    binary: str = ""
    steps: tuple[Eltwise, ...] = ()
    tags: tuple[str, ...] = ("any", "any", "any")
    joined: tuple[JoinedOperand, ...] = ()

    @property
    def result(self) -> Tensor:
        """The result, of the shape to which the inputs broadcast."""
        return result_array(self.type, broadcast(self.shapes), self.tags[-1])

    @property
    def replaceable(self) -> tuple[str, ...]:
        """The inputs that do not broadcast: an element of the result is computed of those at its place."""
        return tuple(t.name for t in self.inputs if t.shape == self.result.shape)

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        shape = self.result.shape

        def value(load: Loader, at: Sequence[Var]) -> Value:
            read = [load(t.name, aligned(t.shape, shape, at)) for t in self.inputs]
            x = stepped(Binary(self.binary, *read[:2]) if self.binary else read[0], self.steps, self.type)
            for more in self.joined:
                x = stepped(Binary(more.alg, *more.ordered(x, read[more.source])), more.steps, self.type)
            return x

        return nest_over_result(self, value)

    def flat(self) -> Operator:
        """Return the operator on vectors, if all arrays have the same memory."""
        size = flat_size(self, self.tags[: len(self.shapes)] + self.tags[-1:])
        return replace(self, shapes=((size,),) * len(self.shapes), tags=("any",) * len(self.tags)) if size else self

    def reference(self, *arrays: Any) -> Any:
        """Return the result of numpy's functions."""
        y = OPERATORS[self.binary](*arrays[:2]) if self.binary else arrays[0]
        for step in self.steps:
            y = step.apply(y)
        for more in self.joined:
            y = OPERATORS[more.alg](*more.ordered(y, arrays[more.source]))
            for step in more.steps:
                y = step.apply(y)
        return np.broadcast_to(y, self.result.shape).astype(arrays[0].dtype)


def stepped(x: Value, steps: Sequence[Eltwise], type_: str) -> Value:
    """Return an element of a type after element-wise steps."""
    for step in steps:
        x = elementwise(step.alg, x, step.alpha, step.beta)
        x = x if step.scale == 1 else mul(x, const(dtype(type_), step.scale))
    return x


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which `shapes` broadcast. UsageError if they do not."""
    try:
        return tuple(map(int, np.broadcast_shapes(*shapes))) or (1,)
    except ValueError:
        words = " and ".join(map(str, shapes))
        raise UsageError(f"shapes {words} do not broadcast; legal are equal sizes, or 1", code="shape") from None


def aligned(shape: tuple[int, ...], whole: tuple[int, ...], at: Sequence[IndexLike]) -> list[IndexLike]:
    """Return the coordinates in an array of `shape` that broadcasts to `whole`, at the coordinates `at` of that."""
    own = at[len(whole) - len(shape) :]
    return [0 if size == 1 else x for size, x in zip(shape, own)]
