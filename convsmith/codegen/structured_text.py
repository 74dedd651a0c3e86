"""Kernels as text of a language with blocks, loops and conditions: what C and WGSL have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from textwrap import wrap

from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Affine, And, Cond, Eq0, FloorDiv, Ge0, Index, Max, Min, Mod, Never, Prod, Quot, Var
from convsmith.ir.stmt import Alloc, Block, For, If, Let, Stmt, Store
from convsmith.ir.value import Binary, Bits, Cast, Const, Fma, Load, Unary, Value, Where

__all__ = ["COMPARED", "SIGNS", "StructuredText", "bare", "repeated_values"]

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}
COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
"""Operators of languages in the tradition of C, by the names of operations and comparisons."""

_WIDTH = 118


class StructuredText(ABC):
    """Base class of writers of one kernel, whose buffers in memory have one dim.

    A subclass spells loops, declarations, stores and calls. Functions `quotient` and `modulo` of a language divide
    indices of any sign by positive numbers, `least` and `largest` compare two indices.
    """

    tab = "    "
    true, false = "1", "0"

    def lines(self, body: Stmt) -> Iterator[str]:
        """Yield the lines of a body, within a function."""
        for line in self.statement(body, 1):
            tab = line[: len(line) - len(line.lstrip())]
            yield from wrap(line.lstrip(), _WIDTH, initial_indent=tab, subsequent_indent=tab + self.tab)

    @abstractmethod
    def loop_head(self, s: For) -> str:
        """Return the text of a loop before its block."""

    @abstractmethod
    def bound(self, v: Var, value: str) -> str:
        """Return the declaration of an index that does not change."""

    @abstractmethod
    def allocated(self, s: Alloc, depth: int) -> Iterator[str]:
        """Yield an allocation with its body."""

    @abstractmethod
    def store(self, s: Store, tab: str) -> Iterator[str]:
        """Yield a store."""

    @abstractmethod
    def call(self, function: str, *arguments: str) -> str:
        """Return a call of one of the functions of indices, as an operand."""

    # -- statements
    def statement(self, s: Stmt, depth: int) -> Iterator[str]:
        """Yield the lines of a statement."""
        tab = self.tab * depth
        if isinstance(s, Block):
            for x in s.stmts:
                yield from self.statement(x, depth)
        elif isinstance(s, For):
            yield from self.nested(f"{tab}{self.loop_head(s)}", s.body, depth)
        elif isinstance(s, If):
            yield from self.nested(f"{tab}if ({self.condition(s.cond)})", s.body, depth)
        elif isinstance(s, Let):
            yield tab + self.bound(s.var, self.index(s.value))
            yield from self.statement(s.body, depth)
        elif isinstance(s, Alloc):
            yield from self.allocated(s, depth)
        elif isinstance(s, Store):
            yield from self.store(s, tab)
        else:
            raise InternalError(f"{type(self).__name__} has no text for the statement {type(s).__name__}")

    def nested(self, head: str, body: Stmt, depth: int) -> Iterator[str]:
        """Yield a body as the block after ``head``."""
        yield f"{head} {{"
        yield from self.statement(body, depth + 1)
        yield f"{self.tab * depth}}}"

    def name(self, x: Var | Buffer) -> str:
        """Return the name of a variable or a buffer."""
        return re.sub(r"\W", "_", x.name)

    # -- indices
    def index(self, e: Index) -> str:
        """Return an index as an operand."""
        if isinstance(e, Var):
            return self.name(e)
        if not e.terms:
            return str(e.const)
        if isinstance(e, (FloorDiv, Quot, Mod)):
            divisor = str(e.den) if isinstance(e.den, int) else self.index(e.den)
            return self.call("modulo" if isinstance(e, Mod) else "quotient", self.index(e.num), divisor)
        if isinstance(e, Prod):
            return f"({' * '.join(map(self.index, e.args))})"
        if isinstance(e, (Min, Max)):
            text = self.index(e.args[0])
            for x in e.args[1:]:
                text = self.call("least" if isinstance(e, Min) else "largest", text, self.index(x))
            return text
        assert isinstance(e, Affine)
        text = ""
        for atom, c in e.terms:
            body = self.index(atom) + (f" * {abs(c)}" if abs(c) != 1 else "")
            text += f" {'-' if c < 0 else '+'} {body}" if text else f"-{body}" if c < 0 else body
        const = f" {'-' if e.const < 0 else '+'} {abs(e.const)}" if e.const else ""
        return f"({text}{const})"

    def condition(self, c: Cond) -> str:
        """Return a condition."""
        if isinstance(c, Ge0):
            return f"{bare(self.index(c.arg))} >= 0"
        if isinstance(c, Eq0):
            return f"{bare(self.index(c.arg))} == 0"
        if isinstance(c, Never):
            return self.false
        assert isinstance(c, And)
        return " && ".join(map(self.condition, c.parts)) or self.true


def bare(text: str) -> str:
    """Return an operand without parentheses around all of it."""
    if (text[:1], text[-1:]) != ("(", ")"):
        return text
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and n < len(text) - 1:
            return text
    return text[1:-1]


def repeated_values(root: Value) -> list[Value]:
    """Return the values that every evaluation of ``root`` uses more than once, operands before what uses them, without
    loads and constants.
    """
    counts: Counter[Value] = Counter()
    order: dict[Value, None] = {}

    def visit(v: Value) -> None:
        counts[v] += 1
        if counts[v] > 1:
            return
        for x in _operands(v):
            visit(x)
        order[v] = None

    visit(root)
    return [v for v in order if counts[v] > 1 and not isinstance(v, (Load, Const))]


def _operands(v: Value) -> tuple[Value, ...]:
    """Return the operands that are always evaluated."""
    if isinstance(v, (Binary, Where)):
        return (v.a, v.b, *((v.yes, v.no) if isinstance(v, Where) else ()))
    if isinstance(v, Fma):
        return (v.a, v.b, v.c)
    return (v.a,) if isinstance(v, (Cast, Bits, Unary)) else ()
