"""Say how loops run: serially, unrolled or in parallel."""

from __future__ import annotations

from convsmith.arith.dependence import LoopBounds
from convsmith.diag.errors import ConfigError
from convsmith.ir.stmt import LOOP_KINDS, Alloc, For, Kernel, Stmt
from convsmith.ir.walk import loops_of, statements_of
from convsmith.passes.accesses import Path, sites_of
from convsmith.passes.order import NewPath, Unordered, require_order
from convsmith.passes.scope import LoopRewriter, with_body


class _Bind(LoopRewriter):
    def __init__(self, names: tuple[str, ...], kind: str) -> None:
        super().__init__()
        self.names, self.kind = names, kind
        self.is_asked = False
        """Whether a loop around the statement is parallel and its body has been asked."""

    def For(self, loop: For) -> Stmt:
        asks = self.kind == "parallel" and loop.var.name in self.names and not self.is_asked
        if asks:
            what = f"bind({', '.join(self.names)}, parallel)"
            inside = (x.body for x in statements_of(loop) if isinstance(x, Alloc))
            shared = any(x.var.name in self.names for body in inside for x in loops_of(body))
            require_order(what, sites_of(loop, self.ranges, shared), self.unordered, self.ranges)
        outer, self.is_asked = self.is_asked, self.is_asked or asks
        body = self.inside(loop)
        self.is_asked = outer
        kind = self.kind if loop.var.name in self.names else loop.kind
        if body is loop.body and kind == loop.kind:
            return loop
        return For(loop.var, loop.lo, loop.hi, body, kind, loop.carried)

    def unordered(self, path: Path) -> NewPath:
        """The path where iterations of parallel loops run at once."""
        return tuple(Unordered(x) if isinstance(x, LoopBounds) and x.var.name in self.names else x for x in path)


def bind(kernel: Kernel, loops: tuple[str, ...], kind: str) -> Kernel:
    """Give each loop of the names a kind (one of LOOP_KINDS); names that have vanished are passed over.

    An iteration of a parallel loop must not touch an element that another one writes.

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
