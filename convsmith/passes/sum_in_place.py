"""Accumulate sums in the memory of their results, without an array of accumulators.

The rewrite requires that each result is the sum itself and is stored once, and that no other statement accesses it
during the summation.
"""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, walk
from convsmith.passes.accesses import sites_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import in_any_order, require_order
from convsmith.passes.relocate import Place, Relocate
from convsmith.passes.scope import LoopRewriter, perfect_nest, require_no_effects, with_body


class _SumInPlace(LoopRewriter):
    def __init__(self, acc: str) -> None:
        super().__init__()
        self.acc = acc
        self.found = False

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if s.buffer.name != self.acc:
            return self._Alloc(s)
        self.found = True
        *sums, result = s.body.stmts if isinstance(s.body, Block) else (s.body,)
        loops, copy = perfect_nest(result) if isinstance(result, For) else ([], result)
        if not (isinstance(copy, Store) and isinstance(copy.value, Load) and copy.value.buffer is s.buffer):
            raise _refuse(f"the last statement during the life of {self.acc} copies none of its elements")
        ends = {x.var: x for x in loops}
        if copy.value.index != tuple(ends):
            raise _refuse(f"{copy.value} is no element for each iteration of the loops that copy it")
        for x in sums:
            self.check(s.buffer, copy, ends, x)
        self.require_one_place(result)

        def place(index: Place) -> Place:
            at = dict(zip(ends, index))
            return tuple(substitute(i, at) for i in copy.index)

        return block(*map(Relocate(s.buffer, copy.buffer, place).stmt, sums))

    def check(self, acc: Buffer, copy: Store, ends: Mapping[Var, For], s: Stmt) -> None:
        """Raise ConfigError unless ``s`` accesses only accumulators that are copied, in loops of the same bounds, and
        no result.
        """
        loops = [x for x in statements_of(s) if isinstance(x, For)]
        for loop in loops:
            other = ends.get(loop.var)
            if other is not None and (loop.lo, loop.hi) != (other.lo, other.hi):
                raise _refuse(f"loop {loop.var} runs {loop.lo} .. {loop.hi}, and {other.lo} .. {other.hi} in the copy")
        for x in walk(s):
            if not isinstance(x, (Load, Store)):
                continue
            if x.buffer is copy.buffer:
                raise _refuse(f"{copy.buffer} is accessed while the sums are made")
            if x.buffer is acc and (x.index != tuple(ends) or not set(ends) <= {y.var for y in loops}):
                raise _refuse(f"{acc} is accessed at {', '.join(map(str, x.index))}, and copied at {_text(ends)}")

    def require_one_place(self, result: Stmt) -> None:
        """Raise ConfigError if two sums are stored to one element."""
        require_order(f"sum_in_place({self.acc})", sites_of(result, self.ranges), in_any_order, self.ranges)


def _refuse(why: str) -> ConfigError:
    return ConfigError("sum-in-place", f"sum_in_place: {why}")


def _text(names: Mapping[Var, object]) -> str:
    return ", ".join(map(str, names))


@stages(*LOOPS)
def sum_in_place(kernel: Kernel, acc: str) -> Kernel:
    """Replace the accumulators ``acc`` by the elements that they are copied to.

    Before::

        kernel k(a: f32[5, 3], b: f32[3], dst: f32[5])
          alloc acc: f32[5] @cache:
            for i in 0 .. 5:
              acc[i] = 0.0
            for k in 0 .. 3:
              for i in 0 .. 5:
                acc[i] = acc[i] + a[i, k] * b[k]
            for i in 0 .. 5:
              dst[i] = acc[i]

    After ``sum_in_place("acc")``::

        kernel k(a: f32[5, 3], b: f32[3], dst: f32[5])
          for i in 0 .. 5:
            dst[i] = 0.0
          for k in 0 .. 3:
            for i in 0 .. 5:
              dst[i] = dst[i] + a[i, k] * b[k]
    """
    require_no_effects(kernel, "sum_in_place")
    made = _SumInPlace(acc)
    body = made.stmt(kernel.body)
    if not made.found:
        raise _refuse(f"kernel {kernel.name} allocates no {acc}")
    return with_body(kernel, body)
