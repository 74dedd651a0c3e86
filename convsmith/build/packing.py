"""The rewrites of a packing kernel: it reads vectors of neighbours, and writes sequentially.

Where neighbours in the packed operand are far apart in the other, and those of the other far apart in the packed one,
tiles of both go through registers, where they are transposed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from convsmith.build.adding import adding_steps
from convsmith.ir.index import Ge0, Var, parts_of
from convsmith.ir.instruction import Transposition
from convsmith.ir.stmt import Block, For, Kernel, Stmt, Store
from convsmith.ir.types import dtype
from convsmith.ir.value import Load, Select
from convsmith.ir.walk import loops_of, variables_of, walk
from convsmith.passes.bind import bind
from convsmith.passes.flatten import flatten, offset
from convsmith.passes.fuse import fuse
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.packed_sums import HELD, MARK
from convsmith.passes.partition import partition
from convsmith.passes.pick_transpositions import pick_transpositions
from convsmith.passes.reorder import reorder
from convsmith.passes.scope import perfect_nest
from convsmith.passes.simplify import simplify
from convsmith.passes.strength import strength_reduce
from convsmith.passes.tile import tile
from convsmith.passes.transpose import READ, WRITTEN, transpose
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
from convsmith.target.base import Target

PIECES = 4
"""Most pieces of a loop."""
FEW = 1 << 13
"""Elements that are packed in less time than LLVM takes for a transposition."""
SHARE = 4
"""The part of the second-level cache for what a block reads."""
LINE = 64
"""Bytes of a line of a cache."""
LINES = 2
"""The part of the first-level cache for lines that are read in pieces."""
LEAST = 256
"""Fewest bytes that a block writes in order."""
COLUMN = "columns"
"""The loop whose iterations are the columns of tiles."""
LONG = 4
"""Most tiles in a row that are straight lines, because their columns lie unevenly in the packed operand."""


def packing_steps(pack: Kernel, target: Target) -> list[Step]:
    """Those of the copy, and of the sums that are made of it."""
    steps = _copying_steps(pack, target)
    before, after = adding_steps(pack, target)
    flat = next(n for n, step in enumerate(steps) if step.run is flatten) + 1
    unrolled = [Step(unroll)] if before else []
    return [*before, *steps[:flat], *after, *steps[flat:], *unrolled]


def _copying_steps(pack: Kernel, target: Target) -> list[Step]:
    """Split off what is cut short, and copy vectors."""
    parts = pack.body.stmts if isinstance(pack.body, Block) else (pack.body,)
    copies = [s for s in parts if not any(x.var.name.endswith((MARK, HELD)) for x in loops_of(s))]
    loops: list[For] = [x for s in copies for x in loops_of(s)]
    names = [x.var.name for x in loops]
    steps: list[Step] = []
    if len(copies) == 1 and (moved := _Moved.of(copies[0])) is not None:
        for row in target.transpositions:
            if (found := _tiles(moved, row)) is not None:
                return _transposing_steps(moved, found, row, target)
        steps, names = _blocked(moved, names, target)
    steps += [Step(partition, tuple(names), PIECES), Step(flatten), Step(simplify)]
    lanes = target.lanes(pack.params[0].dtype.bits)
    if loops and int(loops[-1].hi) <= lanes:
        steps.append(Step(vectorise, names[-1], lanes, False))
    return [*steps, Step(simplify, False), Step(narrow_index), Step(strength_reduce), Step(unused_let)]


@dataclass(frozen=True)
class _Moved:
    """A packing nest: how often loops run, outermost first, and the elements that each moves what is read by.

    ``plain`` says that elements are not changed on the way. Along ``masked`` loops some are not there, of which those
    along ``ending`` ones are the last.
    """

    extents: dict[str, int]
    steps: dict[str, int]
    read: str
    dtype: str
    plain: bool
    masked: frozenset[str]
    ending: frozenset[str]

    def with_loop(self, outer: str, columns: Sequence[str], width: int) -> _Moved:
        """The same with a loop over tiles of ``width`` of the columns."""
        count = -(-prod(self.extents[n] for n in columns) // width)
        step = self.steps[columns[-1]] * width
        return replace(self, extents={outer: count, **self.extents}, steps={outer: step, **self.steps})

    @property
    def bytes(self) -> int:
        return dtype(self.dtype).bytes

    @property
    def bytes_read(self) -> int:
        return dtype(self.read).bytes

    @staticmethod
    def of(copy: Stmt) -> _Moved | None:
        """That of a nest that copies elements of one operand, evenly; else None."""
        if not isinstance(copy, For):
            return None
        nest, s = perfect_nest(copy)
        reads = [v for v in walk(s.value) if isinstance(v, Load)] if isinstance(s, Store) else []
        if len(reads) != 1 or not isinstance(s, Store) or s.index != tuple(x.var for x in nest):
            return None
        terms = dict(offset(reads[0].buffer, reads[0].index).terms)
        if any(not isinstance(a, Var) and variables_of(a) for a in terms):
            return None
        steps = {x.var.name: terms.get(x.var, 0) for x in nest}
        plain = isinstance(s.value.yes if isinstance(s.value, Select) else s.value, Load)
        conds = parts_of(s.value.cond) if isinstance(s.value, Select) else ()
        masked = Counter(v.name for c in conds for v in variables_of(c))
        falling = {v.name for c in conds if isinstance(c, Ge0) for v, n in c.arg.terms if isinstance(v, Var) and n < 0}
        ending = frozenset(n for n in falling if masked[n] == 1)
        read, extents = reads[0].buffer.dtype.name, {x.var.name: int(x.hi) for x in nest}
        return _Moved(extents, steps, read, s.buffer.dtype.name, plain, frozenset(masked), ending)

    def whole(self, *names: str) -> bool:
        """Whether elements along the loops, as one, are all there, or all but the last ones along a single loop."""
        return not set(names) & (self.masked if len(names) > 1 else self.masked - self.ending)

    def columns(self, first: int, most: int, taken: set[str]) -> list[str]:
        """Loops that together step through what is read from neighbour to neighbour, the innermost last."""
        found: list[str] = []
        while True:
            run = first * prod(self.extents[n] for n in found)
            next_ = [n for n, step in self.steps.items() if step == run and n not in taken and self.extents[n] > 1]
            if not next_ or not self.whole(next_[0], *found):
                return found
            if found and prod(self.extents[n] for n in (*found, next_[0])) > most:
                return found
            found.insert(0, next_[0])
            taken = taken | {next_[0]}


@dataclass(frozen=True)
class _Tiles:
    """Loops of tiles: those that make the columns, that of the rows, and that of a group.

    With ``each`` the rows are those of that loop within the other.
    """

    columns: tuple[str, ...]
    rows: str
    group: tuple[str, ...]
    each: str = ""


def _tiles(moved: _Moved, row: Transposition) -> _Tiles | None:
    """How the row transposes the nest; None where it does not."""
    height, width, group = row.shape
    if row.dtype != moved.dtype or prod(moved.extents.values()) < FEW:
        return None
    names = [n for n in moved.extents if moved.extents[n] > 1]
    if len(names) < 2 or not all(map(moved.whole, names[-3:])):
        return None
    if row.joined:
        column, last = names[-2:]
        fits = moved.extents[last] == height and moved.steps[last] != 1 == moved.steps[column]
        return _Tiles((column,), last, ()) if fits else None
    if moved.bytes < 4 and group == 1:
        *_, lane, last = names
        columns = moved.columns(1, LONG * width, {lane, last})
        count = moved.extents[lane] * moved.extents[last]
        apart = moved.steps[last] > 1 and moved.steps[lane] > 1 and count <= height < 2 * count
        return _Tiles(tuple(columns), lane, (), last) if columns and apart else None
    inner = names[-1:] if group > 1 else []
    if inner and ((moved.extents[inner[0]], moved.steps[inner[0]]) != (group, 1) or len(names) < 3):
        return None
    lane = names[-1 - len(inner)]
    if moved.steps[lane] in (0, group) or moved.extents[lane] > height:
        return None
    columns = moved.columns(group, LONG * width, {lane, *inner})
    return _Tiles(tuple(columns), lane, tuple(inner)) if columns else None


def _blocked(moved: _Moved, around: list[str], target: Target) -> tuple[list[Step], list[str]]:
    """Blocks of the loop that steps farthest, where loops around it step less: what one reads stays in the cache.

    The steps, and the loops in their new order.
    """
    far = max(around, key=lambda n: moved.steps[n], default="")
    nearer = [n for n in around[: around.index(far)] if moved.steps[n] and moved.extents[n] > 1] if far else []
    if not nearer:
        return [], around
    step = moved.steps[far] * moved.bytes_read
    names = list(moved.extents)
    piece = prod(moved.extents[n] for n in names[names.index(far) + 1 :]) * moved.bytes
    held = target.l2_bytes // SHARE // step
    if 0 < moved.steps[nearer[-1]] * moved.bytes_read < LINE <= step:
        held = min(held, _lines(moved, step, target))
    size = max(-(-LEAST // piece), held)
    if size >= moved.extents[far]:
        return [], around
    outer, inner = f"{far}.b", f"{far}.i"
    order = [x for n in around for x in ((outer, n) if n == nearer[0] else (inner,) if n == far else (n,))]
    return [Step(tile, far, size, outer, inner), Step(reorder, tuple(order))], order


def _lines(moved: _Moved, step: int, target: Target) -> int:
    """Iterations whose lines the first-level cache keeps until all of each is read: some steps need the same sets."""
    apart = min(s * moved.bytes_read for s in moved.steps.values() if s * moved.bytes_read >= LINE)
    way = target.l1_bytes // target.l1_ways
    places = min(way // LINE, way // gcd(apart, way))
    return places * target.l1_ways // LINES // (step // apart)


def _transposing_steps(moved: _Moved, found: _Tiles, row: Transposition, target: Target) -> list[Step]:
    """Tiles innermost, through registers; the rest of the nest in its order."""
    height, width, group = row.shape
    names = tuple(moved.extents)
    rows = (found.rows, *((found.each,) if found.each else ()))
    inner = (*found.columns, *rows, *found.group)
    place = max(names.index(n) for n in found.columns)
    even = len(found.columns) == 1
    around = [n for n in names if n not in inner]
    steps = [Step(reorder, (*around, *inner))] if (*around, *inner) != names else []
    fused = found.columns[0]
    for n in found.columns[1:]:
        steps.append(Step(fuse, fused, n, f"{fused}_{n}"))
        fused = f"{fused}_{n}"
    line = "_".join(rows)
    if found.each:
        steps.append(Step(fuse, *rows, line))
    outer = f"{fused}.o"
    steps.append(Step(tile, fused, width, outer, COLUMN))
    if even:
        before = [n for n in around if names.index(n) < place]
        around = [*before, outer, *(n for n in around if n not in before)]
        steps.append(Step(reorder, tuple(around)))
    else:
        around.append(outer)
    loops = (COLUMN, line, *found.group)
    blocks, around = _blocked(moved.with_loop(outer, found.columns, width), around, target)
    return [
        *steps,
        *blocks,
        Step(partition, (*around, *(() if moved.plain else (COLUMN,))), PIECES),
        Step(transpose, loops, (height, width), row.joined),
        *([] if even else [Step(bind, (outer,), "unrolled")]),
        Step(flatten),
        Step(unroll),
        Step(simplify),
        Step(vectorise, READ, width * group, False),
        Step(vectorise, WRITTEN, height * (width if row.joined else group), False),
        Step(vectorise, loops[-1], max(height, group), False),
        Step(pick_transpositions, target.transpositions),
        Step(simplify, False),
        Step(narrow_index),
        Step(strength_reduce),
        Step(unused_let),
    ]  # fmt: skip
