"""Fetch the pixels of a later register tile into the second-level cache while a tile computes.

A tile of pixels reads one element of each of its pixels in every step of a sum, so that its cache lines are spread over
as many runs of memory, which no prefetcher follows: each tile waits for lines from beyond the caches. If the pixels are
contiguous, a step fetches a share of a later tile, in the order of memory. If a stride leaves out pixels between them,
a step fetches the lines of whole pixels.

The later tile is the next one, unless tiles are so small that its lines would arrive too late. Where a kernel also
reads results, such as a residual that it adds to, lines that are fetched early delay those of the results, so that it
is always the next tile there.
"""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Mod, Var, as_index, make_sum
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Prefetch, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import loops_of, variables_of, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import ScopedRewriter, require_loops, with_body

LINE = 64
"""Bytes of a cache line."""
MIN_DISTANCE = 8 << 10
"""Minimum number of bytes between a tile and the one that it fetches: memory delivers about as many in the time of its
latency.
"""
MAX_LINES = 4
"""Maximum number of cache lines that an iteration fetches of pixels that are apart: with more, an iteration fetches
many times the lines that its tile needs.
"""


class _FetchPixels(ScopedRewriter):
    def __init__(self, name: str, pixels: str, terms: str, distance: int) -> None:
        super().__init__()
        self.name, self.pixels, self.terms, self.distance = name, Var(pixels), terms, distance

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.terms or not (loop.lo.is_const and loop.hi.is_const):
            return self._For(loop)
        reads = next(self.reads(loop), None)
        count = max((int(x.hi) for x in loops_of(loop) if x.var is self.pixels and x.hi.is_const), default=1)
        ahead = None if reads is None else self.ahead(loop, *reads, count)
        if reads is None or ahead is None:
            return loop
        buffer, (start, places) = reads[0], ahead
        fetched = [Prefetch(buffer, (start + n,)) for n in places]
        return For(loop.var, loop.lo, loop.hi, block(*fetched, loop.body), loop.kind, loop.carried)

    def reads(self, s: Stmt) -> Iterator[tuple[Buffer, Index]]:
        """Yield the loads of the array in ``s`` that depend on the loop over pixels."""
        for v in walk(s):
            if isinstance(v, Load) and v.buffer.name == self.name and self.pixels in variables_of(v.index[0]):
                yield v.buffer, v.index[0]

    def ahead(self, loop: For, buffer: Buffer, at: Index, count: int) -> tuple[Index, list[int]] | None:
        """Return the first element that an iteration fetches, and the distances from it to the elements of each line,
        where ``at`` is the element of ``buffer`` that it reads of each of ``count`` pixels; None unless the iterations
        read contiguous elements of a pixel.

        The distance is in tiles, by the bytes that all iterations read of a tile: where channels are in blocks, they
        lie in several runs of memory. Where pixels of few lines are apart, an iteration fetches all lines of some
        pixels. If the iterations are more than the pixels, the last ones fetch pixels of further tiles.
        """
        line = LINE // buffer.dtype.bytes
        pitch = dict(at.terms).get(self.pixels, 0)
        first, tile = substitute(at, {self.pixels: as_index(0)}), count * pitch
        read = count * (loop.hi.const - loop.lo.const) * buffer.dtype.bytes
        for atom, step in first.terms:
            runs = loop.hi.const - loop.lo.const if atom is loop.var else 0
            if isinstance(atom, Mod) and loop.var in variables_of(atom):
                runs = atom.den
            if step > 0 and runs * step == pitch:
                moved = {a: c * (count if a is atom else 1) for a, c in first.terms}
                tile *= max(-(-self.distance // read), 1)
                return make_sum(first.const + tile, moved), [*range(0, step * count, line)]
            if step > 0 and 0 < runs * step < pitch:
                pixels = -(-count // runs)
                moved = {a: pixels * pitch if a is atom else c for a, c in first.terms}
                places = [p * pitch + n for p in range(pixels) for n in range(0, runs * step, line)]
                return (make_sum(first.const + tile, moved), places) if len(places) <= MAX_LINES else None
        return None


@stages(*FLATTENED)
def fetch_pixels(kernel: Kernel, name: str, pixels: str, terms: str) -> Kernel:
    """Prefetch the elements of the array ``name`` that follow those of the loop ``pixels`` at some distance.

    The distance is that of the next elements if the kernel reads an array that it writes, and 8 KiB at least otherwise.
    Each iteration of the loop ``terms`` prefetches a share of them. The kernel is unchanged where an iteration does not
    read one element, or some adjacent ones, of each pixel, or where pixels of many lines are not contiguous.

    Before::

        kernel k(a: f32[48], c: f32[6])
          for p.o in 0 .. 3:
            for i in 0 .. 8:
              for p.i in 0 .. 2 #unrolled:
                c[p.i + p.o * 2] = c[p.i + p.o * 2] + a[i + p.i * 8 + p.o * 16]

    After ``fetch_pixels("a", "p.i", "i")``::

        kernel k(a: f32[48], c: f32[6])
          for p.o in 0 .. 3:
            for i in 0 .. 8:
              prefetch a[i * 2 + p.o * 16 + 16]
              for p.i in 0 .. 2 #unrolled:
                c[p.i + p.o * 2] = c[p.i + p.o * 2] + a[i + p.i * 8 + p.o * 16]
    """
    require_loops(kernel, (terms,), "fetch_pixels")
    distance = 0 if _reads_results(kernel) else MIN_DISTANCE
    return with_body(kernel, _FetchPixels(name, pixels, terms, distance).stmt(kernel.body))


def _reads_results(kernel: Kernel) -> bool:
    """Return whether the kernel reads an array of the caller that it writes."""
    nodes = [*walk(kernel.body)]
    written = {x.buffer for x in nodes if isinstance(x, Store)}
    return any(isinstance(x, Load) and x.buffer in written and x.buffer.scope == "global" for x in nodes)
