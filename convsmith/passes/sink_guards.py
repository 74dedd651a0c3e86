"""Guard the statements that need a condition, rather than the loops around them.

A condition around several statements moves to each of them. It is dropped at a statement that sets elements of private
memory to a constant, if the memory has room: the added iterations write their own elements, and every other statement
that writes the buffer adds to an element that it reads, so no uninitialised element is accessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convsmith.arith.dependence import is_injective
from convsmith.arith.simplify import simplify
from convsmith.ir.index import Cond, Ge0, Min, conj, is_true, parts_of
from convsmith.ir.stmt import Alloc, Block, For, If, Kernel, Stmt, Store, block
from convsmith.ir.value import Const
from convsmith.ir.walk import statements_of
from convsmith.passes.accesses import sites_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import ScopedRewriter, bounds_of, loop_range, with_body
from convsmith.passes.simplify import simplify_stmt


class _SinkGuards(ScopedRewriter):
    def __init__(self) -> None:
        super().__init__()
        self.alone: set[Stmt] = set()
        """Stores of constants that initialise elements of private memory, each element once."""

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if s.buffer.scope == "cache":
            self.alone.update(_first_values(s))
        return self._Alloc(s)

    def visit_If(self, s: If) -> Stmt:
        cond = conj(p for part in parts_of(s.cond) for p in _bounds(part))
        if cond is not s.cond:
            return self.stmt(simplify_stmt(If(cond, s.body), self.ranges))
        inner = _divided(s.body)
        if isinstance(inner, Block):
            guarded = [If(s.cond, x) for x in inner.stmts]
            return self.stmt(_with_inner(s.body, block(*guarded)))
        if isinstance(inner, Store) and inner in self.alone:
            kept = self.needed(s.cond, s.body, inner)
            body = self.stmt(s.body)
            return body if is_true(kept) else If(kept, body)
        return self._If(s)

    def needed(self, cond: Cond, nest: Stmt, store: Store) -> Cond:
        """Return the parts of ``cond`` without which a ``store`` in a ``nest`` would leave its buffer."""
        ranges = dict(self.ranges)
        for x in statements_of(nest):
            if isinstance(x, For):
                ranges[x.var] = loop_range(x, ranges)
        required = {simplify(c, ranges) for c in bounds_of(store.buffer, store.index)}
        parts = [p for p in parts_of(cond) if simplify(p, ranges) in required]
        held = {simplify(p, ranges) for p in parts}
        return conj(parts) if all(is_true(c) or c in held for c in required) else cond


def _bounds(cond: Cond) -> Iterator[Cond]:
    """Yield the conditions that ``cond`` implies: if it bounds a minimum, one for each operand of the minimum."""
    terms = cond.arg.terms if isinstance(cond, Ge0) else ()
    least = next((a for a, factor in terms if isinstance(a, Min) and factor == 1), None)
    if least is None:
        yield cond
        return
    assert isinstance(cond, Ge0)
    for arg in least.args:
        yield from _bounds(cond.arg - least + arg >= 0)


def _divided(s: Stmt) -> Stmt:
    """Return the first statement below loops, allocations and conditions: a block, or a single statement."""
    while isinstance(s, (For, Alloc, If)):
        s = s.body
    return s


def _with_inner(s: Stmt, inner: Stmt) -> Stmt:
    """Return ``s`` with ``inner`` in place of the statement that :func:`_divided` finds."""
    if isinstance(s, For):
        return For(s.var, s.lo, s.hi, _with_inner(s.body, inner), s.kind, s.carried)
    if isinstance(s, Alloc):
        return Alloc(s.buffer, _with_inner(s.body, inner))
    if isinstance(s, If):
        return If(s.cond, _with_inner(s.body, inner))
    return inner


def _first_values(s: Alloc) -> Sequence[Stmt]:
    """Return the store of a constant that initialises each element of the buffer of ``s``, if there is one."""
    stores = [x for x in statements_of(s.body) if isinstance(x, Store) and x.buffer is s.buffer]
    first = [x for x in stores if isinstance(x.value, Const)]
    if len(first) != 1 or first[0].lanes is not None:
        return []
    sites = [x for x in sites_of(s.body, {}) if x.access.buffer is s.buffer]
    own = [x for x in sites if x.access.is_write and not x.is_sum]
    if len(own) != 1 or not is_injective(own[0].access, own[0].access):
        return []
    return first


@stages(*LOOPS)
def sink_guards(kernel: Kernel) -> Kernel:
    """Move conditions from around several statements to each of them, and drop them from initialisations.

    Before::

        kernel k(a: f32[5, 3], b: f32[6])
          alloc t: f32[6] @cache:
            for i in 0 .. 6:
              if -i + 4 >= 0:
                t[i] = 0.0
                for k in 0 .. 3:
                  t[i] = t[i] + a[i, k]
            for j in 0 .. 5:
              b[j] = t[j]

    After ``sink_guards()``::

        kernel k(a: f32[5, 3], b: f32[6])
          alloc t: f32[6] @cache:
            for i in 0 .. 6:
              t[i] = 0.0
              if -i + 4 >= 0:
                for k in 0 .. 3:
                  t[i] = t[i] + a[i, k]
            for j in 0 .. 5:
              b[j] = t[j]
    """
    return with_body(kernel, _SinkGuards().stmt(kernel.body))
