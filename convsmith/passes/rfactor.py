"""Factor a reduction: each iteration of the loop gets its own partial sum; the partial sums are added last."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Binary, Const, Load, const
from convsmith.ir.walk import bound_in, loops_of, statements_of, walk
from convsmith.passes.accesses import sites_of, written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.lets import Name
from convsmith.passes.relocate import Relocate
from convsmith.passes.scope import (
    ScopedRewriter,
    ranges_below,
    require_loops,
    require_no_effects,
    with_body,
)


class _WriteBack(Rewriter):
    """Sums the lanes of the accumulator before each store that reads it."""

    def __init__(self, old, new, lane: Var, lanes: int) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.old, self.new, self.lane, self.lanes = old, new, lane, lanes

    def visit_Store(self, s: Store) -> Stmt:
        reads = [x for x in walk(s.value) if isinstance(x, Load) and x.buffer is self.old]
        if not reads:
            return s
        total = make_buffer("total", self.old.dtype, (), "register")
        here = Load(total, (), None)
        add = Binary("add", here, Load(self.new, (*reads[0].index, self.lane), None))
        loop = For(self.lane, as_index(0), as_index(self.lanes), Store(total, (), add))
        zero = Store(total, (), const(total.dtype, 0))
        value = Name({reads[0]: here}).expr(s.value)
        return Alloc(total, block(zero, loop, Store(s.buffer, s.index, value, s.lanes)))


class _Rfactor(ScopedRewriter):
    def __init__(self, name: str, lanes: int) -> None:
        super().__init__()
        self.name, self.lanes = name, lanes

    def visit_Alloc(self, a: Alloc) -> Stmt:
        loops = [x for x in loops_of(a.body) if x.var.name == self.name]
        if not loops or not a.buffer.in_registers:
            return self._Alloc(a)
        if not isinstance(a.body, Block) or not 2 <= len(a.body.stmts) <= 3:
            raise ConfigError("not-nested", f"rfactor: loop {self.name} must lie in a split nest")
        # A nest without stores has no last part.
        init, reduce, *finish = a.body.stmts
        old = a.buffer
        self.require_sums(old, init, reduce, finish)
        ranges = ranges_below(reduce, self.ranges)
        if ranges[loops[0].var][0] < 0:
            raise ConfigError("bounds", f"rfactor: loop {self.name} starts at {loops[0].lo}; legal is 0 or more")
        lanes = max(self.lanes, ranges[loops[0].var][1] + 1)
        lane = Var(self.name)
        new = make_buffer(old.name, old.dtype, (*old.shape, lanes), old.scope)
        more = Relocate(old, new, lambda index: (*index, lane))

        class Init(Rewriter):
            def visit_Store(self, s: Store) -> Stmt:
                return For(lane, as_index(0), as_index(lanes), more.stmt(s))

        write = _WriteBack(old, new, lane, lanes)
        return Alloc(new, block(Init().stmt(init), more.stmt(reduce), *(write.stmt(s) for s in finish)))

    def require_sums(self, acc: Buffer, init: Stmt, reduce: Stmt, finish: Sequence[Stmt]) -> None:
        """Raise ConfigError unless the sums start at zero, the loop adds to them, and the last part only reads them."""
        what = f"rfactor: loop {self.name}"
        for s in statements_of(init):
            if isinstance(s, Store) and not (s.buffer is acc and isinstance(s.value, Const) and s.value.value == 0):
                raise ConfigError("not-zero", f"{what}: {acc} must start at zero, for each lane has a sum of its own")
        sites = [x for x in sites_of(reduce, {}) if x.access.buffer is acc]
        if not all(x.is_sum and Var(self.name) in [y.var for y in x.access.loops] for x in sites):
            raise ConfigError("not-nested", f"{what} must add to {acc}, and no other statement of its nest use {acc}")
        for part in (init, *finish):
            if acc in written_in(part) and part is not init:
                raise ConfigError("not-nested", f"{what}: {acc} is written after the sum; legal is to read it")
            if Var(self.name) in bound_in(part):
                raise ConfigError("loop-name", f"{what}: its name is that of a loop before or after the sum")
        for s in (s for part in finish for s in statements_of(part) if isinstance(s, Store)):
            if len({v for v in walk(s.value) if isinstance(v, Load) and v.buffer is acc}) > 1:
                raise ConfigError("reads", f"{what}: a statement after the sum reads several elements of {acc}")


@stages(*LOOPS)
def rfactor(kernel: Kernel, loop: str, lanes: int = 1) -> Kernel:
    """Give each iteration of the reduction loop ``loop`` a partial sum, and add the partial sums up before use.

    Before::

        kernel k(a: f32[8], dst: f32[1])
          alloc acc: f32[] @register:
            acc[] = 0.0
            for k.o in 0 .. 2:
              for k.l in 0 .. 4:
                acc[] = acc[] + a[k.l + k.o * 4]
            dst[0] = acc[]

    After ``rfactor("k.l")``::

        kernel k(a: f32[8], dst: f32[1])
          alloc acc: f32[4] @register:
            for k.l in 0 .. 4:
              acc[k.l] = 0.0
            for k.o in 0 .. 2:
              for k.l in 0 .. 4:
                acc[k.l] = acc[k.l] + a[k.l + k.o * 4]
            alloc total: f32[] @register:
              total[] = 0.0
              for k.l in 0 .. 4:
                total[] = total[] + acc[k.l]
              dst[0] = total[]
    """
    require_no_effects(kernel, "rfactor")
    require_loops(kernel, (loop,), "rfactor")
    return with_body(kernel, _Rfactor(loop, lanes).stmt(kernel.body))
