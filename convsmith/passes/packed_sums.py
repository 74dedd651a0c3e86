"""Sums of an operand's entries, computed while it is packed.

A kernel that only adds up entries of an operand need not run separately: the packing kernel adds up the entries that it
has written, in the order in which it wrote them.  Loops along which the sums do not vary are the *depth*.  A *run* is
the innermost block of loops: inner depth loops (terms), loops over adjacent sums, outer depth loops.  Its sums are held
at once: the loops over adjacent sums are the unrolled loops around the sum.  Padding of the packed operand is zero
and adds nothing.

The kernel must be a nest with one accumulator that is set to zero, added to, and stored, and every entry must be packed
exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import prod
from typing import NamedTuple

import numpy as np

from convsmith.arith.evaluate import evaluate
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import Substitute, substitute
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Binary, Cast, Const, Load, Value, const
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.lets import Name
from convsmith.passes.scope import perfect_nest, wrap

SIDE_BY_SIDE = 256
"""Maximum number of sums that a run holds at once."""
MARK, HELD = ".s", ".h"
"""Suffixes of the names of all new loops, and of the loops over the sums that a run holds."""


class PackedElement(NamedTuple):
    """The packed position of an element; ``loops`` are the loops of the nest, each with the iterations of its loop in
    the packing kernel.
    """

    loops: tuple[tuple[For, int], ...]
    element: Value
    packed: Load


class _Adding(NamedTuple):
    """The computation of a summing kernel: all ``loops``, the ``term``, and the store of the sum ``here``."""

    loops: tuple[For, ...]
    term: Value
    here: Load
    store: Store


def add_packed(place: PackedElement, kernels: Sequence[Kernel]) -> tuple[Stmt, Kernel | None]:
    """Return the statement that computes one of the kernels from packed elements, and that kernel; None if no kernel
    can be.
    """
    for kernel in kernels:
        adding = _adding(kernel)
        sums = None if adding is None else _sum_while_packing(place, adding)
        if sums is not None:
            return sums, kernel
    return block(), None


def _adding(kernel: Kernel) -> _Adding | None:
    around, inner = perfect_nest(kernel.body) if isinstance(kernel.body, For) else ([], kernel.body)
    if not isinstance(inner, Alloc) or not isinstance(inner.body, Block) or len(inner.body.stmts) != 3:
        return None
    first, sums, last = inner.body.stmts
    below, add = perfect_nest(sums) if isinstance(sums, For) else ([], sums)
    here = Load(inner.buffer, (), None)
    if not (isinstance(first, Store) and isinstance(first.value, Const) and first.value.value == 0):
        return None
    if not (isinstance(add, Store) and isinstance(add.value, Binary) and add.value.op == "add" and add.value.a is here):
        return None
    if not isinstance(last, Store) or any(variables_of(x) and not isinstance(x, Var) for x in last.index):
        return None
    if any(variables_of(x) for loop in (*around, *below) for x in (loop.lo, loop.hi)):
        return None
    return _Adding((*around, *below), add.value.b, here, last)


def _sum_while_packing(place: PackedElement, adding: _Adding) -> Stmt | None:
    theirs = [x for x in walk(adding.term) if isinstance(x, Load)]
    ours = [x for x in walk(place.element) if isinstance(x, Load)]
    if not theirs or [x.buffer.name for x in theirs] != [x.buffer.name for x in ours]:
        return None
    moved: dict[Var, Index] = {v: x for v, x in zip(theirs[0].index, ours[0].index) if isinstance(v, Var)}
    if set(moved) != {loop.var for loop in adding.loops} or not _each_once(place, adding, moved):
        return None
    buffers: dict[Buffer, Buffer] = {b.buffer: a.buffer for a, b in zip(ours, theirs)}
    term = Name({place.element: place.packed}).expr(Substitute(moved, buffers).expr(adding.term))
    if (term.a if isinstance(term, Cast) else term) is not place.packed:
        return None
    index = tuple(substitute(x, moved) for x in adding.store.index)
    store = Store(adding.store.buffer, index, substitute(adding.store.value, moved))
    return _nest(place, adding.here, term, store)


def _each_once(place: PackedElement, adding: _Adding, moved: dict[Var, Index]) -> bool:
    """Return whether the packing loops visit each point of the summing loops exactly once, coordinate by coordinate."""
    seen: set[Var] = set()
    for loop in adding.loops:
        names = variables_of(moved[loop.var])
        own = [(x, n) for x, n in place.loops if x.var in names]
        if seen & names or len(own) != len(names) or any(not variables_of(x.hi) <= names for x, _ in own):
            return False
        seen |= names
        grids = np.meshgrid(*(np.arange(n) for _, n in own), indexing="ij", sparse=True)
        values = {x.var: grid for (x, _), grid in zip(own, grids)}
        shape = tuple(n for _, n in own)
        inside = np.ones(shape, bool)
        for x, _ in own:
            inside &= values[x.var] < evaluate(x.hi, values)
        met = np.broadcast_to(evaluate(moved[loop.var], values), shape)[inside]
        if not np.array_equal(np.sort(met.ravel()), np.arange(evaluate(loop.lo, {}), evaluate(loop.hi, {}))):
            return False
    return seen == {x.var for x, _ in place.loops}


def _nest(place: PackedElement, here: Load, term: Value, store: Store) -> Stmt:
    """Return the nest that adds up run by run; sums with contributions from several runs are first set to zero."""
    along = {v for x in store.index for v in variables_of(x)}
    loops = list(reversed(place.loops))
    terms = list(takewhile(lambda x: x[0].var not in along, loops))
    rest = loops[len(terms) :]
    side = list(takewhile(lambda x: x[0].var in along, rest))
    depth = list(takewhile(lambda x: x[0].var not in along, rest[len(side) :]))
    if not depth or prod(n for _, n in side) > SIDE_BY_SIDE:
        side, depth = side[:1], []
    outer = list(reversed(rest[len(side) + len(depth) :]))
    held = {x.var for x, _ in side}
    plain = {x.var: Var(x.var.name + MARK) for x, _ in loops}
    marked = Substitute({v: Var(v.name + HELD) if v in held else new for v, new in plain.items()})
    term, index = marked.expr(term), tuple(map(marked.expr, store.index))
    total: Value = marked.expr(store.value)
    several = any(x.var not in along for x, _ in outer)
    start: Stmt = block()
    if several:
        first = Substitute(plain)
        zero = Name({here: const(here.buffer.dtype, 0)}).expr(store.value)
        start = Store(store.buffer, tuple(map(first.expr, store.index)), first.expr(zero))
        for x, _ in (x for x in loops if x[0].var in along):
            start = For(plain[x.var], as_index(0), first.expr(x.hi), start)
        total = Binary("add", Load(store.buffer, index, None), here)

    def around(chain: list[tuple[For, int]], body: Stmt) -> Stmt:
        ends = (marked.expr(x.hi) if x.var in along else as_index(n) for x, n in chain)
        kinds = ("unrolled" if x.var in held else "serial" for x, _ in chain)
        new = zip(chain, ends, kinds)
        return wrap([For(marked.expr(x.var), as_index(0), end, body, kind) for (x, _), end, kind in new], body)

    reduce = around([*reversed(depth), *reversed(terms)], Store(here.buffer, (), Binary("add", here, term)))
    clear = Store(here.buffer, (), const(here.buffer.dtype, 0))
    body: Stmt = Alloc(here.buffer, block(clear, reduce, Store(store.buffer, index, total)))
    return block(start, around([*outer, *reversed(side)], body))
