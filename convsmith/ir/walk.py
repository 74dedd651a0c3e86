"""Traversal of the IR: functions that list nodes, in preorder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from convsmith.ir.index import (
    Affine,
    And,
    Cond,
    Eq0,
    FloorDiv,
    Ge0,
    Index,
    Max,
    Min,
    Mod,
    Prod,
    Quot,
    Var,
)
from convsmith.ir.intern import Node
from convsmith.ir.stmt import (
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Block,
    Call,
    Commit,
    Fence,
    For,
    If,
    Invoke,
    Let,
    Meet,
    PointerLoad,
    Prefetch,
    Receive,
    Release,
    ShareRegisters,
    Stmt,
    Store,
    TensorCopy,
    Turn,
    Wait,
)
from convsmith.ir.value import (
    Binary,
    Bits,
    Cast,
    Const,
    Fma,
    Load,
    Lookup,
    Repeat,
    Select,
    Sum,
    Sums,
    Unary,
    Value,
    Where,
)

AnyNode = Stmt | Value | Cond | Index


def _no_children(n: object) -> tuple[AnyNode, ...]:
    return ()


_CHILDREN: dict[type, Callable[[Any], tuple[AnyNode, ...]]] = {
    Affine: lambda n: tuple([a for a, _ in n.terms]),
    FloorDiv: lambda n: (n.num,),
    Mod: lambda n: (n.num,),
    Min: lambda n: n.args,
    Max: lambda n: n.args,
    Prod: lambda n: n.args,
    Quot: lambda n: (n.num, n.den),
    Ge0: lambda n: (n.arg,),
    Eq0: lambda n: (n.arg,),
    And: lambda n: n.parts,
    Load: lambda n: n.index,
    Binary: lambda n: (n.a, n.b),
    Fma: lambda n: (n.a, n.b, n.c),
    Unary: lambda n: (n.a,),
    Cast: lambda n: (n.a,),
    Bits: lambda n: (n.a,),
    Select: lambda n: (n.cond, n.yes, n.no),
    Where: lambda n: (n.a, n.b, n.yes, n.no),
    Lookup: lambda n: (n.first, n.a),
    Repeat: lambda n: (n.a,),
    Sum: lambda n: (n.a,),
    Sums: lambda n: n.args,
    Block: lambda n: n.stmts,
    For: lambda n: (n.lo, n.hi, *(c.init for c in n.carried), n.body),
    If: lambda n: (n.cond, n.body),
    Let: lambda n: (n.value, n.body),
    Alloc: lambda n: (n.body,),
    PointerLoad: lambda n: (*n.index, n.offset, *n.zero_at, n.body),
    Store: lambda n: (*n.index, n.value),
    Invoke: lambda n: (n.dst, *n.args),
    Call: lambda n: (*(i for _, i in n.pointers), *n.indices),
    AsyncCopy: lambda n: (n.dst, n.src) if n.cond is None else (n.dst, n.cond, n.src),
    TensorCopy: lambda n: (n.dst, n.src, *n.at, *n.offsets, *(() if n.cond is None else (n.cond,))),
    AtomicAdd: lambda n: (*n.index, n.value),
    Barrier: _no_children,
    Commit: _no_children,
    Wait: _no_children,
    Fence: _no_children,
    Receive: _no_children,
    Meet: _no_children,
    ShareRegisters: _no_children,
    Turn: _no_children,
    Release: lambda n: (n.step,),
    Prefetch: lambda n: n.index,
}


WITHOUT_STATEMENTS = frozenset(
    {
        Store, Invoke, Call, AsyncCopy, TensorCopy, AtomicAdd, Barrier, Commit, Wait, Fence, Receive, Release, Meet,
        Prefetch, ShareRegisters, Turn,
    }
)  # fmt: skip
"""Classes of statements that contain no statement."""
_STATEMENTS = frozenset({Block, For, If, Let, Alloc, PointerLoad}) | WITHOUT_STATEMENTS
_COMPOSITES = frozenset({Binary, Fma, Unary, Cast, Bits, Select, Where, Lookup, Repeat, Sum, Sums, Const})


def children(n: AnyNode) -> tuple[AnyNode, ...]:
    """Return the nodes directly below ``n``, in order of evaluation."""
    return _CHILDREN.get(type(n), _no_children)(n)


def walk(n: AnyNode) -> Iterator[AnyNode]:
    """Return an iterator over ``n`` and everything below it in preorder; a composite value shared within one statement
    comes once.
    """
    found: list[AnyNode] = []
    seen: set[AnyNode] = set()
    stack = [n]
    while stack:
        x = stack.pop()
        t = type(x)
        if t in _STATEMENTS:
            seen.clear()
        elif t in _COMPOSITES:
            if x in seen:
                continue
            seen.add(x)
        found.append(x)
        if t is not Var:
            below = _CHILDREN.get(t)
            if below is not None:
                stack.extend(below(x)[::-1])
    return iter(found)


def loads_of(v: Value) -> Iterator[Load]:
    """Yield the loads in ``v``, in order of evaluation; the loads of a shared composite value are yielded once."""
    if type(v) is Load:
        yield v
        return
    seen: set[Value] = set()
    stack = [v]
    while stack:
        x = stack.pop()
        if type(x) is Load:
            yield x
        elif x not in seen:
            seen.add(x)
            stack.extend([c for c in children(x)[::-1] if isinstance(c, Value)])


def accesses_of(n: AnyNode) -> Iterator[Load | Store]:
    """Yield the loads and stores in ``n``."""
    yield from (x for x in walk(n) if isinstance(x, (Load, Store)))


EXPRESSIONS = frozenset(t.__name__ for t in _CHILDREN if t not in _STATEMENTS) | {"Var", "Const", "Never"}
"""Names of the classes of indices, conditions and values."""


def variables_of(n: AnyNode) -> frozenset[Var]:
    """Return all variables that occur in ``n``; every node keeps its own, because passes ask for them many times."""
    try:
        return n._variables  # type: ignore[union-attr,no-any-return]
    except AttributeError:
        pass
    if isinstance(n, Var):
        found = frozenset((n,))
    else:
        parts = [getattr(c, "_variables", None) or variables_of(c) for c in children(n)]
        found = parts[0] if len(parts) == 1 else _NONE.union(*parts)
    _KEEP[type(n) in _STATEMENTS](n, found)
    return found


_NONE: frozenset[Var] = frozenset()
_KEEP = (Node.__dict__["_variables"].__set__, Stmt.__dict__["_variables"].__set__)


def bound_in(s: Stmt) -> set[Var]:
    """Return the variables that ``s`` binds: loop variables, ``let`` variables and carried pointers."""
    out: set[Var] = set()
    for x in statements_of(s):
        if isinstance(x, (For, Let)):
            out.add(x.var)
        if isinstance(x, For):
            out.update(c.var for c in x.carried)
    return out


def loops_of(s: Stmt) -> Iterator[For]:
    """Return an iterator over all loops in ``s``, outermost first."""
    return iter([x for x in statements_of(s) if isinstance(x, For)])


def statements_of(s: Stmt) -> Iterator[Stmt]:
    """Return an iterator over ``s`` and all statements below it, in preorder; a generator would take twice as long."""
    found, stack = [], [s]
    while stack:
        x = stack.pop()
        found.append(x)
        t = type(x)
        if t is Block:
            stack.extend(x.stmts[::-1])  # type: ignore[attr-defined]
        elif t not in WITHOUT_STATEMENTS:
            stack.append(x.body)  # type: ignore[attr-defined]
    return iter(found)
