"""The test whether a rewrite keeps the order in which accesses touch an element.

A rewrite that changes the order of iterations or statements gives each access a new path
(:mod:`convsmith.passes.accesses`). Paths are compared entry by entry: positions as numbers, loops by their iterations.
If one of two accesses of a buffer writes, iterations that touch the same element must keep their order.

A sum, ``x[i] = x[i] + e``, has the same value in any order of its terms: exactly for integers, up to rounding for
floats. The rewrites that establish the config's order of a reduction change the order of sums: reorder,
block_reduction, and vectorise if it adds lanes up. All other rewrites keep it.

The following passes keep the order of all accesses, and need no test: tile and fuse (the new loops run through the same
iterations in the same order), cut, partition, pieces, guard_tails and unroll (pieces and copies of an iteration follow
each other as the iterations do), restrict, solve and skip_zero (only iterations without effect are removed),
hoist_pointers and name_indices (only loads of pointers and computations of indices move).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

from convsmith.arith.dependence import Distances, LoopBounds, Unsettled, is_injective
from convsmith.arith.ranges import Ranges
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var
from convsmith.ir.stmt import Alloc, Block, Call, For, Invoke, PointerLoad, Stmt, Store
from convsmith.ir.value import Binary, Const, Load, Select
from convsmith.ir.walk import statements_of
from convsmith.passes.accesses import Path, Site, reads_any, sites_of, written_in
from convsmith.passes.scope import perfect_nest


class Unordered(NamedTuple):
    """An entry of a new path: iterations of the loop run in any order, or at once."""

    loop: LoopBounds


NewPath = tuple[int | LoopBounds | Unordered, ...]
_Signs = dict[Var, int]


def require_order(
    what: str,
    sites: Sequence[Site],
    new_path: Callable[[Path], NewPath],
    ranges: Ranges,
    sums: bool = False,
    among: Callable[[Site, Site], bool] = lambda a, b: True,
) -> None:
    """Raise ConfigError if accesses of one element change their order under ``new_path``.

    ``what`` is the rewrite, ``ranges`` are the ranges of the variables around the statement of the ``sites``. With
    ``sums``, the order within a sum may change. Only pairs for which ``among`` holds are checked.
    """
    for a, b in conflicts(sites, sums):
        if not among(a, b):
            continue
        old, new = (a.path, b.path), (new_path(a.path), new_path(b.path))
        own = a.access.loops[: a.private]
        if _compared(old, own) == _compared(new, own):
            continue
        if a.access.index == b.access.index and is_injective(a.access, b.access):
            if _compared(old, a.access.loops) == _compared(new, a.access.loops):
                continue
        distances = Distances(a.access, b.access, ranges, a.private)
        for direction in (1, -1)[: 1 if a is b else 2]:
            for signs in _reversals(distances, old, new, direction):
                require_no_dependence(what, (a, b)[::direction], distances, signs)


def require_nest_order(what: str, old: Sequence[For], new: Sequence[For], ranges: Ranges) -> None:
    """Raise ConfigError if the loops ``old`` of a perfect nest cannot be put in the order ``new``.

    The order of sums may change. ``ranges`` are the ranges of the variables around the nest.
    """
    kinds = [loop.kind == "parallel" for loop in new]
    if kinds != sorted(kinds, reverse=True):
        raise ConfigError("loop-kind", f"{what}: a parallel loop would stand within one that is not")
    if isinstance(s := old[-1].body, Store) and is_only_sum(s):
        return
    places = [old.index(loop) for loop in new]

    def permuted(path: Path) -> NewPath:
        return (*(path[n] for n in places), *path[len(places) :])

    require_order(what, sites_of(old[0], ranges), permuted, ranges, sums=True)


def is_only_sum(s: Store) -> bool:
    """Return whether a store adds to an element a term that does not read its buffer."""
    v = s.value
    adds = isinstance(v, Binary) and v.op == "add" and v.a is Load(s.buffer, s.index, s.lanes)
    return isinstance(v, Binary) and adds and not reads_any(v.b, {s.buffer})


def meet_outside(parts: Sequence[Stmt], whole: Stmt) -> bool:
    """Return whether several ``parts`` of a statement access a buffer that one of them writes and the ``whole`` does
    not own.

    This is a quick test: if only one part uses shared buffers, the order of the parts does not matter.
    """
    written = written_in(whole) - {x.buffer for x in statements_of(whole) if isinstance(x, Alloc)}
    if not written:
        return False
    uses = [any(_uses(s, written) for s in statements_of(part)) for part in parts]
    return sum(uses) > 1


def _uses(s: Stmt, buffers: set[Buffer]) -> bool:
    if isinstance(s, Store):
        return s.buffer in buffers or reads_any(s.value, buffers)
    return isinstance(s, (PointerLoad, Call, Invoke))


def masked_term(s: Store) -> Select | None:
    """Return the term that ``s`` adds to its own element if it is masked, and zero where the mask does not hold."""
    v = s.value
    if not (isinstance(v, Binary) and v.op == "add" and isinstance(v.a, Load) and isinstance(v.b, Select)):
        return None
    is_own = v.a.buffer is s.buffer and v.a.index == s.index
    return v.b if is_own and isinstance(v.b.no, Const) and v.b.no.value == 0 else None


def in_any_order(path: Path, loops: Container[Var] | None = None) -> NewPath:
    """Return ``path`` with its loops, or those of ``loops``, unordered."""
    return tuple(
        Unordered(x) if isinstance(x, LoopBounds) and (loops is None or x.var in loops) else x for x in path
    )  # fmt: skip


def require_order_in_passes(what: str, loop: For, count: int, pieces: int, outer: int, ranges: Ranges) -> None:
    """Raise ConfigError if the ``outer`` outermost loops of a reduction cannot be moved around the ``count`` outermost
    loops of ``loop``.

    The outermost loops hold a block: a start, loops over the ``pieces`` of the reduction, and statements that finish.
    In the new order, the start runs only in the first iteration of the reduction, and the final statements only in the
    last.
    """
    sites = sites_of(loop, ranges)

    def part(x: Site) -> int:
        place = x.path[count]
        assert isinstance(place, int)
        return 0 if place == 0 else 1 if place <= pieces else 2

    def reduction_first(path: Path) -> NewPath:
        return (*path[count : count + 1 + outer], *path[:count], *path[count + 1 + outer :])

    require_order(what, [x for x in sites if part(x) == 1], reduction_first, ranges, sums=True)
    require_order(
        what, sites, lambda path: (*in_any_order(path[:count]), *path[count:]), ranges,
        among=lambda a, b: part(a) != part(b),
    )  # fmt: skip


def require_sum(what: str, acc: Buffer, start: Stmt, terms: For) -> None:
    """Raise ConfigError unless ``start`` sets elements of the accumulator and ``terms`` only adds to them."""
    s = perfect_nest(start)[1] if isinstance(start, For) else start
    if not isinstance(s, Store) or s.buffer is not acc:
        raise ConfigError("not-nested", f"{what}: a sum must start with the store of its first value in {acc}")
    if not all(x.is_sum for x in sites_of(terms, {}) if x.access.buffer is acc):
        raise ConfigError("not-nested", f"{what}: loop {terms.var} must add to {acc}, and use it for nothing else")


def require_independent_pieces(what: str, pieces: Sequence[For], ranges: Ranges) -> None:
    """Raise ConfigError if pieces of one parallel loop, which run at once, touch an element that one of them writes.

    ``ranges`` are the ranges of the variables around the pieces.
    """
    if len(pieces) > 1:
        require_independent(what, sites_of(Block(tuple(pieces)), ranges), ranges, lambda a, b: a.path[0] != b.path[0])


def require_independent(
    what: str, sites: Sequence[Site], ranges: Ranges, among: Callable[[Site, Site], bool]
) -> None:
    """Raise ConfigError if two accesses for which ``among`` holds touch an element that one of them writes."""
    for a, b in conflicts(sites):
        if among(a, b):
            distances = Distances(a.access, b.access, ranges, a.private)
            if distances.may({}):
                require_no_dependence(what, (a, b), distances, {})


def conflicts(sites: Sequence[Site], sums: bool = False) -> Iterator[tuple[Site, Site]]:
    """Yield pairs of accesses of one memory, one of which writes; with ``sums``, except for pairs within one sum."""
    for a, b in combinations_with_replacement(sites, 2):
        if a.storage is b.storage and (a.access.is_write or b.access.is_write):
            if not (sums and a.is_sum and b.is_sum) and not (a.is_atomic and b.is_atomic):
                yield a, b


def require_no_dependence(what: str, sites: Sequence[Site], distances: Distances, signs: _Signs) -> None:
    """Raise ConfigError unless no iterations at distances of the signs touch one element.

    The first of the two ``sites`` happens first in the old order.
    """
    first, second = sites
    loops = [x for x, y in zip(first.path, second.path) if isinstance(x, LoopBounds) and x is y]
    later, earlier = "an iteration", "another"
    try:
        example = distances.example(signs)
    except Unsettled:
        pass
    else:
        if example is None:
            return
        of_first, of_second = example if first.access is distances.a else example[::-1]
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


def _compared(paths: tuple[NewPath, NewPath], own: Sequence[LoopBounds]) -> list[tuple[object, object]]:
    """Return the entries that decide which of two paths comes first; an ``own`` loop is skipped."""
    out: list[tuple[object, object]] = []
    for x, y in zip(*paths):
        if isinstance(x, int):
            if x != y:
                out.append((x, y))
                break
        elif x not in own:
            out.append((x, y))
    return out


def _reversals(
    distances: Distances, old: tuple[Path, Path], new: tuple[NewPath, NewPath], direction: int
) -> Iterator[_Signs]:
    """Yield signs of distances for which one access comes first in the old paths, but not in the new paths.

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
    """Yield extended signs for which the access that came first comes later, or at the same time."""
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
