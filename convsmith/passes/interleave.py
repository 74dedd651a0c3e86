"""Write the results of each register tile between the products of the next one.

A unit for fragments multiplies while others convert and store results, if the window of instructions in flight has both
at hand. A window of 512 instructions holds a small part of a tile's products and none of its writing, so the order of
the text decides: each step of the reduction is followed by a part of the rows that the tile before has left in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from convsmith.arith.ranges import Unbounded, interval
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index, floordiv, minimum, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.passes.accesses import touched_in, written_in
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import ScopedRewriter, perfect_nest, require_no_effects, with_body, wrap

FEWEST_STEPS = 3
"""Minimum number of steps of a reduction between which results are written. With two, half of the results of a tile
follow each step, more than a window of instructions holds: kernels with two steps took 3 to 17 % longer.
"""


@record(frozen=True)
class _FragmentTile:
    """A register tile: the ``products`` that form its ``sums``, the ``moves`` of the sums to ``memory``, and the nests
    that write the results from there.
    """

    memory: Buffer
    sums: Buffer
    products: tuple[Stmt, ...]
    moves: tuple[Stmt, ...]
    written: tuple[Stmt, ...]

    @property
    def steps(self) -> list[For]:
        """The loops over the steps of the reduction, outermost first; [] if their extents are not constant."""
        last = self.products[-1]
        loops = perfect_nest(last)[0] if isinstance(last, For) else []
        return loops if all(x.lo.is_const and x.hi.is_const and x.kind == "serial" for x in loops) else []

    @property
    def is_independent(self) -> bool:
        """Return whether the products neither read nor write what the nests write, nor write what they read."""
        first, then = block(*self.products), block(*self.written)
        return not (written_in(then) & touched_in(first) or written_in(first) & touched_in(then))


def _tile_of(s: Stmt) -> _FragmentTile | None:
    """Return the parts of a statement that is a register tile whose sums are in memory before they are written."""
    if not (isinstance(s, Alloc) and s.buffer.scope == "cache" and isinstance(s.body, Alloc)):
        return None
    memory, sums, body = s.buffer, s.body.buffer, s.body.body
    parts = body.stmts if isinstance(body, Block) else (body,)
    moves = [n for n, x in enumerate(parts) if isinstance(x, Store) and _is_move(x, sums, memory)]
    if not sums.in_registers or not moves or moves[0] == 0 or moves != [*range(moves[0], moves[-1] + 1)]:
        return None
    ends = moves[0], moves[-1] + 1
    written = parts[ends[1] :]
    return _FragmentTile(memory, sums, parts[: ends[0]], parts[ends[0] : ends[1]], written) if written else None


def _is_move(s: Store, sums: Buffer, memory: Buffer) -> bool:
    return s.buffer is memory and isinstance(s.value, Load) and s.value.buffer is sums


class _Parts(NamedTuple):
    """A position among a number of parts, into which the iterations of loops are divided."""

    position: Index
    number: int


class _Interleave(ScopedRewriter):
    def visit_For(self, loop: For) -> Stmt:
        tile = _tile_of(loop.body)
        if tile is None or loop.kind != "serial" or loop.carried or self.trips(loop) < 2:
            return self._For(loop)
        steps = prod(int(x.hi.const - x.lo.const) for x in tile.steps)
        if not tile.steps or steps < FEWEST_STEPS or not tile.is_independent:
            return self._For(loop)
        first, last = {loop.var: loop.lo}, {loop.var: loop.hi - 1}
        before = substitute(Alloc(tile.sums, block(*tile.products, *tile.moves)), first)
        at = _Parts(_position(tile.steps), steps)
        late = [substitute(self.part(x, at), {loop.var: loop.var - 1}) for x in tile.written]
        start = tile.products[:-1]
        products = wrap(tile.steps, block(perfect_nest(tile.steps[0])[1], *late))
        inside = Alloc(tile.sums, block(*start, products, *tile.moves))
        rest = For(loop.var, loop.lo + 1, loop.hi, inside)
        return Alloc(tile.memory, block(before, rest, *(substitute(x, last) for x in tile.written)))

    def trips(self, loop: For) -> int:
        """Return a lower bound of the iterations of a loop; 0 if nothing is known."""
        try:
            return interval(loop.hi - loop.lo, self.ranges)[0]
        except Unbounded:
            return 0

    def part(self, s: Stmt, of: _Parts) -> Stmt:
        """Return the part of the iterations of a nest that belongs to a position; all parts are the whole nest."""
        is_even = isinstance(s, For) and s.lo.is_const and s.hi.is_const
        loop = s if isinstance(s, For) and is_even else For(Var("once"), as_index(0), as_index(1), s)
        chain, body = perfect_nest(loop)
        count = int(loop.hi.const - loop.lo.const)
        most = self.most(chain[1], loop) if len(chain) > 1 and chain[1].lo is as_index(0) else 0
        if most and of.number >= 2 * count:  # several parts for each iteration of the outer loop
            inner, others = chain[1], chain[2:]
            size = _power_of_two(-(-most // (of.number // count)))
            pieces = -(-most // size)
            start, at = mod(of.position, pieces) * size, floordiv(of.position, pieces)
            ends = [inner.hi, start + size, *([(count - at) * most] if of.number > count * pieces else [])]
            within = For(inner.var, start, minimum(*ends), wrap(others, body))
            return substitute(within, {loop.var: loop.lo + at})  # type: ignore[no-any-return]
        size = -(-count // of.number)
        start = loop.lo + of.position * size
        return For(loop.var, start, minimum(loop.hi, start + size), loop.body)

    def most(self, loop: For, outer: For) -> int:
        """Return the most iterations of a loop from 0 within ``outer``; 0 if nothing is known."""
        try:
            return interval(loop.hi, {**self.ranges, outer.var: (outer.lo.const, outer.hi.const - 1)})[1]
        except Unbounded:
            return 0


def _position(loops: Sequence[For]) -> Index:
    """Return the number of the iterations of nested loops before the present one."""
    at = as_index(0)
    for x in loops:
        at = at * int(x.hi.const - x.lo.const) + (x.var - x.lo)
    return at


def _power_of_two(n: int) -> int:
    """Return the least power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()


@stages(*FLATTENED)
def interleave(kernel: Kernel) -> Kernel:
    """Write the results of each register tile between the products of the next one, in the innermost loop over tiles.

    A tile is a statement that allocates sums and memory, whose last nests write results from that memory. The first
    products and the last nests have no others to run beside. Tiles are left alone whose reduction has a single step or
    a number of steps that varies, or whose products use what the nests write.

    Before::

        kernel k(a: f32[18], dst: f32[6])
          for i in 0 .. 3:
            alloc acc_m: f32[2] @cache:
              alloc acc: f32[2] @fragment:
                acc[0] = 0.0
                acc[1] = 0.0
                for k in 0 .. 3:
                  acc[0] = acc[0] + a[i * 6 + k]
                  acc[1] = acc[1] + a[i * 6 + k + 3]
                acc_m[0] = acc[0]
                acc_m[1] = acc[1]
                for r in 0 .. 2:
                  dst[i * 2 + r] = acc_m[r]

    After ``interleave()``::

        kernel k(a: f32[18], dst: f32[6])
          alloc acc_m: f32[2] @cache:
            alloc acc: f32[2] @fragment:
              acc[0] = 0.0
              acc[1] = 0.0
              for k in 0 .. 3:
                acc[0] = acc[0] + a[k]
                acc[1] = acc[1] + a[k + 3]
              acc_m[0] = acc[0]
              acc_m[1] = acc[1]
            for i in 1 .. 3:
              alloc acc: f32[2] @fragment:
                acc[0] = 0.0
                acc[1] = 0.0
                for k in 0 .. 3:
                  acc[0] = acc[0] + a[i * 6 + k]
                  acc[1] = acc[1] + a[i * 6 + k + 3]
                  for r in k .. min(2, k + 1):
                    dst[i * 2 + r - 2] = acc_m[r]
                acc_m[0] = acc[0]
                acc_m[1] = acc[1]
            for r in 0 .. 2:
              dst[r + 4] = acc_m[r]
    """
    require_no_effects(kernel, "interleave")
    return with_body(kernel, _Interleave().stmt(kernel.body))
