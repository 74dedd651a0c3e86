"""Fuse two nested loops into one."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, as_index
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import LoopRewriter, require_loops, with_body


class _Fuse(LoopRewriter):
    def __init__(self, outer: str, inner: str, name: str) -> None:
        super().__init__()
        self.outer, self.inner, self.name = outer, inner, name

    def visit_For(self, loop: For) -> Stmt:
        inner = loop.body
        if loop.var.name != self.outer:
            return self._For(loop)
        if not isinstance(inner, For) or inner.var.name != self.inner:
            raise ConfigError("not-nested", f"fuse: loop {self.inner} is not directly inside loop {self.outer}")
        if not (loop.lo is inner.lo is as_index(0) and inner.hi.is_const):
            raise ConfigError(
                "bounds", f"fuse: loops {self.outer} and {self.inner} must run from 0, {self.inner} to a constant"
            )
        if loop.kind != inner.kind:
            kinds = f"{loop.kind} and {inner.kind}"
            raise ConfigError("loop-kind", f"fuse: loops {self.outer} and {self.inner} are {kinds}; legal is one kind")
        n = int(inner.hi)
        fused = Var(self.name)
        body = substitute(inner.body, {loop.var: fused // n, inner.var: fused % n} if n else {})
        return For(fused, loop.lo, loop.hi * n, body, loop.kind)


@stages(*LOOPS)
def fuse(kernel: Kernel, outer: str, inner: str, name: str) -> Kernel:
    """Replace the loop ``outer`` and the loop ``inner`` directly in it by one loop ``name``.

    Before::

        kernel k(a: f32[2, 3], dst: f32[2, 3])
          for i in 0 .. 2:
            for j in 0 .. 3:
              dst[i, j] = a[i, j]

    After ``fuse("i", "j", "i_j")``::

        kernel k(a: f32[2, 3], dst: f32[2, 3])
          for i_j in 0 .. 6:
            dst[i_j // 3, i_j % 3] = a[i_j // 3, i_j % 3]
    """
    require_loops(kernel, (outer, inner), "fuse")
    new = with_body(kernel, _Fuse(outer, inner, name).stmt(kernel.body))
    return new
