"""Round lane loops up to a full vector if they write only registers or the kernel's private memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convsmith.arith.ranges import Range, try_interval
from convsmith.ir.index import Var, as_index
from convsmith.ir.stmt import At, For, Kernel, Stmt, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, variables_of, walk
from convsmith.passes.scope import ScopedRewriter, extent, loop_range, require_loops, with_body


def _legal(loop: For, n: int, outer: Mapping[Var, Range]) -> bool:
    """Return whether the added iterations write only private memory and registers, and read only existing elements."""
    ranges = {**outer, loop.var: (0, n - 1)}
    for s in statements_of(loop.body):
        if isinstance(s, For):
            ranges[s.var] = loop_range(s, ranges)
        if isinstance(s, Store) and not _private(loop, s, ranges):
            return False
    for x in walk(loop.body):
        if isinstance(x, (At, Load)) and any(loop.var in variables_of(i) for i in x.index):
            for i, size in zip(x.index, (x.table if isinstance(x, At) else x.buffer).shape):
                r = try_interval(i, ranges)
                if r is None or r[0] < 0 or r[1] >= size:
                    return False
    return True


def _private(loop: For, s: Store, ranges: Mapping[Var, Range]) -> bool:
    """Return whether a store stays within registers or private memory."""
    if s.buffer.scope != "cache":
        return s.buffer.scope == "register"
    intervals = [try_interval(i, ranges) for i in s.index]
    return all(r is not None and 0 <= r[0] and r[1] < size for r, size in zip(intervals, s.buffer.shape))


class _RoundUp(ScopedRewriter):
    def __init__(self, names: tuple[str, ...], widths: Mapping[str, int]) -> None:
        super().__init__()
        self.names, self.widths = names, widths

    def For(self, loop: For) -> Stmt:
        if loop.var.name in self.names:
            n = max(extent(loop, self.ranges), self.widths.get(loop.var.name, 0))
            if loop.hi is not as_index(n) and loop.lo is as_index(0) and _legal(loop, n, self.ranges):
                return self._For(For(loop.var, loop.lo, as_index(n), loop.body, loop.kind, loop.carried))
        return self._For(loop)


def round_up(kernel: Kernel, loops: tuple[str, ...], widths: Sequence[tuple[str, int]] = ()) -> Kernel:
    """Round the last tile of ``loops`` up to full length where that is safe.

    It is safe if the operand along the loop is packed, so that it holds zeros there, and the accumulator has room; the
    added lanes are computed and never stored to the result.

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
    require_loops(kernel, loops, "round_up")
    return with_body(kernel, _RoundUp(tuple(loops), dict(widths)).stmt(kernel.body))
