"""Replace loops of kind ``unrolled`` by their iterations."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Affine, Cond, Ge0, Index, Term, Var, as_index, from_sorted, ge0
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import UNROLLED
from convsmith.ir.stmt import Block, For, Invoke, Kernel, Let, Stmt, Store, block
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body

BUDGET = 20_000
_NOTHING = Block(())

Moving = list[tuple[Var, int]]
"""Unrolled variables with their coefficients in a sum."""


class _Known:
    """Facts about expressions that hold while certain variables are unrolled, whatever their values are.

    ``splits`` has, for a sum, the terms that remain and the unrolled variables that only change its constant; None if
    it must be rebuilt. ``loads`` has, for an access, the constant and the unrolled variables of each coordinate, and
    the accesses that were made, by the constants of their coordinates; None if it must be rebuilt.
    """

    def __init__(self) -> None:
        self.splits: dict[Index, tuple[tuple[Term, ...], Moving] | None] = {}
        self.loads: dict[Load, tuple[list[tuple[int, Moving]], dict[tuple[int, ...], Value]] | None] = {}


class _Unroll(Rewriter):
    """Tracks the values of the unrolled variables and creates every statement once, in its final form."""

    def __init__(self, loops: tuple[str, ...], budget: int) -> None:
        super().__init__()
        self.loops, self.budget, self.made = loops, budget, 0
        self.values: dict[Var, int] = {}
        self.by_variables: dict[frozenset[Var], _Known] = {}
        self.known = _Known()

    def entered(self) -> None:
        """Discard cached results, which depend on the values of the unrolled variables."""
        self._memo = {}
        self.known = self.by_variables.setdefault(frozenset(self.values), _Known())

    def visit_For(self, loop: For) -> Stmt:
        if loop.kind != "unrolled" or (self.loops and loop.var.name not in self.loops):
            return self._For(loop)
        lo, hi = self.expr(loop.lo), self.expr(loop.hi)
        if not (lo.is_const and hi.is_const):
            raise ConfigError("bounds", f"unroll: loop {loop.var} runs {lo} .. {hi}, no constants")
        out: list[Stmt] = []
        outer = self._memo, self.known
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
        self._memo, self.known = outer
        return block(*out) if out else _NOTHING

    def visit_Let(self, s: Let) -> Stmt:
        """Drop a ``let`` whose value became constant."""
        value = self.expr(s.value)
        if not value.is_const:
            return self._Let(s)
        outer = self._memo, self.known
        self.values[s.var] = value.const
        self.entered()
        body = self.stmt(s.body)
        del self.values[s.var]
        self._memo, self.known = outer
        return body

    def visit_Var(self, v: Var) -> Index:
        n = self.values.get(v)
        return v if n is None else as_index(n)

    def split(self, e: Index) -> tuple[tuple[Term, ...], Moving] | None:
        """Return the terms of a sum that remain, and those of unrolled variables; None if one of these occurs inside a
        division or an extremum.
        """
        splits = self.known.splits
        if e not in splits:
            hidden = any(type(a) is not Var and variables_of(a) & self.values.keys() for a, _ in e.terms)
            moving = [(a, c) for a, c in e.terms if type(a) is Var and a in self.values]
            splits[e] = None if hidden else (tuple(t for t in e.terms if t[0] not in self.values), moving)
        return splits[e]

    def visit_Affine(self, e: Affine) -> Index:
        """Add the unrolled variables to the constant, unless they occur inside a division or an extremum."""
        split = self.split(e)
        if split is None:
            return self._Affine(e)
        staying, moving = split
        if not moving:
            return e if len(staying) == len(e.terms) else self._Affine(e)
        return from_sorted(e.const + sum([c * self.values[v] for v, c in moving]), staying)

    def visit_Ge0(self, c: Ge0) -> Cond:
        split = self.split(c.arg)
        if split is None or split[0]:
            return self._Ge0(c)
        return ge0(as_index(c.arg.const + sum([k * self.values[v] for v, k in split[1]])))

    def visit_Load(self, v: Load) -> Value:
        """Make each access once for equal constants of its coordinates."""
        loads = self.known.loads
        if v not in loads:
            splits = [self.split(i) for i in v.index]
            loads[v] = None if None in splits else ([(i.const, s[1]) for i, s in zip(v.index, splits) if s], {})
        found = loads[v]
        if found is None:
            return self._Load(v)
        coordinates, made = found
        values, constants = self.values, []
        for const, moving in coordinates:
            for x, c in moving:
                const += c * values[x]
            constants.append(const)
        key = tuple(constants)
        load = made.get(key)
        if load is None:
            load = made[key] = self._Load(v)
        return load

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
