"""Layouts of fragments that no instruction computes with, such as the operands of an epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import Operand
from convsmith.ir.stmt import Stmt, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, walk

__all__ = ["operands_beside"]


def operands_beside(body: Stmt, operands: Mapping[Buffer, Operand]) -> dict[Buffer, Operand]:
    """Return, for each buffer that no row computes with, the operand whose layout it has: a slice of the operand of the
    fragment in ``operands`` that a store accesses too, if the buffer has fewer columns, or that operand if the store
    accesses it at the same coordinates.
    """
    found: dict[Buffer, Operand] = {}
    for s in statements_of(body):
        if isinstance(s, Store):
            uses = [x for x in walk(s) if isinstance(x, (Load, Store)) and x.buffer.scope == "fragment"]
            known = {x.index[-len(y.shape) :]: y for x in uses if (y := operands.get(x.buffer)) is not None}
            for x in (x for x in uses if x.buffer not in operands):
                beside = (y for at, y in known.items() if x.index[-len(at) :] == at)
                slices = (part for y in known.values() if (part := _slice(x.buffer, y)) is not None)
                operand = next(chain(slices, beside), None)
                if operand is not None:
                    found[x.buffer] = operand
    return found


def _slice(buffer: Buffer, whole: Operand) -> Operand | None:
    """Return the operand of a ``buffer`` that has fewer columns than ``whole``, and as many rows; None for others."""
    *rows, columns = whole.shape
    if buffer.shape[:-1] != tuple(rows) or buffer.shape[-1] >= columns or columns % buffer.shape[-1]:
        return None
    registers, rest = divmod(whole.layout.registers, columns // buffer.shape[-1])
    return None if rest else replace(whole, shape=buffer.shape, layout=replace(whole.layout, registers=registers))
