"""Let loops over partial sums start at 0; a term may go to any of the partial sums.

Dependences do not decide whether this is legal, since a moved term accesses another element. The rewrite requires that
no statement distinguishes the partial sums, and checks it: besides the statements that add terms, statements may only
set all partial sums, add all of them up, or move all of them to private memory and back to the same places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Alloc, Block, For, If, Kernel, Stmt, Store
from convsmith.ir.text import access_text
from convsmith.ir.value import Binary, Load
from convsmith.ir.walk import children, statements_of, variables_of
from convsmith.passes.accesses import reads_any
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import is_only_sum
from convsmith.passes.scope import with_body


@record(frozen=True)
class _Use:
    """A statement that uses partial sums, the loops around it, and the variables of the conditions around it."""

    stmt: Stmt
    loops: tuple[For, ...]
    tested: frozenset[Var]


class _Element(NamedTuple):
    """An element of a buffer."""

    buffer: Buffer
    at: tuple[Index, ...]


def _uses(s: Stmt, acc: Buffer, loops: tuple[For, ...] = (), tested: frozenset[Var] = frozenset()) -> Iterator[_Use]:
    """Yield the statements that use ``acc``."""
    if isinstance(s, For):
        loops = (*loops, s)
    elif isinstance(s, If):
        tested |= variables_of(s.cond)
    inner = [x for x in children(s) if isinstance(x, Stmt)]
    for x in inner:
        yield from _uses(x, acc, loops, tested)
    if not inner and not isinstance(s, Block) and (not isinstance(s, Store) or _names(s, acc)):
        yield _Use(s, loops, tested)


def _names(s: Store, acc: Buffer) -> bool:
    return s.buffer is acc or reads_any(s.value, {acc})


def _place(use: _Use, acc: Buffer, dim: int) -> Index | None:
    """Return the coordinate along ``dim`` of a statement that sets or adds up partial sums; None for any other
    statement.
    """
    s = use.stmt
    if not isinstance(s, Store):
        return None
    if s.buffer is acc:
        return None if reads_any(s.value, {acc}) else s.index[dim]
    v = s.value
    if is_only_sum(s) and isinstance(v, Binary) and isinstance(v.b, Load) and v.b.buffer is acc:
        place = v.b.index[dim]
        return None if any(variables_of(place) & variables_of(i) for i in s.index) else place
    return None


def _moved(s: Stmt, acc: Buffer) -> tuple[_Element, _Element] | None:
    """Return the element of private memory and the partial sum, if a statement copies one to the other."""
    if not isinstance(s, Store) or not isinstance(s.value, Load):
        return None
    here, there = _Element(s.buffer, s.index), _Element(s.value.buffer, s.value.index)
    memory, part = (there, here) if s.buffer is acc else (here, there)
    return (memory, part) if part.buffer is acc and memory.buffer.scope == "cache" else None


def _memories(uses: Sequence[_Use], acc: Buffer, dim: int) -> set[Buffer]:
    """Return the private memories in which one dim numbers the partial sums, in all statements that copy partial sums.
    """
    dims: dict[Buffer, set[int]] = {}
    for memory, part in filter(None, (_moved(use.stmt, acc) for use in uses)):
        lane = part.at[dim]
        found = [n for n, i in enumerate(memory.at) if variables_of(lane) & variables_of(i)]
        alone = len(found) == 1 and memory.at[found[0]] is lane
        dims.setdefault(memory.buffer, set()).update(found if alone else (0, -1))
    return {memory for memory, places in dims.items() if len(places) == 1}


def _readers(whole: Stmt, memories: set[Buffer], acc: Buffer) -> Iterator[Stmt]:
    """Yield the statements that read the memories, except those that only copy to a partial sum."""
    for s in statements_of(whole) if memories else ():
        if isinstance(s, Store) and reads_any(s.value, memories) and _moved(s, acc) is None:
            yield s


def _takes_all(use: _Use, acc: Buffer, dim: int) -> bool:
    """Return whether a statement and one loop around it, the only use of ``acc`` in that loop, cover all partial sums.
    """
    moved = _moved(use.stmt, acc)
    place = _place(use, acc, dim) if moved is None else moved[1].at[dim]
    loop = next((x for x in use.loops if x.var is place), None)
    if loop is None or loop.lo is not as_index(0) or loop.hi is not as_index(acc.shape[dim]):
        return False
    return loop.var not in use.tested and len(list(_uses(loop.body, acc))) == 1


class _Rebase(Rewriter):
    def __init__(self, name: str, whole: Stmt) -> None:
        super().__init__()
        self.name, self.whole = name, whole
        self.around: dict[Buffer, Stmt] = {}
        """For each accumulator in scope, the statement in which it is allocated."""

    def visit_Alloc(self, s: Alloc) -> Stmt:
        self.around[s.buffer] = s.body
        return self._Alloc(s)

    def visit_For(self, loop: For) -> Stmt:
        s = loop.body
        if loop.var.name != self.name or not isinstance(s, Store) or not loop.lo.is_const or loop.lo.const == 0:
            return self._For(loop)
        v, own = s.value, Load(s.buffer, s.index, None)
        if not (isinstance(v, Binary) and is_only_sum(s) and s.buffer.in_registers):
            return loop
        for dim, place in enumerate(s.index):
            if loop.var in variables_of(place):
                self.require_alike(loop, s, dim)
        term = substitute(v.b, {loop.var: loop.var + loop.lo})
        add = Store(s.buffer, s.index, Binary("add", own, term), s.lanes)
        return For(loop.var, as_index(0), loop.hi - loop.lo, add, loop.kind, loop.carried)

    def require_alike(self, loop: For, term: Store, dim: int) -> None:
        """Raise ConfigError if a statement distinguishes the partial sums along ``dim`` to which ``term`` adds."""
        acc, place = term.buffer, term.index[dim]
        what = f"rebase: loop {loop.var}: {access_text(acc, term.index, None)}"
        if place is not loop.var or any(loop.var in variables_of(i) for i in term.index if i is not place):
            raise ConfigError("not-nested", f"{what}: legal is a sum of which one coordinate is the loop")
        uses = list(_uses(self.around[acc], acc))
        if any(_moved(use.stmt, acc) for use in uses):  # the moved terms stay in the sum
            uses = list(_uses(self.whole, acc))
        memories = _memories(uses, acc, dim)
        uses += (_Use(s, (), frozenset()) for s in _readers(self.whole, memories, acc))
        for use in uses:
            s = use.stmt
            if isinstance(s, Store) and s.buffer is acc and is_only_sum(s):
                continue
            moved = _moved(s, acc)
            if not _takes_all(use, acc, dim) or (moved is not None and moved[0].buffer not in memories):
                raise ConfigError(
                    "dependence", f"{what} = ... and {s}: the second does not take all partial sums, and would find "
                    "others in its own",
                )  # fmt: skip


@stages(*LOOPS)
def rebase(kernel: Kernel, loop: str) -> Kernel:
    """Let each loop named ``loop`` with constant start run from 0 if each of its iterations adds to a partial sum.

    A partial sum then adds different terms; their total is unchanged.

    Before::

        kernel k(a: f32[8], dst: f32[1])
          alloc acc: f32[4] @register:
            for l in 0 .. 4:
              acc[l] = 0.0
            for k in 0 .. 2:
              for l in 1 .. 4:
                acc[l] = acc[l] + a[k * 4 + l]
            alloc total: f32[] @register:
              total[] = 0.0
              for l in 0 .. 4:
                total[] = total[] + acc[l]
              dst[0] = total[]

    After ``rebase("l")``::

        kernel k(a: f32[8], dst: f32[1])
          alloc acc: f32[4] @register:
            for l in 0 .. 4:
              acc[l] = 0.0
            for k in 0 .. 2:
              for l in 0 .. 3:
                acc[l] = acc[l] + a[k * 4 + l + 1]
            alloc total: f32[] @register:
              total[] = 0.0
              for l in 0 .. 4:
                total[] = total[] + acc[l]
              dst[0] = total[]
    """
    return with_body(kernel, _Rebase(loop, kernel.body).stmt(kernel.body))
