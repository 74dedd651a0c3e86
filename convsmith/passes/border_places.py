"""Names for the places that register tiles read in a table of borders, so that tiles at any border have equal code.

Sums of the weights beside a zero point are such a table: it has an entry for each set of taps that meet the image. The
tiles of the first rows and of the last rows read other entries than the tiles between them, and are otherwise equal. A
function of a tile takes a pointer to each named place, and is then compiled once for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index, make_sum
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Alloc, For, Let, Stmt, Store, block
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import bound_in, children, loads_of, statements_of, variables_of
from convsmith.passes.lets import Fresh, has_costly

STEPS = 16
"""The least number of stores of a register tile for each place that it names: a place takes an argument and a load."""


def _border(e: Index) -> Index:
    """Return the part of an index that has minima, maxima or divisions."""
    return make_sum(0, {a: c for a, c in e.terms if type(a) is not Var})


def _tables(s: Stmt) -> Iterator[tuple[Buffer, str]]:
    """Yield the arrays of which ``s`` reads places that depend on a border, with the names of the unrolled loops whose
    iterations read different ones.
    """
    unrolled = {x.var for x in statements_of(s) if isinstance(x, For) and x.kind == "unrolled"}
    for x in statements_of(s):
        for v in loads_of(x.value) if isinstance(x, Store) and has_costly(x.value) else ():
            if not v.buffer.in_registers:
                yield from ((v.buffer, var.name) for var in variables_of(_border(v.index[0])) & unrolled)


def _count(s: Stmt, buffers: Collection[Buffer] = ()) -> int:
    """Return how many stores ``s`` executes, or only how many loads of ``buffers``, as far as bounds are known."""
    if isinstance(s, Store):
        return sum(v.buffer in buffers for v in loads_of(s.value)) if buffers else 1
    times = (s.hi - s.lo).const if isinstance(s, For) and (s.hi - s.lo).is_const else 1
    return times * sum(_count(x, buffers) for x in children(s) if isinstance(x, Stmt))


class _NamePlaces(Rewriter):
    """Replaces the loops named ``loops`` around loads of ``tables`` by their iterations, and names the places that
    these read; ``names`` are the names of one register tile.
    """

    def __init__(self, tables: Collection[Buffer], loops: Collection[str], used: Collection[Var]) -> None:
        super().__init__()
        self.tables, self.loops, self.used = tables, loops, used
        self.iterations: tuple[int, ...] = ()
        self.names: dict[tuple[Buffer, tuple[int, ...], Index], Var] = {}
        self.fresh = Fresh("place", used)
        self.inside: set[Var] = set()

    def visit_Alloc(self, a: Alloc) -> Stmt:
        if self.inside or not a.buffer.in_registers:
            return self._Alloc(a)
        if not (loads := _count(a, self.tables)) or _count(a) < STEPS * loads:
            return a
        self._memo, self.names, self.inside, self.fresh = {}, {}, bound_in(a), Fresh("place", self.used)
        made = self._Alloc(a)
        self.inside = set()
        for (_, _, value), var in reversed(self.names.items()):
            made = Let(var, value, made)
        return made

    def visit_For(self, loop: For) -> Stmt:
        if loop.kind != "unrolled" or loop.var.name not in self.loops or not _count(loop, self.tables):
            return self._For(loop)
        outer, made = (self._memo, self.iterations), []
        for n in range(loop.lo.const, loop.hi.const):
            self._memo, self.iterations = {}, (*outer[1], n)
            made.append(self.stmt(substitute(loop.body, {loop.var: as_index(n)})))
        self._memo, self.iterations = outer
        return block(*made)

    def visit_Load(self, v: Load) -> Value:
        if v.buffer not in self.tables:
            return v
        border = _border(v.index[0])
        if variables_of(border) & self.inside:
            return v
        key = (v.buffer, self.iterations, border)
        if key not in self.names:
            self.names[key] = self.fresh()
        return Load(v.buffer, (v.index[0] - border + self.names[key],), v.lanes)


def name_places(s: Stmt) -> Stmt:
    """Return ``s`` where each register tile that reads a table of borders is within ``let``s of the places that it
    reads: one for each iteration of the unrolled loops on which the place depends in any tile. Tiles of few stores for
    each such load stay as they are.
    """
    found = set(_tables(s))
    if not found:
        return s
    return _NamePlaces({b for b, _ in found}, {loop for _, loop in found}, variables_of(s) | bound_in(s)).stmt(s)
