"""Kernels of devices that store to every element of an array, for example to pack it or to write zeros."""

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
"""Threads of a group that only copies or sums entries."""


def filling_groups(elements: int, threads: int = THREADS) -> int:
    """Return the number of groups of ``threads`` that store ``elements`` elements, one per thread."""
    return -(-elements // threads)


def fill(s: Schedule, loops: Sequence[Loop], threads: int = THREADS) -> None:
    """Run a nest of ``loops`` with one thread for each of its iterations."""
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
    """Return the rewrites of a kernel that consists of one nest of ``loops``."""
    s = Schedule(names(loops))
    fill(s, loops)
    return tuple(s.steps)
