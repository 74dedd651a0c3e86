"""Factor a reduction: each iteration of the loop gets its own partial result; they are combined last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import COMBINATIONS, Binary, Load, Value, const
from convsmith.ir.walk import bound_in, children, loops_of, statements_of, walk
from convsmith.passes.accesses import reads_any, sites_of, written_in
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


class _Reduction(NamedTuple):
    """The change of an accumulator: by the operation `op`, from the value `start` on, which changes nothing."""

    op: str
    start: Value


class _WriteBack(Rewriter):
    """Combines the `lanes` partial results of an accumulator before each store that reads it. They are the last dim of
    the accumulator, or the first one if they are `apart`.
    """

    def __init__(self, old: Buffer, new: Buffer, lane: Var, lanes: int, how: _Reduction, apart: bool) -> None:
        super().__init__()
        self.old, self.new, self.lane, self.lanes = old, new, lane, lanes
        self.how, self.apart = how, apart

    def visit_Store(self, s: Store) -> Stmt:
        reads = [x for x in walk(s.value) if isinstance(x, Load) and x.buffer is self.old]
        if not reads:
            return s
        index = reads[0].index
        if self.apart:
            return Store(s.buffer, s.index, Name({reads[0]: self.combined(index)}).expr(s.value), s.lanes)
        total = make_buffer("total", self.old.dtype, (), "register")
        here = Load(total, (), None)
        step = Binary(self.how.op, here, Load(self.new, (*index, self.lane), None))
        loop = For(self.lane, as_index(0), as_index(self.lanes), Store(total, (), step))
        value = Name({reads[0]: here}).expr(s.value)
        return Alloc(total, block(Store(total, (), self.how.start), loop, Store(s.buffer, s.index, value, s.lanes)))

    def combined(self, index: tuple[Index, ...]) -> Value:
        """Return the partial results at `index` as one value, combined in pairs."""
        left: list[Value] = [Load(self.new, (as_index(n), *index), None) for n in range(self.lanes)]
        while len(left) > 1:
            pairs = [Binary(self.how.op, *left[n : n + 2]) for n in range(0, len(left) - 1, 2)]
            left = [*pairs, *left[2 * len(pairs) :]]
        return left[0]


class _Rfactor(ScopedRewriter):
    def __init__(self, name: str, lanes: int, apart: bool) -> None:
        super().__init__()
        self.name, self.lanes, self.apart = name, lanes, apart

    def visit_Alloc(self, a: Alloc) -> Stmt:
        loops = [x for x in loops_of(a.body) if x.var.name == self.name]
        if not loops or not a.buffer.in_registers:
            return self._Alloc(a)
        if not isinstance(a.body, Block) or not 2 <= len(a.body.stmts) <= 3:
            raise ConfigError("not-nested", f"rfactor: loop {self.name} must lie in a split nest")
        # A nest without stores has no last part.
        init, reduce, *finish = a.body.stmts
        old = a.buffer
        how = self.require_reduction(old, init, reduce, finish)
        ranges = ranges_below(reduce, self.ranges)
        if ranges[loops[0].var][0] < 0:
            raise ConfigError("bounds", f"rfactor: loop {self.name} starts at {loops[0].lo}; legal is 0 or more")
        lanes = max(self.lanes, ranges[loops[0].var][1] + 1)
        lane = Var(self.name)
        shape = (lanes, *old.shape) if self.apart else (*old.shape, lanes)
        new = make_buffer(old.name, old.dtype, shape, old.scope)
        more = Relocate(old, new, lambda index: (lane, *index) if self.apart else (*index, lane))

        class Init(Rewriter):
            def visit_Store(self, s: Store) -> Stmt:
                return For(lane, as_index(0), as_index(lanes), more.stmt(s))

        write = _WriteBack(old, new, lane, lanes, how, self.apart)
        return Alloc(new, block(Init().stmt(init), more.stmt(reduce), *(write.stmt(s) for s in finish)))

    def require_reduction(self, acc: Buffer, init: Stmt, reduce: Stmt, finish: Sequence[Stmt]) -> _Reduction:
        """Return how the loop changes the accumulator. Raise ConfigError unless it starts at the value that changes
        nothing, the loop does nothing else with it, and the last part only reads it.
        """
        what = f"rfactor: loop {self.name}"
        sites = [x for x in sites_of(reduce, {}) if x.access.buffer is acc]
        op = _operation(reduce, acc)
        if op is None or not all(Var(self.name) in [y.var for y in x.access.loops] for x in sites):
            raise ConfigError(
                "not-nested",
                f"{what} must add to {acc}, multiply or compare it, and no other statement of its nest use {acc}",
            )
        start = const(acc.dtype, COMBINATIONS[op])
        for s in statements_of(init):
            if isinstance(s, Store) and not (s.buffer is acc and s.value is start):
                word = "zero" if op == "add" else start
                raise ConfigError("not-zero", f"{what}: {acc} must start at {word}, for each lane has a sum of its own")
        for part in (init, *finish):
            if acc in written_in(part) and part is not init:
                raise ConfigError("not-nested", f"{what}: {acc} is written after the sum; legal is to read it")
            if Var(self.name) in bound_in(part):
                raise ConfigError("loop-name", f"{what}: its name is that of a loop before or after the sum")
        for s in (s for part in finish for s in statements_of(part) if isinstance(s, Store)):
            if len({v for v in walk(s.value) if isinstance(v, Load) and v.buffer is acc}) > 1:
                raise ConfigError("reads", f"{what}: a statement after the sum reads several elements of {acc}")
        return _Reduction(op, start)


def _operation(reduce: Stmt, acc: Buffer) -> str | None:
    """Return the operation by which every statement of `reduce` that uses an accumulator combines it with a value; None
    if one does not, or there are several.
    """
    found = set[str]()
    for s in statements_of(reduce):
        v = s.value if isinstance(s, Store) else None
        if isinstance(s, Store) and s.buffer is acc and isinstance(v, Binary) and v.a is Load(acc, s.index, s.lanes):
            found.add(v.op)
            v = v.b
        own = (v,) if v is not None else (x for x in children(s) if isinstance(x, Value))
        if any(reads_any(x, {acc}) for x in own):
            return None
    op = found.pop() if len(found) == 1 else ""
    return op if op in COMBINATIONS else None


@stages(*LOOPS)
def rfactor(kernel: Kernel, loop: str, lanes: int = 1, apart: bool = False) -> Kernel:
    """Give each iteration of the reduction loop ``loop`` a partial sum, and add the partial sums up before use.

    The reduction may be a maximum, a minimum or a product as well. There are partial sums for at least ``lanes``
    iterations. Those of one element are adjacent; if they are ``apart``, those of one iteration are, and an expression
    adds them up.

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
    return with_body(kernel, _Rfactor(loop, lanes, apart).stmt(kernel.body))
