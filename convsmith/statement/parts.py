"""Split a reduction among threads: each part is summed separately, and the parts are added in a fixed order.

This pays if the result is too small to be divided among threads: few outputs with long sums, a gradient of few weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index, conj, eq, floordiv, true
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


def split_chain(st: Statement, dims: Sequence[str], parts: int, size: int) -> Statement:
    """Return the statement with ``parts`` of the reduction along all of ``dims``, counted together, outermost first:
    each sums ``size`` consecutive terms, the last one what they leave.
    """
    found = [d for n in dims for d in st.of("k") if d.name == n]
    count = prod(d.size for d in found)
    if len(found) < len(dims) or not splits_on_devices(st) or (parts - 1) * size >= count:
        raise ConfigError(
            "split", f"--split={'_'.join(dims)}:{parts}: {parts} parts of {size} of {count} terms; legal are loops of "
            f"the reduction, parts that have terms, and a result of fewer than {MAX_DIMS} dims",
        )  # fmt: skip
    if cuts_iterations(found, size):
        raise ConfigError(
            "split", f"--split={'_'.join(dims)}:{parts}: parts of {size} terms cut iterations of {dims[0]} in parts of "
            "different terms; legal are parts that have the terms of an iteration or more, or that divide them",
        )  # fmt: skip
    place, step = as_index(0), count
    for d in found:
        step //= d.size
        place += Var(d.name) * step
    own = eq(floordiv(place, size), Var(PART))
    a, *others = st.factors
    factors = (replace(a, masks=(conj((own, a.masks[0])), *a.masks[1:])), *others)
    return replace(_with_parts(st, parts), dims=(Dim(PART, parts, "batch"), *st.dims), factors=factors)


def cuts_iterations(dims: Sequence[Dim], size: int) -> bool:
    """Return whether parts of ``size`` terms along ``dims``, counted together, are shorter than an iteration of one of
    them and do not divide it: the number of such a part has no simple form.
    """
    steps = (prod(d.size for d in dims[n + 1 :]) for n in range(len(dims)))
    return any(step > size and step % size for step in steps)


def splits(st: Statement) -> bool:
    """Return whether the result can have parts, because its layout has room for another dim."""
    return len(st.c.coords) < MAX_DIMS


def splits_on_devices(st: Statement) -> bool:
    """Return whether the result can have parts on a device, where packed factors need room for another dim too."""
    return splits(st) and all(len(v.coords) < MAX_DIMS for v in st.factors if v.packed)


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
    factors = tuple(v.at(in_part) for v in st.factors)
    return replace(_with_parts(st, parts), dims=(Dim(PART, parts, "batch"), *dims), factors=factors)


def _with_parts(st: Statement, parts: int) -> Statement:
    """Return the statement with a result for each part, which another statement finishes."""
    c = View(SUMS, st.acc, st.c.layout.repeated(parts), (Var(PART), *st.c.coords), (true(),) * (len(st.c.coords) + 1))
    return replace(st, c=c, sums=(), finish="sum", part_of=st)


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
