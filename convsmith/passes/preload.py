"""Load operands of the epilogue before the products, so that their memory latency overlaps the products."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Cond, Var, conj, is_true, parts_of
from convsmith.ir.stmt import THREAD_LOOPS, Alloc, Block, For, If, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, Select, const
from convsmith.ir.walk import statements_of, variables_of, walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.derive_packing import guards_of
from convsmith.passes.lets import Name
from convsmith.passes.scope import LoopRewriter, allocate, extent, perfect_nest, with_body, wrap

EARLY = "_e"
"""Suffix of the names of registers that hold operands of the epilogue."""


class _EarlyLoads(LoopRewriter):
    def __init__(self, kernel: Kernel, operands: Collection[str], scope: str) -> None:
        super().__init__()
        self.scope = scope
        self.operands, self.missing = operands, set(operands)
        self.legal: dict[str, None] = {}
        self.stores = [s for s in statements_of(kernel.body) if isinstance(s, Store)]

    def visit_Alloc(self, s: Alloc) -> Stmt:
        parts = s.body.stmts if isinstance(s.body, Block) else (s.body,)
        last = parts[-1]
        if not s.buffer.in_registers or not isinstance(last, For):
            return self._Alloc(s)
        chain, body = perfect_nest(last)
        conds: tuple[Cond, ...] = ()
        while isinstance(body, If):
            conds, body = (*conds, *parts_of(body.cond)), body.body
        if not isinstance(body, Store) or body.buffer.in_registers:
            return self._Alloc(s)
        loads = dict.fromkeys(x for x in walk(body.value) if isinstance(x, Load) and not x.buffer.in_registers)
        self.legal |= dict.fromkeys(x.buffer.name for x in loads)
        early = [x for x in loads if x.buffer.name in self.operands]
        self.missing -= {x.buffer.name for x in early}
        registers: dict[Load, Load] = {}
        nests: list[Stmt] = []
        for x in early:
            self._require_first(x, body)
            used = _loops_of(x, chain, conds, self.scope)
            number = sum(y.buffer is x.buffer for y in registers)
            shape = tuple(extent(y, self.ranges) for y in used)
            held = make_buffer(f"{x.buffer.name}{EARLY}{number or ''}", x.buffer.dtype, shape, self.scope)
            registers[x] = Load(held, tuple(y.var for y in used), None)
            own, free = {y.var for y in chain}, {y.var for y in used}
            kept = conj(c for c in (*conds, *guards_of(body.value, x)) if variables_of(c) & own <= free)
            value = x if is_true(kept) else Select(kept, x, const(x.buffer.dtype, 0))
            nests.append(wrap(used, Store(held, registers[x].index, value)))
        if not early:
            return self._Alloc(s)
        body = block(*nests, *parts[:-1], Name(registers).stmt(last))
        return allocate((s.buffer, *(y.buffer for y in registers.values())), body)

    def _require_first(self, x: Load, store: Store) -> None:
        """Require that ``store``, which reads the element ``x`` itself, is the only statement that writes its array."""
        others = [s for s in self.stores if s.buffer is x.buffer and s is not store]
        if others or (x.buffer is store.buffer and x.index != store.index):
            raise ConfigError(
                "preload", f"preload: {x} is written by `{others[0] if others else store}` before it is read; legal are"
                " operands that the kernel only reads, and the element that is overwritten",
            )  # fmt: skip


def _loops_of(x: Load, chain: Sequence[For], conds: Sequence[Cond], scope: str) -> list[For]:
    """Return the loops of ``chain`` in which a register of ``scope`` holds the element ``x``: loops over threads, and
    loops that its index or its mask depends on. A fragment has the loops of the sums.
    """
    if scope == "fragment":
        return list(chain)
    own = {y.var for y in chain if y.kind not in THREAD_LOOPS}
    needed: set[Var] = {v for i in x.index for v in variables_of(i)} & own
    for _ in chain:
        for c in conds:
            if variables_of(c) & needed:
                needed |= variables_of(c) & own
    return [y for y in chain if y.var in needed or y.kind in THREAD_LOOPS]


@stages(*LOOPS)
def preload(kernel: Kernel, operands: Collection[str], scope: str = "register") -> Kernel:
    """Load the elements of ``operands`` that the stores of sums read before the sums, to registers of each thread.

    In the ``scope`` ``fragment``, they have the layout of the sums in the registers of a warp. An operand that the
    kernel overwrites, the summand of a ``sum``, is legal if each store reads its own element.

    Before::

        kernel k(a: f32[8, 3], bia: f32[4], dst: f32[7])
          for x in 0 .. 2 #grid:
            alloc acc: f32[2, 2] @register:
              for t in 0 .. 2 #group:
                for i in 0 .. 2:
                  acc[t, i] = 0.0
              for k in 0 .. 3:
                for t in 0 .. 2 #group:
                  for i in 0 .. 2:
                    acc[t, i] = acc[t, i] + a[i + t * 2 + x * 4, k]
              for t in 0 .. 2 #group:
                for i in 0 .. 2:
                  if -i - t * 2 - x * 4 + 6 >= 0:
                    dst[i + t * 2 + x * 4] = acc[t, i] + bia[i + t * 2] + dst[i + t * 2 + x * 4]

    After ``preload(("dst",))``::

        kernel k(a: f32[8, 3], bia: f32[4], dst: f32[7])
          for x in 0 .. 2 #grid:
            alloc acc: f32[2, 2] @register:
              alloc dst_e: f32[2, 2] @register:
                for t in 0 .. 2 #group:
                  for i in 0 .. 2:
                    dst_e[t, i] = (dst[i + t * 2 + x * 4] if -i - t * 2 - x * 4 + 6 >= 0 else 0.0)
                for t in 0 .. 2 #group:
                  for i in 0 .. 2:
                    acc[t, i] = 0.0
                for k in 0 .. 3:
                  for t in 0 .. 2 #group:
                    for i in 0 .. 2:
                      acc[t, i] = acc[t, i] + a[i + t * 2 + x * 4, k]
                for t in 0 .. 2 #group:
                  for i in 0 .. 2:
                    if -i - t * 2 - x * 4 + 6 >= 0:
                      dst[i + t * 2 + x * 4] = acc[t, i] + bia[i + t * 2] + dst_e[t, i]
    """
    rewriter = _EarlyLoads(kernel, operands, scope)
    body = rewriter.stmt(kernel.body)
    if rewriter.missing:
        raise ConfigError(
            "preload", f"preload: --preload={min(rewriter.missing)}; legal are operands that are read with the sums: "
            f"{', '.join(rewriter.legal) or 'none here'}",
        )  # fmt: skip
    return with_body(kernel, body)
