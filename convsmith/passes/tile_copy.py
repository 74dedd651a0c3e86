"""Copies of the elements that a tile of a product reads, one place for each of its iterations."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, Stmt, Store, block
from convsmith.passes.copies import LoadsOfCopy, StagedReads, read_or_fill
from convsmith.passes.scope import loops_around


@record(frozen=True)
class TileCopy:
    """A copy with a dim for each of ``loops`` over a tile that moves the operand, outermost first.

    Pixels that share an element of the image have a copy of it each, so the place of an element is linear in the loops,
    whatever the image's index is. Elements beyond the operand are zeros there, so the products need no mask.
    """

    loops: tuple[str, ...]
    ending = "s"

    def __str__(self) -> str:
        return f"tile of {' '.join(self.loops)}"

    def staged(self, reads: StagedReads, name: str, scope: str) -> Stmt:
        """Return the loop of ``reads``, each iteration of which fills a copy, called ``name``, and reads it."""
        loop, old, inner = reads.loop, reads.old, reads.inner
        found = set(reads.loads)
        if len(found) > 1:
            raise ConfigError("stage", f"stage: {loop.var} reads {old} at {len(found)} places; legal is one element")
        (read,) = found
        dims = tuple(map(Var, self.loops))
        if missing := [v for v in dims if inner.get(v, (1, 0))[0]]:
            raise ConfigError("stage", f"stage: {loop.var} has no loop {missing[0]} from 0 within")
        own = {v: Var(f"{name}.{v}") for v in dims}
        shape = tuple(inner[v][1] + 1 for v in dims)
        new = make_buffer(name, old.dtype, shape, scope)
        ranges = {**reads.around, **inner}
        source: tuple[Index, ...] = tuple(substitute(i, own) for i in read.index)
        full = {**ranges, **{own[v]: inner[v] for v in dims}}
        copy = Store(new, tuple(own.values()), read_or_fill(old, source, full, 0))
        copies = loops_around(zip(own.values(), shape), copy)
        body = LoadsOfCopy(old, new, lambda _: dims, ranges).stmt(loop.body)
        return reads.with_body(Alloc(new, block(copies, body)))
