"""Tile a loop whose length is known only at the call: full tiles, subtiles, and a remainder in powers of two."""

from __future__ import annotations

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import (
    Cond,
    Ge0,
    Index,
    Var,
    as_index,
    conj,
    eq,
    floordiv,
    is_true,
    maximum,
    minimum,
    mod,
    parts_of,
    product,
)
from convsmith.ir.rewrite import Rewriter, Substitute
from convsmith.ir.stmt import Alloc, For, If, Kernel, PointerLoad, Stmt, Store, block
from convsmith.ir.value import Load, Select, Value
from convsmith.ir.walk import children, loads_of, loops_of, statements_of, variables_of, walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import require_loops, require_no_effects, with_body


class _Piece(Rewriter):
    """Runs the vectors and lanes of a tile a constant number of times, from a position within the tile on.

    The piece has its own registers; memory accesses, and conditions on them, are shifted. Loops over the taps
    ``serial`` are not unrolled. Loops over lanes that access memory do so for as many lanes as ``active``, if given.
    """

    def __init__(
        self, counts: dict[str, int], moved: dict[Var, Index], serial: tuple[str, ...] = (),
        active: dict[str, Index] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.counts, self.serial, self.active = counts, serial, active or {}
        self.memory = Substitute(moved)
        self.own: set[Buffer] = set()

    def visit_Alloc(self, s: Alloc) -> Stmt:
        self.own.add(s.buffer)
        return Alloc(s.buffer, self.stmt(s.body))

    def visit_For(self, loop: For) -> Stmt:
        count = self.counts.get(loop.var.name)
        if loop.var.name in self.serial:
            tap = Var(border_name(loop.var.name))
            return For(tap, loop.lo, loop.hi, self.stmt(Substitute({loop.var: tap}).stmt(loop.body)), "serial")
        body = self.stmt(loop.body)
        if count is None:
            return For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)
        active = self.active.get(loop.var.name)
        if active is not None and _has_loose_accesses(body, loop.var):
            guarded = body if isinstance(body, If) else If(conj(()), body)
            body = If(conj((loop.var < active, guarded.cond)), guarded.body)
        return For(loop.var, as_index(0), as_index(count), body, loop.kind)

    def visit_PointerLoad(self, s: PointerLoad) -> Stmt:
        index, offset = self.memory.index(s.index), self.memory.expr(s.offset)
        body = self.stmt(s.body)
        return PointerLoad(s.buffer, s.table, index, offset, s.source, s.zero, s.zero_at, body, s.rows)

    def visit_If(self, s: If) -> Stmt:
        return If(self.memory.expr(s.cond), self.stmt(s.body))

    def visit_Select(self, v: Select) -> Value:
        return Select(self.memory.expr(v.cond), self.expr(v.yes), self.expr(v.no))

    def visit_Load(self, v: Load) -> Value:
        return v if self.is_own(v.buffer) else Load(v.buffer, self.memory.index(v.index), v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        index = s.index if self.is_own(s.buffer) else self.memory.index(s.index)
        return Store(s.buffer, index, self.expr(s.value), s.lanes)

    def is_own(self, buffer: Buffer) -> bool:
        """Return whether the piece has registers or a copy of its own, whose places begin with the piece."""
        return buffer.scope == "register" or buffer in self.own


class _Pieces(Rewriter):
    def __init__(
        self, outer: str, vector: str, lane: str, sizes: tuple[int, int, int], others: tuple[str, ...], whole: bool,
        again: bool, borders: tuple[str, ...] | None, masked: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.whole, self.again, self.borders, self.masked = whole, again, borders, masked
        self.apart = again and not vector
        self.outer, self.vector, self.each = outer, Var(vector), (Var(lane), *map(Var, others))
        self.size, self.subtile, self.lanes = sizes

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.outer or loop.hi.is_const:
            return self._For(loop)
        length = _undone(loop.hi, self.size)
        inner = None if self.borders is None else _Inner(self, loop.var, loop.body)
        low, high, body, bordered = as_index(0), length, loop.body, inner is not None and bool(inner.conditions)
        if inner is not None and bordered:
            (low, high), body = inner.bounds(length), inner.stmt(loop.body)
        if self.masked and bordered:
            return self.masked_pieces(loop, body, low, high, length)
        if self.apart:
            tiles, end = self.equal_tiles(loop, body, low, high)
            return block(self.one_by_one(loop, "b", as_index(0), low), tiles, self.one_by_one(loop, "e", end, length))
        if not bordered:
            return self.tiles(loop, body, length, as_index(0))
        tiles = self.tiles(loop, body, high - low, low)
        return block(self.one_by_one(loop, "b", as_index(0), low), tiles, self.one_by_one(loop, "e", high, length))

    def one_by_one(self, loop: For, name: str, start: Index, stop: Index) -> Stmt:
        """Return the iterations from ``start`` to ``stop`` of the tiled ``loop`` one by one; none if these are equal.
        """
        if start is stop:
            return block()
        place = Var(f"{loop.var}.{name}")
        body = _Piece(self.counts(1), self.at(loop.var, place), self.borders or ()).stmt(loop.body)
        return For(place, start, stop, body, loop.kind)

    def masked_pieces(self, loop: For, body: Stmt, low: Index, high: Index, length: Index) -> Stmt:
        """Return vectors of the tiled ``loop`` up to ``length``, or tiles if it has none: between ``low`` and ``high``,
        tiles and smaller pieces of ``body``; before and after these, vectors or tiles that keep their conditions.
        """
        before = floordiv(low + (self.lanes - 1), self.lanes)
        first = before * self.lanes
        inside = maximum(floordiv(high - first, self.lanes), 0) * self.lanes
        return block(
            self.on_lanes(loop, "b", as_index(0), before, length),
            self.tiles(loop, body, inside, first, self.lanes),
            self.on_lanes(loop, "e", first + inside, floordiv(length - first - inside + (self.lanes - 1), self.lanes),
                          length),
        )  # fmt: skip

    def on_lanes(self, loop: For, name: str, first: Index, count: Index, length: Index) -> Stmt:
        """Return ``count`` vectors of the tiled ``loop`` from ``first`` on, whose lanes end at ``length``."""
        vector = Var(f"{loop.var}.{name}")
        place = first + vector * self.lanes
        active = {lane.name: length - place for lane in self.each}
        body = _Piece(self.counts(self.lanes), self.at(loop.var, place), active=active).stmt(loop.body)
        return For(vector, as_index(0), count, body, loop.kind)

    def equal_tiles(self, loop: For, body: Stmt, low: Index, high: Index) -> tuple[Stmt, Index]:
        """Return the loop over whole tiles of ``body`` from ``low`` to ``high``, and the end of these tiles. The last
        one overlaps the one before if iterations may run again, and there is none if a tile is longer than the loop.
        """
        length = high - low
        count, place = floordiv(length, self.size), loop.var * self.size
        if not _reads_own(body):
            count = product(minimum(count, 1), floordiv(length + (self.size - 1), self.size))
            place = minimum(place, length - self.size)
        moved = {loop.var: as_index(0), **{each: each + place + low for each in self.each}}
        tile = _Piece(self.counts(self.size), moved).stmt(body)
        return For(loop.var, as_index(0), count, tile, loop.kind), low + minimum(product(count, self.size), length)

    def at(self, outer: Var, place: Index) -> dict[Var, Index]:
        """Return what replaces the variables of a tile so that its first iteration is the one at ``place``."""
        return {outer: as_index(0), **{lane: lane + place for lane in self.each}}

    def tiles(self, loop: For, body: Stmt, length: Index, first: Index, least: int = 1) -> Stmt:
        """Return the loop over ``length`` iterations of ``body`` from ``first`` on, in tiles and smaller pieces of
        ``least`` iterations or more.
        """
        whole = floordiv(length, self.size)
        moved: dict[Var, Index] = {lane: lane + first for lane in self.each} if first is not as_index(0) else {}
        tile = _Piece(self.counts(self.size), moved).stmt(body)
        parts: list[Stmt] = []
        rest, sub = mod(length, self.size), self.subtile
        base: Index = as_index(0)
        if sub < self.size:
            name = Var(f"{loop.var}.s")
            each = self.piece(loop.var, body, whole, name * sub, sub, first)
            parts.append(For(name, as_index(0), floordiv(rest, sub), each, loop.kind))
            base, rest = floordiv(rest, sub) * sub, mod(length, sub) if not self.size % sub else mod(rest, sub)
        n = 1 << (sub - 1).bit_length() >> 1
        short: list[Stmt] = []
        again = self.again and not _reads_own(body)
        while n >= least:
            start = base + floordiv(rest, 2 * n) * (2 * n)
            found = If(eq(mod(floordiv(rest, n), 2), 1), self.piece(loop.var, body, whole, start, n, first))
            (parts if n >= self.lanes or not again else short).append(found)
            n //= 2
        if short:
            last = _Piece(self.counts(self.lanes), self.at(loop.var, first + length - self.lanes)).stmt(body)
            parts.append(If(conj((length >= self.lanes, mod(length, self.lanes) >= 1)), last))
            parts.append(If(length < self.lanes, block(*short)))
        if not self.whole:
            return block(For(loop.var, loop.lo, whole, tile, loop.kind), *parts)
        body = block(If(loop.var < whole, tile), If(loop.var >= whole, block(*parts)))
        return For(loop.var, loop.lo, loop.hi, body, loop.kind)

    def piece(self, outer: Var, body: Stmt, whole: Index, start: Index, count: int, first: Index) -> Stmt:
        """Return ``count`` iterations from position ``start`` of the last tile on; ``first`` is that of all tiles."""
        several = self.size > self.lanes
        replacements: dict[Var, Index] = {outer: whole}
        replacements |= {lane: lane + (mod(start, self.lanes) if several else start) + first for lane in self.each}
        if several:
            replacements[self.vector] = self.vector + floordiv(start, self.lanes)
        return _Piece(self.counts(count), replacements).stmt(body)

    def counts(self, count: int) -> dict[str, int]:
        """Return the iterations of the loops for ``count`` elements."""
        vectors = -(-count // self.lanes)
        return {self.vector.name: vectors} | {lane.name: min(count, self.lanes) for lane in self.each}


class _Inner(Rewriter):
    """Drops the conditions on the position of an iteration, for iterations where all of them hold."""

    def __init__(self, tile: _Pieces, outer: Var, body: Stmt) -> None:
        super().__init__()
        self.lane, *_ = tile.each
        self.places = {outer, tile.vector, self.lane}
        self.ranges = {x.var: (x.lo.const, x.hi.const - 1) for x in loops_of(body) if x.lo.is_const and x.hi.is_const}
        inside = [*statements_of(body)]
        values = (v for s in inside if isinstance(s, Store) for v in walk(s.value))
        guarded = [x.cond for x in (*inside, *values) if isinstance(x, If | Select)]
        self.conditions = dict.fromkeys(part for c in guarded for part in parts_of(c) if self.is_placed(part))

    def is_placed(self, part: Cond) -> bool:
        return isinstance(part, Ge0) and not self.places.isdisjoint(variables_of(part))

    def bounds(self, length: Index) -> tuple[Index, Index]:
        """Return the first iteration where all conditions hold for every iteration of the loops inside, and the end of
        these.
        """
        low, high = as_index(0), length
        for part in self.conditions:
            assert isinstance(part, Ge0)
            step, least = 0, as_index(part.arg.const)
            for atom, c in part.arg.terms:
                if atom is self.lane:
                    step = c
                elif atom not in self.places:
                    ends = self.ranges.get(atom) if isinstance(atom, Var) else None
                    least = least + (product(atom, c) if ends is None else c * ends[c < 0])
            if step > 0:
                low = maximum(low, product(floordiv(least, step), -1))
            else:
                high = minimum(high, floordiv(least, -step) + 1)
        low = minimum(low, length)
        return low, maximum(low, high)

    def rest(self, cond: Cond) -> Cond:
        return conj(part for part in parts_of(cond) if not self.is_placed(part))

    def visit_If(self, s: If) -> Stmt:
        rest = self.rest(s.cond)
        return self.stmt(s.body) if is_true(rest) else If(rest, self.stmt(s.body))

    def visit_Select(self, v: Select) -> Value:
        rest = self.rest(v.cond)
        return self.expr(v.yes) if is_true(rest) else Select(rest, self.expr(v.yes), v.no)


def _reads_own(body: Stmt) -> bool:
    """Return whether ``body`` reads an array that it writes, which is there before and after it."""
    inside = [*statements_of(body)]
    stores, own = [s for s in inside if isinstance(s, Store)], {s.buffer for s in inside if isinstance(s, Alloc)}
    read = {v.buffer for s in stores for v in loads_of(s.value)}
    return any(s.buffer in read for s in stores if s.buffer.scope != "register" and s.buffer not in own)


def _has_loose_accesses(s: Stmt, var: Var) -> bool:
    """Return whether a statement accesses memory without a condition that bounds ``var``."""
    if isinstance(s, If) and any(isinstance(x, Ge0) and dict(x.arg.terms).get(var, 0) < 0 for x in parts_of(s.cond)):
        return False
    if isinstance(s, Store):
        buffers = (s.buffer, *(v.buffer for v in loads_of(s.value)))
        return any(b.scope != "register" for b in buffers)
    return any(_has_loose_accesses(x, var) for x in children(s) if isinstance(x, Stmt))


def _undone(hi: Index, size: int) -> Index:
    """Return ``length``, given ``hi`` = ``(length + size - 1) // size``."""
    if size == 1:
        return hi
    (atom,) = (a for a, _ in hi.terms)
    num: Index = atom.num  # type: ignore[attr-defined]
    return num - (size - 1)


def border_name(loop: str) -> str:
    """Return the name of the ``loop`` over taps in iterations whose taps are not all there."""
    return f"{loop}.b"


@stages(*LOOPS)
def pieces(
    kernel: Kernel, outer: str, vector: str, lane: str, sizes: tuple[int, int, int], others: tuple[str, ...] = (),
    whole: bool = False, again: bool = False, borders: tuple[str, ...] | None = None, masked: bool = False,
) -> Kernel:  # fmt: skip
    """Split a tiled loop whose length is a size of the kernel, so that loops over vectors and lanes have constant ends.

    ``outer`` counts tiles, ``vector`` counts vectors in a tile (or is empty), ``lane`` and ``others`` count lanes.
    ``sizes`` are the sizes of a tile, of the subtiles of the remainder, and of a vector. ``whole`` keeps one loop, with
    conditions inside. If iterations may run ``again``, because no array is read and written, a last part of a vector is
    the last whole vector, unless the loop is shorter than one; without a ``vector``, the last tile is a whole one too,
    and a loop that is shorter than a tile runs one by one. With ``borders``, iterations run one by one before the
    first and after the last of those for which all conditions on their position hold, and the others drop these;
    ``borders`` are the loops over taps that are unrolled for the others alone, and `border_name` is their name there.
    If the code may be ``masked``, these iterations and the last part of a vector are vectors with conditions on lanes.

    Before::

        kernel k(a: f32[?], b: f32[?], n)
          for c.o in 0 .. (n + 3) // 4:
            alloc t: f32[1, 4] @register:
              for c.v in 0 .. 1:
                for c.l in 0 .. min(-c.o * 4 - c.v * 4 + n, 4):
                  t[c.v, c.l] = a[c.l + c.o * 4 + c.v * 4]
              for c.v in 0 .. 1:
                for c.l in 0 .. min(-c.o * 4 - c.v * 4 + n, 4):
                  b[c.l + c.o * 4 + c.v * 4] = t[c.v, c.l]

    After ``pieces("c.o", "c.v", "c.l", (4, 4, 4))``::

        kernel k(a: f32[?], b: f32[?], n)
          for c.o in 0 .. n // 4:
            alloc t: f32[1, 4] @register:
              for c.v in 0 .. 1:
                for c.l in 0 .. 4:
                  t[c.v, c.l] = a[c.l + c.o * 4 + c.v * 4]
              for c.v in 0 .. 1:
                for c.l in 0 .. 4:
                  b[c.l + c.o * 4 + c.v * 4] = t[c.v, c.l]
          if ((n % 4) // 2) % 2 - 1 == 0:
            alloc t: f32[1, 4] @register:
              for c.v in 0 .. 1:
                for c.l in 0 .. 2:
                  t[c.v, c.l] = a[c.l + c.v * 4 + (n % 4) // 4 * 4 + n // 4 * 4]
              for c.v in 0 .. 1:
                for c.l in 0 .. 2:
                  b[c.l + c.v * 4 + (n % 4) // 4 * 4 + n // 4 * 4] = t[c.v, c.l]
          if n % 2 - 1 == 0:
            alloc t: f32[1, 4] @register:
              for c.v in 0 .. 1:
                for c.l in 0 .. 1:
                  t[c.v, c.l] = a[c.l + c.v * 4 + (n % 4) // 2 * 2 + n // 4 * 4]
              for c.v in 0 .. 1:
                for c.l in 0 .. 1:
                  b[c.l + c.v * 4 + (n % 4) // 2 * 2 + n // 4 * 4] = t[c.v, c.l]
    """
    require_no_effects(kernel, "pieces")
    require_loops(kernel, (outer, *((vector,) if vector else ()), lane, *others), "pieces")
    split = _Pieces(outer, vector, lane, sizes, others, whole, again, borders, masked)
    return with_body(kernel, split.stmt(kernel.body))
