"""Collapse nested parallel loops into one loop over tasks.

Each task computes its loop variables by division.  Pieces of a partitioned loop, and bounds that depend on outer loops,
become conditions.  A loop may end at a size of the kernel.  A host thread runs a range of the task loop.

The rewrite requires that iterations of a parallel loop have no order; ``bind`` checks this with the dependence test,
also for consecutive loops that are pieces of one. All pieces must contain the same parallel loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from convsmith.arith.ranges import interval
from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index, conj, is_true, product, quotient, true
from convsmith.ir.stmt import Block, For, If, Kernel, Stmt, block
from convsmith.ir.walk import loops_of, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.lets import let
from convsmith.passes.scope import with_body

_Bounds = tuple[int, Index]


def are_pieces(loops: Sequence[For]) -> bool:
    """Return whether consecutive loops are pieces of one loop: they have the same variable, and no value in common."""
    if len(loops) == 1:
        return True
    ends = [(x.lo, x.hi) for x in loops]
    constant = all(lo.is_const and hi.is_const for lo, hi in ends) and len({x.var for x in loops}) == 1
    return constant and all(int(hi) <= int(lo) for (_, hi), (lo, _) in pairwise(ends))


def _pieces(s: Stmt) -> list[For]:
    """Return the statement as pieces of one parallel loop; empty if it is not a parallel loop."""
    parts = s.stmts if isinstance(s, Block) else (s,)
    loops = [p for p in parts if isinstance(p, For) and p.kind == "parallel"]
    if not loops:
        return []
    if len(loops) != len(parts) or not are_pieces(loops):
        raise ConfigError(
            "loop-kind",
            f"collapse: other statements stand beside parallel loop {loops[0].var}; legal is a parallel loop alone",
        )
    return loops


def _levels(s: Stmt, out: dict[Var, _Bounds], kernel: Kernel) -> list[Var]:
    """Collect the bounds of each loop, valid for all iterations of the loops around it; return the loops' variables."""
    found: list[list[Var]] = []
    pieces = _pieces(s)
    for loop in pieces:
        if loop.lo.is_const and loop.hi.terms and variables_of(loop.hi) <= set(kernel.sizes):
            out[loop.var] = (loop.lo.const, loop.hi)
        else:
            ranges = _ranges(out)
            lo, hi = interval(loop.lo, ranges)[0], interval(loop.hi, ranges)[1]
            known = out.get(loop.var)
            out[loop.var] = (min(lo, known[0]), as_index(max(hi, int(known[1])))) if known else (lo, as_index(hi))
        found.append([loop.var, *_levels(loop.body, out, kernel)])
    if other := next((x for x in found if x != found[0]), None):
        names = [", ".join(map(str, x[1:])) or "none" for x in (found[0], other)]
        raise ConfigError(
            "loop-kind",
            f"collapse: pieces of loop {other[0]} hold different parallel loops, {names[0]} and {names[1]}; legal is "
            f"the same ones in each",
        )
    return found[0] if found else []


def _ranges(levels: dict[Var, _Bounds]) -> dict[Var, tuple[int, int]]:
    return {v: (lo, int(hi) - 1) for v, (lo, hi) in levels.items() if hi.is_const}


def _guarded(s: Stmt, ranges: dict[Var, tuple[int, int]]) -> Stmt:
    pieces = _pieces(s)
    if not pieces:
        return s
    out = []
    for p in pieces:
        body = _guarded(p.body, ranges)
        cond = simplify(conj((p.var >= p.lo, p.var < p.hi)), ranges) if p.var in ranges else true()
        out.append(body if is_true(cond) else If(cond, body))
    return block(*out)


def _nests(body: Stmt) -> list[Stmt]:
    """Return the top-level statements, with adjacent pieces of one parallel loop grouped together."""
    out: list[list[Stmt]] = []
    last: Var | None = None
    for s in body.stmts if isinstance(body, Block) else (body,):
        var = s.var if isinstance(s, For) and s.kind == "parallel" else None
        if var is not None and var is last and are_pieces([*out[-1], s]):  # type: ignore[list-item]
            out[-1].append(s)
        else:
            out.append([s])
        last = var
    return [block(*x) for x in out]


@stages(*FLATTENED)
def collapse(kernel: Kernel, task: str = "task") -> Kernel:
    """Replace each nest of parallel loops at the top of the kernel by one parallel loop over tasks.

    Before::

        kernel k(a: f32[12], dst: f32[12])
          for i in 0 .. 3 #parallel:
            for j in 0 .. 3 #parallel:
              dst[i * 4 + j] = a[i * 4 + j]
            for j in 3 .. 4 #parallel:
              dst[i * 4 + j] = 0.0

    After ``collapse()``::

        kernel k(a: f32[12], dst: f32[12])
          for task in 0 .. 12 #parallel:
            let i = task // 4:
              let j = task % 4:
                if -j + 2 >= 0:
                  dst[i * 4 + j] = a[i * 4 + j]
                if j - 3 >= 0:
                  dst[i * 4 + j] = 0.0
    """
    if any(x.var.name == task for x in loops_of(kernel.body) if x.kind == "parallel"):
        raise ConfigError("loop-name", f"collapse: a parallel loop of kernel {kernel.name} is called {task} already")
    nests = _nests(kernel.body)
    tasks = [_tasks(nest, task, kernel) for nest in nests]
    return kernel if all(a is b for a, b in zip(nests, tasks)) else with_body(kernel, block(*tasks))


def _tasks(nest: Stmt, task: str, kernel: Kernel) -> Stmt:
    levels: dict[Var, _Bounds] = {}
    if _parallel(nest):
        _levels(nest, levels, kernel)
    if not levels:
        return nest
    body = _guarded(nest, _ranges(levels))
    lets = []
    place: Index = Var(task)
    total: Index = as_index(1)
    extents = [hi - lo for lo, hi in levels.values()]
    for n, (v, (lo, _)) in reversed(list(enumerate(levels.items()))):
        extent = extents[n]
        above = quotient(place, extent)
        remainder = place % extent.const if extent.is_const else place - product(above, extent)
        alone = all(e == as_index(1) for e in extents[:n])
        lets.append((v, (place if alone else remainder) + lo))
        place, total = above, product(total, extent)
    for v, value in lets:
        body = let(v, value, body)
    return For(Var(task), as_index(0), total, body, "parallel")


def _parallel(s: Stmt) -> bool:
    first = s.stmts[0] if isinstance(s, Block) and s.stmts else s
    return isinstance(first, For) and first.kind == "parallel"
