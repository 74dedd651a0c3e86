"""Fetch the pixels that only the register tile below reads into the second-level cache while a tile computes.

Windows of neighbouring rows overlap. A tile finds most of the pixels under its windows in caches, where the tiles above
it left them, and reads the others from where the image is: short runs on many lines, at distances that no prefetcher
follows. A tile has too little arithmetic to hide the wait for them; a row of tiles has enough.
"""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, make_sum
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import UNROLLED
from convsmith.ir.stmt import Block, Invoke, Kernel, Prefetch, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import walk
from convsmith.passes.contracts import stages
from convsmith.passes.fetch_pixels import LINE
from convsmith.passes.scope import each_body


class _FetchRows(Rewriter):
    def __init__(self, name: str, below: int, beside: int) -> None:
        super().__init__()
        self.name, self.below, self.beside = name, below, beside

    def visit_Block(self, s: Block) -> Stmt:
        read: dict[tuple[Buffer, Index], set[int]] = {}
        is_reader = list[bool]()
        for x in s.stmts:
            loads = [*self.loads(x)]
            is_reader.append(bool(loads))
            for v in loads:
                start = make_sum(0, dict(v.index[0].terms))
                read.setdefault((v.buffer, start), set()).add(v.index[0].const)
        ahead = [Prefetch(b, (start + n,)) for (b, start), at in read.items() for n in self.fetched(at, b)]
        stmts, done, passed = list[Stmt](), 0, 0
        for x, reads in zip(s.stmts, is_reader):
            if reads:
                passed += 1
                until = -(-len(ahead) * passed // sum(is_reader))
                stmts += ahead[done:until]
                done = until
            stmts.append(self.stmt(x))
        return block(*stmts) if stmts != list(s.stmts) else s

    def loads(self, s: Stmt) -> Iterator[Load]:
        """Yield the loads of the array in a statement that has no statements within it."""
        if isinstance(s, (Invoke, Store)):
            for v in walk(s):
                if isinstance(v, Load) and v.buffer.name == self.name:
                    yield v

    def fetched(self, read: set[int], buffer: Buffer) -> list[int]:
        """Return the distances of the elements that a tile fetches, one of each line, if it reads those at ``read``:
        those that the tile below reads, unless a tile above has read them or the tile beside it fetches them.
        """
        new, first = {n + self.below for n in read} - read, min(read)
        for rows in range(self.below, max(read) - first + 1, self.below):  # taps may be apart
            new -= {n - rows for n in read}
        found: list[int] = []
        for n in sorted(new - {n + self.beside for n in new}):
            if not found or (n - found[-1]) * buffer.dtype.bytes >= LINE:
                found.append(n)
        return found


@stages(UNROLLED, ensures=UNROLLED)
def fetch_rows(kernel: Kernel, name: str, below: int, beside: int) -> Kernel:
    """Prefetch the elements of the array ``name`` that the register tile below a tile is the first to read.

    A tile is straight-line code. The tile below reads ``below`` elements further, the next one of the same row
    ``beside`` elements further. Tiles above have read the elements that they share with it. A tile prefetches what the
    next one of its row does not, evenly between the statements that read the array.

    Before::

        kernel k(a: f32[12], c: f32[4])
          for y in 0 .. 2:
            for x in 0 .. 2:
              alloc acc: f32[] @register:
                acc[] = 0.0
                acc[] = acc[] + a[x + y * 4]
                acc[] = acc[] + a[x + y * 4 + 1]
                acc[] = acc[] + a[x + y * 4 + 4]
                acc[] = acc[] + a[x + y * 4 + 5]
                c[x + y * 2] = acc[]

    After ``fetch_rows("a", 4, 1)``::

        kernel k(a: f32[12], c: f32[4])
          for y in 0 .. 2:
            for x in 0 .. 2:
              alloc acc: f32[] @register:
                acc[] = 0.0
                prefetch a[x + y * 4 + 8]
                acc[] = acc[] + a[x + y * 4]
                acc[] = acc[] + a[x + y * 4 + 1]
                acc[] = acc[] + a[x + y * 4 + 4]
                acc[] = acc[] + a[x + y * 4 + 5]
                c[x + y * 2] = acc[]
    """
    if not 0 < beside <= below:
        raise ConfigError("fetch", f"fetch_rows: {below} elements below, {beside} beside; legal is 0 < beside <= below")
    return each_body(kernel, _FetchRows(name, below, beside).stmt)
