"""The lowering of nests over groups of threads: flat offsets, instructions on fragments, vectors, straight-line code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from convsmith.ir.instruction import Instruction
from convsmith.machine.base import Machine
from convsmith.passes.async_copies import async_copies
from convsmith.passes.bind import bind
from convsmith.passes.block_messages import block_messages
from convsmith.passes.flatten import flatten
from convsmith.passes.form_fma import form_fma
from convsmith.passes.load_matrices import load_matrices
from convsmith.passes.map_to_threads import map_to_threads
from convsmith.passes.name_indices import name_indices
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.replace import replace
from convsmith.passes.simplify import simplify
from convsmith.passes.split_barriers import split_barriers
from convsmith.passes.unroll import unroll
from convsmith.passes.unswitch_uniform import unswitch_uniform
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.config import Config
from convsmith.schedule.group_fragments import ProductLoops
from convsmith.schedule.loops import Loop
from convsmith.schedule.nest import Nest
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.statement.statement import Statement

RUNS = (2, 4, 8, 16)
"""Numbers of adjacent elements of a fragment in a lane, which accesses them as vectors."""
UNROLLED = 256
"""Maximum number of products in straight-line code."""


class GroupReads(NamedTuple):
    """The copies that threads of a group read instead of memory, and the loops over fragments.

    By operand, ``shared`` are the copies in shared memory, and ``loaded`` the copies in registers of a thread, each
    with the loop along which it is loaded as vectors, if there is one. ``zeroed`` are the loops of the kernel that sets
    the result to zero, if groups add parts to it.
    """

    shared: dict[str, Copy]
    loaded: dict[str, tuple[Copy, Loop | None]]
    products: ProductLoops | None = None
    fragments: tuple[Loop, ...] = ()
    zeroed: tuple[Loop, ...] = ()


def lower_group(
    s: Schedule, st: Statement, nest: Nest, staged: GroupReads, machine: Machine, config: Config
) -> None:
    """Lower loops over threads to straight-line code of each thread."""
    warp, products = nest.warp, staged.products
    straight = _straight(nest) if products is None else [products.steps, *staged.fragments]
    flatten_threads(s, straight, machine)
    if warp is not None and products is not None:
        multiply_fragments(s, machine, warp.row, products.inner, warp.loads)
    for x in (x for x in nest.runs if x in nest.accumulators):
        s.run(unswitch_uniform, x)
        s.run(vectorise, x, x.extent, False)
    for view in st.factors:
        copy, vector = staged.loaded.get(view.name, (None, None))
        if copy is not None and vector is not None:
            s.run(vectorise, copy.lane, vector.extent, False)
    for copy in staged.shared.values():
        if copy.lane is not None and copy.lane.extent > 1:
            s.run(vectorise, copy.lane, copy.lane.extent, False)
    s.run(map_to_threads)
    if config.barriers == "split":
        s.run(split_barriers)
    if config.copies == "async":
        s.run(async_copies)
    finish_group(s)


def flatten_threads(s: Schedule, straight: Sequence[Loop], machine: Machine) -> None:
    """Lower the nest of a group to flat offsets; the loops ``straight`` become straight-line code."""
    s.run(bind, tuple(straight), "unrolled")
    s.run(flatten)
    s.run(simplify)
    s.run(form_fma, machine.scalar_types)


def multiply_fragments(
    s: Schedule, machine: Machine, row: Instruction, inner: tuple[Loop, ...], loads: tuple[Instruction, ...] = ()
) -> None:
    """Replace the loops ``inner`` by ``row``, and give each lane its elements of fragments, which the instructions
    ``loads`` may load.
    """
    s.run(replace, (row,), inner)
    if loads:
        s.run(load_matrices, (row,), loads)
    neighbours = s.spread_lanes((row,), RUNS)
    s.run(simplify)
    if machine.messages:
        s.run(block_messages, machine.messages)
    for x in neighbours:
        s.run(vectorise, x, x.extent, False)


def finish_group(s: Schedule) -> None:
    """Determine the width of indices, and shorten straight-line code."""
    s.run(narrow_index)
    s.run(simplify, False)
    for rewrite in (name_indices, unroll):
        s.run(rewrite)


def _straight(nest: Nest) -> list[Loop]:
    """Return the loops of a thread that become straight-line code: the loops over its sums, and over the terms that
    fit.
    """
    products, found = prod(x.extent for x in nest.accumulators), [*nest.accumulators]
    for x in reversed(nest.terms):
        products *= x.extent
        if products > UNROLLED:
            break
        found.append(x)
    return found
