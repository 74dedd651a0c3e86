"""Replace nests that transpose register arrays by instructions, by comparing them with specifications."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.buffer import Buffer
from convsmith.ir.equal import structural_equal
from convsmith.ir.index import as_index
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import For, Invoke, Kernel, Stmt, Store
from convsmith.ir.value import Load, Value, strided
from convsmith.ir.walk import Rewriter
from convsmith.passes.scope import perfect_nest, with_body


class _Pick(Rewriter):
    def __init__(self, rows: Sequence[Instruction]) -> None:
        super().__init__()
        self.rows = rows

    def For(self, loop: For) -> Stmt:
        _, s = perfect_nest(loop)
        if not isinstance(s, Store) or not isinstance(s.value, Load):
            return self._For(loop)
        to, of = s.buffer, s.value.buffer
        if to.scope != "register" or of.scope != "register":
            return self._For(loop)
        for row in self.rows:
            c, a = row.kernel.params
            known = (c.shape, a.shape, c.dtype, a.dtype) == (to.shape, of.shape, to.dtype, of.dtype)
            if known and structural_equal(_Between(c, a).stmt(loop), row.kernel.body):
                whole = (Load(b, (as_index(0),) * len(b.shape), strided(b.size, 1)) for b in (to, of))
                return Invoke(row.name, next(whole), (next(whole),))
        return self._For(loop)


class _Between(Rewriter):
    """The same from ``a`` to ``c``."""

    def __init__(self, c: Buffer, a: Buffer) -> None:
        super().__init__()
        self.c, self.a = c, a

    def Load(self, v: Load) -> Value:
        return Load(self.a, v.index, v.lanes)

    def Store(self, s: Store) -> Stmt:
        return Store(self.c, s.index, self.expr(s.value), s.lanes)


def pick_transpositions(kernel: Kernel, rows: Sequence[Instruction]) -> Kernel:
    """Use the first row that computes each nest over whole register arrays; what none computes stays.

    Before::

        kernel k(a: f32[16], dst: f32[16])
          alloc t: f32[4, 4] @register:
            alloc u: f32[4, 4] @register:
              for n in 0 .. 4 #unrolled:
                t[n, 0]{4} = a[n * 4]{4}
              for i in 0 .. 4:
                for j in 0 .. 4:
                  u[i, j] = t[j, i]
              for n in 0 .. 4 #unrolled:
                dst[n * 4]{4} = u[n, 0]{4}

    After ``pick_transpositions(TRANSPOSITIONS)``::

        kernel k(a: f32[16], dst: f32[16])
          alloc t: f32[4, 4] @register:
            alloc u: f32[4, 4] @register:
              for n in 0 .. 4 #unrolled:
                t[n, 0]{4} = a[n * 4]{4}
              transpose_4x4_f32(u[0, 0]{16}, t[0, 0]{16})
              for n in 0 .. 4 #unrolled:
                dst[n * 4]{4} = u[n, 0]{4}
    """
    return with_body(kernel, _Pick(rows).stmt(kernel.body))
