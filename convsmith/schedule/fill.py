"""Kernels of devices that store to all places of an array, such as those that pack, or write zeros."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.passes.bind import bind
from convsmith.passes.flatten import flatten
from convsmith.passes.manager import Step
from convsmith.passes.map_to_threads import map_to_threads
from convsmith.passes.name_indices import name_indices
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.reorder import reorder
from convsmith.passes.simplify import simplify
from convsmith.schedule.loops import Loop, names
from convsmith.schedule.schedule import Schedule

THREADS = 128
"""Threads of a group that only moves or adds up entries."""


def filling_groups(elements: int, threads: int = THREADS) -> int:
    """Return the number of groups of ``threads`` that store to ``elements`` elements, one for each thread."""
    return -(-elements // threads)


def fill(s: Schedule, loops: Sequence[Loop], threads: int = THREADS) -> None:
    """Run a nest of ``loops`` that stores to all of their places: a thread for each place."""
    outer, inner = zip(*(s.tile(x, 1, "oi", ("grid", "register")) for x in loops))
    s.run(reorder, (*outer, *inner))
    whole = s.extend(s.fuse(outer, "x"), threads)
    groups, thread = s.tile(whole, threads, "gt", ("grid", "group"))
    s.run(simplify, False)
    s.run(bind, (groups,), "grid")
    s.run(bind, (thread,), "group")
    for rewrite in (flatten, simplify, map_to_threads, narrow_index, name_indices):
        s.run(rewrite)


def filling(loops: Sequence[Loop]) -> tuple[Step, ...]:
    """Return the rewrites of a kernel of such a nest alone."""
    s = Schedule(names(loops))
    fill(s, loops)
    return tuple(s.steps)
