"""The footprint of reads: for each dim of a buffer, the interval of coordinates that some loops' bodies read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from convsmith.arith.ranges import Range, interval
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, make_sum
from convsmith.ir.walk import variables_of
from convsmith.layout.block import LayoutBlock


def box(
    indices: Iterable[Index], outer: Mapping[Var, Range], inner: Mapping[Var, Range], what: str
) -> tuple[Index, int, int]:
    """Return (base, lowest, highest): each of `indices` is the base plus an offset in that interval.

    The base contains the variables of `outer`, the offset the variables of `inner`. ConfigError, which names `what` is
    read, if the indices have no common base.
    """
    bases, lows, highs = set(), [], []
    for e in indices:
        fixed = {a: c for a, c in e.terms if not variables_of(a) & inner.keys()}
        moving = make_sum(e.const, {a: c for a, c in e.terms if a not in fixed})
        bases.add(make_sum(0, fixed))
        lo, hi = interval(moving, {**outer, **inner})
        lows.append(lo)
        highs.append(hi)
    if len(bases) != 1:
        raise ConfigError("footprint", f"the reads of {what} have no common place to start from")
    return bases.pop(), min(lows), max(highs)


def dense_blocks(
    old: Iterable[LayoutBlock], shape: Sequence[int], innermost: int | None = None
) -> tuple[LayoutBlock, ...]:
    """Return dense blocks of `shape`, whose dims have the order of `old` except that `innermost` comes last."""
    nearest = {b.dim: b.stride for b in old}
    order = sorted(range(len(shape)), key=lambda d: (d == innermost, -nearest.get(d, 0), d))
    out, stride = [], 1
    for d in reversed(order):
        out.append(LayoutBlock(d, shape[d], stride))
        stride *= shape[d]
    return tuple(reversed(out))
