"""Specifications of instructions as IR: the coordinates of a fragment, and the loops of a specification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from convsmith.ir.index import Index, IndexLike, Var, as_index
from convsmith.ir.parse import parse_index, parse_kernel
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import loops_of, statements_of, walk

__all__ = ["coordinates", "indices", "is_one", "iterations", "parse_kernel", "places", "steps"]

_VARIABLES = "rle"
"""Names of the register, the lane and the element of a lane in the texts of coordinates."""


def indices(texts: Sequence[str]) -> tuple[Index, ...]:
    """Return parsed coordinates, whose variables belong to the present table of nodes."""
    return tuple(parse_index(text) for text in texts)


def is_one(index: Index) -> bool:
    """Return whether an index is 1."""
    return index is as_index(1)


def coordinates(texts: Sequence[str], *place: IndexLike) -> tuple[Index, ...]:
    """Return the coordinates at a register, a lane and an element."""
    here = {Var(name): as_index(x) for name, x in zip(_VARIABLES, place)}
    return tuple(substitute(i, here) for i in indices(texts))


def places(texts: Sequence[str], every: Iterable[tuple[int, int, int]]) -> dict[tuple[int, ...], tuple[int, int, int]]:
    """Return the register, lane and element of each coordinate, among those that `every` lists."""
    parsed, variables = indices(texts), [Var(name) for name in _VARIABLES]
    found = {}
    for place in every:
        here = {v: as_index(x) for v, x in zip(variables, place)}
        found[tuple(int(substitute(i, here)) for i in parsed)] = place
    return found


def iterations(kernel: Kernel, scale: str) -> dict[Var, int]:
    """Return the iterations of each loop, where the size named `scale` is 1."""
    # The specification may have been parsed under another intern table, so the variables are taken from it.
    one = {v: as_index(1) for v in kernel.sizes if v.name == scale}
    loops: list[For] = list(loops_of(kernel.body))
    return {x.var: int(substitute(x.hi, one)) for x in loops}


def steps(kernel: Kernel, operand: int, shape: Sequence[int]) -> dict[Var, int]:
    """Return the distance in elements between two iterations of each loop in an operand of ``shape``, a dense array."""
    buffer = kernel.params[operand]
    (store,) = (s for s in statements_of(kernel.body) if isinstance(s, Store))
    reads = (v.index for v in walk(store.value) if isinstance(v, Load) and v.buffer is buffer)
    index = store.index if store.buffer is buffer else next(reads)
    found: dict[Var, int] = {}
    for dim, i in enumerate(index):
        apart = prod(shape[dim + 1 :])
        for atom, n in i.terms:
            if isinstance(atom, Var):
                found[atom] = found.get(atom, 0) + n * apart
    return found
