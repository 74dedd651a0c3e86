"""Places at which the lanes of a warp wait for each other: where a lane reads memory that another has written.

A loop over lanes ends in a join. The lanes of a warp need not run in lock step, so a join instruction is placed where a
later statement of the warp accesses memory that lanes wrote, or writes memory that they read, without a barrier of the
group in between. The memory is shared memory, or an array: lanes that trade results write what others have read. What
a lane copies asynchronously, it has written once it has waited for the copy.
"""

from __future__ import annotations

from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Alloc, AsyncCopy, AtomicAdd, Barrier, Block, For, If, Invoke, Let, Stmt, Store, Wait
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, walk

__all__ = ["joins"]

State = frozenset[tuple[Buffer, bool]]
"""Buffers that lanes have accessed since the last join, and whether they wrote them."""
_OF_OTHERS = ("shared", "global")
"""Scopes of buffers that other lanes access."""


def joins(body: Stmt) -> frozenset[Stmt]:
    """Return the statements of warps in ``body`` before which the lanes of a warp join."""
    found = _Joins(frozenset((x.dst.buffer, True) for x in statements_of(body) if isinstance(x, AsyncCopy)))
    found.walk(body, frozenset(), is_warp=False)
    return frozenset(found.before)


class _Joins:
    def __init__(self, copied: State) -> None:
        self.copied = copied
        self.before: set[Stmt] = set()

    def walk(self, s: Stmt, state: State, is_warp: bool) -> State:
        """Return the accesses since the last join after ``s``."""
        if isinstance(s, Block):
            for x in s.stmts:
                state = self.walk(x, state, is_warp)
            return state
        if isinstance(s, (Let, Alloc)):
            return self.walk(s.body, state, is_warp)
        if isinstance(s, If):
            return state | self.walk(s.body, state, is_warp)
        if isinstance(s, Barrier):
            return state if s.part == "arrive" else frozenset()
        if isinstance(s, Wait):
            return state | self.copied
        if isinstance(s, For) and s.kind != "lane":
            within = is_warp or s.kind == "warp"
            while (after := self.walk(s.body, state, within)) - state:
                state |= after
            return after if s.hi.is_const and s.lo.is_const and s.lo.const < s.hi.const else state | after
        return self._unit(s, state) if is_warp else state

    def _unit(self, s: Stmt, state: State) -> State:
        """Return the accesses since the last join after ``s``, a loop over lanes or a statement of the warp."""
        own = _accesses(s)
        if any(b is x and (w or y) for b, w in state for x, y in own):
            self.before.add(s)
            return own
        return state | own


def _accesses(s: Stmt) -> State:
    """Return the buffers in memory of other lanes that ``s`` accesses."""
    found: set[tuple[Buffer, bool]] = set()
    for x in walk(s):
        if isinstance(x, (Store, AtomicAdd)):
            found.add((x.buffer, True))
        elif isinstance(x, AsyncCopy):
            found.add((x.dst.buffer, True))
        elif isinstance(x, Invoke):
            found.add((x.dst.buffer, True))
        elif isinstance(x, Load):
            found.add((x.buffer, False))
    return frozenset(x for x in found if x[0].scope in _OF_OTHERS)
