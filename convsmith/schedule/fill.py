"""Kernels of devices that store to every element of an array, for example to pack it or to write zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convsmith.ir.stmt import Block, Kernel, Stmt, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import walk
from convsmith.machine.base import Machine
from convsmith.passes.bind import bind
from convsmith.passes.flatten import flatten
from convsmith.passes.manager import Step
from convsmith.passes.map_to_threads import map_to_threads
from convsmith.passes.name_indices import name_indices
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.reorder import reorder
from convsmith.passes.simplify import simplify
from convsmith.schedule.loops import Loop, loops_in, names
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


def main_nest(whole: Kernel, machine: Machine) -> Kernel:
    """Return the naive kernel ``whole`` as ``machine`` runs it. A kernel of a device has one nest, so nests that zero
    the padding of a blocked result are separate kernels.
    """
    return whole if machine.device is None else replace(whole, body=_nests(whole)[0])


def zeroing_kernels(whole: Kernel, machine: Machine) -> list[tuple[Kernel, tuple[Step, ...]]]:
    """Return the kernels that zero the padding of a blocked result of ``whole`` on a device, with their rewrites."""
    found = []
    for n, nest in enumerate(_nests(whole)[1:] if machine.device is not None else ()):
        used = {x.buffer for x in walk(nest) if isinstance(x, (Load, Store))}
        kernel = Kernel(f"{whole.name}_zeros{n}", tuple(b for b in whole.params if b in used), nest)
        found.append((kernel, filling(loops_in(nest))))
    return found


def _nests(kernel: Kernel) -> tuple[Stmt, ...]:
    return kernel.body.stmts if isinstance(kernel.body, Block) else (kernel.body,)


def filling(loops: Sequence[Loop]) -> tuple[Step, ...]:
    """Return the rewrites of a kernel that consists of one nest of ``loops``."""
    s = Schedule(names(loops))
    fill(s, loops)
    return tuple(s.steps)
