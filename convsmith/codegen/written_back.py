"""The stores of results in a loop over fragments, whose addresses code can compute ahead of the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convsmith.arith.ranges import Range, try_interval
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var
from convsmith.ir.stmt import Block, For, Invoke, Let, Stmt, Store

BufferTest = Callable[[Buffer], bool]


def results_written_back(s: For, has_fragments: BufferTest, is_held: BufferTest) -> Sequence[Store]:
    """Return the stores of results in a loop whose first iteration certainly runs; () if it has other statements than
    loops, products of fragments and stores of results.

    Buffers of fragments satisfy ``has_fragments``, those of accumulators ``is_held``: results are in neither.
    """
    found: list[Store] = []

    def collect(s: Stmt, first: dict[Var, Range]) -> bool:
        """Append the stores of results in ``s``, and return whether all its statements are permitted; the variables
        around it have the values ``first`` in the first iteration.
        """
        if isinstance(s, Block):
            return all(collect(x, first) for x in s.stmts)
        if isinstance(s, Let):
            value = try_interval(s.value, first)
            return collect(s.body, {**first, s.var: value} if value else first)
        if isinstance(s, For):
            lo, trips = try_interval(s.lo, first), try_interval(s.hi - s.lo, first)
            if lo is None or trips is None or trips[0] <= 0:
                return False
            return collect(s.body, {**first, s.var: (lo[0], lo[0])})
        if isinstance(s, Store) and not has_fragments(s.buffer) and not is_held(s.buffer):
            found.append(s)
            return True
        return isinstance(s, Invoke) and has_fragments(s.dst.buffer)

    return found if s.kind == "serial" and collect(s, {}) else ()
