"""Groups of a convolution side by side in one product, whose weights are a block-diagonal matrix.

Instructions on fragments multiply more terms and columns than a group of few channels has. If ``n`` groups stand side
by side, their channels are the terms and the columns of one product, in which a weight beside the diagonal is absent:
packing stores zeros for such weights, and the kernel multiplies them.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, conj, eq, floordiv, mod
from convsmith.statement.statement import Dim, Statement, View

__all__ = ["diagonal", "grouped_channels"]


def grouped_channels(st: Statement) -> tuple[Dim, Dim, Dim] | None:
    """Return the dim of the groups of ``st``, that of the channels of a group that are columns, and that of those that
    are terms; None if it has no groups, if the weights are the result, or if zero points are subtracted.
    """
    groups = st.of("batch")
    columns, terms = ([d for d in st.of(kind) if not d.axis and not d.sort] for kind in "nk")
    if len(st.factors) < 2 or not st.constant or st.shifted or st.sums or st.sizes:
        return None
    if (len(groups), len(columns), len(terms)) != (1, 1, 1) or not st.axes:
        return None
    return groups[0], columns[0], terms[0]


def diagonal(st: Statement, loop: str, count: int) -> Statement:
    """Return ``st`` with ``count`` groups, which ``loop`` runs over, side by side. ConfigError if they cannot be."""
    found = grouped_channels(st)
    if found is None or found[0].name != loop or count < 1 or found[0].size % count:
        legal = "none here" if found is None else f"divisors of the {found[0].size} groups of {found[0].name}"
        raise ConfigError("diagonal", f"--diagonal={loop}:{count}: legal are {legal}")
    group, columns, terms = found
    g, n, k = (Var(d.name) for d in found)
    of_column, of_term = floordiv(n, columns.size), floordiv(k, terms.size)
    moved = {group.name: group.size // count, columns.name: columns.size * count, terms.name: terms.size * count}
    dims = tuple(replace(d, size=moved.get(d.name, d.size)) for d in st.dims)
    ranges = {Var(name): (0, size - 1) for name, size in moved.items()}

    def simple(view: View) -> View:
        return replace(view, coords=tuple(simplify(x, ranges) for x in view.coords))

    column, term = mod(n, columns.size), mod(k, terms.size)
    a = simple(st.a.at({g: g * count + of_term, k: term}))
    b = simple(st.b.at({g: g * count + of_column, n: column, k: term}))
    c = simple(st.c.at({g: g * count + of_column, n: column}))
    b = replace(b, masks=(conj((b.masks[0], eq(of_column, of_term))), *b.masks[1:]))
    return replace(st, dims=dims, factors=(a, b), c=c)
