"""Structural equality of IR up to the names of bound variables and buffers.

Loop variables, pointers, ``let`` variables, ``alloc``ed buffers and the parameters of kernels and functions are bound;
their names do not matter.  Free variables and free buffers are equal if their names and declarations are equal.  Names
of kernels, functions and instructions matter.  The nesting of blocks does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Var
from convsmith.ir.rewrite import Rewriter
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
    Function,
    If,
    Invoke,
    Kernel,
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
from convsmith.ir.text import buffer_text, lanes_text
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import children

Comparable = Kernel | Function | Stmt | Value | Cond | Index


def structural_equal(a: Comparable, b: Comparable) -> bool:
    """Return whether ``a`` and ``b`` are equal up to the names of variables and buffers bound in them."""
    return first_mismatch(a, b) is None


def first_mismatch(a: Comparable, b: Comparable) -> str | None:
    """Return a message with the path to the first difference of ``a`` and ``b`` and both fragments; None if they are
    equal.
    """
    scope = _Scope()
    try:
        if isinstance(a, Kernel) and isinstance(b, Kernel):
            _kernels(a, b, scope)
        elif isinstance(a, Function) and isinstance(b, Function):
            _functions(a, b, scope)
        elif isinstance(a, Stmt) and isinstance(b, Stmt):
            _stmts(a, b, scope)
        elif isinstance(a, (Kernel, Function, Stmt)) or isinstance(b, (Kernel, Function, Stmt)):
            raise _Mismatch(scope.path, type(a).__name__, type(b).__name__)
        else:
            scope.same(a, b)
    except _Mismatch as difference:
        return str(difference)
    return None


class _Mismatch(Exception):
    def __init__(self, path: Sequence[str], a: object, b: object) -> None:
        first_lines = [str(x).partition("\n")[0] for x in (a, b)]
        note = "" if first_lines[0] != first_lines[1] else " (the names are bound elsewhere)"
        super().__init__(f"{' > '.join(path) or 'top'}: `{first_lines[0]}` is not `{first_lines[1]}`{note}")


class _Canonical(Rewriter):
    """Replaces bound variables and buffers by their canonical names; a free buffer's name becomes its whole
    declaration.
    """

    def __init__(self, variables: Mapping[Var, Var], buffers: Mapping[Buffer, Buffer]) -> None:
        super().__init__()
        self._variables = variables
        self._buffers = dict(buffers)

    def visit_Var(self, v: Var) -> Var:
        return self._variables.get(v, v)

    def visit_Load(self, v: Load) -> Load:
        return Load(self.buffer(v.buffer), self.index(v.index), v.lanes)

    def buffer(self, b: Buffer) -> Buffer:
        if b not in self._buffers:
            self._buffers[b] = replace(b, name=f"{buffer_text(b)} @{b.scope}")
        return self._buffers[b]


@dataclass(frozen=True)
class _Scope:
    """The canonical names of variables and buffers bound on both sides, and the path from the root."""

    path: tuple[str, ...] = ()
    variables: tuple[dict[Var, Var], dict[Var, Var]] = field(default_factory=lambda: ({}, {}))
    buffers: tuple[dict[Buffer, Buffer], dict[Buffer, Buffer]] = field(default_factory=lambda: ({}, {}))
    numbers: Iterator[int] = field(default_factory=count)
    sides: list[_Canonical] = field(init=False)

    def __post_init__(self) -> None:
        sides = [_Canonical(v, b) for v, b in zip(self.variables, self.buffers)]
        object.__setattr__(self, "sides", sides)

    def at(self, *steps: str) -> _Scope:
        return replace(self, path=(*self.path, *steps))

    def bind(self, *pairs: tuple[Var, Var]) -> _Scope:
        """Return the scope in which each pair of variables has one canonical name."""
        a, b = dict(self.variables[0]), dict(self.variables[1])
        for x, y in pairs:
            a[x] = b[y] = Var(f"${next(self.numbers)}")
        return replace(self, variables=(a, b))

    def declare(self, pairs: Sequence[tuple[Buffer, Buffer]]) -> _Scope:
        """Return the scope in which each pair of buffers has one canonical name.

        The declarations of a pair may differ only in the name.
        """
        a, b = dict(self.buffers[0]), dict(self.buffers[1])
        for x, y in pairs:
            if (x.dtype, x.shape, x.blocks, x.scope) != (y.dtype, y.shape, y.blocks, y.scope):
                raise _Mismatch(self.path, f"{buffer_text(x)} @{x.scope}", f"{buffer_text(y)} @{y.scope}")
            a[x] = b[y] = replace(x, name=f"${next(self.numbers)}")
        return replace(self, buffers=(a, b))

    def require(self, same: bool, a: object, b: object) -> None:
        if not same:
            raise _Mismatch(self.path, a, b)

    def same(self, a: Any, b: Any) -> None:
        """Require that two indices, conditions or values are equal; the message shows the innermost part that differs.
        """
        if self._key(0, a) == self._key(1, b):
            return
        below = children(a), children(b)
        while type(a) is type(b) and isinstance(a, (Value, Cond)) and len(below[0]) == len(below[1]):
            differing = [(x, y) for x, y in zip(*below) if self._key(0, x) != self._key(1, y)]
            if len(differing) != 1 or not self._alike(a, b):
                break
            ((a, b),) = differing
            below = children(a), children(b)
        raise _Mismatch(self.path, a, b)

    def _alike(self, a: Any, b: Any) -> bool:
        """Return whether two nodes of one class are equal except for their children."""
        if isinstance(a, Load):
            return a.lanes == b.lanes and self.buffer(0, a.buffer) == self.buffer(1, b.buffer)
        return all(getattr(a, x, None) == getattr(b, x, None) for x in ("op", "dtype", "times", "group"))

    def _key(self, side: int, e: Any) -> str:
        return str(self.sides[side].expr(e))

    def buffer(self, side: int, b: Buffer) -> str:
        return self.sides[side].buffer(b).name

    def same_buffer(self, a: Buffer, b: Buffer) -> None:
        self.require(self.buffer(0, a) == self.buffer(1, b), buffer_text(a), buffer_text(b))


def _kernels(a: Kernel, b: Kernel, scope: _Scope) -> None:
    scope.require(a.name == b.name, f"kernel {a.name}", f"kernel {b.name}")
    scope = scope.at(f"kernel {a.name}")
    scope.require(len(a.params) == len(b.params), f"{len(a.params)} parameters", f"{len(b.params)} parameters")
    scope.require(a.index_bits == b.index_bits, f"#i{a.index_bits}", f"#i{b.index_bits}")
    same = a.streamed == b.streamed
    scope.require(same, *(f"#stream({sorted(k.streamed.items())})" for k in (a, b)))
    inner = scope.at("parameters").declare(list(zip(a.params, b.params)))
    inner = replace(inner, path=scope.path)
    scope.require(len(a.sizes) == len(b.sizes), f"{len(a.sizes)} sizes", f"{len(b.sizes)} sizes")
    inner = inner.bind(*zip(a.sizes, b.sizes))
    _stmts(a.body, b.body, inner)
    for what, xs, ys in (("function", a.functions, b.functions), ("pack", a.packs, b.packs),
                          ("before", a.before, b.before)):  # fmt: skip
        scope.require(len(xs) == len(ys), f"{len(xs)} {what}s", f"{len(ys)} {what}s")
    for f, g in zip(a.functions, b.functions):
        _functions(f, g, inner)
    for p, q in zip((*a.packs, *a.before), (*b.packs, *b.before)):
        _kernels(p, q, scope)


def _functions(a: Function, b: Function, scope: _Scope) -> None:
    scope.require(a.name == b.name, f"function {a.name}", f"function {b.name}")
    scope = scope.at(f"function {a.name}")
    shapes = [f"{len(f.pointers)} pointers, {len(f.indices)} indices" for f in (a, b)]
    scope.require(shapes[0] == shapes[1], *shapes)
    for (_, x), (_, y) in zip(a.pointers, b.pointers):
        scope.at("parameters").same_buffer(x, y)
    pointers = [(v, w) for (v, _), (w, _) in zip(a.pointers, b.pointers)]
    _stmts(a.body, b.body, scope.bind(*pointers, *zip(a.indices, b.indices)))


def _listed(s: Stmt) -> list[Stmt]:
    return [x for part in s.stmts for x in _listed(part)] if isinstance(s, Block) else [s]


def _stmts(a: Stmt, b: Stmt, scope: _Scope) -> None:
    xs, ys = _listed(a), _listed(b)
    for n, (x, y) in enumerate(zip(xs, ys), 1):
        _stmt(x, y, scope.at(f"statement {n}") if len(xs) > 1 else scope)
    if len(xs) > len(ys):
        raise _Mismatch(scope.at(f"statement {len(ys) + 1}").path, xs[len(ys)], "nothing")
    if len(ys) > len(xs):
        raise _Mismatch(scope.at(f"statement {len(xs) + 1}").path, "nothing", ys[len(xs)])


def _stmt(a: Stmt, b: Stmt, scope: _Scope) -> None:
    if isinstance(a, For) and isinstance(b, For):
        inside = scope.at(f"for {a.var}")
        inside.at("kind").require(a.kind == b.kind, a.kind, b.kind)
        inside.at("from").same(a.lo, b.lo)
        inside.at("to").same(a.hi, b.hi)
        inside.require(len(a.carried) == len(b.carried), f"{len(a.carried)} pointers", f"{len(b.carried)} pointers")
        for c, d in zip(a.carried, b.carried):
            at = inside.at(f"carrying {c.var}")
            at.same_buffer(c.buffer, d.buffer)
            at.same(c.init, d.init)
            at.require(c.step == d.step, f"step {c.step}", f"step {d.step}")
        _stmts(a.body, b.body, inside.bind((a.var, b.var), *((c.var, d.var) for c, d in zip(a.carried, b.carried))))
    elif isinstance(a, If) and isinstance(b, If):
        scope.at("if").same(a.cond, b.cond)
        _stmts(a.body, b.body, scope.at(f"if {a.cond}"))
    elif isinstance(a, Let) and isinstance(b, Let):
        inside = scope.at(f"let {a.var}")
        inside.same(a.value, b.value)
        _stmts(a.body, b.body, inside.bind((a.var, b.var)))
    elif isinstance(a, Alloc) and isinstance(b, Alloc):
        _stmts(a.body, b.body, scope.at(f"alloc {a.buffer}").declare([(a.buffer, b.buffer)]))
    elif isinstance(a, PointerLoad) and isinstance(b, PointerLoad):
        at = scope.at(f"at {a.table}")
        for one, other in ((a.table, b.table), (a.source, b.source), (a.zero, b.zero)):
            at.same_buffer(one, other)
        at.require(len(a.index) == len(b.index) and len(a.zero_at) == len(b.zero_at) and a.rows == b.rows, a, b)
        for i, j in zip((*a.index, a.offset, *a.zero_at), (*b.index, b.offset, *b.zero_at)):
            at.same(i, j)
        _stmts(a.body, b.body, at.declare([(a.buffer, b.buffer)]))
    elif isinstance(a, (Store, AtomicAdd)) and isinstance(b, (Store, AtomicAdd)):
        scope.require(type(a) is type(b), a, b)
        at = scope.at(f"store to {a.buffer}")
        at.same_buffer(a.buffer, b.buffer)
        at.require(len(a.index) == len(b.index), a, b)
        for i, j in zip(a.index, b.index):
            at.at("index").same(i, j)
        at.at("lanes").require(a.lanes == b.lanes, lanes_text(a.lanes), lanes_text(b.lanes))
        at.same(a.value, b.value)
    elif isinstance(a, Invoke) and isinstance(b, Invoke):
        scope.require(a.instruction == b.instruction and len(a.args) == len(b.args), a, b)
        for x, y in zip((a.dst, *a.args), (b.dst, *b.args)):
            scope.at(a.instruction).same(x, y)
    elif isinstance(a, Call) and isinstance(b, Call):
        shapes = [(c.function, len(c.pointers), len(c.indices)) for c in (a, b)]
        scope.require(shapes[0] == shapes[1], a, b)
        at = scope.at(f"call {a.function}")
        for (buffer, i), (other, j) in zip(a.pointers, b.pointers):
            at.same_buffer(buffer, other)
            at.same(i, j)
        for i, j in zip(a.indices, b.indices):
            at.same(i, j)
    elif isinstance(a, (Barrier, Turn)) and isinstance(b, type(a)):
        scope.require(a.part == b.part, a, b)
    elif isinstance(a, AsyncCopy) and isinstance(b, AsyncCopy):
        at = scope.at(f"copy to {a.dst.buffer}")
        at.same(a.dst, b.dst)
        at.same(a.src, b.src)
        at.require((a.cond is None) == (b.cond is None), a, b)
        if a.cond is not None:
            at.at("if").same(a.cond, b.cond)
    elif isinstance(a, TensorCopy) and isinstance(b, TensorCopy):
        at = scope.at(f"copy to {a.dst.buffer}")
        forms = [(x.map, len(x.at), len(x.offsets), x.groups, x.cond is None) for x in (a, b)]
        at.require(forms[0] == forms[1], a, b)
        for left, right in zip((a.dst, a.src, *a.at, *a.offsets), (b.dst, b.src, *b.at, *b.offsets)):
            at.same(left, right)
        if a.cond is not None and b.cond is not None:
            at.at("if").same(a.cond, b.cond)
    elif isinstance(a, Wait) and isinstance(b, Wait):
        scope.require((a.pending, a.of) == (b.pending, b.of), a, b)
    elif isinstance(a, ShareRegisters) and isinstance(b, ShareRegisters):
        scope.require((a.count, a.copiers) == (b.count, b.copiers), a, b)
    elif isinstance(a, Release) and isinstance(b, Release):
        scope.require(a.to_cluster == b.to_cluster, a, b)
        scope.at("release").same(a.step, b.step)
    elif isinstance(a, Prefetch) and isinstance(b, Prefetch):
        at = scope.at(f"prefetch of {a.buffer}")
        at.same_buffer(a.buffer, b.buffer)
        for i, j in zip(a.index, b.index):
            at.same(i, j)
    elif isinstance(a, (Commit, Fence)) and isinstance(b, (Commit, Fence)):
        scope.require((type(a), a.of) == (type(b), b.of), a, b)
    else:
        scope.require(type(a) is type(b) and isinstance(a, (Receive, Meet)), a, b)
