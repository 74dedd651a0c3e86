"""Split a reduction outside of its register tiles: the kernel keeps partial sums in private memory between the parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Cond, Index, Var, as_index
from convsmith.ir.stmt import Alloc, Block, For, If, Kernel, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import bound_in, variables_of
from convsmith.passes.accesses import written_in
from convsmith.passes.order import require_order_in_passes, require_sum
from convsmith.passes.scope import (
    LoopRewriter,
    extent,
    note_copies,
    perfect_nest,
    require_new_buffer,
    require_one,
    with_body,
    wrap,
)

Loop = For
"""Within a rewriter, ``For`` is its method."""


class _KeepSums(LoopRewriter):
    def __init__(self, kernel: Kernel, outer: str, moved: Sequence[str]) -> None:
        super().__init__()
        self.kernel = kernel
        self.outer, self.moved = outer, list(moved)

    def For(self, loop: For) -> Stmt:
        return self.kept(loop) if loop.var.name == self.moved[0] else self._For(loop)

    def kept(self, loop: Loop) -> Stmt:
        chain, body = perfect_nest(loop)
        names = [x.var.name for x in chain]
        allocs: list[Alloc] = []
        while isinstance(body, Alloc):
            allocs.append(body)
            body = body.body
        parts = body.stmts if isinstance(body, Block) else ()
        if names != self.moved or len(parts) < 3 or not isinstance(parts[1], Loop) or not allocs:
            wanted = ", ".join(self.moved)
            raise ConfigError("not-nested", f"keep_sums: {', '.join(names)} must be {wanted}, around a sum")
        start, terms, finish = parts[0], parts[1], parts[2:]
        if terms.var.name != self.outer or not (terms.lo.is_const and terms.hi.is_const):
            raise ConfigError("not-nested", f"keep_sums: {terms.var} must be {self.outer}, with constant bounds")
        if any(x.kind == "parallel" for x in chain):
            raise ConfigError(
                "loop-kind", f"keep_sums: loops {', '.join(names)} share the sums; legal are serial loops"
            )
        if any(x.lo is not as_index(0) for x in chain):
            raise ConfigError("bounds", f"keep_sums: loops {', '.join(names)} must start at 0")
        if any(variables_of(b) & {x.var for x in chain} for b in (terms.lo, terms.hi)):
            raise ConfigError("bounds", f"keep_sums: the bounds of {terms.var} need loops within it")
        if any(terms.var in bound_in(s) for s in (start, terms.body, *finish)):
            raise ConfigError("loop-name", f"keep_sums: a loop before, in or after the sum is called {terms.var} too")
        acc = allocs[-1].buffer
        require_sum("keep_sums", acc, start, terms)
        for a in allocs[:-1]:
            if any(a.buffer in written_in(s) for s in (start, terms)):
                raise ConfigError(
                    "dependence", f"keep_sums: {a.buffer} does not last from one part of a sum to the next"
                )
        require_order_in_passes(f"keep_sums({self.outer})", loop, len(chain), self.ranges)
        ranges = dict(self.ranges)
        shape = []
        for x in chain:
            n = extent(x, ranges)
            shape.append(n)
            ranges[x.var] = (0, n - 1)
        require_new_buffer(self.kernel, f"{acc.name}_k", "keep_sums")
        memory = make_buffer(f"{acc.name}_k", acc.dtype, (*shape, *acc.shape), "cache")
        fetch, keep = _moves(start, acc, memory, tuple(x.var for x in chain))
        var, last = terms.var, terms.hi - 1
        inner = block(
            If(_at_most(var, terms.lo), start), If(var > terms.lo, fetch), terms.body,
            If(var < last, keep), *(If(var >= last, s) for s in finish),
        )  # fmt: skip
        for a in reversed(allocs):
            inner = Alloc(a.buffer, inner)
        return Alloc(memory, Loop(var, terms.lo, terms.hi, wrap(chain, inner), terms.kind))


def _at_most(var: Var, bound: Index) -> Cond:
    return var < bound + 1


def _moves(start: Stmt, acc: Buffer, memory: Buffer, around: tuple[Index, ...]) -> tuple[Stmt, Stmt]:
    """Return the loads of partial sums from memory and the stores to memory, within the loops that initialise them."""
    loops, s = perfect_nest(start) if isinstance(start, Loop) else ([], start)
    assert isinstance(s, Store)
    there = (*around, *s.index)
    fetch, keep = Store(acc, s.index, Load(memory, there, None)), Store(memory, there, Load(acc, s.index, None))
    return wrap(loops, fetch), wrap(loops, keep)


def keep_sums(kernel: Kernel, outer: str, moved: Sequence[str]) -> Kernel:
    """Move the reduction loop ``outer`` around the loops ``moved``, which are outside of the whole sum.

    The first part initialises the sums, the others load partial sums from memory, and the last finishes them.

    Before::

        kernel k(a: f32[4, 6], dst: f32[4])
          for i in 0 .. 4:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for k.b in 0 .. 3:
                for k in 0 .. 2:
                  acc[] = acc[] + a[i, k + k.b * 2]
              dst[i] = acc[]

    After ``keep_sums("k.b", ("i",))``::

        kernel k(a: f32[4, 6], dst: f32[4])
          alloc acc_k: f32[4] @cache:
            for k.b in 0 .. 3:
              for i in 0 .. 4:
                alloc acc: f32[] @register:
                  if -k.b >= 0:
                    acc[] = 0.0
                  if k.b - 1 >= 0:
                    acc[] = acc_k[i]
                  for k in 0 .. 2:
                    acc[] = acc[] + a[i, k + k.b * 2]
                  if -k.b + 1 >= 0:
                    acc_k[i] = acc[]
                  if k.b - 2 >= 0:
                    dst[i] = acc[]
    """
    require_one(kernel, (outer, *moved), "keep_sums")
    if not moved:
        raise ConfigError("not-nested", f"keep_sums: no loop is named that {outer} goes around; legal is at least one")
    return note_copies(kernel, with_body(kernel, _KeepSums(kernel, outer, moved).stmt(kernel.body)))
