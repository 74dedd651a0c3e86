"""Replace vector statements by machine instructions, by matching them against specifications.

A row's specification is vectorised like any other nest and then unified with the statement: fragments of the
specification stand for what the kernel reads.  ``x + a * b`` is taken as ``fma(a, b, x)``, which rounds once; terms
that are added up without a factor are each multiplied by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import For, Invoke, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Cast, Fma, Load, Repeat, Sum, Value, const, dtype_of, lanes_of
from convsmith.ir.walk import Rewriter
from convsmith.passes.scope import with_body
from convsmith.passes.vectorise import vectorise

Binding = dict[Buffer, Value]


def contract(v: Value) -> Value:
    """``x + a * b`` as ``fma(a, b, x)``."""
    if isinstance(v, Binary) and v.op == "add":
        if isinstance(v.b, Binary) and v.b.op == "mul":
            return Fma(v.b.a, v.b.b, v.a)
        if isinstance(v.a, Binary) and v.a.op == "mul":
            return Fma(v.a.a, v.a.b, v.b)
    return v


@cache
def pattern(row: Instruction) -> tuple[Store, tuple[Buffer, ...]]:
    """The row's specification as one vector statement, and its operands after the accumulator.

    Only the structure of the statement is compared, so it serves every kernel.
    """
    kernel = row.kernel
    loop = kernel.body
    assert isinstance(loop, For)
    if isinstance(loop.body, For):
        kernel = vectorise(kernel, loop.body.var.name, row.terms)
    store = vectorise(kernel, loop.var.name, row.lanes).body
    assert isinstance(store, Store)
    return store, tuple(b for b in kernel.params if b.name != "c")


def unify(p: Value, v: Value, bound: Binding) -> Iterator[Binding]:
    """What the fragments of a pattern must stand for, so that it is the value: every way to do so."""
    if isinstance(p, Load):
        if lanes_of(v) != lanes_of(p) or dtype_of(v) is not dtype_of(p):
            return
        known = bound.get(p.buffer)
        if known is None or known is v:
            yield {**bound, p.buffer: v}
    elif isinstance(p, Fma) and isinstance(v, Fma):
        for a, b in ((v.a, v.b), (v.b, v.a)):
            for one in unify(p.c, v.c, bound):
                for two in unify(p.a, a, one):
                    yield from unify(p.b, b, two)
    elif isinstance(p, Binary) and isinstance(v, Binary) and p.op == v.op:
        for one in unify(p.a, v.a, bound):
            yield from unify(p.b, v.b, one)
        if p.op == "mul":
            for one in unify(p.a, v.b, bound):
                yield from unify(p.b, v.a, one)
    elif isinstance(p, Sum) and isinstance(v, Sum) and p.group == v.group:
        yield from unify(p.a, v.a, bound)
        if isinstance(p.a, Binary) and p.a.op == "mul":  # what is added up may also be each times one
            for factor, rest in ((p.a.a, p.a.b), (p.a.b, p.a.a)):
                if isinstance(factor, Cast) and isinstance(factor.a, Load):
                    ones = Repeat(const(factor.a.buffer.dtype, 1), lanes_of(factor.a))
                    yield from unify(rest, v.a, {**bound, factor.a.buffer: ones})
    elif isinstance(p, Cast) and isinstance(v, Cast) and p.dtype is v.dtype:
        yield from unify(p.a, v.a, bound)


class _Pick(Rewriter):
    def __init__(self, rows: Sequence[Instruction]) -> None:
        super().__init__()
        self.rows = [(row, pattern(row)) for row in rows if row.rows == 1]

    def Store(self, s: Store) -> Stmt:
        if s.lanes is None or s.buffer.scope != "register":
            return s
        value = contract(s.value)
        here = Load(s.buffer, s.index, s.lanes)
        for row, (p, operands) in self.rows:
            for bound in unify(contract(p.value), value, {p.buffer: here}):
                return Invoke(row.name, here, tuple([bound[b] for b in operands]))
        return s


def pick_instructions(kernel: Kernel, rows: Sequence[Instruction]) -> Kernel:
    """Use the first row that matches each vector statement on registers; what none matches stays.

    Before::

        kernel k(a: f32[3], b: f32[12], dst: f32[4])
          alloc acc: f32[4] @register:
            acc[0]{4} = 0.0
            for k in 0 .. 3:
              acc[0]{4} = acc[0]{4} + a[k]{4:0} * b[k * 4]{4}
            dst[0]{4} = acc[0]{4}

    After ``pick_instructions(ROWS)``::

        kernel k(a: f32[3], b: f32[12], dst: f32[4])
          alloc acc: f32[4] @register:
            acc[0]{4} = 0.0
            for k in 0 .. 3:
              multiply_add_128(acc[0]{4}, a[k]{4:0}, b[k * 4]{4})
            dst[0]{4} = acc[0]{4}
    """
    return with_body(kernel, _Pick(rows).stmt(kernel.body))
