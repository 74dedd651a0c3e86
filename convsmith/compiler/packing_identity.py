"""The identity of a packing: kernels whose packings have one identity read the same packed operands."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from convsmith.ir.index import Var
from convsmith.ir.rewrite import Rewriter, Substitute
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.passes.flatten import flatten
from convsmith.passes.simplify import simplify

__all__ = ["packing_identity"]


def packing_identity(pack: Kernel) -> str:
    """Return a hash of a packing kernel; equal hashes imply equal packed weights.

    Names of loops, and loops of one iteration, do not matter: they differ between schedules that share a packing.
    """
    plain = simplify(flatten(pack))
    text = str(replace(plain, body=_Numbered().stmt(plain.body)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Numbered(Rewriter):
    """Names loops by numbers, in the order in which they stand, and leaves out those of one iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def visit_For(self, loop: For) -> Stmt:
        if loop.lo.is_const and loop.hi.is_const and loop.hi.const - loop.lo.const == 1:
            return self.stmt(Substitute({loop.var: loop.lo}).stmt(loop.body))
        var, self.count = Var(f"x{self.count}"), self.count + 1
        body = self.stmt(Substitute({loop.var: var}).stmt(loop.body))
        return For(var, loop.lo, loop.hi, body, loop.kind, loop.carried)
