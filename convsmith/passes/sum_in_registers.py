"""Keep sums in registers while their terms are added: memory is read before the reduction and written after it."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.arith.dependence import LoopBounds
from convsmith.ir.buffer import make_buffer
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import variables_of
from convsmith.passes.accesses import Path, sites_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.order import NewPath, Unordered, is_only_sum, require_order
from convsmith.passes.relocate import Place, Relocate
from convsmith.passes.scope import (
    LoopRewriter,
    loop_names,
    perfect_nest,
    require_loops,
    require_new_buffer,
    require_no_effects,
    with_body,
    wrap,
)

Loop = For
"""Within a rewriter, ``For`` is its method."""


class _SumInRegisters(LoopRewriter):
    def __init__(self, kernel: Kernel, loop: str) -> None:
        super().__init__()
        self.kernel, self.loop = kernel, loop

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop or not isinstance(loop.body, Loop):
            return self._For(loop)
        nest, s = perfect_nest(loop.body)
        if not isinstance(s, Store) or s.lanes is not None or s.buffer.in_registers or not is_only_sum(s):
            return self._For(loop)
        used = frozenset().union(*map(variables_of, s.index))
        elements = [x for x in nest if x.var in used]
        if not elements or len(elements) == len(nest) or not all(map(_has_constant_bounds, nest)):
            return self._For(loop)
        body = self.summed(nest, elements, s)
        return Loop(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)

    def summed(self, nest: Sequence[Loop], elements: Sequence[Loop], s: Store) -> Stmt:
        """Return the ``nest`` around the sum ``s``, with one register for each iteration of the loops ``elements``."""
        name = f"{s.buffer.name}_r"
        require_new_buffer(self.kernel, name, "sum_in_registers")
        new = make_buffer(name, s.buffer.dtype, tuple(x.hi.const for x in elements), "register")
        at: Place = tuple(x.var for x in elements)
        write = wrap(elements, Store(s.buffer, s.index, Load(new, at, None)))
        self.require_one_place(write)
        read = wrap(elements, Store(new, at, Load(s.buffer, s.index, None)))
        products = wrap(nest, Relocate(s.buffer, new, lambda _: at).stmt(s))
        return Alloc(new, block(read, products, write))

    def require_one_place(self, write: Stmt) -> None:
        """Raise ConfigError where two sums are stored to one element."""

        def in_any_order(path: Path) -> NewPath:
            return tuple(Unordered(x) if isinstance(x, LoopBounds) else x for x in path)

        require_order(f"sum_in_registers({self.loop})", sites_of(write, self.ranges), in_any_order, self.ranges)


def _has_constant_bounds(loop: Loop) -> bool:
    """Return whether ``loop`` starts at 0 and runs at least once, any number of times known before the call."""
    return loop.lo.is_const and loop.lo.const == 0 and loop.hi.is_const and loop.hi.const > 0


@stages(*FLATTENED)
def sum_in_registers(kernel: Kernel, loop: str, around: Sequence[str] = ()) -> Kernel:
    """Hold the sums of a nest below ``loop`` in registers; a nest with bounds that vary stays as it is.

    If ``loop`` was removed because it runs once, the first of the loops ``around`` it that is left takes its place.

    Before::

        kernel k(a: s32[5, 3], b: s32[3, 4], dst: s32[5, 4])
          for i in 0 .. 5:
            for k in 0 .. 3:
              for j in 0 .. 4:
                dst[i, j] = dst[i, j] + a[i, k] * b[k, j]

    After ``sum_in_registers("i")``::

        kernel k(a: s32[5, 3], b: s32[3, 4], dst: s32[5, 4])
          for i in 0 .. 5:
            alloc dst_r: s32[4] @register:
              for j in 0 .. 4:
                dst_r[j] = dst[i, j]
              for k in 0 .. 3:
                for j in 0 .. 4:
                  dst_r[j] = dst_r[j] + a[i, k] * b[k, j]
              for j in 0 .. 4:
                dst[i, j] = dst_r[j]
    """
    require_no_effects(kernel, "sum_in_registers")
    known = set(loop_names(kernel.body))
    loop = next((name for name in (loop, *around) if name in known), loop)
    require_loops(kernel, (loop,), "sum_in_registers")
    return with_body(kernel, _SumInRegisters(kernel, loop).stmt(kernel.body))
