"""The sets of taps that are inside the image, as a function of the element of the result.

A tap that reads padding is absent at some pixels, so a sum of weights is needed for each set of present taps.  The mask
is a conjunction of conditions along the axes.  Each condition removes taps from one end of an axis, or all taps outside
one residue class of a stride, or all taps; the number of removed taps, or the class, is an index over the pixel.
"""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.arith.ranges import Range, interval
from convsmith.arith.simplify import simplify
from convsmith.diag.record import record
from convsmith.ir.index import (
    Cond,
    Eq0,
    Ge0,
    Index,
    Mod,
    Var,
    as_index,
    eq,
    floordiv,
    make_sum,
    maximum,
    minimum,
    mod,
    parts_of,
)
from convsmith.ir.walk import variables_of
from convsmith.statement.statement import Statement


@record(frozen=True)
class Cut:
    """One condition of the mask: ``index`` is its case at an element of the result, in ``0 .. cases``.

    ``cond`` is the condition in terms of the case, called ``var``, and of the taps.
    """

    var: Var
    index: Index
    cases: int
    cond: Cond


def cuts(st: Statement) -> tuple[Cut, ...]:
    """Return one cut per condition of the mask of ``st``."""
    taps = {Var(d.name): (0, d.size - 1) for d in st.of("k")}
    pixels = {Var(d.name): (0, d.size - 1) for d in st.of("batch", "n", "m")}
    result = []
    for n, part in enumerate(parts_of(st.a.mask)):
        var = Var(f"cut{n}")
        index, cond = _cut(part, var, taps)
        index = simplify(index, pixels)
        result.append(Cut(var, index, interval(index, pixels)[1] + 1, cond))
    return tuple(result)


def number(cases: Sequence[tuple[Index, int]]) -> tuple[Index, int]:
    """Return one index that enumerates all combinations of ``cases``, and their number."""
    total, count = as_index(0), 1
    for index, size in cases:
        total, count = total * size + index, count * size
    return total, count


def _cut(part: Cond, var: Var, taps: dict[Var, Range]) -> tuple[Index, Cond]:
    assert isinstance(part, (Ge0, Eq0))
    tap = next((v for v in taps if v in variables_of(part)), None)
    if isinstance(part, Eq0) and not isinstance(part.arg, Mod):
        step, rest = _take(part.arg, tap)
        ends = (0, 0 if tap is None else -step * taps[tap][1])
        least = min(ends) - 1  # no tap is present at or below this case
        moved = var + least if tap is None else tap * step + var + least
        return minimum(maximum(rest, least), max(ends) + 1) - least, eq(moved, 0)
    if isinstance(part, Eq0):
        assert isinstance(part.arg, Mod)
        step, rest = _take(part.arg.num, tap)
        moved = var if tap is None else tap * step + var
        return mod(rest, part.arg.den), eq(mod(moved, part.arg.den), 0)
    step, rest = _take(part.arg, tap)
    if tap is None:
        return minimum(maximum(-rest, 0), 1), var <= 0
    last = taps[tap][1]
    if step > 0:
        return minimum(maximum(floordiv(-rest + (step - 1), step), 0), last + 1), tap >= var
    return minimum(maximum(last - floordiv(rest, -step), 0), last + 1), tap <= last - var


def _take(e: Index, tap: Var | None) -> tuple[int, Index]:
    """Return the coefficient of ``tap`` in ``e``, and ``e`` without it."""
    terms = dict(e.terms)
    step = terms.pop(tap, 0) if tap is not None else 0
    return step, make_sum(e.const, terms)
