"""Pad a reduction loop to its full length: terms beyond its end read as zero."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.arith.ranges import Range, try_interval
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Min, Var, as_index, conj
from convsmith.ir.stmt import Alloc, For, Kernel, PointerLoad, Stmt
from convsmith.ir.value import Load, Select, Value, const
from convsmith.ir.walk import statements_of, variables_of, walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import ScopedRewriter, require_loops, require_no_effects, with_body


class _Mask(ScopedRewriter):
    """Masks loads that the padded iterations would take outside of a buffer, or from gaps that may hold NaN."""

    def __init__(self, var: Var, cond: Cond, ranges: dict[Var, Range], packed: frozenset[Buffer]) -> None:
        super().__init__()
        self.var, self.cond, self.ranges, self.packed = var, cond, ranges, packed

    def visit_Load(self, v: Load) -> Value:
        if v.buffer.scope == "register" or not any(self.var in variables_of(i) for i in v.index):
            return v
        intervals = [try_interval(i, self.ranges) for i in v.index]
        inside = all(r is not None and 0 <= r[0] and r[1] < size for r, size in zip(intervals, v.buffer.shape))
        if inside and (v.buffer in self.packed or (v.buffer.dtype.kind != "float" and self.packed)):
            return v
        return Select(self.cond, v, const(v.buffer.dtype, 0))


class _FillTerms(ScopedRewriter):
    def __init__(self, name: str, count: int, packed: frozenset[Buffer]) -> None:
        super().__init__()
        self.name, self.count, self.packed = name, count, packed

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.name or loop.lo is not as_index(0) or loop.hi is as_index(self.count):
            return self._For(loop)
        if loop.var not in variables_of(loop.body) or _points_by(loop):
            return self._For(loop)
        highest = try_interval(loop.hi, self.ranges)
        if highest is not None and highest[1] > self.count:
            raise ConfigError("k_step", f"fill_terms: loop {self.name} runs up to {highest[1]} times, not {self.count}")
        ends: tuple[Index, ...] = loop.hi.args if isinstance(loop.hi, Min) else (loop.hi,)
        cond = conj([loop.var < end for end in ends if end is not as_index(self.count)])
        packed = self.packed & {x.buffer for x in walk(loop.body) if isinstance(x, Load)}
        mask = _Mask(loop.var, cond, {**self.ranges, loop.var: (0, self.count - 1)}, packed)
        return For(loop.var, loop.lo, as_index(self.count), mask.stmt(loop.body), loop.kind, loop.carried)


def _points_by(loop: For) -> bool:
    """Return whether the loop's variable indexes a pointer table, which has no entries beyond the loop's end."""
    entries = (s for s in statements_of(loop.body) if isinstance(s, PointerLoad))
    return any(loop.var in variables_of(i) for s in entries for i in s.index)


@stages(*LOOPS)
def fill_terms(kernel: Kernel, loop: str, count: int, filled: Sequence[str] = ()) -> Kernel:
    """Let each reduction loop named ``loop`` run ``count`` times.

    In the added iterations, one factor reads as zero, and the packed one holds zeros; buffers named in ``filled`` hold
    zeros too. A loop whose variable no access uses is unchanged, because it would repeat its single term.

    Before::

        kernel k(src: u8[3], wei_p: s8[16, 4], dst: s32[16])
          alloc acc: s32[16] @register:
            for l in 0 .. 16:
              acc[l] = s32(0)
            for l in 0 .. 16:
              for q in 0 .. 3:
                acc[l] = acc[l] + cast(s32, src[q]) * cast(s32, wei_p[l, q])
            for l in 0 .. 16:
              dst[l] = acc[l]
        pack k_pack_wei(wei: s8[16, 3], wei_p: s8[16, 4])
          for l in 0 .. 16:
            for q in 0 .. 4:
              wei_p[l, q] = (wei[l, q] if -q + 2 >= 0 else s8(0))

    After ``fill_terms("q", 4)``::

        kernel k(src: u8[3], wei_p: s8[16, 4], dst: s32[16])
          alloc acc: s32[16] @register:
            for l in 0 .. 16:
              acc[l] = s32(0)
            for l in 0 .. 16:
              for q in 0 .. 4:
                acc[l] = acc[l] + cast(s32, (src[q] if -q + 2 >= 0 else u8(0))) * cast(s32, wei_p[l, q])
            for l in 0 .. 16:
              dst[l] = acc[l]
        pack k_pack_wei(wei: s8[16, 3], wei_p: s8[16, 4])
          for l in 0 .. 16:
            for q in 0 .. 4:
              wei_p[l, q] = (wei[l, q] if -q + 2 >= 0 else s8(0))
    """
    require_no_effects(kernel, "fill_terms")
    require_loops(kernel, (loop,), "fill_terms")
    copies = (s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc) and s.buffer.name in filled)
    packed = frozenset((*(pack.params[-1] for pack in kernel.packs), *copies))
    return with_body(kernel, _FillTerms(loop, count, packed).stmt(kernel.body))
