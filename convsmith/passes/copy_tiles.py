"""Copy the elements that a tile of a product reads, one place for each of its iterations.

The copy has a dim for each loop over the tile that moves the operand. An element of the image that several pixels share
is copied for each of them, so the place of an element is linear in the loops, whatever the image's index is. Elements
outside of the operand are zero in the copy, so the products need no mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convsmith.arith.ranges import Range
from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Cond, Index, Var, as_index, conj, is_true, parts_of
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Const, Load, Select, Value
from convsmith.ir.walk import loops_of, walk
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import (
    ScopedRewriter,
    loop_range,
    require_loops,
    require_new_buffer,
    require_no_effects,
    with_body,
)
from convsmith.passes.stage import is_implied, read_or_fill

Operands = Sequence[tuple[str, tuple[str, ...]]]
"""Operands by name, each with the loops over the dims of its copy, outermost first."""


class _ReadCopies(Rewriter):
    """Replaces loads by loads of copies; a product whose factors are copied loses the masks that the copies evaluate.
    """

    def __init__(self, copies: Mapping[Load, Load], kept: set[Cond], ranges: Mapping[Var, Range]) -> None:
        super().__init__()
        self.copies, self.kept, self.ranges = copies, kept, ranges

    def visit_Load(self, v: Load) -> Value:
        return self.copies.get(v, v)

    def visit_Select(self, v: Select) -> Value:
        if not isinstance(v.no, Const) or v.no.value or self.copies.keys().isdisjoint(walk(v.yes)):
            return self._Select(v)
        ranges = self.ranges
        parts = [p for p in parts_of(v.cond) if not is_implied(simplify(p, ranges), self.kept, ranges)]
        yes = self.expr(v.yes)
        return Select(conj(parts), yes, v.no) if parts else yes


class _CopyTiles(ScopedRewriter):
    def __init__(self, loop: str, operands: Operands, scope: str) -> None:
        super().__init__()
        self.loop, self.operands, self.scope = loop, operands, scope

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        ranges: dict[Var, Range] = {**self.ranges, loop.var: loop_range(loop, self.ranges)}
        inner: dict[str, Range] = {}
        for x in loops_of(loop.body):
            ranges[x.var] = inner[x.var.name] = loop_range(x, ranges)
        copies: dict[Load, Load] = {}
        nests: list[Stmt] = []
        kept: set[Cond] = set()
        for name, dims in self.operands:
            reads = {x for x in walk(loop.body) if isinstance(x, Load) and x.buffer.name == name}
            if len(reads) != 1 or any(x.lanes is not None or x.buffer in written_in(loop.body) for x in reads):
                raise ConfigError(
                    "stage", f"copy_tiles: {loop.var} reads {name} at {len(reads)} places, or writes it; legal is one "
                    "element that it only reads",
                )  # fmt: skip
            (read,) = reads
            if missing := [n for n in dims if inner.get(n, (1, 0))[0]]:
                raise ConfigError("stage", f"copy_tiles: {loop.var} has no loop {missing[0]} from 0 within")
            shape = tuple(inner[n][1] + 1 for n in dims)
            new = make_buffer(f"{name}_s", read.buffer.dtype, shape, self.scope)
            place = {Var(n): Var(f"{name}_s.{n}") for n in dims}
            full = {**ranges, **{v: inner[n] for n, v in zip(dims, place.values())}}
            source: tuple[Index, ...] = tuple(substitute(i, place) for i in read.index)
            nest: Stmt = Store(new, tuple(place.values()), read_or_fill(read.buffer, source, full, 0))
            for v, n in reversed([*zip(place.values(), shape)]):
                nest = For(v, as_index(0), as_index(n), nest)
            nests.append(nest)
            copies[read] = Load(new, tuple(map(Var, dims)), None)
            bounds = (c for i, n in zip(read.index, read.buffer.shape) for c in (i >= 0, i < n))
            kept |= {simple for c in bounds if not is_true(simple := simplify(c, ranges))}
        body = _ReadCopies(copies, kept, ranges).stmt(loop.body)
        for new in reversed([x.buffer for x in copies.values()]):
            body = Alloc(new, block(*nests, body)) if new is [*copies.values()][-1].buffer else Alloc(new, body)
        return For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)


@stages(*LOOPS)
def copy_tiles(kernel: Kernel, loop: str, operands: Operands, scope: str = "shared") -> Kernel:
    """Copy what each iteration of ``loop`` reads of the ``operands`` before the iteration runs.

    The copy ``<name>_s`` of an operand has a dim for each loop listed with the operand. Masks that the copies evaluate
    are dropped: an absent term becomes a product with a stored zero.

    Before::

        kernel k(a: f32[6], b: f32[2, 3], c: f32[4, 2])
          for k in 0 .. 3:
            for i in 0 .. 4:
              for j in 0 .. 2:
                c[i, j] = c[i, j] + (a[i + k - 1] * b[j, k] if i + k - 1 >= 0 else 0.0)

    After ``copy_tiles("k", TILES)``::

        kernel k(a: f32[6], b: f32[2, 3], c: f32[4, 2])
          for k in 0 .. 3:
            alloc a_s: f32[4] @shared:
              alloc b_s: f32[2] @shared:
                for a_s.i in 0 .. 4:
                  a_s[a_s.i] = (a[a_s.i + k - 1] if a_s.i + k - 1 >= 0 else 0.0)
                for b_s.j in 0 .. 2:
                  b_s[b_s.j] = b[b_s.j, k]
                for i in 0 .. 4:
                  for j in 0 .. 2:
                    c[i, j] = c[i, j] + a_s[i] * b_s[j]
    """
    require_no_effects(kernel, "copy_tiles")
    require_loops(kernel, (loop,), "copy_tiles")
    for name, _ in operands:
        require_new_buffer(kernel, f"{name}_s", "copy_tiles")
    body = _CopyTiles(loop, operands, scope).stmt(kernel.body)
    return with_body(kernel, body)
