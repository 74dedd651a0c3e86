"""Layouts of fragments that no instruction computes with, such as the operands of an epilogue."""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import Operand
from convsmith.ir.stmt import Stmt, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, walk

__all__ = ["operands_beside"]


def operands_beside(body: Stmt, operands: Mapping[Buffer, Operand]) -> dict[Buffer, Operand]:
    """Return, for each buffer that no row computes with, the operand whose layout it has: the operand of the fragment
    in ``operands`` that a store accesses with the same index.
    """
    found: dict[Buffer, Operand] = {}
    for s in statements_of(body):
        if isinstance(s, Store):
            uses = [x for x in walk(s) if isinstance(x, (Load, Store)) and x.buffer.scope == "fragment"]
            known = {x.index: operands[x.buffer] for x in uses if x.buffer in operands}
            found |= {x.buffer: known[x.index] for x in uses if x.buffer not in operands and x.index in known}
    return found
