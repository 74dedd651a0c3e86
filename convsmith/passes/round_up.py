"""Round lane loops up to a full vector if they write only registers or the kernel's private memory.

The rewrite requires that no original iteration reads an element that an added iteration writes. The dependence test
decides this, except for two accesses that the old end of a loop, which is their coordinate, separates. A loop whose
added iterations write elements that are read keeps its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from convsmith.arith.dependence import Access, Distances
from convsmith.arith.ranges import Range, try_interval
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Var, as_index, conj, parts_of
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, For, If, Kernel, PointerLoad, Stmt, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import loops_of, statements_of, variables_of, walk
from convsmith.passes.accesses import Site, sites_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import ScopedRewriter, extent, loop_range, require_loops, require_no_effects, with_body


def _legal(loop: For, n: int, outer: Mapping[Var, Range], shared: AbstractSet[Buffer]) -> bool:
    """Return whether the added iterations write only registers and private memory (no ``shared`` buffer), and read only
    existing elements.
    """
    ranges = {**outer, loop.var: (0, n - 1)}
    for s in statements_of(loop.body):
        if isinstance(s, For):
            ranges[s.var] = loop_range(s, ranges)
        if isinstance(s, Store) and (s.buffer in shared or not _private(s, ranges)):
            return False
    for x in walk(loop.body):
        if isinstance(x, (PointerLoad, Load)) and any(loop.var in variables_of(i) for i in x.index):
            for i, size in zip(x.index, (x.table if isinstance(x, PointerLoad) else x.buffer).shape):
                r = try_interval(i, ranges)
                if r is None or r[0] < 0 or r[1] >= size:
                    return False
    return True


def _private(s: Store, ranges: Mapping[Var, Range]) -> bool:
    """Return whether a store stays within registers or private memory."""
    if s.buffer.scope not in ("cache", "register"):
        return False
    intervals = [try_interval(i, ranges) for i in s.index]
    return all(r is not None and 0 <= r[0] and r[1] < size for r, size in zip(intervals, s.buffer.shape))


def _guarded(body: Stmt, cond: Cond) -> Stmt:
    """Return ``body`` where ``cond`` holds too, one test with those of its innermost statement."""
    if isinstance(body, For):
        return For(body.var, body.lo, body.hi, _guarded(body.body, cond), body.kind, body.carried)
    return If(conj((cond, *parts_of(body.cond))), body.body) if isinstance(body, If) else If(cond, body)


class _RoundUp(ScopedRewriter):
    def __init__(self, names: tuple[str, ...], widths: Mapping[str, int], shared: AbstractSet[Buffer]) -> None:
        super().__init__()
        self.names, self.widths, self.shared = names, widths, shared
        self.short: set[Buffer] = set()
        """Register arrays that loops write that are not rounded up."""

    def visit_Alloc(self, s: Alloc) -> Stmt:
        made = self._Alloc(s)
        return self._Alloc(s) if s.buffer.scope == "register" and s.buffer in self.short else made

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name not in self.names:
            return self._For(loop)
        n = max(extent(loop, self.ranges), self.widths.get(loop.var.name, 0))
        if loop.hi is as_index(n):
            return self._For(loop)
        if loop.lo is as_index(0) and _legal(loop, n, self.ranges, self.shared) and not self.keeps_short(loop):
            body = loop.body if self.runs(loop) else _guarded(loop.body, loop.hi > 0)
            return self._For(For(loop.var, loop.lo, as_index(n), body, loop.kind, loop.carried))
        self.short |= {s.buffer for s in statements_of(loop.body) if isinstance(s, Store)}
        return self._For(loop)

    def runs(self, loop: For) -> bool:
        """Return whether ``loop`` has an iteration wherever it stands."""
        ends = try_interval(loop.hi, self.ranges)
        return ends is not None and ends[0] > 0

    def keeps_short(self, loop: For) -> bool:
        """Return whether ``loop`` moves sums to memory or from it, and no loop computes their lanes beyond the last.

        These lanes are then never read, and their products need not be zero.
        """
        for s in statements_of(loop.body):
            if isinstance(s, Store) and isinstance(s.value, Load):
                sums, memory = sorted((s.buffer, s.value.buffer), key=lambda x: x.scope != "register")
                if sums in self.short and memory.scope != "register":
                    return True
        return False


@record(frozen=True)
class _Rounded:
    """An access after the rewrite; ``ends`` are the old ends of the loops around it, ``longer`` the loops that were
    extended.
    """

    site: Site
    ends: Mapping[Var, Index]
    longer: Sequence[Var]

    def access(self, *conds: Cond) -> Access:
        return replace(self.site.access, conds=(*self.site.access.conds, *conds))


def _written_and_read(old: Stmt, new: Stmt) -> set[Buffer]:
    """Return the buffers with an element that an iteration of ``old`` reads and an iteration added in ``new`` writes.
    """
    rounded = []
    written = _written_in_longer(old, new)
    for before, after in zip(sites_of(old, {}, True, written), sites_of(new, {}, True, written)):
        pairs = list(zip(before.access.loops, after.access.loops))
        longer = [x.var for x, y in pairs if x.hi is not y.hi]
        rounded.append(_Rounded(after, {x.var: x.hi for x, _ in pairs}, longer))
    reads = [x for x in rounded if not x.site.access.is_write]
    return {
        w.site.access.buffer for w in rounded if w.site.access.is_write
        if any(w.site.storage is r.site.storage and _may_meet(w, r) for r in reads)
    }  # fmt: skip


def _written_in_longer(old: Stmt, new: Stmt) -> set[Buffer]:
    """Return the buffers that loops of ``new`` write which are longer than in ``old``, the same statement before."""
    pairs = zip(loops_of(old), loops_of(new))
    return {s.buffer for x, y in pairs if x.hi is not y.hi for s in statements_of(y) if isinstance(s, Store)}


def _may_meet(w: _Rounded, r: _Rounded) -> bool:
    """Return whether ``r`` may read, in an old iteration, an element that an added iteration writes in ``w``."""
    kept = parts_of(conj(var < r.ends[var] for var in r.longer))
    for var in w.longer:
        if not _are_apart(w, r, var):
            distances = Distances(w.access(var >= w.ends[var]), r.access(*kept), {}, w.site.private)
            if distances.occur({}):
                return True
    return False


def _are_apart(w: _Rounded, r: _Rounded, var: Var) -> bool:
    """Return whether ``var`` is a coordinate of ``w``, and the same coordinate of ``r`` is a loop with its old end."""
    same: dict[Var, Index] = {x.var: x.var for x in w.site.access.loops[: w.site.private]}
    for i, j in zip(w.site.access.index or (), r.site.access.index or ()):
        if isinstance(i, Var) and isinstance(j, Var):
            same[i] = j
    end, other = w.ends[var], same.get(var)
    return isinstance(other, Var) and variables_of(end) <= same.keys() and substitute(end, same) is r.ends.get(other)


@stages(*LOOPS)
def round_up(kernel: Kernel, loops: tuple[str, ...], widths: Sequence[tuple[str, int]] = ()) -> Kernel:
    """Round the last tile of ``loops`` up to full length where that is safe.

    It is safe if the operand along the loop is packed, so that it holds zeros there, and the accumulator has room; the
    added lanes are computed but never stored to the result. A tile without an iteration, such as a vector behind the
    last channel, stays without: its statement keeps the condition that there is one.

    Before::

        kernel k(a_p: f32[3, 4], dst: f32[10])
          for i.o in 0 .. 3:
            alloc acc: f32[4] @register:
              for i.l in 0 .. min(-i.o * 4 + 10, 4):
                acc[i.l] = a_p[i.o, i.l]
              for i.l in 0 .. min(-i.o * 4 + 10, 4):
                dst[i.l + i.o * 4] = acc[i.l]

    After ``round_up(("i.l",))``::

        kernel k(a_p: f32[3, 4], dst: f32[10])
          for i.o in 0 .. 3:
            alloc acc: f32[4] @register:
              for i.l in 0 .. 4:
                acc[i.l] = a_p[i.o, i.l]
              for i.l in 0 .. min(-i.o * 4 + 10, 4):
                dst[i.l + i.o * 4] = acc[i.l]
    """
    require_no_effects(kernel, "round_up")
    require_loops(kernel, loops, "round_up")
    shared: set[Buffer] = set()
    while True:
        body = _RoundUp(tuple(loops), dict(widths), shared).stmt(kernel.body)
        found = _written_and_read(kernel.body, body) if body is not kernel.body else set()
        if not found:
            return with_body(kernel, body)
        shared |= found
