"""Say how loops run: serially, unrolled or in parallel."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.stmt import LOOP_KINDS, For, Kernel, Stmt
from convsmith.ir.walk import Rewriter
from convsmith.passes.scope import with_body


class _Bind(Rewriter):
    def __init__(self, names: tuple[str, ...], kind: str) -> None:
        super().__init__()
        self.names, self.kind = names, kind

    def For(self, loop: For) -> Stmt:
        body = self.stmt(loop.body)
        kind = self.kind if loop.var.name in self.names else loop.kind
        if body is loop.body and kind == loop.kind:
            return loop
        return For(loop.var, loop.lo, loop.hi, body, kind, loop.carried)


def bind(kernel: Kernel, loops: tuple[str, ...], kind: str) -> Kernel:
    """Give the named loops a kind (one of LOOP_KINDS); names that have vanished are passed over.

    Before::

        kernel k(dst: f32[2, 3])
          for i in 0 .. 2:
            for j in 0 .. 3:
              dst[i, j] = 0.0

    After ``bind(("i",), "unrolled")``::

        kernel k(dst: f32[2, 3])
          for i in 0 .. 2 #unrolled:
            for j in 0 .. 3:
              dst[i, j] = 0.0
    """
    if kind not in LOOP_KINDS:
        raise ConfigError("loop-kind", f"bind: loops have no kind {kind!r}; legal are {', '.join(LOOP_KINDS)}")
    return with_body(kernel, _Bind(tuple(loops), kind).stmt(kernel.body))
