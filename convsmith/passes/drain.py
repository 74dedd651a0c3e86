"""Write accumulators to memory before the epilogue, so that the epilogue is a short loop instead of unrolled code."""

from __future__ import annotations

from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, Block, For, If, Kernel, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import Relocate
from convsmith.passes.scope import LoopRewriter, perfect_nest, require_loops, require_new_buffer, with_body, wrap


@record(frozen=True)
class _Nest:
    """A store, optionally under a condition, and the loops around it."""

    loops: list[For]
    store: Stmt


class _Drain(LoopRewriter):
    def __init__(self, kernel: Kernel, rename: dict[str, str]) -> None:
        super().__init__()
        self.kernel, self.rename = kernel, rename

    def visit_Alloc(self, s: Alloc) -> Stmt:
        last = s.body.stmts[-1] if isinstance(s.body, Block) else s.body
        nest = _writing(last, s.buffer) if s.buffer.scope == "register" and isinstance(last, For) else None
        if nest is None or not isinstance(s.body, Block) or nest.loops[0].var.name not in self.rename:
            return self._Alloc(s)
        require_new_buffer(self.kernel, f"{s.buffer.name}_m", "drain")
        memory = make_buffer(f"{s.buffer.name}_m", s.buffer.dtype, s.buffer.shape, "cache")
        index: tuple[Index, ...] = tuple(loop.var for loop in nest.loops)
        out = wrap(nest.loops, Store(memory, index, Load(s.buffer, index, None)))
        names = {loop.var: Var(self.rename.get(loop.var.name, loop.var.name)) for loop in nest.loops}
        store = substitute(Relocate(s.buffer, memory, lambda index: index).stmt(nest.store), names)
        ends = [(substitute(x.lo, names), substitute(x.hi, names)) for x in nest.loops]
        loops = [For(names[x.var], *end, x.body, x.kind) for x, end in zip(nest.loops, ends)]
        return Alloc(memory, Alloc(s.buffer, block(*s.body.stmts[:-1], out, wrap(loops, store))))


def _writing(loop: For, accumulator: Buffer) -> _Nest | None:
    """Return the nest that writes results to memory, each result from its own element of the accumulator; None if there
    is no such nest.
    """
    chain, body = perfect_nest(loop)
    store = body.body if isinstance(body, If) else body
    if not isinstance(store, Store) or store.buffer.scope == "register":
        return None
    own = tuple(x.var for x in chain)
    reads = (v for v in walk(store.value) if isinstance(v, Load) and v.buffer is accumulator)
    return _Nest(chain, body) if all(v.index == own for v in reads) else None


@stages(*LOOPS)
def drain(kernel: Kernel, loops: tuple[str, ...], suffix: str) -> Kernel:
    """Store each accumulator to memory; its last nest reads that memory, in new loops (``loops`` with ``suffix``).

    Before::

        kernel k(a: f32[5], dst: f32[5])
          alloc acc: f32[5] @register:
            for i in 0 .. 5:
              acc[i] = a[i]
            for i in 0 .. 5:
              dst[i] = acc[i] * acc[i]

    After ``drain(("i",), ".w")``::

        kernel k(a: f32[5], dst: f32[5])
          alloc acc_m: f32[5] @cache:
            alloc acc: f32[5] @register:
              for i in 0 .. 5:
                acc[i] = a[i]
              for i in 0 .. 5:
                acc_m[i] = acc[i]
              for i.w in 0 .. 5:
                dst[i.w] = acc_m[i.w] * acc_m[i.w]
    """
    require_loops(kernel, loops, "drain")
    return with_body(kernel, _Drain(kernel, {name: name + suffix for name in loops}).stmt(kernel.body))
