"""Split a loop into an outer loop over tiles and an inner loop within the tile."""

from __future__ import annotations

from convsmith.arith.dependence import INFINITE
from convsmith.arith.ranges import Unbounded, interval
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index, floordiv, minimum, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Stmt, block
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import FLATTENED, LOOPS, stages
from convsmith.passes.scope import LoopRewriter, extent, require_loops, with_body


class _Tile(LoopRewriter):
    def __init__(self, loop: str, size: int, outer: str, inner: str, ends: tuple[int, int] | None) -> None:
        super().__init__()
        self.loop, self.size, self.ends = loop, size, ends
        self.outer, self.inner = Var(outer), Var(inner)

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if self.ends is not None:
            return self.with_ends(loop, *self.ends)
        if not loop.lo.is_const:
            raise ConfigError("bounds", f"tile: loop {self.loop} starts at {loop.lo}; only constant starts are tiled")
        size = self.size
        try:
            n = as_index(extent(loop, self.ranges))
        except Unbounded:
            n = loop.hi - loop.lo
        start = loop.lo + self.outer * size
        whole = loop.hi.is_const and n.const % size == 0
        return self.tiles(
            loop, start, floordiv(n + (size - 1), size), as_index(size) if whole else minimum(size, loop.hi - start)
        )

    def with_ends(self, loop: For, first: int, last: int) -> Stmt:
        """Return ``loop`` in tiles, of which the first and the last have these sizes."""
        rest = loop.hi - loop.lo - (first + last)
        if self.least(rest) < 0 or mod(rest, self.size) is not as_index(0):
            raise ConfigError(
                "bounds", f"tile: loop {self.loop} runs {loop.lo} .. {loop.hi}; legal are {first} + {last} "
                f"iterations, and any number of tiles of {self.size} between them",
            )  # fmt: skip
        one, between = as_index(1), loop.lo + first
        return block(
            self.tiles(loop, loop.lo, one, as_index(first)),
            self.tiles(loop, between + self.outer * self.size, floordiv(rest, self.size), as_index(self.size)),
            self.tiles(loop, between + rest, one, as_index(last)),
        )

    def tiles(self, loop: For, start: Index, count: Index, size: Index) -> Stmt:
        """Return ``count`` tiles of ``size`` iterations of ``loop``, each of which begins at ``start``."""
        body = substitute(loop.body, {loop.var: start + self.inner})
        return For(self.outer, as_index(0), count, For(self.inner, as_index(0), size, body, loop.kind), loop.kind)

    def least(self, e: Index) -> int:
        """Return the least value of ``e``, given no bounds on sizes of the kernel."""
        sizes = {v: (-INFINITE, INFINITE) for v in variables_of(e)}
        return interval(e, {**sizes, **self.ranges})[0]


@stages(*LOOPS, *FLATTENED)
def tile(
    kernel: Kernel, loop: str, size: int, outer: str, inner: str, ends: tuple[int, int] | None = None
) -> Kernel:  # fmt: skip
    """Split ``loop`` by ``size``: ``loop = start + outer * size + inner``; the last tile may be shorter.

    With ``ends``, the first and the last tile have sizes of their own, and all others are whole. Each of the three then
    has a loop ``outer`` over its tiles, so that the first and the last are known to exist.

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
    if min((size, *(ends or ()))) < 1:
        sizes = size if ends is None else (ends[0], size, ends[1])
        raise ConfigError("tile-size", f"tile: loop {loop} by {sizes}; a tile has at least one iteration")
    return with_body(kernel, _Tile(loop, size, outer, inner, ends).stmt(kernel.body))
