"""Bring sums under equal conditions together, so that `share_guards` tests each condition once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, conj, parts_of
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import LANE, Block, If, Invoke, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import loads_of, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


class _GatherGuards(Rewriter):
    def visit_Block(self, s: Block) -> Stmt:
        out: list[Stmt] = []
        for is_sum, found in groupby(map(self.stmt, s.stmts), lambda x: _sum_of(x) is not None):
            run = [*found]
            out += _gathered(run) if is_sum else run
        return s if len(out) == len(s.stmts) and all(a is b for a, b in zip(out, s.stmts)) else block(*out)


def _sum_of(s: Stmt) -> Store | Invoke | None:
    """Return the statement below a condition that adds to a register, and otherwise reads memory that it does not write
    or constants; None for other statements.
    """
    inner = s.body if isinstance(s, If) else None
    while isinstance(inner, If):
        inner = inner.body
    if not isinstance(inner, Store | Invoke):
        return None
    buffer, values = _written(inner)
    own = inner.dst if isinstance(inner, Invoke) else Load(inner.buffer, inner.index, inner.lanes)
    others = [v for x in values for v in loads_of(x) if v != own]
    return inner if buffer.scope == "register" and all(not v.buffer.in_registers for v in others) else None


def _written(s: Store | Invoke) -> tuple[Buffer, Sequence[Value]]:
    """Return the buffer that a statement writes, and the values that it reads."""
    return (s.dst.buffer, s.args) if isinstance(s, Invoke) else (s.buffer, (s.value,))


def _gathered(run: list[Stmt]) -> list[Stmt]:
    """Return the statements of a run by their conditions, in the order of the first of each; the run itself if the sums
    of a register would change their order.
    """
    groups: dict[Cond, list[Stmt]] = {}
    for s in run:
        groups.setdefault(_guard(s), []).append(s)
    out = [s for group in groups.values() for s in group]
    return out if _orders(out) == _orders(run) else run


def _guard(s: Stmt) -> Cond:
    """Return the condition of a statement, without those on lanes."""
    parts: list[Cond] = []
    while isinstance(s, If):
        parts += (part for part in parts_of(s.cond) if LANE not in variables_of(part))
        s = s.body
    return conj(parts)


def _orders(run: Sequence[Stmt]) -> dict[Hashable, list[Stmt]]:
    """Return the statements that write each register, in order."""
    found: dict[Hashable, list[Stmt]] = {}
    for s in run:
        inner = _sum_of(s)
        assert inner is not None
        place = (inner.dst.buffer, inner.dst.index) if isinstance(inner, Invoke) else (inner.buffer, inner.index)
        found.setdefault(place, []).append(s)
    return found


@stages(*FLATTENED, ensures=TENSORISED)
def gather_guards(kernel: Kernel) -> Kernel:
    """Reorder guarded sums of different registers so that those under equal conditions are adjacent; those of each
    register keep their order. Conditions on lanes do not count.

    Before::

        kernel k(a: f32[8], dst: f32[2])
          for i in 0 .. 3:
            alloc x: f32[2] @register:
              x[0] = 0.0
              x[1] = 0.0
              if i - 1 >= 0:
                x[0] = x[0] + a[i - 1]
              if -i + 1 >= 0:
                x[0] = x[0] + a[i]
              if i - 1 >= 0:
                x[1] = x[1] + a[i]
              if -i + 1 >= 0:
                x[1] = x[1] + a[i + 1]
              dst[0] = x[0]
              dst[1] = x[1]

    After ``gather_guards()``::

        kernel k(a: f32[8], dst: f32[2])
          for i in 0 .. 3:
            alloc x: f32[2] @register:
              x[0] = 0.0
              x[1] = 0.0
              if i - 1 >= 0:
                x[0] = x[0] + a[i - 1]
              if i - 1 >= 0:
                x[1] = x[1] + a[i]
              if -i + 1 >= 0:
                x[0] = x[0] + a[i]
              if -i + 1 >= 0:
                x[1] = x[1] + a[i + 1]
              dst[0] = x[0]
              dst[1] = x[1]
    """
    return each_body(kernel, lambda s: _GatherGuards().stmt(s))
