"""Split a loop into tiles, with separate sizes for the first and the last tile."""

from __future__ import annotations

from convsmith.arith.dependence import INFINITE
from convsmith.arith.ranges import interval
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index, floordiv, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Stmt, block
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import LoopRewriter, require_loops, with_body


class _TileEnds(LoopRewriter):
    def __init__(self, loop: str, sizes: tuple[int, int, int], outer: str, inner: str) -> None:
        super().__init__()
        self.loop, self.sizes = loop, sizes
        self.outer, self.inner = Var(outer), Var(inner)

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        first, middle, last = self.sizes
        rest = loop.hi - loop.lo - (first + last)
        if self.least(rest) < 0 or mod(rest, middle) is not as_index(0):
            raise ConfigError(
                "bounds", f"tile_ends: loop {self.loop} runs {loop.lo} .. {loop.hi}; legal are {first} + {last} "
                f"iterations, and any number of tiles of {middle} between them",
            )  # fmt: skip
        count = floordiv(rest, middle)

        def tiles(begin: Index, number: Index, size: int) -> Stmt:
            body = substitute(loop.body, {loop.var: begin + self.inner})
            return For(
                self.outer, as_index(0), number, For(self.inner, as_index(0), as_index(size), body, loop.kind),
                loop.kind,
            )  # fmt: skip

        between = loop.lo + first
        return block(
            tiles(loop.lo, as_index(1), first),
            tiles(between + self.outer * middle, count, middle),
            tiles(between + rest, as_index(1), last),
        )

    def least(self, e: Index) -> int:
        """Return the least value of ``e``, given no bounds on sizes of the kernel."""
        sizes = {v: (-INFINITE, INFINITE) for v in variables_of(e)}
        return interval(e, {**sizes, **self.ranges})[0]


@stages(*LOOPS)
def tile_ends(kernel: Kernel, loop: str, sizes: tuple[int, int, int], outer: str, inner: str) -> Kernel:
    """Split ``loop`` into tiles of three ``sizes``: the first tile, any number of tiles between, and the last tile.

    Each of the three has a loop ``outer`` over its tiles, so that the first and the last are known to exist.

    Before::

        kernel k(a: f32[10], dst: f32[10])
          for i in 0 .. 10:
            dst[i] = a[i]

    After ``tile_ends("i", (3, 2, 1), "i.o", "i.i")``::

        kernel k(a: f32[10], dst: f32[10])
          for i.o in 0 .. 1:
            for i.i in 0 .. 3:
              dst[i.i] = a[i.i]
          for i.o in 0 .. 3:
            for i.i in 0 .. 2:
              dst[i.i + i.o * 2 + 3] = a[i.i + i.o * 2 + 3]
          for i.o in 0 .. 1:
            for i.i in 0 .. 1:
              dst[i.i + 9] = a[i.i + 9]
    """
    require_loops(kernel, (loop,), "tile_ends")
    if min(sizes) < 1:
        raise ConfigError("tile-size", f"tile_ends: loop {loop} by {sizes}; a tile has at least one iteration")
    new = with_body(kernel, _TileEnds(loop, sizes, outer, inner).stmt(kernel.body))
    return new
