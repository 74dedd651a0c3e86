"""Split a reduction among threads: each part is summed separately, and the parts are added in a fixed order.

This pays if the result is too small to be divided among threads: few outputs with long sums, a gradient of few weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, true
from convsmith.layout.tags import MAX_DIMS
from convsmith.statement.statement import Dim, Statement, View, view_steps

PART = "part"
"""Name of the loop over parts."""
SUMS = "part_sums"
"""Name of the memory of the parts, one result each."""


def split_reduction(st: Statement, split: Sequence[tuple[str, int]]) -> Statement:
    """Return the statement with parts of their own for each ``(reduction loop, number of parts)`` of ``split``."""
    for loop, parts in split:
        st = _split(st, loop, parts)
    return st


def splits(st: Statement) -> bool:
    """Return whether the result can have parts, because its layout has room for another dim."""
    return len(st.c.coords) < MAX_DIMS


def _split(st: Statement, loop: str, parts: int) -> Statement:
    sizes = {d.name: d.size for d in st.of("k")}
    if loop not in sizes or sizes[loop] % parts:
        legal = ", ".join(f"{name} ({size})" for name, size in sizes.items())
        raise ConfigError("split", f"--split={loop}:{parts}: legal is a reduction loop and a divisor of it: {legal}")
    if not splits(st):
        raise ConfigError(
            "split", f"--split={loop}:{parts}: {st.c.name} has {MAX_DIMS} dims; legal with a split are fewer"
        )
    size = sizes[loop] // parts
    in_part: dict[Var, Index] = {Var(loop): Var(PART) * size + Var(loop)}
    dims = tuple(replace(d, size=size) if d.name == loop else d for d in st.dims)
    c = View(SUMS, st.acc, st.c.layout.repeated(parts), (Var(PART), *st.c.coords), (true(),) * (len(st.c.coords) + 1))
    return replace(
        st, dims=(Dim(PART, parts, "batch"), *dims), factors=tuple(v.at(in_part) for v in st.factors), c=c, sums=(),
        finish="sum", part_of=st,
    )  # fmt: skip


def sum_of_parts(st: Statement) -> Statement:
    """Return the statement that adds up the parts of the sums of ``st``, in one order, and finishes them."""
    whole = st.whole
    steps = view_steps(whole.c)
    dims = sorted(whole.of("batch", "n", "m"), key=lambda d: (d.size > 1, -steps.get(Var(d.name), 0)))
    around = tuple(replace(d, kind="m") for d in dims)
    return Statement(
        (*around, replace(st.dims[0], kind="k")), (st.c,), whole.c, (PART,), st.acc, sums=whole.sums, name="sums",
        when="after", part_of=whole,
    )  # fmt: skip
