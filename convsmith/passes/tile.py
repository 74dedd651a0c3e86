"""Split a loop into an outer loop over tiles and an inner loop within the tile."""

from __future__ import annotations

from convsmith.arith.ranges import Unbounded
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, as_index, floordiv, minimum
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.passes.contracts import FLATTENED, LOOPS, stages
from convsmith.passes.scope import LoopRewriter, extent, require_loops, with_body


class _Tile(LoopRewriter):
    def __init__(self, loop: str, size: int, outer: str, inner: str) -> None:
        super().__init__()
        self.loop, self.size = loop, size
        self.outer, self.inner = Var(outer), Var(inner)

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if not loop.lo.is_const:
            raise ConfigError("bounds", f"tile: loop {self.loop} starts at {loop.lo}; only constant starts are tiled")
        size = self.size
        try:
            n = as_index(extent(loop, self.ranges))
        except Unbounded:
            n = loop.hi - loop.lo
        start = loop.lo + self.outer * size
        whole = loop.hi.is_const and n.const % size == 0
        inner_hi = as_index(size) if whole else minimum(size, loop.hi - start)
        body = substitute(loop.body, {loop.var: start + self.inner})
        inner = For(self.inner, as_index(0), inner_hi, body, loop.kind)
        return For(self.outer, as_index(0), floordiv(n + (size - 1), size), inner, loop.kind)


@stages(*LOOPS, *FLATTENED)
def tile(kernel: Kernel, loop: str, size: int, outer: str, inner: str) -> Kernel:
    """Split ``loop`` by ``size``: ``loop = start + outer * size + inner``; the last tile may be shorter.

    Before::

        kernel k(a: f32[10], dst: f32[10])
          for i in 0 .. 10:
            dst[i] = a[i]

    After ``tile("i", 4, "i.o", "i.i")``::

        kernel k(a: f32[10], dst: f32[10])
          for i.o in 0 .. 3:
            for i.i in 0 .. min(-i.o * 4 + 10, 4):
              dst[i.i + i.o * 4] = a[i.i + i.o * 4]
    """
    require_loops(kernel, (loop,), "tile")
    if size < 1:
        raise ConfigError("tile-size", f"tile: loop {loop} by {size}; a tile has at least one iteration")
    new = with_body(kernel, _Tile(loop, size, outer, inner).stmt(kernel.body))
    return new
