"""Parts that the layouts of staged copies share: the reads that a copy replaces, and accesses of the copy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import NamedTuple, Protocol

import numpy as np

from convsmith.arith.evaluate import holds
from convsmith.arith.ranges import Range
from convsmith.arith.simplify import simplify
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Var, conj, is_true, parts_of
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.ir.value import Cast, Load, Select, Value, const
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.relocate import Place, Relocate


class StagedReads(NamedTuple):
    """The ``loads`` of the buffer ``old`` in the body of ``loop``, a loop of ``kernel``.

    ``around`` has the ranges of variables around the body, ``inner`` those of the loops in it.
    """

    kernel: Kernel
    loop: For
    old: Buffer
    loads: Sequence[Load]
    around: dict[Var, Range]
    inner: dict[Var, Range]

    def with_body(self, body: Stmt) -> Stmt:
        """Return the loop with another body."""
        x = self.loop
        return For(x.var, x.lo, x.hi, body, x.kind, x.carried)


class CopyLayout(Protocol):
    """A layout of copies. The copy of an operand is called by its name and the ``ending``."""

    ending: str

    def staged(self, reads: StagedReads, name: str, scope: str) -> Stmt:
        """Return the loop of ``reads``, each iteration of which fills a copy, called ``name``, and reads it."""


MAX_POINTS = 1 << 22
"""Maximum number of points at which two conditions are compared."""


class LoadsOfCopy(Relocate):
    """Redirects loads to the ``place`` of their index in the copy, and drops the conditions that it has evaluated.

    Conditions are compared after simplification under ``ranges``, or by their values, because earlier simplification
    may have rewritten them. A condition that keeps another load within its buffer stays, and so does one along a dim of
    ``inside``.
    """

    def __init__(
        self, old: Buffer, new: Buffer, place: Callable[[Place], Place], ranges: Mapping[Var, Range],
        inside: Collection[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(old, new, place)
        self.ranges, self.inside = ranges, inside

    def visit_Cast(self, v: Cast) -> Value:
        is_read = isinstance(v.a, Load) and v.a.buffer is self.old
        return self.expr(v.a) if is_read and self.new.dtype is v.dtype else self._Cast(v)

    def visit_Select(self, v: Select) -> Value:
        inside: set[Cond] = set()
        others: set[Cond] = set()
        for x in walk(v.yes):
            if isinstance(x, Load):
                is_copied = x.buffer is self.old
                masked = self.inside if is_copied else ()
                sizes = [(i, n) for d, (i, n) in enumerate(zip(x.index, x.buffer.shape)) if d not in masked]
                bounds = [simplify(c, self.ranges) for i, n in sizes for c in (i >= 0, i < n)]
                (inside if is_copied else others).update(c for c in bounds if not is_true(c))
        parts = [(p, simplify(p, self.ranges)) for p in parts_of(v.cond)]
        kept = [(p, simple) for p, simple in parts if simple in others or not is_implied(simple, inside, self.ranges)]
        remaining = [simple for _, simple in kept]
        is_safe = all(is_implied(bound, remaining, self.ranges) for bound in others)
        cond = conj(p for p, _ in (kept if is_safe else parts))
        yes = self.expr(v.yes)
        return yes if is_true(cond) else Select(cond, yes, v.no)


def is_implied(cond: Cond, by: Collection[Cond], ranges: Mapping[Var, Range]) -> bool:
    """Return whether ``cond`` is one of the conditions ``by``, or holds wherever one of them does under ``ranges``."""
    if cond in by:
        return True
    names = variables_of(cond)
    for c in by:
        used = sorted(names | variables_of(c), key=str)
        if not names & variables_of(c) or prod(hi - lo + 1 for lo, hi in map(ranges.__getitem__, used)) > MAX_POINTS:
            continue
        grids = np.meshgrid(*(np.arange(lo, hi + 1) for lo, hi in map(ranges.__getitem__, used)), sparse=True)
        values = dict(zip(used, grids))
        if not np.any(np.asarray(holds(c, values)) & ~np.asarray(holds(cond, values))):
            return True
    return False


def read_or_fill(
    buffer: Buffer, index: Place, ranges: Mapping[Var, Range], fill: int, sizes: Sequence[int] | None = None
) -> Value:
    """Return the element of ``buffer`` at ``index``, or ``fill`` if the index is outside of the buffer or of ``sizes``.
    """
    within = buffer.shape if sizes is None else sizes
    inside = simplify(conj(c for i, n in zip(index, within) for c in (i >= 0, i < n)), ranges)
    read = Load(buffer, index, None)
    return read if is_true(inside) else Select(inside, read, const(buffer.dtype, fill))
