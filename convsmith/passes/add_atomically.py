"""Sum parts of a reduction in different groups, which add their sums to the result atomically."""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.stmt import Alloc, AtomicAdd, Block, For, If, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, const
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import require_sum
from convsmith.passes.scope import LoopRewriter, perfect_nest, require_loops, with_body, wrap

START = "_start"
"""Suffix of the name of the kernel that sets a result to zero."""
ZERO = "zero"
"""Prefix of the names of its loops."""


class _AddAtomically(LoopRewriter):
    def __init__(self, parts: str, around: str) -> None:
        super().__init__()
        self.parts, self.outermost = parts, around
        self.result: Buffer | None = None

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.outermost:
            return self._For(loop)
        chain, body = perfect_nest(loop)
        inner = body.body if isinstance(body, Alloc) else body
        stmts = inner.stmts if isinstance(inner, Block) else ()
        terms = stmts[1] if len(stmts) == 3 else None
        if not isinstance(body, Alloc) or not isinstance(terms, For):
            raise ConfigError(
                "not-nested", f"add_atomically: loop {self.outermost} must be around a sum: its start, a loop over "
                f"{self.parts}, and the store of its result",
            )  # fmt: skip
        start, finish = stmts[0], stmts[2]
        if terms.var.name != self.parts or not (terms.lo.is_const and terms.hi.is_const):
            raise ConfigError(
                "not-nested", f"add_atomically: the outermost loop of the sum is {terms.var}, and runs {terms.lo} .. "
                f"{terms.hi}; legal is {self.parts}, with constant bounds",
            )  # fmt: skip
        require_sum("add_atomically", body.buffer, start, terms)
        part = Alloc(body.buffer, block(start, terms.body, self.added(finish, body.buffer)))
        return For(terms.var, terms.lo, terms.hi, wrap(chain, part), terms.kind)

    def added(self, s: Stmt, acc: Buffer) -> Stmt:
        """Return the atomic addition of the sum that ``s`` stores."""
        if isinstance(s, If):
            return If(s.cond, self.added(s.body, acc))
        if not isinstance(s, Store) or not isinstance(s.value, Load) or s.value.buffer is not acc:
            raise ConfigError(
                "split", f"add_atomically: `{s}` needs the whole sum; legal are results that are the sums themselves"
            )
        self.result = s.buffer
        return AtomicAdd(s.buffer, s.index, s.value, s.lanes)


@stages(*LOOPS)
def add_atomically(kernel: Kernel, parts: str, around: str) -> Kernel:
    """Move the loop ``parts``, the outermost one of a sum, around the loop ``around``; each part adds to the result.

    A kernel that runs before this one sets the result to zero. Sums of floats depend on the order of the parts.

    Before::

        kernel k(a: f32[4, 6], dst: f32[4])
          for i in 0 .. 4:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for p in 0 .. 2:
                for k in 0 .. 3:
                  acc[] = acc[] + a[i, k + p * 3]
              dst[i] = acc[]

    After ``add_atomically("p", "i")``::

        kernel k(a: f32[4, 6], dst: f32[4])
          for p in 0 .. 2:
            for i in 0 .. 4:
              alloc acc: f32[] @register:
                acc[] = 0.0
                for k in 0 .. 3:
                  acc[] = acc[] + a[i, k + p * 3]
                atomic dst[i] += acc[]
        before k_start(dst: f32[4])
          for zero0 in 0 .. 4:
            dst[zero0] = 0.0
    """
    require_loops(kernel, (parts, around), "add_atomically")
    rewriter = _AddAtomically(parts, around)
    new = with_body(kernel, rewriter.stmt(kernel.body))
    assert rewriter.result is not None
    return replace(new, before=(*kernel.before, _zeroed(kernel.name, rewriter.result)))


def _zeroed(name: str, buffer: Buffer) -> Kernel:
    """Return the kernel that sets all elements of ``buffer`` to zero."""
    index = tuple(Var(f"{ZERO}{d}") for d in range(len(buffer.shape)))
    body: Stmt = Store(buffer, index, const(buffer.dtype, 0))
    for v, size in reversed(list(zip(index, buffer.shape))):
        body = For(v, as_index(0), as_index(size), body)
    return Kernel(f"{name}{START}", (buffer,), body)
