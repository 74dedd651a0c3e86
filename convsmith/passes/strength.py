"""Strength reduction: loops carry pointers instead of computing addresses.

In each serial loop, positions that advance by a constant step per iteration become pointers that the loop carries.
Offsets due to inner loops that will be unrolled stay constant distances from the pointer. Three kinds of positions do
not advance by a constant step and are left alone: positions behind an entry of a pointer table, positions in an array
that the loop's body allocates, and positions that contain the loop's variable inside a minimum or maximum.
"""

from __future__ import annotations

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Term, Var, from_sorted
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import Alloc, Carried, For, Kernel, PointerLoad, Prefetch, Stmt, Store
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import bound_in, statements_of, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


class _Carry(Rewriter):
    """Replaces positions that advance with ``loop`` by pointers, and collects the pointers; ``passed`` pointers are
    parameters of a function.
    """

    def __init__(self, loop: For, passed: frozenset[Var]) -> None:
        super().__init__()
        self.loop, self.passed = loop, passed
        self.local = bound_in(loop.body)
        self.within = {s.buffer for s in statements_of(loop.body) if isinstance(s, (Alloc, PointerLoad))}
        self.pointers: dict[tuple[Buffer, tuple[Term, ...]], Carried] = {}

    def stmt(self, s: Stmt) -> Stmt:
        return super().stmt(s) if self.loop.var in variables_of(s) else s

    def position(self, buffer: Buffer, e: Index) -> Index:
        var = self.loop.var
        base: list[Term] = []
        offset: list[Term] = []
        step = 0
        for a, c in e.terms:
            names = variables_of(a)
            if (a is var or var not in names) and names.isdisjoint(self.local):
                base.append((a, c))
                step = c if a is var else step
            else:
                offset.append((a, c))
        whole = (c % buffer.dtype.per_byte == 0 or a in self.passed for a, c in base)
        if not (step and all(whole)):  # a pointer points at a whole byte
            return e
        key_expr = from_sorted(0, tuple(base))
        key = (buffer, key_expr.terms)
        if key not in self.pointers:
            number = sum(1 for b, _ in self.pointers if b is buffer)
            name = f"{buffer.name}.{var.name}" + (f".{number}" if number else "")
            self.pointers[key] = Carried(Var(name), buffer, substitute(key_expr, {var: self.loop.lo}), step)
        return self.pointers[key].var + from_sorted(e.const, tuple(offset))

    def access(self, buffer: Buffer, index: tuple[Index, ...]) -> tuple[Index, ...]:
        if buffer.in_registers or buffer in self.within:
            return index
        return (self.position(buffer, index[0]),)

    def visit_PointerLoad(self, s: PointerLoad) -> Stmt:
        index, zero_at = self.access(s.table, s.index), self.access(s.zero, s.zero_at)
        return PointerLoad(s.buffer, s.table, index, s.offset, s.source, s.zero, zero_at, self.stmt(s.body), s.rows)

    def visit_Load(self, v: Load) -> Value:
        return Load(v.buffer, self.access(v.buffer, v.index), v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        return Store(s.buffer, self.access(s.buffer, s.index), self.expr(s.value), s.lanes)

    def visit_Prefetch(self, s: Prefetch) -> Stmt:
        return Prefetch(s.buffer, self.access(s.buffer, s.index))

    def visit_For(self, s: For) -> Stmt:
        carried = tuple(c._replace(init=self.access(c.buffer, (c.init,))[0]) for c in s.carried)
        return For(s.var, s.lo, s.hi, self.stmt(s.body), s.kind, carried)


class _Strength(Rewriter):
    def __init__(self, passed: frozenset[Var]) -> None:
        super().__init__()
        self.passed = passed

    def visit_For(self, loop: For) -> Stmt:
        body = self.stmt(loop.body)
        if body is not loop.body:
            loop = For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)
        if loop.kind != "serial":
            return loop
        carry = _Carry(loop, self.passed)
        body = carry.stmt(body)
        if not carry.pointers:
            return loop
        return For(loop.var, loop.lo, loop.hi, body, loop.kind, (*loop.carried, *carry.pointers.values()))


@stages(*FLATTENED, ensures=TENSORISED)
def strength_reduce(kernel: Kernel) -> Kernel:
    """Let every serial loop carry pointers to the positions that advance with it; requires a flat kernel.

    Before::

        kernel k(a: f32[96], dst: f32[12])
          for i in 0 .. 3:
            for j in 1 .. 4:
              for u in 0 .. 2 #unrolled:
                dst[i * 4 + j] = a[i * 32 + j * 8 + u]

    After ``strength_reduce()``::

        kernel k(a: f32[96], dst: f32[12])
          for i in 0 .. 3 carrying dst.i: dst = 0 step 4, a.i: a = 0 step 32:
            for j in 1 .. 4 carrying dst.j: dst = dst.i + 1 step 1, a.j: a = a.i + 8 step 8:
              for u in 0 .. 2 #unrolled:
                dst[dst.j] = a[a.j + u]
    """
    passed = frozenset(var for f in kernel.functions for var, _ in f.pointers)
    return each_body(kernel, lambda s: _Strength(passed).stmt(s))
