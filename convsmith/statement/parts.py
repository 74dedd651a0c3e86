"""Split a reduction among threads: each part is summed separately, and the parts are added in a fixed order.

This pays if the result is too small to be divided among threads: few outputs with long sums, a gradient of few weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product, takewhile
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index, conj, eq, floordiv, true
from convsmith.layout.tags import MAX_DIMS
from convsmith.statement.statement import Dim, Statement, View, view_steps

PART = "part"
"""Name of the loop over parts, the first one if there are several; the others have their number behind it."""
SUMS = "part_sums"
"""Name of the memory of the parts, one result each."""


def part_loop(number: int) -> str:
    """Return the name of the loop over the parts of the split of that number, from 0 on."""
    return f"{PART}{number + 1}" if number else PART


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
    if len(found) < len(dims) or not splits_on_devices(st.whole, _splits_of(st) + 1) or (parts - 1) * size >= count:
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
    own = eq(floordiv(place, size), Var(_next_part(st)))
    a, *others = st.factors
    factors = (replace(a, masks=(conj((own, a.masks[0])), *a.masks[1:])), *others)
    return replace(_with_parts(st, parts), factors=factors)


def cuts_iterations(dims: Sequence[Dim], size: int) -> bool:
    """Return whether parts of ``size`` terms along ``dims``, counted together, are shorter than an iteration of one of
    them and do not divide it: the number of such a part has no simple form.
    """
    steps = (prod(d.size for d in dims[n + 1 :]) for n in range(len(dims)))
    return any(step > size and step % size for step in steps)


def splits(st: Statement) -> bool:
    """Return whether the result can have parts, because its layout has room for another dim."""
    return len(st.c.coords) < MAX_DIMS


def splits_on_devices(st: Statement, loops: int = 1) -> bool:
    """Return whether the result can have parts of so many ``loops`` on a device, where packed factors need room for as
    many dims.
    """
    return splits(st) and all(len(v.coords) + loops <= MAX_DIMS for v in st.factors if v.packed)


def splits_of_loops(ways: Mapping[str, Collection[int]], most: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield splits with at most ``most`` parts, where ``ways`` has the numbers of parts that each loop can have: those
    of one loop, then those of several loops that have a number of parts that no split before has.
    """
    yield from (((loop, n),) for loop, numbers in ways.items() for n in numbers if n <= most)
    seen = {n for numbers in ways.values() for n in numbers}
    for loops in range(2, len(ways) + 1):
        for names in combinations(ways, loops):
            for numbers in product(*(ways[name] for name in names)):
                if prod(numbers) <= most and prod(numbers) not in seen:
                    seen.add(prod(numbers))
                    yield tuple(zip(names, numbers))


def _split(st: Statement, loop: str, parts: int) -> Statement:
    sizes = {d.name: d.size for d in st.of("k")}
    if loop not in sizes or sizes[loop] % parts:
        legal = ", ".join(f"{name} ({size})" for name, size in sizes.items())
        raise ConfigError("split", f"--split={loop}:{parts}: legal is a reduction loop and a divisor of it: {legal}")
    if not splits(st.whole):
        raise ConfigError(
            "split", f"--split={loop}:{parts}: {st.whole.c.name} has {MAX_DIMS} dims; legal with a split are fewer"
        )
    size = sizes[loop] // parts
    in_part: dict[Var, Index] = {Var(loop): Var(_next_part(st)) * size + Var(loop)}
    new, factors = _with_parts(st, parts), tuple(v.at(in_part) for v in st.factors)
    return replace(new, dims=tuple(replace(d, size=size) if d.name == loop else d for d in new.dims), factors=factors)


def _next_part(st: Statement) -> str:
    """Return the name of the loop over the parts that a further split of ``st`` has."""
    return part_loop(_splits_of(st))


def _splits_of(st: Statement) -> int:
    """Return the number of splits that ``st`` has."""
    return sum(1 for _ in takewhile(lambda found: found[1].name == part_loop(found[0]), enumerate(st.dims)))


def _with_parts(st: Statement, parts: int) -> Statement:
    """Return the statement with a result for each part, which another statement finishes.

    The parts of several splits are counted together, those of the first split outermost, so that the results have one
    more dim than the whole statement, whatever the number of splits.
    """
    number, whole = _splits_of(st), st.whole
    dims = (*st.dims[:number], Dim(part_loop(number), parts, "batch"), *st.dims[number:])
    return replace(st, dims=dims, c=_results(whole, dims[: number + 1]), sums=(), finish="sum", part_of=whole)


def _results(whole: Statement, parts: Sequence[Dim]) -> View:
    """Return the view of the results of ``parts`` of the sums of ``whole``, one after the other."""
    place = as_index(0)
    for d in parts:
        place = place * d.size + Var(d.name)
    coords = (place, *whole.c.coords)
    layout = whole.c.layout.repeated(prod(d.size for d in parts))
    return View(SUMS, whole.acc, layout, coords, (true(),) * len(coords))


def sum_of_parts(st: Statement) -> Statement:
    """Return the statement that adds up the parts of the sums of ``st``, in one order, and finishes them."""
    whole = st.whole
    steps = view_steps(whole.c)
    dims = sorted(whole.of("batch", "n", "m"), key=lambda d: (d.size > 1, -steps.get(Var(d.name), 0)))
    around = tuple(replace(d, kind="m") for d in dims)
    part = Dim(PART, prod(d.size for d in st.dims[: _splits_of(st)]), "k")
    return Statement(
        (*around, part), (_results(whole, (part,)),), whole.c, (PART,), st.acc, sums=whole.sums, name="sums",
        when="after", part_of=whole,
    )  # fmt: skip
