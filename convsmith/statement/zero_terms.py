"""Terms beyond those of a reduction loop, whose packed weights are zeros.

Instructions on fragments multiply more terms than a stem has channels, or taps in a row. With as many terms in the
weights that packing stores as in a fragment, copies of weights are whole vectors, which no thread tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from convsmith.arith.ranges import interval
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Cond, Var, conj
from convsmith.ir.walk import variables_of
from convsmith.statement.statement import Statement, View

__all__ = ["takes_zero_terms", "with_zero_terms"]


def takes_zero_terms(st: Statement) -> bool:
    """Return whether the weights of ``st`` may have further terms: they are constant, and no zero point is subtracted.
    """
    return len(st.factors) == 2 and st.constant and not (st.shifted or st.sums or st.sizes or st.residues)


def with_zero_terms(st: Statement, terms: Iterable[tuple[str, int]]) -> Statement:
    """Return ``st`` with as many ``terms`` along each loop, of which the last ones have weights that are absent. An
    element of the other factor that such a term reads beyond the end of a dim is absent as well. ConfigError if they
    cannot be.
    """
    for loop, count in terms:
        st = _along(st, loop, count)
    return st


def _along(st: Statement, loop: str, count: int) -> Statement:
    sizes = {d.name: d.size for d in st.of("k")} if takes_zero_terms(st) else {}
    if count < sizes.get(loop, count + 1):
        legal = ", ".join(f"{name} from {size} on" for name, size in sizes.items()) or "none here"
        raise ConfigError("zeros", f"--zeros={loop}:{count}: legal are {legal}")
    var = Var(loop)
    dims = tuple(replace(d, size=count) if d.name == loop else d for d in st.dims)
    ranges = {Var(d.name): (0, d.size - 1) for d in dims}

    def within(view: View) -> View:
        conds: list[Cond] = []
        for x, size, mask in zip(view.coords, view.layout.shape, view.masks):
            lo, hi = interval(x, ranges)
            moves = var in variables_of(x)
            below, beyond = (x >= 0,) if moves and lo < 0 else (), (x < size,) if moves and hi >= size else ()
            conds.append(conj((mask, *below, *beyond)))
        return replace(view, masks=tuple(conds))

    return replace(st, dims=dims, factors=(within(st.a), within(st.b)))
