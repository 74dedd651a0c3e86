"""Copy the windows of a buffer, so that all terms of a pixel are contiguous.

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
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, const
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.footprint import box
from convsmith.passes.relocate import Place
from convsmith.passes.scope import (
    ScopedRewriter,
    loop_range,
    ranges_below,
    require_loops,
    require_new_buffer,
    require_no_effects,
    with_body,
)
from convsmith.passes.stage import LoadsOfCopy, read_or_fill

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


class _CopyWindows(ScopedRewriter):
    def __init__(self, buffer: str, loop: str, pixels: Windows, terms: Windows, once: bool) -> None:
        super().__init__()
        self.buffer, self.loop, self.pixels, self.terms, self.once = buffer, loop, pixels, terms, once

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        reads = {x for x in walk(loop.body) if isinstance(x, Load) and x.buffer.name == self.buffer}
        if not reads:
            return loop
        if len(reads) > 1 or any(x.lanes is not None for x in reads):
            raise ConfigError(
                "stage", f"copy_windows: {self.loop} reads {self.buffer} at {len(reads)} places; legal is one element"
            )
        (read,) = reads
        old = read.buffer
        if old in written_in(loop.body):
            raise ConfigError("dependence", f"copy_windows: {self.loop} writes {old}; legal are buffers that it reads")
        ranges: dict[Var, Range] = {**self.ranges, loop.var: loop_range(loop, self.ranges)}
        inner = ranges_below(loop.body, ranges)
        new, at, fill, copy = self.copy(read, ranges, inner)
        body = LoadsOfCopy(old, new, lambda _: at, {**ranges, **inner}).stmt(loop.body)
        if self.once:
            return Alloc(new, block(*fill, For(loop.var, loop.lo, loop.hi, block(copy, body), loop.kind)))
        return For(loop.var, loop.lo, loop.hi, Alloc(new, block(*fill, copy, body)), loop.kind)

    def copy(
        self, read: Load, ranges: dict[Var, Range], inner: dict[Var, Range]
    ) -> tuple[Buffer, Place, list[Stmt], Stmt]:
        """Return the copy, the place of ``read`` in it, the loops that pad its terms, and the loops that fill it."""
        old, name = read.buffer, f"{self.buffer}_s"
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
                "stage", f"copy_windows: within {self.loop}, {', '.join(sorted(map(str, moving)))} move {old.name} "
                f"along an axis of the pixels or of the terms that are copied; legal are loops around {self.loop}",
            )  # fmt: skip
        shape = (*(size for _, size in rows), self.pixels.room, self.terms.room)
        new = make_buffer(name, old.dtype, shape, "cache")
        outer = tuple(row for row, _ in rows)
        body = Store(new, (*outer, pixel, term), read_or_fill(old, tuple(index), full, 0))
        copy = _nest([*rows, *pixels[:-1], *taps[:-IN_ROWS], pixels[-1], *taps[-IN_ROWS:]], body)
        fill = []
        if (count := prod(size for _, size in taps)) < self.terms.room:
            zero = Store(new, (*outer, pixel, rest + count), const(old.dtype, 0))
            fill.append(_nest([*rows, *pixels, (rest, self.terms.room - count)], zero))
        return new, (*starts, _split_iteration(self.pixels.parts), _split_iteration(self.terms.parts)), fill, copy


def _fused_iteration(loops: Sequence[tuple[Var, int]]) -> Index:
    """Return the iteration of the fused loop, given the ``loops`` that were fused to it."""
    at: Index = as_index(0)
    for x, size in loops:
        at = at * size + x
    return at


def _nest(loops: Sequence[tuple[Var, int]], body: Stmt) -> Stmt:
    """Return ``body`` within ``loops``, each with its extent, outermost first."""
    for loop, size in reversed(loops):
        body = For(loop, as_index(0), as_index(size), body)
    return body


def _split_iteration(parts: Parts) -> Index:
    """Return the iteration of the split loop, given the loops that it was split into."""
    return sum((Var(name) * step for name, step in parts), as_index(0))


def _loops_at(parts: Parts, place: Index) -> dict[Var, Index]:
    """Return the values of the loops for iteration ``place`` of the loop that was split into them."""
    *outer, (innermost, step) = parts
    assert step == 1
    return {**{Var(name): as_index(0) for name, _ in outer}, Var(innermost): place}


@stages(*LOOPS)
def copy_windows(
    kernel: Kernel, buffer: str, loop: str, pixels: Windows, terms: Windows, once: bool = False
) -> Kernel:
    """Copy what each iteration of ``loop`` reads of ``buffer`` to ``<buffer>_s`` before the iteration runs.

    The copy holds the terms of each pixel, padded to full room. ``pixels`` and ``terms`` describe how the loops over
    pixels and over terms were fused and split; along other dims, the copy holds every element that is read. The padding
    is written in each iteration, or ``once`` before all of them.

    Before::

        kernel k(a: f32[8, 2], b: f32[6], c: f32[3, 6])
          for n in 0 .. 3:
            for i in 0 .. 6:
              for t.o in 0 .. 2:
                for t.i in 0 .. min(-t.o * 4 + 6, 4):
                  c[n, i] = c[n, i] + a[i + t.o * 2 + t.i // 2, t.i % 2] * b[t.i + t.o * 4]

    After ``copy_windows("a", "n", PIXELS, TERMS)``::

        kernel k(a: f32[8, 2], b: f32[6], c: f32[3, 6])
          for n in 0 .. 3:
            alloc a_s: f32[6, 8] @cache:
              for a_s.i in 0 .. 6:
                for a_s.z in 0 .. 2:
                  a_s[a_s.i, a_s.z + 6] = 0.0
              for a_s.i in 0 .. 6:
                for a_s.k in 0 .. 3:
                  for a_s.ic in 0 .. 2:
                    a_s[a_s.i, a_s.ic + a_s.k * 2] = a[a_s.i + a_s.k, a_s.ic]
              for i in 0 .. 6:
                for t.o in 0 .. 2:
                  for t.i in 0 .. min(-t.o * 4 + 6, 4):
                    c[n, i] = c[n, i] + a_s[i, t.i + t.o * 4] * b[t.i + t.o * 4]
    """
    require_no_effects(kernel, "copy_windows")
    require_loops(kernel, (loop,), "copy_windows")
    require_new_buffer(kernel, f"{buffer}_s", "copy_windows")
    body = _CopyWindows(buffer, loop, pixels, terms, once).stmt(kernel.body)
    return with_body(kernel, body)
