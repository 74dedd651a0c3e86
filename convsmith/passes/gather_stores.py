"""Reorder the stores of unrolled iterations so that stores to one cache line follow each other.

If an iteration writes to several places, and the next iteration writes next to each of them, consecutive stores go to
different cache lines. This pass performs all reads of the iterations first, and then the stores place by place.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.arith.simplify import simplify
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import allocate, allocated, require_loops, require_no_effects, with_body


class _Gather(Rewriter):
    def __init__(self, name: str, most: int) -> None:
        super().__init__()
        self.name, self.most = name, most

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.name or not (loop.lo.is_const and loop.hi.is_const):
            return self._For(loop)
        if not 1 < loop.hi.const - loop.lo.const <= self.most:
            return loop
        arrays, inner = allocated(loop.body)
        made = list(inner.stmts) if isinstance(inner, Block) else [inner]
        writes: list[Store] = []
        while made and isinstance(made[-1], Store) and made[-1].buffer not in arrays:
            s = made.pop()
            assert isinstance(s, Store)
            writes.insert(0, s)
        in_registers = all(b.scope == "register" for b in arrays)
        if len(writes) < 2 or not in_registers or not _writes_one_buffer(made, writes, arrays):
            return loop
        return _gathered(loop, arrays, made, writes)


def _writes_one_buffer(made: list[Stmt], writes: list[Store], arrays: list[Buffer]) -> bool:
    """Return whether the stores write one buffer in memory, and all other statements use only the register arrays."""
    (to, *others) = {s.buffer for s in writes}
    if others or to.scope == "register":
        return False
    nodes = [n for s in made for n in walk(s)]
    stored = all(n.buffer in arrays for n in nodes if isinstance(n, Store))
    loaded = [n for s in (*made, *writes) for n in walk(s) if isinstance(n, Load)]
    return stored and not any(isinstance(n, (For, Alloc)) for n in nodes) and all(n.buffer is not to for n in loaded)


def _gathered(loop: For, arrays: list[Buffer], made: list[Stmt], writes: list[Store]) -> Stmt:
    """Return the iterations with one set of register arrays each; ``loop`` itself if two stores may overlap."""
    before: list[Stmt] = []
    after: list[list[Store]] = []
    owned: list[Buffer] = []
    for n in range(loop.lo.const, loop.hi.const):
        own = {b: replace(b, name=f"{b.name}.{n}") for b in arrays}
        owned += own.values()
        turn = _Turn(loop.var, n, own)
        before += [turn.made(s) for s in made]
        after.append([turn.written(s) for s in writes])
    places = [stores[n] for n in range(len(writes)) for stores in after]
    if not all(_differ(a, b) for n, a in enumerate(places) for b in places[:n]):
        return loop
    return allocate(owned, block(*before, *places))


class _Turn(Rewriter):
    """One iteration, with its own register arrays."""

    def __init__(self, var: Var, n: int, own: dict[Buffer, Buffer]) -> None:
        super().__init__()
        self.at, self.own = {var: as_index(n)}, own

    def made(self, s: Stmt) -> Stmt:
        return self.stmt(substitute(s, self.at))

    def written(self, s: Store) -> Store:
        new: Store = substitute(s, self.at)
        return Store(new.buffer, new.index, self.expr(new.value), new.lanes)

    def visit_Load(self, v: Load) -> Value:
        return Load(self.own.get(v.buffer, v.buffer), v.index, v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        return Store(self.own.get(s.buffer, s.buffer), s.index, self.expr(s.value), s.lanes)


def _differ(a: Store, b: Store) -> bool:
    """Return whether two stores to a flat buffer are known to write disjoint elements."""
    if len(a.index) != 1 or len(b.index) != 1 or any(s.lanes is not None and s.lanes.stride != 1 for s in (a, b)):
        return False
    away = simplify(a.index[0] - b.index[0], {})
    count = (b if away.is_const and away.const > 0 else a).lanes
    return bool(away.is_const) and abs(away.const) >= (count.active if count else 1)


@stages(*FLATTENED)
def gather_stores(kernel: Kernel, loop: str, most: int) -> Kernel:
    """Unroll loops named ``loop`` of at most ``most`` iterations, and move their stores to the end, place by place.

    The pass applies if iterations compute in register arrays and then store to one buffer that they do not read, each
    element once; other loops are unchanged.

    Before::

        kernel k(a: f32[8], dst: f32[8])
          for i in 0 .. 2:
            alloc t: f32[4] @register:
              t[0]{4} = a[i * 4]{4}
              dst[i * 2]{2} = t[0]{2}
              dst[i * 2 + 4]{2} = t[2]{2}

    After ``gather_stores("i", 8)``::

        kernel k(a: f32[8], dst: f32[8])
          alloc t.0: f32[4] @register:
            alloc t.1: f32[4] @register:
              t.0[0]{4} = a[0]{4}
              t.1[0]{4} = a[4]{4}
              dst[0]{2} = t.0[0]{2}
              dst[2]{2} = t.1[0]{2}
              dst[4]{2} = t.0[2]{2}
              dst[6]{2} = t.1[2]{2}
    """
    require_no_effects(kernel, "gather_stores")
    require_loops(kernel, (loop,), "gather_stores")
    return with_body(kernel, _Gather(loop, most).stmt(kernel.body))
