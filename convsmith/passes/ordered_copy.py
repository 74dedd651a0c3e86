"""Copies of the elements that an iteration of a loop reads, in reading order.

The copy is small, contiguous and private to a thread, whatever the distances between the elements in memory are.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Alloc, Block, For, Stmt, block
from convsmith.ir.value import Load
from convsmith.ir.walk import walk
from convsmith.passes.copies import StagedReads
from convsmith.passes.derive_packing import Packing
from convsmith.passes.scope import allocate, allocated


@record(frozen=True)
class OrderedCopy:
    """A copy with one dim for each loop that indexes the operand.

    ``widths`` gives loops with room for more elements than their iterations, which hold zeros; ``adjacent`` are loops
    whose elements are contiguous. The loops that fill the copy have the names of the loops that read it, after
    ``prefix``. A ``filled`` copy holds zeros in place of absent elements, which are multiplied without tests.
    """

    widths: tuple[tuple[str, int], ...] = ()
    adjacent: tuple[str, ...] = ()
    prefix: str = ""
    filled: bool = False
    ending = "n"

    def __str__(self) -> str:
        rest = (*((f"as {self.prefix}",) if self.prefix else ()), *(("filled",) if self.filled else ()))
        return " ".join(["in order", *(f"{name}:{n}" for name, n in self.widths), *self.adjacent, *rest])

    def staged(self, reads: StagedReads, name: str, scope: str) -> Stmt:
        """Return the loop of ``reads``, each iteration of which fills a copy, called ``name``, and reads it."""
        body, old = reads.loop.body, reads.old
        inside = replace(reads.kernel, body=body)
        packing = Packing(
            inside, frozenset((old.name,)), name, dict(self.widths), False, self.adjacent, self.filled, scope
        )
        packing.around = reads.around
        packing.ranges = dict(reads.around)
        made, writes = packing.derive(body, as_index(0))
        if packing.packed is None:
            return reads.loop
        if not packing.alone:
            raise ConfigError("bounds", f"stage: several places in {reads.loop.var} read {old}; legal is one")
        return reads.with_body(_filled(packing.packed, _Prefixed(self.prefix).stmt(writes), made))


class _Prefixed(Rewriter):
    """Puts a prefix before the names of loops."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def visit_For(self, loop: For) -> Stmt:
        if not self.prefix:
            return loop
        var = Var(f"{self.prefix}{loop.var.name}")
        body = substitute(loop.body, {loop.var: var})
        return For(var, loop.lo, loop.hi, self.stmt(body), loop.kind, loop.carried)


def _filled(new: Buffer, writes: Stmt, s: Stmt) -> Stmt:
    """Return ``s``, which reads ``new``, after the nest that ``writes`` it. If only the last of several statements
    reads it, the nest comes right before that statement, so that the memory is free until then.
    """
    outer, inner = allocated(s)
    if not isinstance(inner, Block) or any(_reads(x, new) for x in inner.stmts[:-1]):
        return Alloc(new, block(writes, s))
    return allocate(outer, block(*inner.stmts[:-1], _filled(new, writes, inner.stmts[-1])))


def _reads(s: Stmt, buffer: Buffer) -> bool:
    """Return whether ``s`` reads an element of ``buffer``."""
    return any(isinstance(x, Load) and x.buffer is buffer for x in walk(s))
