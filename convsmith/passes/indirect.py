"""Read a buffer through a pointer table; an absent term becomes a product with a stored zero."""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Kernel, PointerLoad, Stmt, Store
from convsmith.ir.value import Binary, Load, Select, Value
from convsmith.ir.walk import walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import require_no_effects, with_body


class _LoadsOfPixel(Rewriter):
    def __init__(self, read: Load, new: Load) -> None:
        super().__init__()
        self.read, self.new = read, new

    def visit_Load(self, v: Load) -> Value:
        return self.new if v is self.read else self._Load(v)

    def visit_Select(self, v: Select) -> Value:
        return self.new if v.yes is self.read else self._Select(v)


class _Indirect(Rewriter):
    def __init__(self, source: str, table: Buffer, zero: Buffer, index: tuple[Index, ...], moved: Index) -> None:
        super().__init__()
        self.source, self.table, self.zero, self.index_, self.moved = source, table, zero, index, moved
        self.found: Buffer | None = None

    def visit_Store(self, s: Store) -> Stmt:
        reads = {x for x in walk(s.value) if isinstance(x, Load) and x.buffer.name == self.source}
        if not reads:
            return s
        if len(reads) > 1 or self.found is not None:
            raise ConfigError("reads", f"indirect: {self.source} is read in several places; a table serves one")
        (read,) = reads
        self.found = source = read.buffer
        pixel = Buffer(f"{source.name}_at", source.dtype, self.zero.shape, self.zero.blocks)
        value = s.value
        if isinstance(value, Binary) and isinstance(value.b, Select):
            value = Binary(value.op, value.a, value.b.yes)  # the table replaces the mask
        value = _LoadsOfPixel(read, Load(pixel, (read.index[1],), None)).expr(value)
        body = Store(s.buffer, s.index, value, s.lanes)
        start = (as_index(0),) * len(self.zero.shape)
        return PointerLoad(pixel, self.table, self.index_, self.moved, source, self.zero, start, body)


@stages(*LOOPS)
def indirect(
    kernel: Kernel, source: str, table: Buffer, zero: Buffer, index: tuple[Index, ...], moved: Index,
    sizes: tuple[Var, ...] = (),
) -> Kernel:  # fmt: skip
    """Make the term that reads ``source`` (images, channels, pixels) find its pixel through ``table`` at ``index``.

    ``moved`` elements are added to every entry that is not absent: the offset of the image and of a row that the table
    does not store.  ``zero`` has the layout of a pixel's channels.  Table and zero buffer become parameters.
    The ``sizes`` of the mask, which the table replaces, are no longer sizes of the kernel.

    Before::

        kernel k(a: f32[2, 4, 3] = 0:2:12 2:3:4 1:4:1, b: f32[2], c: f32[2, 4, 3])
          for n in 0 .. 2:
            for i in 0 .. 4:
              for x in 0 .. 3:
                for k in 0 .. 2:
                  c[n, i, x] = c[n, i, x] + (a[n, i, k + x - 1] * b[k] if k + x - 1 >= 0 else 0.0)

    After ``indirect("a", TABLE, ZERO, (Var("x"), Var("k")), Var("n") * 12)``::

        kernel k(a: f32[2, 4, 3] = 0:2:12 2:3:4 1:4:1, a_row: ptr[3, 2], a_0: f32[4], b: f32[2], c: f32[2, 4, 3])
          for n in 0 .. 2:
            for i in 0 .. 4:
              for x in 0 .. 3:
                for k in 0 .. 2:
                  at a_row[x, k] + n * 12 in a or a_0[0] as a_at: f32[4]:
                    c[n, i, x] = c[n, i, x] + a_at[i] * b[k]
    """
    require_no_effects(kernel, "indirect")
    i = _Indirect(source, table, zero, index, moved)
    out = with_body(kernel, i.stmt(kernel.body))
    if i.found is None:
        return kernel
    params: list[Buffer] = []
    for b in kernel.params:
        params += [b, table, zero] if b is i.found else [b]
    return replace(out, params=tuple(params), sizes=tuple(v for v in out.sizes if v not in sizes))
