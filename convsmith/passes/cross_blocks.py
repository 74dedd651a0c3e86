"""Write vectors that cross blocks of a layout by code of their own for each place in a block where a vector may begin.

Where groups fill no blocks, the place in a block at which the channels of a group begin depends on the group, so that
the lanes of a vector have no constant distances. The places recur: the channels of groups of 12 begin at 0, 12, 8 and 4
in blocks of 16. With a case for each of these, lanes have constant distances, and form a run in each block.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import gcd, lcm, prod

from convsmith.arith.simplify import simplify
from convsmith.ir.index import FloorDiv, Index, Mod, Var, conj, eq, floordiv, is_true, mod
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Block, For, If, Kernel, Stmt, Store, block
from convsmith.ir.walk import loops_of, statements_of, variables_of, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import ScopedRewriter, has_loop, loop_range, require_loops, with_body
from convsmith.passes.simplify import simplify_stmt

MAX_CASES = 16
"""Maximum number of cases of a nest."""


class _AtRemainder(Rewriter):
    """Rewrites the places of lanes within blocks where variables have known ``remainders`` by their periods."""

    def __init__(self, lane: Var, remainders: Mapping[Var, Index]) -> None:
        super().__init__()
        self.lane, self.remainders = lane, remainders

    def visit_Mod(self, e: Mod) -> Index:
        return mod(self.known(e), e.den) if self.lane in variables_of(e) else self._Mod(e)

    def visit_FloorDiv(self, e: FloorDiv) -> Index:
        if self.lane not in variables_of(e):
            return self._FloorDiv(e)
        return floordiv(self.known(e), e.den)

    def known(self, e: Mod | FloorDiv) -> Index:
        found: Index = substitute(e.num, self.remainders)
        return found


class _CrossBlocks(ScopedRewriter):
    def __init__(self, lane: str, most: int) -> None:
        super().__init__()
        self.lane, self.most = lane, most

    def visit_For(self, loop: For) -> Stmt:
        if not has_loop(loop, (self.lane,)):
            return loop
        if not _writes_memory(loop):
            return self._For(loop)
        periods = _periods(loop, Var(self.lane))
        if not periods:
            return loop
        within = {x.var: x for x in loops_of(loop) if x.var in periods}
        if any(x.kind != "unrolled" for x in within.values()):
            return self._For(loop)
        if within:
            ranges = {**self.ranges, **{x.var: loop_range(x, self.ranges) for x in loops_of(loop)}}
            return self.stmt(_Unrolled(within, ranges).stmt(loop))
        if not periods.keys() <= self.ranges.keys():
            return loop
        rests = [self.rests(v, n) for v, n in periods.items()]
        if prod(map(len, rests)) > self.most:
            return loop
        return block(*(self.case(loop, periods, each) for each in product(*rests)))

    def rests(self, v: Var, period: int) -> list[int]:
        """Return the remainders of ``v`` by its period."""
        lo, hi = self.ranges[v]
        return sorted({n % period for n in range(lo, min(hi, lo + period - 1) + 1)})

    def case(self, loop: For, periods: Mapping[Var, int], rests: tuple[int, ...]) -> Stmt:
        """Return ``loop`` where variables have the remainders ``rests`` by their ``periods``."""
        known = {v: floordiv(v, n) * n + rest for (v, n), rest in zip(periods.items(), rests)}
        cond = conj(eq(mod(v, n), rest) for (v, n), rest in zip(periods.items(), rests))
        cond = simplify(cond, self.ranges)
        body = simplify_stmt(_AtRemainder(Var(self.lane), known).stmt(loop), self.ranges)
        return body if is_true(cond) else If(cond, body)


class _Unrolled(ScopedRewriter):
    """Unrolls loops on which places in blocks depend."""

    def __init__(self, loops: Mapping[Var, For], ranges: Mapping[Var, tuple[int, int]]) -> None:
        super().__init__()
        self.loops = loops
        self.ranges = dict(ranges)

    def visit_For(self, loop: For) -> Stmt:
        if loop.var not in self.loops or not (loop.lo.is_const and loop.hi.is_const):
            return self._For(loop)
        bodies = (substitute(loop.body, {loop.var: loop.lo * 0 + n}) for n in range(loop.lo.const, loop.hi.const))
        return block(*(simplify_stmt(self.stmt(body), self.ranges) for body in bodies))


def _writes_memory(s: Stmt) -> bool:
    """Return whether a statement only writes memory outside of registers."""
    found = [*statements_of(s)]
    kinds = all(isinstance(x, (For, If, Block, Store)) for x in found)
    return kinds and all(x.buffer.scope != "register" for x in found if isinstance(x, Store))


def _periods(s: Stmt, lane: Var) -> dict[Var, int]:
    """Return the variables on which the places of lanes within blocks depend, each with the number of its iterations
    after which the places recur.
    """
    found: dict[Var, int] = {}
    atoms = {x for x in walk(s) if isinstance(x, (Mod, FloorDiv)) and lane in variables_of(x)}
    for atom in sorted(atoms, key=str):
        for v, step in atom.num.terms:
            if v is lane or not step % atom.den:
                continue
            if not isinstance(v, Var):
                return {}
            found[v] = lcm(found.get(v, 1), atom.den // gcd(atom.den, step))
    return found


@stages(*FLATTENED)
def cross_blocks(kernel: Kernel, lane: str, most: int = MAX_CASES) -> Kernel:
    """Split nests that write vectors along the loop ``lane`` across blocks into cases of constant distances of lanes.

    A nest of more than ``most`` cases is unchanged.

    Before::

        kernel k(a: f32[12], dst: f32[24])
          for g in 0 .. 2:
            for l in 0 .. 3:
              dst[(g * 3 + l) % 4 + (g * 3 + l) // 4 * 12] = a[g * 3 + l]

    After ``cross_blocks("l")``::

        kernel k(a: f32[12], dst: f32[24])
          for g in 0 .. 2:
            if g == 0:
              for l in 0 .. 3:
                dst[l] = a[g * 3 + l]
            if g - 1 == 0:
              for l in 0 .. 3:
                dst[(l + 3) % 4 + (l + 3) // 4 * 12] = a[g * 3 + l]
    """
    require_loops(kernel, (lane,), "cross_blocks")
    return with_body(kernel, _CrossBlocks(lane, most).stmt(kernel.body))
