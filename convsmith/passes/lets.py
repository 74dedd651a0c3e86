"""Helpers of the passes that bind index expressions to variables: which expressions are costly, and the binding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from convsmith.ir.index import FloorDiv, Index, Max, Min, Mod, Prod, Quot, Var
from convsmith.ir.intern import nodes
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Let, Stmt
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import AnyNode, children, variables_of

COSTLY = frozenset({FloorDiv, Mod, Min, Max, Prod, Quot})


def costly(n: AnyNode) -> Counter[Index]:
    """Return the outermost divisions, modulos, minima, maxima and products below ``n``, with their number of
    occurrences.

    A value shared within one statement counts once.
    """
    out: Counter[Index] = Counter()
    seen: set[AnyNode] = set()
    stack = [n]
    while stack:
        x = stack.pop()
        if type(x) in COSTLY:
            out[x] += 1  # type: ignore[index]
            continue
        if isinstance(x, Stmt):
            seen.clear()
        elif isinstance(x, Value) and not isinstance(x, Load):
            if x in seen:
                continue
            seen.add(x)
        stack.extend(c for c in children(x) if variables_of(c) and (isinstance(c, Stmt) or has_costly(c)))
    return out


def has_costly(e: AnyNode) -> bool:
    """Return whether the expression ``e`` has a division, modulo, minimum, maximum or product; the table of nodes keeps
    the answer.
    """
    known = nodes()
    found: bool | None = known.get((has_costly, e))
    if found is None:
        found = known[has_costly, e] = type(e) in COSTLY or any(map(has_costly, children(e)))
    return found


class Name(Rewriter):
    """Replaces whole expressions by their names, variables for example."""

    def __init__(self, names: Mapping[Any, Any]) -> None:
        super().__init__()
        self.names = names

    def expr(self, e: Any) -> Any:
        """Return the name of ``e``, or ``e`` rewritten."""
        named = self.names.get(e)
        return super().expr(e) if named is None else named


class Fresh:
    """Generates variable names with a prefix that a statement does not use yet."""

    def __init__(self, prefix: str, used: Iterable[Var]) -> None:
        self.prefix, self.count = prefix, 0
        self.used = {v.name for v in used}

    def __call__(self) -> Var:
        while True:
            name = f"{self.prefix}{self.count}"
            self.count += 1
            if name not in self.used:
                return Var(name)


def let(var: Var, value: Index, body: Stmt) -> Stmt:
    """Return ``body`` where ``var`` has the ``value``: bound to it, unless ``body`` does not use it, or the value is a
    variable or a constant, which takes its place.
    """
    if value.is_const or type(value) is Var:
        return substitute(body, {var: value})  # type: ignore[no-any-return]
    return Let(var, value, body) if var in variables_of(body) else body


def name_all(s: Stmt, exprs: Iterable[Index], fresh: Fresh) -> Stmt:
    """Return ``s`` within ``let``s that bind ``exprs``; inside, the expressions are replaced by their variables."""
    names = {e: fresh() for e in exprs}
    if not names:
        return s
    s = Name(names).stmt(s)
    for e, v in reversed(names.items()):
        s = Let(v, e, s)
    return s
