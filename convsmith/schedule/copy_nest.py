"""A copy as its loops move the places that are read and written; blocks of its loops for the caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace as with_fields
from math import gcd, prod

from convsmith.arith.simplify import simplify
from convsmith.diag.record import record
from convsmith.ir.index import Ge0, Var, parts_of
from convsmith.ir.stmt import For, Stmt, Store
from convsmith.ir.types import dtype
from convsmith.ir.value import Load, Select
from convsmith.ir.walk import variables_of, walk
from convsmith.machine.base import Machine
from convsmith.passes.bind import bind
from convsmith.passes.flatten import offset
from convsmith.passes.reorder import reorder
from convsmith.passes.scope import perfect_nest
from convsmith.schedule.loops import Loop
from convsmith.schedule.schedule import Schedule

PIECES = 4
"""Maximum number of pieces of a loop."""
BORDERS = 16
"""Maximum number of pieces of a loop at the borders of an image, in each of which the absent lanes of a vector are
constant.
"""
SHORT_COPY = 1 << 13
"""Maximum number of elements for which packing takes less time than compiling a transposition, or vectors of scattered
elements.
"""
MIN_BLOCK_BYTES = 256
"""Minimum number of contiguous bytes that a block writes."""
MIN_TASKS = 8
"""Minimum number of iterations of shared loops per thread."""


@record(frozen=True)
class CopyNest:
    """A packing nest: the iterations of its loops, outermost first, and the elements by which each moves the read
    position.

    In a ``plain`` nest, elements are copied unchanged. Along ``masked`` loops some elements are absent; along
    ``ending`` loops only the last ones are. ``tests`` are the sets of loops that conditions of existence depend on.
    The nest runs ``times`` in a call.
    """

    extents: dict[str, int]
    steps: dict[str, int]
    read: str
    dtype: str
    plain: bool
    masked: frozenset[str]
    ending: frozenset[str]
    tests: tuple[frozenset[str], ...] = ()
    times: int = 1

    def with_loop(self, outer: str, columns: Sequence[str], width: int) -> CopyNest:
        """Return the nest with a loop over tiles of ``width`` of the columns."""
        count = -(-prod(self.extents[n] for n in columns) // width)
        step = self.steps[columns[-1]] * width
        return with_fields(self, extents={outer: count, **self.extents}, steps={outer: step, **self.steps})

    @property
    def is_short(self) -> bool:
        """Whether packing takes less time than compiling what makes it faster."""
        return prod(self.extents.values()) * self.times < SHORT_COPY

    @property
    def bits(self) -> int:
        return dtype(self.dtype).bits

    @property
    def bytes_read(self) -> int:
        return dtype(self.read).bytes

    @staticmethod
    def of(copy: Stmt) -> CopyNest | None:
        """Return the description of a nest that copies elements of one operand with constant steps; None for other
        nests.
        """
        if not isinstance(copy, For):
            return None
        nest, s = perfect_nest(copy)
        reads = [v for v in walk(s.value) if isinstance(v, Load)] if isinstance(s, Store) else []
        if len(reads) != 1 or not isinstance(s, Store) or s.index != tuple(x.var for x in nest):
            return None
        ranges = {x.var: (0, int(x.hi) - 1) for x in nest if x.hi.is_const}
        terms = dict(simplify(offset(reads[0].buffer, reads[0].index), ranges).terms)
        if any(not isinstance(a, Var) and variables_of(a) for a in terms):
            return None
        steps = {x.var.name: terms.get(x.var, 0) for x in nest}
        plain = isinstance(s.value.yes if isinstance(s.value, Select) else s.value, Load)
        conds = parts_of(s.value.cond) if isinstance(s.value, Select) else ()
        tests = tuple(frozenset(v.name for v in variables_of(c)) for c in conds)
        masked = Counter(name for test in tests for name in test)
        falling = {v.name for c in conds if isinstance(c, Ge0) for v, n in c.arg.terms if isinstance(v, Var) and n < 0}
        ending = frozenset(n for n in falling if masked[n] == 1)
        read, extents = reads[0].buffer.dtype.name, {x.var.name: int(x.hi) for x in nest}
        return CopyNest(extents, steps, read, s.buffer.dtype.name, plain, frozenset(masked), ending, tests)

    def whole(self, *names: str) -> bool:
        """Return whether all elements along the loops are present, or all except the last ones along a single loop."""
        return not set(names) & (self.masked if len(names) > 1 else self.masked - self.ending)

    def columns(self, first: int, most: int, taken: set[str], tested: bool = False) -> list[str]:
        """Return the loops that together step through contiguous reads, the innermost last; a single loop may have
        absent elements if it is ``tested`` for them.
        """
        columns: list[str] = []
        while True:
            run = first * prod(self.extents[n] for n in columns)
            next_ = [n for n, step in self.steps.items() if step == run and n not in taken and self.extents[n] > 1]
            if not next_ or not (self.whole(next_[0], *columns) or (tested and not columns)):
                return columns
            if columns and prod(self.extents[n] for n in (*columns, next_[0])) > most:
                return columns
            columns.insert(0, next_[0])
            taken = taken | {next_[0]}


def is_scattered(copy: Stmt, along: str) -> bool:
    """Return whether a copy is so short that a loop over elements takes less time than compiling vectors of them, which
    are gathered: neighbouring elements along the loop ``along`` are apart in the original.
    """
    if not isinstance(copy, For):
        return False
    nest, s = perfect_nest(copy)
    reads = [v for v in walk(s.value) if isinstance(v, Load)] if isinstance(s, Store) else []
    if len(reads) != 1 or not all(x.hi.is_const for x in nest) or prod(int(x.hi) for x in nest) >= SHORT_COPY:
        return False
    place = simplify(offset(reads[0].buffer, reads[0].index), {x.var: (0, int(x.hi) - 1) for x in nest})
    return bool(dict(place.terms).get(Var(along), 0) > 1)


def share(s: Schedule, loops: Sequence[Loop], threads: int) -> None:
    """Distribute ``loops`` over ``threads``, before they are split."""
    if threads > 1:
        s.run(bind, tuple(loops), "parallel", MIN_TASKS * threads)


def block(s: Schedule, moved: CopyNest, around: list[Loop], target: Machine, turns: int = 1) -> list[Loop]:
    """Block the loop with the longest step, and return the loops in their new order.

    An outer loop with shorter steps then finds the data of a block in the cache. If an iteration of that loop reads
    more, the loop is not blocked, but the next one. Data beyond the second-level cache is read in long blocks, unless
    its cache lines are read in parts. Blocks are multiples of ``turns``.
    """
    extents, steps, order = [*moved.extents], moved.steps, [*around]
    fits_l2 = max(steps[n] * moved.extents[n] for n in extents) * moved.bytes_read <= target.l2.bytes
    for far in sorted((x for x in around if steps[x.name]), key=lambda x: -steps[x.name]):
        nearer = [
            x for x in order[: order.index(far)]
            if 0 < steps[x.name] < steps[far.name] and moved.extents[x.name] > 1
        ]  # fmt: skip
        if not nearer:
            continue
        step = steps[far.name] * moved.bytes_read
        held = target.l2.kept // step
        part = steps[nearer[-1].name] * moved.bytes_read
        line = target.l1.line
        if part < line <= step and (fits_l2 or 2 * part <= line):
            held = min(held, _lines(moved, step, target))
        piece = prod(moved.extents[n] for n in extents[extents.index(far.name) + 1 :])
        size = max(-(-MIN_BLOCK_BYTES * 8 // (piece * moved.bits)), held)
        size -= size % turns if size > turns else 0
        if size >= moved.extents[far.name]:
            break
        place = order.index(nearer[0])
        if not held and size == 1:
            order.remove(far)
            order.insert(place, far)
            continue
        outer, inner = s.tile(far, size, "bi", ("cache", far.level))
        order[order.index(far)] = inner
        order.insert(place, outer)
        s.run(reorder, tuple(order))
        return order
    if order != around:
        s.run(reorder, tuple(order))
    return order


def _lines(moved: CopyNest, step: int, target: Machine) -> int:
    """Return the iterations whose cache lines stay in the first-level cache until they are read completely; some share
    sets.
    """
    l1 = target.l1
    apart = min(s * moved.bytes_read for s in moved.steps.values() if s * moved.bytes_read >= l1.line)
    places = min(l1.way // l1.line, l1.way // gcd(apart, l1.way))
    return places * l1.ways // l1.share // (step // apart)
