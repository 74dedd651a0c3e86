"""Let taps share a packed operand: one dim for the rows that taps and pixels have in common, instead of one each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import Place, Relocate
from convsmith.passes.scope import perfect_nest, wrap


@stages(*LOOPS)
def share_taps(kernel: Kernel, packed: str, tap: str, *pixels: str) -> Kernel:
    """Merge the dims ``tap`` and ``pixels`` of the ``packed`` operand, if elements depend only on their weighted sum.

    The ``pixels`` are a loop over pixels, or the loop over its tiles and the loop within a tile. The weights are the
    coefficients in the operand's coordinates; the least must divide the others. The kernel is unchanged if elements
    depend on the loops in another way, or if not all of the loops index the packed operand. A packing kernel writes the
    operand, or a nest right after its allocation.

    Before::

        kernel k(a_p: f32[2, 3], c: f32[2, 3])
          for t in 0 .. 2:
            for i in 0 .. 3:
              c[t, i] = a_p[t, i]
        pack k_pack_a(a: f32[6], a_p: f32[2, 3])
          for t in 0 .. 2:
            for i in 0 .. 3:
              a_p[t, i] = (a[i * 2 + t - 1] if i * 2 + t - 1 >= 0 else 0.0)

    After ``share_taps("a_p", "t", "i")``::

        kernel k(a_p: f32[6], c: f32[2, 3])
          for t in 0 .. 2:
            for i in 0 .. 3:
              c[t, i] = a_p[i * 2 + t]
        pack k_pack_a(a: f32[6], a_p: f32[6])
          for i in 0 .. 6:
            a_p[i] = (a[i - 1] if i - 1 >= 0 else 0.0)
    """
    pack = next((p for p in kernel.packs if p.params[-1].name == packed), None)
    if pack is None:
        return replace(kernel, body=_NearCopies(packed, Var(tap), *map(Var, pixels)).stmt(kernel.body))
    shared = _shared(pack.body, Var(tap), *map(Var, pixels))
    if shared is None:
        return kernel
    writes, new, place = shared
    old = pack.params[-1]
    packs = tuple(replace(p, params=(*p.params[:-1], new), body=writes) if p is pack else p for p in kernel.packs)
    params = tuple(new if b is old else b for b in kernel.params)
    body = Relocate(old, new, place).stmt(kernel.body)
    return replace(kernel, params=params, body=body, packs=packs)


class _NearCopies(Rewriter):
    """Merges dims of copies called ``packed``, which a nest right after their allocation writes."""

    def __init__(self, packed: str, tap: Var, *pixels: Var) -> None:
        super().__init__()
        self.packed, self.tap, self.pixels = packed, tap, pixels

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if s.buffer.name != self.packed or not isinstance(s.body, Block):
            return self._Alloc(s)
        fill, *others = s.body.stmts
        shared = _shared(fill, self.tap, *self.pixels)
        if shared is None:
            return s
        writes, new, place = shared
        return Alloc(new, block(writes, *map(Relocate(s.buffer, new, place).stmt, others)))


def _shared(fill: Stmt, tap: Var, *pixels: Var) -> tuple[Stmt, Buffer, Callable[[Place], Place]] | None:
    """Return the nest that packs each row once, the packed operand, and the place of an element in it; None if rows are
    not shared. The rows have the place of the innermost loop of ``pixels``.
    """
    if not isinstance(fill, For):
        return None
    nest, s = perfect_nest(fill)
    names = [x.var for x in nest]
    reads = [x for x in walk(s) if isinstance(x, Load)]
    merged = (tap, *pixels)
    known = all(x.lo is as_index(0) and x.hi.is_const for x in nest) and {*merged} <= set(names)
    if not known or not isinstance(s, Store) or s.index != tuple(names) or len(reads) != 1:
        return None
    along = next((x for x in reads[0].index if {*merged} <= dict(x.terms).keys()), None)
    if along is None:
        return None
    steps = {v: dict(along.terms)[v] for v in merged}
    unit = min(steps.values())
    if unit <= 0 or any(n % unit for n in steps.values()):
        return None
    steps = {v: n // unit for v, n in steps.items()}
    row = pixels[-1]
    nearest = next(v for v in merged if steps[v] == 1)
    value = substitute(s.value, {v: row if v is nearest else as_index(0) for v in merged})
    sum_of_steps = sum((v * n for v, n in steps.items()), as_index(0))
    if substitute(value, {row: sum_of_steps}) is not s.value:
        return None
    extents = {x.var: int(x.hi) for x in nest}
    extents[row] = 1 + sum((extents[v] - 1) * n for v, n in steps.items())
    kept = [x for x in nest if x.var is row or x.var not in merged]
    old = s.buffer
    new = make_buffer(old.name, old.dtype, tuple(extents[x.var] for x in kept), old.scope)
    at = {v: names.index(v) for v in names}

    def place(index: Place) -> Place:
        shared = sum((index[at[v]] * n for v, n in steps.items()), as_index(0))
        return tuple(shared if x.var is row else index[at[x.var]] for x in kept)

    loops = [replace(x, hi=as_index(extents[x.var])) for x in kept]
    return wrap(loops, Store(new, tuple(x.var for x in kept), value)), new, place
