"""The rewrites of a packing kernel, which loads vectors and writes sequentially.

If adjacent elements of the packed operand are far apart in the original, and vice versa, tiles of both are transposed
in registers. Threads share a long copy of an operand that changes in each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as with_fields
from math import prod
from typing import NamedTuple

from convsmith.ir.index import Var
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store
from convsmith.ir.types import S32
from convsmith.ir.walk import loops_of, statements_of
from convsmith.machine.base import Machine
from convsmith.machine.transpositions import MAX_READ_STRIDE
from convsmith.passes.bind import bind
from convsmith.passes.collapse import collapse
from convsmith.passes.cross_blocks import cross_blocks
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.fuse import fuse
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.join_loops import join_loops
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.outline import outline
from convsmith.passes.partition import partition
from convsmith.passes.reorder import INNERMOST, reorder
from convsmith.passes.replace import replace
from convsmith.passes.scope import perfect_nest, wrap
from convsmith.passes.simplify import simplify
from convsmith.passes.strength import strength_reduce
from convsmith.passes.unroll import unroll
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.copy_nest import BORDERS, PIECES, CopyNest, block, is_scattered, share
from convsmith.schedule.fill import fill
from convsmith.schedule.loops import Loop, loops_in, names
from convsmith.schedule.schedule import Schedule
from convsmith.schedule.transposed_copies import lower_transposed, order_transposed, transposition

MAX_VECTORS = 4
"""Maximum number of vectors of a run that are copied without a loop around them."""


def packing_steps(pack: Kernel, target: Machine, threads: int = 1, is_constant: bool = False) -> list[Step]:
    """Return the rewrites of the copy and of the sums computed from it; ``threads`` share a long copy. On a device, a
    thread of a grid writes each element. A short copy of a constant operand gathers no vectors.
    """
    over = {Var(x.name): x for x in loops_in(pack.body)}
    s = Schedule(names(over.values()))
    if target.device is not None:
        (store,) = (s for s in statements_of(pack.body) if isinstance(s, Store))
        fill(s, [over[x] for x in store.index if isinstance(x, Var)])
        return s.steps
    pack = pack if is_constant else _in_order_of_stores(s, pack)
    sharing = threads if _is_shared(pack, target) else 1
    sums = _order_sums(s, pack, target)
    parts = pack.body.stmts if isinstance(pack.body, Block) else (pack.body,)
    packed = pack.params[-1]
    copies = [x for x in parts if any(isinstance(y, Store) and y.buffer is packed for y in statements_of(x))]
    moved = CopyNest.of(copies[0]) if len(copies) == 1 else None
    found = None if moved is None else transposition(moved, target)
    if moved is not None and found is not None:
        transposed = order_transposed(s, moved, *found, target, sharing)
        s.run(flatten)
        _lower_sums(s, pack, target, sums)
        lower_transposed(s, transposed, target)
    else:
        loops = [x for part in copies for x in loops_in(part)]
        vectors = _order_copy(s, pack, copies, loops, moved, target, sharing, is_constant)
        s.run(flatten)
        _lower_sums(s, pack, target, sums)
        _lower_copy(s, vectors, with_cases=not (is_constant or target.vectors.scalable))
    s.run(simplify, False)
    s.run(join_loops)
    s.run(narrow_index)
    if found is not None:
        s.run(outline, (), True)
    if sharing > 1:
        s.run(collapse)
    s.run(strength_reduce)
    s.run(unroll)
    return s.steps


def _in_order_of_stores(s: Schedule, pack: Kernel) -> Kernel:
    """Order the loops of a single nest as the dims of the packed operand, and return the ordered kernel."""
    if not isinstance(pack.body, For):
        return pack
    nest, store = perfect_nest(pack.body)
    over = {x.var: x for x in nest}
    if not isinstance(store, Store) or {*store.index} != over.keys() or store.index == tuple(over):
        return pack
    order = [over[x] for x in store.index if isinstance(x, Var)]
    handles = {x.name: x for x in loops_in(pack.body)}
    s.run(reorder, tuple(handles[x.var.name] for x in order))
    return with_fields(pack, body=wrap(order, store))


def _is_shared(pack: Kernel, target: Machine) -> bool:
    """Return whether packing takes at least as long as starting threads, and is a single nest without sums, whose
    elements many iterations write.
    """
    cycles = prod(pack.params[-1].shape) * target.costs.pack
    is_long = cycles * target.lanes(pack.params[-1].dtype.bits) >= target.costs.thread_start
    return is_long and isinstance(pack.body, For) and not any(isinstance(s, Alloc) for s in statements_of(pack.body))


class _SumLoops(NamedTuple):
    """The loops of sums in a packing kernel: ``side`` are the loops over adjacent sums, the innermost one over the
    lanes of a vector, ``depth`` the loops over the terms of a run.
    """

    depth: tuple[Loop, ...] = ()
    side: tuple[Loop, ...] = ()
    are_there: bool = False


def _order_sums(s: Schedule, pack: Kernel, target: Machine) -> _SumLoops:
    """Keep vectors of the sums of a run in registers during the run."""
    run = next((x for x in statements_of(pack.body) if isinstance(x, Alloc)), None)
    if run is None:
        return _SumLoops()
    around = [x for x in loops_of(pack.body) if run in statements_of(x)]
    handles = {x.name: x for x in loops_in(pack.body)}
    side = [handles[x.var.name] for x in around if x.kind == "unrolled"]
    outer = [handles[x.var.name] for x in around if x.kind != "unrolled"]
    if side:
        lanes = target.lanes(S32.bits)
        side[-1:] = s.tile(side[-1], lanes, "vl", ("register", "instruction"))
        s.run(fission, tuple(side), ((side[-1], lanes),))
        s.run(reorder, tuple(side), INNERMOST)
        s.run(simplify)
        s.run(partition, (*outer, *side[:-1]))
        s.run(guard_tails, tuple(side))
    return _SumLoops(loops_in(run.body), tuple(side), True)


def _lower_sums(s: Schedule, pack: Kernel, target: Machine, sums: _SumLoops) -> None:
    """Vectorise the sums, and select instructions for their terms."""
    if not sums.are_there:
        return
    s.run(simplify)
    depth = sums.depth
    terms = depth[-1].extent if depth else 1
    if 1 < terms == S32.bits // pack.params[-1].dtype.bits:
        s.run(vectorise, depth[-1], terms, False)
    if sums.side:
        s.run(vectorise, sums.side[-1], target.lanes(S32.bits), False)
    s.run(replace, target.instructions)


class _CopyVectors(NamedTuple):
    """The loops that become a vector of ``lanes``: two that are contiguous in both memories, or one, or none."""

    loops: tuple[Loop, ...]
    lanes: int
    are_cut: bool = False
    """Whether the loop has more iterations than a vector has lanes, and is cut into vectors within each of its pieces.
    """


def _order_copy(
    s: Schedule, pack: Kernel, copies: Sequence[Stmt], loops: Sequence[Loop], moved: CopyNest | None, target: Machine,
    threads: int, is_constant: bool,
) -> _CopyVectors:  # fmt: skip
    """Split off short tiles of ``copies``, which ``threads`` share; return the loops that become vectors. Long runs and
    scattered elements of a constant operand stay loops.
    """
    whole = list(loops)
    if moved is not None:
        whole = block(s, moved, whole, target)
    share(s, whole[:-1], threads)
    lanes = target.lanes(pack.params[0].dtype.bits)
    pair = _pair(moved, lanes) if moved is not None else ()
    if moved is not None and not is_constant and _is_long_run(moved, lanes):
        whole[-1:] = s.tile(whole[-1], lanes, "ol", ("copy", "copy"))
        s.run(partition, tuple(whole[:-1]), PIECES)
        return _CopyVectors(tuple(whole[-1:]), lanes)
    s.run(partition, tuple(x for x in whole if x.name not in pair), BORDERS if pair else PIECES)
    if moved is not None and not is_constant and _is_strided_run(moved, lanes):
        return _CopyVectors(tuple(whole[-1:]), lanes, are_cut=True)
    if pair:
        by_name = {x.name: x for x in whole}
        return _CopyVectors(tuple(by_name[n] for n in pair), lanes)
    if whole and is_constant and len(copies) == 1 and is_scattered(copies[0], whole[-1].name):
        return _CopyVectors((), lanes)
    if len(whole) > 1 and whole[-1].extent == lanes and whole[-2].extent <= MAX_VECTORS:
        s.run(bind, (whole[-2],), "unrolled")
    return _CopyVectors(tuple(whole[-1:]) if loops and loops[-1].extent <= lanes else (), lanes)


def _is_long_run(moved: CopyNest, lanes: int) -> bool:
    """Return whether the innermost loop copies adjacent elements, all present, that fill more than a vector."""
    last = [*moved.extents][-1]
    return moved.steps[last] == 1 and moved.extents[last] > lanes and last not in moved.masked


def _is_strided_run(moved: CopyNest, lanes: int) -> bool:
    """Return whether the innermost loop copies near elements that fill more than a vector; some at its borders may be
    absent.
    """
    last = [*moved.extents][-1]
    return moved.plain and 0 < moved.steps[last] <= MAX_READ_STRIDE and moved.extents[last] > lanes


def _lower_copy(s: Schedule, vectors: _CopyVectors, with_cases: bool) -> None:
    """Vectorise a copy, ``with_cases`` for the places within a block of the original at which vectors begin."""
    s.run(simplify)
    if vectors.are_cut:
        around, lane = s.tile(vectors.loops[0], vectors.lanes, "ol", ("copy", "copy"))
        s.run(partition, (around,))
        s.run(vectorise, lane, vectors.lanes, False)
        return
    if len(vectors.loops) > 1:
        s.run(fuse, *vectors.loops, vectors.loops[-1], "conditions")
    if vectors.loops:
        if with_cases:
            s.run(cross_blocks, vectors.loops[-1])
        s.run(vectorise, vectors.loops[-1], vectors.lanes, False)


def _pair(moved: CopyNest, lanes: int) -> tuple[str, ...]:
    """Return the last two loops if they form one vector in both memories, some of whose first elements are absent;
    otherwise an empty tuple.
    """
    *_, outer, inner = ("", *moved.extents)
    if not outer or moved.whole(outer):
        return ()
    step = moved.steps[inner]
    if not step or moved.steps[outer] != moved.extents[inner] * step:
        return ()
    return (outer, inner) if lanes // 2 < moved.extents[outer] * moved.extents[inner] <= lanes else ()
