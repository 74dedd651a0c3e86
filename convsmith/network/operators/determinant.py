"""Determinants of square matrices, by elimination."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var
from convsmith.ir.types import dtype
from convsmith.ir.value import Unary, Value, Where, const
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array, numpy_dtype
from convsmith.statement.maths import div, mul, sub
from convsmith.statement.operator import (
    Loader,
    Operator,
    OperatorNest,
    OperatorNests,
    array,
    nests_in_steps,
    result_array,
)

__all__ = ["Elimination"]

_DETERMINANT, _PEAK, _PLACE, _PIVOT, _FACTORS, _ROWS = range(6)
"""Rows behind the matrix of a step: the determinant so far, the largest size in the column, its row's number, that row,
and the factors of rows; then their number.
"""


@record(frozen=True)
class Elimination(Operator):
    """The elimination of `count` matrices of `size` rows and columns: the largest element of a column is its pivot.

    Part 0 of the result has the matrices, part `step + 1` those after a step, in which rows up to `step` have no
    meaning. Row `size` of the last part has the determinant in each column.
    """

    type: str
    count: int
    size: int

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The matrices, and the numbers of their rows."""
        rows = array("rows", self.type, (self.size,), holds="operand")
        return (array("src", self.type, (self.count, self.size, self.size)), rows)

    @property
    def constants(self) -> Mapping[str, Array]:
        """The numbers of rows."""
        return {"rows": np.arange(self.size, dtype=numpy_dtype(self.type))}

    @property
    def result(self) -> Tensor:
        """The matrices, and rows behind them, before the first step and after each."""
        return result_array(self.type, (self.size + 1, self.count, self.size + _ROWS, self.size))

    @property
    def in_order(self) -> bool:
        """A step reads the part of the step before it."""
        return True

    def nests(self) -> OperatorNests:
        """Return nests that fill the first part, and a loop over the steps around those of a step."""
        step, t = Var("step"), dtype(self.type)
        at = [Var(x) for x in "nij"]
        whole = (("n", self.count), ("i", self.size), ("j", self.size))
        first = OperatorNest(whole, (0, *at), lambda load, _: load("src", at))
        at_0 = [Var(x) for x in ("n0", "i0", "j0")]
        behind = (("n0", self.count), ("i0", _ROWS), ("j0", self.size))
        ones = OperatorNest(behind, (0, at_0[0], at_0[1] + self.size, at_0[2]), lambda *_: const(t, 1))

        def old(load: Loader, n: Var, row: IndexLike, column: IndexLike) -> Value:
            return load("dst", [step, n, row, column])

        def new(load: Loader, n: Var, row: int, column: IndexLike) -> Value:
            return load("dst", [step + 1, n, self.size + row, column])

        def swapped(load: Loader, n: Var, row: Var, column: Var) -> Value:
            """Return an element after the pivot's row and row `step` have changed places."""
            is_pivot = (load("rows", [row]), new(load, n, _PLACE, column))
            return Where("eq", *is_pivot, old(load, n, step, column), old(load, n, row, column))

        def peak(load: Loader, n: Var, j: Var, k: Var) -> Value:
            size = Unary("abs", old(load, n, k, step))
            return Where("ge", load("rows", [k]), load("rows", [step]), size, const(t, -1))

        def place(load: Loader, n: Var, j: Var, k: Var) -> Value:
            number, none = load("rows", [k]), const(t, self.size)
            size = Unary("abs", old(load, n, k, step))
            found = Where("lt", size, new(load, n, _PEAK, j), none, number)
            return Where("ge", number, load("rows", [step]), found, none)

        def pivot(load: Loader, n: Var, j: Var, k: Var) -> Value:
            return Where("eq", load("rows", [k]), new(load, n, _PLACE, j), old(load, n, k, j), const(t, 0))

        def determinant(load: Loader, n: Var, j: Var) -> Value:
            found, zero = new(load, n, _PIVOT, step), const(t, 0)
            signed = Where("eq", new(load, n, _PLACE, j), load("rows", [step]), found, sub(zero, found))
            return mul(old(load, n, self.size + _DETERMINANT, j), signed)

        def factor(load: Loader, n: Var, j: Var) -> Value:
            found, zero = new(load, n, _PIVOT, step), const(t, 0)
            left = swapped(load, n, j, step)
            quotient = Where("ne", found, zero, div(left, found), zero)
            return Where("gt", load("rows", [j]), load("rows", [step]), quotient, zero)

        at_6 = n, i, j = [Var(x) for x in ("n6", "i6", "j6")]
        rest = (("n6", self.count), ("i6", self.size), ("j6", self.size))
        eliminated = OperatorNest(rest, (step + 1, *at_6), lambda load, _: sub(
            swapped(load, n, i, j), mul(new(load, n, _FACTORS, i), new(load, n, _PIVOT, j))
        ))  # fmt: skip
        steps = [
            self._row(1, _PEAK, peak, "max"), self._row(2, _PLACE, place, "min"), self._row(3, _PIVOT, pivot, "add"),
            self._row(4, _DETERMINANT, determinant), self._row(5, _FACTORS, factor), eliminated,
        ]  # fmt: skip
        return nests_in_steps(self, [first, ones], steps, "step", self.size)

    def _row(self, number: int, row: int, value: Callable[..., Value], combination: str = "") -> OperatorNest:
        """Return the nest that stores a row behind the matrix: `value`, or a reduction of it over the matrix's rows."""
        n, j, k = Var(f"n{number}"), Var(f"j{number}"), Var(f"k{number}")
        dims, to = ((n.name, self.count), (j.name, self.size)), (Var("step") + 1, n, row + self.size, j)
        if not combination:
            return OperatorNest(dims, to, lambda load, _: value(load, n, j))

        def total(_: Loader, found: Value | None) -> Value:
            assert found is not None
            return found

        term = ((k.name, self.size),)
        return OperatorNest(dims, to, total, term, lambda load: value(load, n, j, k), combination)

    def reference(self, *arrays: Any) -> Any:
        """Return the parts, step by step, in numpy."""
        source, size = arrays[0], self.size
        found: Any = np.ones(self.result.shape, source.dtype)
        found[0, :, :size] = source
        for step in range(size):
            for n in range(self.count):
                old, new = found[step, n], found[step + 1, n]
                column = np.abs(old[step:size, step])
                place = step + int(column.argmax())
                new[size + _PEAK], new[size + _PLACE], new[size + _PIVOT] = column.max(), place, old[place]
                new[:size] = old[:size]
                new[place] = old[step]
                left, pivot = new[:size, step].copy(), old[place, step]
                behind = np.arange(size) > step
                factors = np.where(behind & (pivot != 0), left / (pivot or 1), 0)
                new[size + _FACTORS] = factors
                new[:size] -= np.multiply.outer(factors.astype(source.dtype), old[place])
                new[size + _DETERMINANT] = old[size + _DETERMINANT] * (pivot if place == step else -pivot)
        return found
