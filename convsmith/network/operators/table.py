"""Tables: each byte of an array becomes the byte that a table of 256 has for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Var
from convsmith.ir.types import U8
from convsmith.ir.value import Bits, Load, Lookup, Value
from convsmith.network.operators.arrays import flat_size, nest_over_result
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import Loader, Operator, OperatorNests, array, result_array

__all__ = ["TABLE", "ByteTable"]

TABLE = "table"
"""The array of the 256 bytes, in the order of the bits of a source's byte as a number of u8."""


@record(frozen=True)
class ByteTable(Operator):
    """The entries of a table of bytes of type `to` for the bytes of `type` of an array."""

    type: str
    to: str
    shape: tuple[int, ...]
    tags: tuple[str, ...] = ("any", "any")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source, and the table."""
        return (array("src", self.type, self.shape, self.tags[0]), array(TABLE, self.to, (256,), holds="operand"))

    @property
    def result(self) -> Tensor:
        """The entries."""
        return result_array(self.to, self.shape, self.tags[1])

    @property
    def free(self) -> tuple[str, ...]:
        """The arrays whose layouts are free: not that of the table."""
        return ("src", "dst")

    def nests(self) -> OperatorNests:
        """Return one nest over all elements."""

        def value(load: Loader, at: Sequence[Var]) -> Value:
            first, x = load(TABLE, [0]), load("src", at)
            assert isinstance(first, Load)
            return Lookup(first, x if self.type == "u8" else Bits(U8, x))

        return nest_over_result(self, value)

    def flat(self) -> Operator:
        """Return the table of a vector, if both arrays have the same memory."""
        size = flat_size(self, self.tags)
        return replace(self, shape=(size,), tags=("any", "any")) if size else self

    def reference(self, *arrays: Any) -> Any:
        """Return the entries by numpy."""
        return arrays[1][np.ascontiguousarray(arrays[0]).view(np.uint8)]
