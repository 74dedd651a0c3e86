"""Replace loops of kind ``unrolled`` by their iterations."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Affine, Index, Term, Var, as_index, from_sorted
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import UNROLLED
from convsmith.ir.stmt import Block, For, Invoke, Kernel, Let, Stmt, Store, block
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body

BUDGET = 20_000
_NOTHING = Block(())

Splits = dict[Index, tuple[tuple[Term, ...], list[tuple[Var, int]]] | None]
"""For a sum, the terms that remain and the unrolled variables that only change its constant; None if it must be
rebuilt.
"""


class _Unroll(Rewriter):
    """Tracks the values of the unrolled variables and creates every statement once, in its final form."""

    def __init__(self, loops: tuple[str, ...], budget: int) -> None:
        super().__init__()
        self.loops, self.budget, self.made = loops, budget, 0
        self.values: dict[Var, int] = {}
        self.known: dict[frozenset[Var], Splits] = {}
        self.splits: Splits = {}

    def entered(self) -> None:
        """Discard cached results, which depend on the values of the unrolled variables."""
        self._memo = {}
        self.splits = self.known.setdefault(frozenset(self.values), {})

    def visit_For(self, loop: For) -> Stmt:
        if loop.kind != "unrolled" or (self.loops and loop.var.name not in self.loops):
            return self._For(loop)
        lo, hi = self.expr(loop.lo), self.expr(loop.hi)
        if not (lo.is_const and hi.is_const):
            raise ConfigError("bounds", f"unroll: loop {loop.var} runs {lo} .. {hi}, no constants")
        out: list[Stmt] = []
        outer = self._memo, self.splits
        self.values[loop.var] = lo.const
        self.entered()
        for n in range(lo.const, hi.const):
            self.values[loop.var] = n
            self._memo = {}
            s = self.stmt(loop.body)
            if isinstance(s, Block):
                out.extend(s.stmts)
            else:
                out.append(s)
        self.values.pop(loop.var, None)
        self._memo, self.splits = outer
        return block(*out) if out else _NOTHING

    def visit_Let(self, s: Let) -> Stmt:
        """Drop a ``let`` whose value became constant."""
        value = self.expr(s.value)
        if not value.is_const:
            return self._Let(s)
        outer = self._memo, self.splits
        self.values[s.var] = value.const
        self.entered()
        body = self.stmt(s.body)
        del self.values[s.var]
        self._memo, self.splits = outer
        return body

    def visit_Var(self, v: Var) -> Index:
        n = self.values.get(v)
        return v if n is None else as_index(n)

    def visit_Affine(self, e: Affine) -> Index:
        """Add the unrolled variables to the constant, unless they occur inside a division or an extremum."""
        if e not in self.splits:
            hidden = any(type(a) is not Var and variables_of(a) & self.values.keys() for a, _ in e.terms)
            moving = [(a, c) for a, c in e.terms if type(a) is Var and a in self.values]
            self.splits[e] = None if hidden else (tuple(t for t in e.terms if t[0] not in self.values), moving)
        split = self.splits[e]
        if split is None:
            return self._Affine(e)
        staying, moving = split
        if not moving:
            return e if len(staying) == len(e.terms) else self._Affine(e)
        return from_sorted(e.const + sum([c * self.values[v] for v, c in moving]), staying)

    def visit_Store(self, s: Store) -> Stmt:
        self.count()
        return self._Store(s)

    def visit_Invoke(self, s: Invoke) -> Stmt:
        self.count()
        return self._Invoke(s)

    def count(self) -> None:
        self.made += 1
        if self.made > self.budget:
            raise ConfigError(
                "unroll-budget",
                f"unroll: more than {self.budget} statements; loops {', '.join(map(str, self.values))} are too long",
            )


@stages(*FLATTENED, ensures=UNROLLED, partial=True)
def unroll(kernel: Kernel, loops: tuple[str, ...] = (), budget: int = BUDGET) -> Kernel:
    """Unroll ``loops``, or all loops, of kind ``unrolled``; more than ``budget`` statements is a ConfigError.

    Before::

        kernel k(a: f32[8, 2], dst: f32[8, 2])
          for i in 0 .. 8:
            for j in 0 .. 2 #unrolled:
              if i - j >= 0:
                dst[i, j] = a[i - j, j]

    After ``unroll()``::

        kernel k(a: f32[8, 2], dst: f32[8, 2])
          for i in 0 .. 8:
            if i >= 0:
              dst[i, 0] = a[i, 0]
            if i - 1 >= 0:
              dst[i, 1] = a[i - 1, 1]
    """
    return each_body(kernel, lambda s: _Unroll(loops, budget).stmt(s))
