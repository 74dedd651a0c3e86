"""Test a condition once for all adjacent statements that it guards.

A masked load into a register becomes a guarded statement after a statement that stores the other value. LLVM's text
then has one branch for all statements with a condition, and not one for each statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convsmith.ir.index import Cond, conj, parts_of
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import LANE, Block, If, Kernel, Stmt, Store, block
from convsmith.ir.value import Const, Load, Select
from convsmith.ir.walk import loads_of, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


class _Guarded(NamedTuple):
    """A statement that runs if all ``parts`` of a condition hold, and the statement ``before`` it that always runs."""

    parts: tuple[Cond, ...]
    stmt: Stmt
    before: Store | None = None


class _ShareGuards(Rewriter):
    def visit_Block(self, s: Block) -> Stmt:
        out: list[Stmt] = []
        run: list[tuple[Stmt, _Guarded]] = []
        for x in map(self.stmt, s.stmts):
            guarded = _guarded(x)
            if run and (guarded is None or not _continues(run, guarded)):
                out += _shared(run)
                run = []
            if guarded is None:
                out.append(x)
            else:
                run.append((x, guarded))
        out += _shared(run)
        return s if len(out) == len(s.stmts) and all(a is b for a, b in zip(out, s.stmts)) else block(*out)


def _guarded(s: Stmt) -> _Guarded | None:
    """Return a guarded statement, or a load into a register, by its condition; None for another statement."""
    if type(s) is If:
        return _Guarded(parts_of(s.cond), s.body)
    if type(s) is not Store or s.buffer.scope != "register" or any(v.buffer.in_registers for v in loads_of(s.value)):
        return None
    if type(s.value) is Select and isinstance(s.value.no, Const):
        stored = Store(s.buffer, s.index, s.value.yes, s.lanes)
        return _Guarded(parts_of(s.value.cond), stored, Store(s.buffer, s.index, s.value.no, s.lanes))
    return _Guarded((), s) if type(s.value) is Load else None


def _continues(run: Sequence[tuple[Stmt, _Guarded]], other: _Guarded) -> bool:
    """Return whether ``other`` may join a run: guarded statements, or loads into different registers."""
    stored = other.stmt if other.before is not None or not other.parts else None
    if not isinstance(stored, Store):
        return type(run[0][0]) is If
    places = {(s.buffer, s.index) for s, _ in run if type(s) is Store}
    return len(places) == len(run) and (stored.buffer, stored.index) not in places


def _shared(run: Sequence[tuple[Stmt, _Guarded]]) -> Iterator[Stmt]:
    """Yield the statements of a run under shared conditions, or unchanged if there is no condition to share."""
    counted = [part for _, guarded in run for part in guarded.parts]
    if len(set(counted)) == len(counted):
        yield from (s for s, _ in run)
        return
    yield from (guarded.before for _, guarded in run if guarded.before is not None)
    yield from _nested([guarded for _, guarded in run])


def _nested(items: Sequence[_Guarded]) -> Iterator[Stmt]:
    """Yield the statements of ``items`` in order, adjacent ones under the parts of their conditions that they share."""
    start = 0
    while start < len(items):
        common, end = tuple(p for p in items[start].parts if LANE not in variables_of(p)), start + 1
        while common and end < len(items) and (both := tuple(p for p in common if p in items[end].parts)):
            common, end = both, end + 1
        if not common:
            yield If(conj(items[start].parts), items[start].stmt) if items[start].parts else items[start].stmt
        else:
            inner = [x._replace(parts=tuple(p for p in x.parts if p not in common)) for x in items[start:end]]
            yield If(conj(common), block(*_nested(inner)))
        start = end


@stages(*FLATTENED, ensures=TENSORISED)
def share_guards(kernel: Kernel) -> Kernel:
    """Test conditions that adjacent statements share once; requires a flat kernel. Conditions on lanes stay with each
    statement.

    Before::

        kernel k(a: f32[12], dst: f32[12])
          for i in 0 .. 4:
            alloc x: f32[2] @register:
              x[0] = (a[i - 1] if i - 1 >= 0 else 0.0)
              x[1] = (a[i + 3] if i - 1 >= 0 and -i + 2 >= 0 else 0.0)
              if -i + 2 >= 0:
                dst[i] = x[0] + x[1]
              if -i + 2 >= 0 and i - 1 >= 0:
                dst[i + 4] = x[0] - x[1]

    After ``share_guards()``::

        kernel k(a: f32[12], dst: f32[12])
          for i in 0 .. 4:
            alloc x: f32[2] @register:
              x[0] = 0.0
              x[1] = 0.0
              if i - 1 >= 0:
                x[0] = a[i - 1]
                if -i + 2 >= 0:
                  x[1] = a[i + 3]
              if -i + 2 >= 0:
                dst[i] = x[0] + x[1]
                if i - 1 >= 0:
                  dst[i + 4] = x[0] - x[1]
    """
    return each_body(kernel, lambda s: _ShareGuards().stmt(s))
