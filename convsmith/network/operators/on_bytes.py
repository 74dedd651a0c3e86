"""Operators of floats on arrays of other types: bytes, which stand for numbers by a scale and a zero point, and small
floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import as_index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Kernel, Stmt, Store
from convsmith.ir.types import F32, dtype
from convsmith.ir.value import Binary, Cast, Load, Unary, Value
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.problem.types import convert, is_integer
from convsmith.runtime.arrays import Array
from convsmith.statement.operator import RESULT, Operator, OperatorNests, array
from convsmith.statement.statement import View

__all__ = ["BYTES", "CODES", "OnBytes"]

BYTES = ("u8", "s8")
"""Types of bytes."""

CODES = "codes"
"""The array of factors and zero points: two numbers for each array of the operator, in order."""


@record(frozen=True)
class OnBytes(Operator):
    """The operator `op`, of f32, on arrays of other `types`, in the order of its own arrays without its constants.

    A byte x of a source stands for `(x - zero point) * factor`. A result y becomes the integer nearest to `y * factor`,
    ties to even, plus the zero point, saturated; its factor is the reciprocal of its scale. An operator that is not
    `coded` computes with the bytes themselves.
    """

    op: Operator
    types: tuple[str, ...]
    coded: bool = True

    @property
    def _rows(self) -> tuple[Tensor, ...]:
        """The arrays of the operator without its constants, the result last."""
        own = self.op.constants
        return tuple(t for t in self.op.tensors if t.name not in own)

    @property
    def _types(self) -> dict[str, str]:
        return dict(zip((t.name for t in self._rows), self.types, strict=True))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The sources in their types, the operator's own constants, and factors and zero points."""
        types = self._types
        sources = tuple(replace(t, dtype=types.get(t.name, t.dtype)) for t in self.op.inputs)
        return (*sources, *([array(CODES, "f32", (2 * len(self.types),), holds="operand")] if self.coded else []))

    @property
    def result(self) -> Tensor:
        """The result in its type."""
        return replace(self.op.result, dtype=self.types[-1])

    @property
    def constants(self) -> Mapping[str, Array]:
        """The operator's own constants."""
        return self.op.constants

    @property
    def inner(self) -> tuple[Tensor, ...]:
        """The operator's own inner arrays, of f32."""
        return self.op.inner

    @property
    def around(self) -> tuple[int, ...]:
        """The operator's own tiles."""
        return self.op.around

    @property
    def products(self) -> tuple[Problem, ...]:
        """The operator's own products."""
        return self.op.products

    @property
    def free(self) -> tuple[str, ...]:
        """The arrays whose layouts are free."""
        return self.op.free

    def with_tags(self, tags: Mapping[str, str]) -> OnBytes:
        """Return the operator with other layouts."""
        return replace(self, op=self.op.with_tags(tags))

    def flat(self) -> OnBytes:
        """Return the operator whose own operator is flat."""
        return replace(self, op=self.op.flat())

    def nests(self) -> OperatorNests:
        """Return the nests of the operator, whose loads convert bytes to floats, and whose stores convert back."""
        nests = self.op.nests()
        types = {t.name: t.dtype for t in self.tensors}
        buffers = {b.name: replace(b, dtype=dtype(types[b.name])) for b in nests.kernel.params}
        codes = next((t for t in self.inputs if t.name == CODES), None)
        if codes is not None:
            held = Buffer(CODES, F32, codes.layout.padded_shape, codes.layout.blocks)
            result = buffers.pop(RESULT)
            buffers |= {CODES: held, RESULT: result}
        rows = {t.name: n for n, t in enumerate(self._rows)}
        body = _Conversions(self._types, rows, buffers).stmt(nests.kernel.body)
        views = tuple(View(t.name, t.dtype, t.layout, (), ()) for t in self.inputs)
        statements = tuple(
            replace(st, factors=views, c=replace(st.c, dtype=self.result.dtype)) for st in nests.statements
        )
        return OperatorNests(Kernel(nests.kernel.name, tuple(buffers.values()), body), statements)

    def reference(self, *arrays: Any) -> Any:
        """Return the operator's own reference between the conversions."""
        given = dict(zip((t.name for t in self.inputs), arrays, strict=True))
        codes = given[CODES].reshape(-1, 2) if self.coded else np.array([(1, 0)] * len(self.types), np.float32)
        for t, (factor, point) in zip(self._rows[:-1], codes):
            if given[t.name].dtype.kind != "f":
                given[t.name] = (given[t.name].astype(np.float32) - point) * factor
        y = self.op.reference(*(given[t.name] for t in self.op.inputs))
        if not is_integer(self.types[-1]):
            return convert(y, self.types[-1])
        factor, point = codes[-1]
        return convert(np.rint(y.astype(np.float32) * factor) + point, self.types[-1])


class _Conversions(Rewriter):
    """Replaces the arrays of an operator by `buffers`, some of which hold bytes: `types` by name, and the `rows` of
    arrays in the codes.
    """

    def __init__(self, types: Mapping[str, str], rows: Mapping[str, int], buffers: Mapping[str, Buffer]) -> None:
        super().__init__()
        self._types, self._rows, self._buffers = types, rows, buffers

    def visit_Load(self, v: Load) -> Value:
        if v.buffer.scope != "global":
            return v
        found = Load(self._buffers[v.buffer.name], self.index(v.index), v.lanes)
        if self._types.get(v.buffer.name, "f32") == "f32":
            return found
        number = Cast(F32, found)
        if CODES not in self._buffers:
            return number
        factor, point = self._numbers(v.buffer.name)
        return Binary("mul", Binary("sub", number, point), factor)

    def visit_Store(self, s: Store) -> Stmt:
        value = self.expr(s.value)
        if s.buffer.scope != "global":
            return Store(s.buffer, s.index, value, s.lanes)
        to, index = self._buffers[s.buffer.name], self.index(s.index)
        if self._types[s.buffer.name] != "f32":
            if CODES in self._buffers:
                factor, point = self._numbers(s.buffer.name)
                value = Binary("add", Unary("round", Binary("mul", value, factor)), point)
            value = Cast(dtype(self._types[s.buffer.name]), value)
        return Store(to, index, value, s.lanes)

    def _numbers(self, name: str) -> Sequence[Value]:
        """Return the factor and the zero point of an array."""
        first = 2 * self._rows[name]
        return [Load(self._buffers[CODES], (as_index(n),), None) for n in (first, first + 1)]
