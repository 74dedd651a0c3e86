"""Whether a rewrite keeps the order in which accesses touch an element.

A rewrite that changes the order of iterations or statements gives each access a new path
(:mod:`convsmith.passes.accesses`).  Paths are compared entry by entry: positions as numbers, loops by their iterations.
Of every two accesses of one buffer, of which one writes, iterations that touch one element must keep their order.

A sum, ``x[i] = x[i] + e``, has the same value in any order of its terms: exactly for integers, up to rounding for
floats.  The rewrites that bring a reduction into the order of the config change the order of sums: reorder, sink,
keep_sums and accumulate, and vectorise where it adds lanes up.  All others keep it.

These passes keep the order of everything, and ask nothing: tile, fuse and coalesce (the new loops run through the same
iterations in the same order), cut, partition, pieces, guard_tails and unroll (pieces and copies of an iteration follow
each other as the iterations do), restrict, solve and skip_zero (iterations that do nothing go away), lift, hoist and
collapse (only look-ups of pointers and indices move; iterations of parallel loops have no order).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

from convsmith.arith.dependence import Distances, LoopBounds, Unsettled
from convsmith.arith.ranges import Ranges
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.stmt import For
from convsmith.passes.accesses import Path, Site, sites_of


class Unordered(NamedTuple):
    """An entry of a new path: iterations of the loop run in any order, or at once."""

    loop: LoopBounds


NewPath = tuple[int | LoopBounds | Unordered, ...]
_Signs = dict[Var, int]


def require_order(
    what: str, sites: Sequence[Site], new_path: Callable[[Path], NewPath], ranges: Ranges, sums: bool = False
) -> None:
    """Raise ConfigError where accesses of one element change their order under ``new_path``.

    ``what`` is the rewrite, ``ranges`` are of the variables around the statement of the ``sites``.  With ``sums``, the
    order within a sum may change.
    """
    for a, b in conflicts(sites, sums):
        new = new_path(a.path), new_path(b.path)
        distances = Distances(a.access, b.access, ranges, a.private)
        for direction in (1, -1)[: 1 if a is b else 2]:
            for signs in _reversals(distances, (a.path, b.path), new, direction):
                require_no_dependence(what, (a, b)[::direction], distances, signs)


def require_nest_order(what: str, old: Sequence[For], new: Sequence[For], ranges: Ranges) -> None:
    """Raise ConfigError where the loops ``old`` of a perfect nest cannot stand in the order ``new``.

    The order of sums may change.  ``ranges`` are of the variables around the nest.
    """
    places = [old.index(loop) for loop in new]

    def permuted(path: Path) -> NewPath:
        return (*(path[n] for n in places), *path[len(places) :])

    require_order(what, sites_of(old[0], ranges), permuted, ranges, sums=True)


def conflicts(sites: Sequence[Site], sums: bool = False) -> Iterator[tuple[Site, Site]]:
    """Yield pairs of accesses of one memory, of which one writes; with ``sums``, but for those within one sum."""
    for a, b in combinations_with_replacement(sites, 2):
        if a.storage is b.storage and (a.access.is_write or b.access.is_write):
            if not (sums and a.is_sum and b.is_sum):
                yield a, b


def require_no_dependence(what: str, sites: Sequence[Site], distances: Distances, signs: _Signs) -> None:
    """Raise ConfigError unless no iterations at distances of the signs touch one element.

    The first of the two ``sites`` happens first in the old order.
    """
    first, second = sites
    loops = [x for x, y in zip(first.path, second.path) if isinstance(x, LoopBounds) and x is y]
    later, earlier = "an iteration", "another"
    try:
        found = distances.example(signs)
    except Unsettled:
        pass
    else:
        if found is None:
            return
        of_first, of_second = found if first.access is distances.a else found[::-1]
        if loops:
            later = f"iteration {_tuple(str(x.var) for x in loops)} = {_tuple(of_second[x.var] for x in loops)}"
            earlier = _tuple(of_first[x.var] for x in loops)
        else:
            later, earlier = "the second", "the first"
    verbs = ["writes" if x.access.is_write else "reads" for x in (second, first)]
    raise ConfigError(
        "dependence",
        f"{what}: {first} and {second}: {later} {verbs[0]} what {earlier} {verbs[1]}, and must come after it",
    )


def _tuple(values: Iterable[object]) -> str:
    return f"({', '.join(map(str, values))})"


def _reversals(
    distances: Distances, old: tuple[Path, Path], new: tuple[NewPath, NewPath], direction: int
) -> Iterator[_Signs]:
    """Yield signs of distances for which one access comes before the other in the old paths and not in the new ones.

    Direction 1 is a before b, -1 is b before a.
    """
    signs: _Signs = {}
    for x, y in zip(*old):
        if isinstance(x, LoopBounds) and x is y:
            if distances.bounds(x.var) != (0, 0) and distances.may(first := {**signs, x.var: direction}):
                yield from _later(distances, first, new, direction)
            signs[x.var] = 0
        elif x != y:
            assert isinstance(x, int) and isinstance(y, int)
            if (y - x) * direction > 0 and distances.may(signs):
                yield from _later(distances, signs, new, direction)
            return


def _later(distances: Distances, signs: _Signs, new: tuple[NewPath, NewPath], direction: int) -> Iterator[_Signs]:
    """Yield signs, more of them, for which the access that came first comes later, or at the same time."""
    for x, y in zip(*new):
        if isinstance(x, int) or isinstance(y, int):
            assert isinstance(x, int) and isinstance(y, int)
            if x != y:
                if (y - x) * direction < 0:
                    yield signs
                return
            continue
        loop = x.loop if isinstance(x, Unordered) else x
        known = signs.get(loop.var, 0 if distances.bounds(loop.var) == (0, 0) else None)
        wrong = (1, -1) if isinstance(x, Unordered) else (-direction,)
        if known is None:
            for sign in wrong:
                if distances.may(reverse := {**signs, loop.var: sign}):
                    yield reverse
            signs = {**signs, loop.var: 0}
            if not distances.may(signs):
                return
        elif known:
            if known in wrong:
                yield signs
            return
