"""Copies of the windows of a buffer, so that all terms of a pixel are contiguous.

An instruction that adds up many terms reads them as one run of memory. If the terms of a pixel are several runs, of few
channels each, the copy joins them to one run per pixel, padded with zeros to full instructions. Elements of the border
are zero too, so that the mask moves from every access into the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from convsmith.arith.ranges import Range
from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, For, Stmt, Store, block
from convsmith.ir.value import Load, Select, Value, const
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.copies import LoadsOfCopy, StagedReads, read_or_fill
from convsmith.passes.footprint import box
from convsmith.passes.relocate import Place
from convsmith.passes.scope import loops_around

IN_ROWS = 2
"""Number of innermost loops over the terms of a pixel, over a row's taps and channels, that may form one run of memory.
Whether a row exists is tested outside of the loop over its pixels.
"""
Parts = tuple[tuple[str, int], ...]
"""Loops that a loop was split into, outermost first, each with the iterations of that loop per step."""


class Windows(NamedTuple):
    """A loop of a nest: the ``dims`` that were fused to it, with their sizes, and the ``parts`` that it was split into.

    The copy has space for ``room`` iterations of the loop.
    """

    dims: tuple[tuple[str, int], ...]
    parts: Parts
    room: int

    def __str__(self) -> str:
        dims, parts = (" ".join(f"{name}:{n}" for name, n in x) for x in (self.dims, self.parts))
        return f"{dims} in {parts} of {self.room}"


@record(frozen=True)
class WindowCopy:
    """A copy that holds the terms of each pixel, filled up to their room.

    ``pixels`` and ``terms`` describe how the loops over pixels, and over terms of each, were fused and split; along
    other dims, the copy holds all that is read. The zeros that fill it up are written in each iteration, or ``once``
    before all of them. An element that the array lacks is ``absent`` in the copy, or what the loop has in its place.
    """

    pixels: Windows
    terms: Windows
    once: bool = False
    absent: int = 0
    ending = "s"

    def __str__(self) -> str:
        absent = f", absent {self.absent}" if self.absent else ""
        return f"windows of {self.pixels} by {self.terms}{' once' if self.once else ''}{absent}"

    def staged(self, reads: StagedReads, name: str, scope: str) -> Stmt:
        """Return the loop of ``reads``, each iteration of which fills a copy, called ``name``, and reads it."""
        loop, found = reads.loop, set(reads.loads)
        if len(found) > 1:
            raise ConfigError(
                "stage", f"stage: {loop.var} reads {reads.old} at {len(found)} places; legal is one element"
            )
        (read,) = found
        new, at, fill, copy = self._copy(read, loop, name, reads.around, reads.inner, scope)
        body = LoadsOfCopy(reads.old, new, lambda _: at, {**reads.around, **reads.inner}).stmt(loop.body)
        if self.once:
            return Alloc(new, block(*fill, For(loop.var, loop.lo, loop.hi, block(copy, body), loop.kind)))
        return reads.with_body(Alloc(new, block(*fill, copy, body)))

    def _copy(
        self, read: Load, loop: For, name: str, ranges: dict[Var, Range], inner: dict[Var, Range], scope: str
    ) -> tuple[Buffer, Place, list[Stmt], Stmt]:
        """Return the copy, the place of ``read`` in it, the loops that pad its terms, and the loops that fill it."""
        old = read.buffer
        rest = Var(f"{name}.z")
        pixels, taps = ([(Var(f"{name}.{n}"), size) for n, size in x.dims] for x in (self.pixels, self.terms))
        pixel, term = _fused_iteration(pixels), _fused_iteration(taps)
        full = {**ranges, **{x: (0, size - 1) for x, size in (*pixels, *taps)}}
        places = {**_loops_at(self.pixels.parts, pixel), **_loops_at(self.terms.parts, term)}
        moved = {x for x, _ in (*pixels, *taps)}
        index: list[Index] = []
        rows: list[tuple[Var, int]] = []
        starts: list[Index] = []
        for dim, e in enumerate(read.index):
            there = simplify(substitute(e, places), full)
            if moved & variables_of(there):
                index.append(there)
                continue
            base, lo, hi = box([e], ranges, inner, f"{old.name} along dim {dim}")
            row = Var(f"{name}{dim}")
            full[row] = (0, hi - lo)
            rows.append((row, hi - lo + 1))
            starts.append(e - base - lo)
            index.append(base + lo + row)
        if moving := {v for i in index for v in variables_of(i)} - full.keys():
            raise ConfigError(
                "stage", f"stage: within {loop.var}, {', '.join(sorted(map(str, moving)))} move {old.name} "
                f"along an axis of the pixels or of the terms that are copied; legal are loops around {loop.var}",
            )  # fmt: skip
        shape = (*(size for _, size in rows), self.pixels.room, self.terms.room)
        new = make_buffer(name, old.dtype, shape, scope)
        outer = tuple(row for row, _ in rows)
        element = read_or_fill(old, tuple(index), full, self.absent)
        if isinstance(element, Select) and (absent := _absent_in(loop, read)) is not None:
            element = Select(element.cond, element.yes, absent)
        body = Store(new, (*outer, pixel, term), element)
        copy = loops_around([*rows, *pixels[:-1], *taps[:-IN_ROWS], pixels[-1], *taps[-IN_ROWS:]], body)
        fill = []
        if (count := prod(size for _, size in taps)) < self.terms.room:
            zero = Store(new, (*outer, pixel, rest + count), const(old.dtype, 0))
            fill.append(loops_around([*rows, *pixels, (rest, self.terms.room - count)], zero))
        return new, (*starts, _split_iteration(self.pixels.parts), _split_iteration(self.terms.parts)), fill, copy


def _absent_in(loop: For, read: Load) -> Value | None:
    """Return the value that ``loop`` has in place of absent elements of ``read``, the same in all iterations; None if
    it leaves their terms out.
    """
    found = {v.no for v in walk(loop.body) if isinstance(v, Select) and v.yes is read}
    return next((v for v in found if len(found) == 1 and not variables_of(v)), None)


def _fused_iteration(loops: Sequence[tuple[Var, int]]) -> Index:
    """Return the iteration of the fused loop, given the ``loops`` that were fused to it."""
    at: Index = as_index(0)
    for x, size in loops:
        at = at * size + x
    return at


def _split_iteration(parts: Parts) -> Index:
    """Return the iteration of the split loop, given the loops that it was split into."""
    return sum((Var(name) * step for name, step in parts), as_index(0))


def _loops_at(parts: Parts, place: Index) -> dict[Var, Index]:
    """Return the values of the loops for iteration ``place`` of the loop that was split into them."""
    *outer, (innermost, step) = parts
    assert step == 1
    return {**{Var(name): as_index(0) for name, _ in outer}, Var(innermost): place}
