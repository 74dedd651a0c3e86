"""The rewrites of a packing kernel, which loads vectors and writes sequentially.

If adjacent elements of the packed operand are far apart in the original, and vice versa, tiles of both are transposed
in registers. Threads share a long copy of an operand that changes in each call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from itertools import product
from math import gcd, prod

from convsmith.ir.index import Ge0, Var, parts_of
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store
from convsmith.ir.types import S32, dtype
from convsmith.ir.value import Load, Select
from convsmith.ir.walk import loops_of, statements_of, variables_of, walk
from convsmith.machine.base import Machine
from convsmith.machine.transpositions import is_joined, tile_shape
from convsmith.passes.bind import bind
from convsmith.passes.coalesce import coalesce
from convsmith.passes.collapse import collapse
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten, offset
from convsmith.passes.fuse import fuse
from convsmith.passes.gather_stores import gather_stores
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.partition import partition
from convsmith.passes.reorder import reorder
from convsmith.passes.replace import replace
from convsmith.passes.scope import perfect_nest
from convsmith.passes.share_outermost import share_outermost
from convsmith.passes.simplify import simplify
from convsmith.passes.sink import sink
from convsmith.passes.strength import strength_reduce
from convsmith.passes.tile import tile
from convsmith.passes.transpose import READ, WRITTEN, transpose
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.fill import filling
from convsmith.schedule.loops import loops_in

PIECES = 4
"""Maximum number of pieces of a loop."""
BORDERS = 16
"""Maximum number of pieces of a loop, in each of which constant lanes of a vector are absent."""
FEW = 1 << 13
"""Elements up to which packing takes less time than LLVM needs to compile a transposition."""
TURNS = 8
"""Maximum number of iterations whose pieces are written place by place."""
LEAST = 256
"""Minimum number of consecutive bytes that a block writes."""
COLUMN = "columns"
"""Name of the loop over the columns of tiles."""
TASKS = 8
"""Minimum number of iterations of shared loops for each thread."""
LONG = 4
"""Maximum number of tiles in a row that are unrolled, because their columns are unevenly spaced in the packed operand.
"""


def packing_steps(pack: Kernel, target: Machine, threads: int = 1) -> list[Step]:
    """Return the rewrites of the copy and of the sums computed from it; ``threads`` share a long copy. On a device, a
    thread of a grid writes each element.
    """
    if target.device is not None:
        (store,) = (s for s in statements_of(pack.body) if isinstance(s, Store))
        over = {Var(x.name): x for x in loops_in(pack.body)}
        return list(filling([over[x] for x in store.index if isinstance(x, Var)]))
    steps = _copying_steps(pack, target, threads if _is_shared(pack, target) else 1)
    before, after = _summing_steps(pack, target)
    flat = next(n for n, step in enumerate(steps) if step.run is flatten) + 1
    unrolled = [Step(unroll)] if before else []
    return [*before, *steps[:flat], *after, *steps[flat:], *unrolled]


def _is_shared(pack: Kernel, target: Machine) -> bool:
    """Return whether packing takes as long as starting threads, and is one nest: sums are written by many iterations.
    """
    cycles = prod(pack.params[-1].shape) * target.costs.pack
    is_long = cycles * target.lanes(pack.params[-1].dtype.bits) >= target.costs.thread_start
    return is_long and isinstance(pack.body, For) and not any(isinstance(s, Alloc) for s in statements_of(pack.body))


def _sharing_steps(names: Sequence[str], threads: int) -> tuple[list[Step], list[Step]]:
    """Return the rewrites by which ``threads`` share the loops ``names``: before they are cut, and before pointers.
    """
    if threads == 1:
        return [], []
    return [Step(share_outermost, tuple(names), TASKS * threads)], [Step(collapse)]


def _summing_steps(pack: Kernel, target: Machine) -> tuple[list[Step], list[Step]]:
    """Return the rewrites of the sums that a packing kernel makes, before and after memory is flat; none without sums.

    Vectors of the sums that a run holds stay in registers for as long as it lasts.
    """
    run = next((s for s in statements_of(pack.body) if isinstance(s, Alloc)), None)
    if run is None:
        return [], []
    around = [x for x in loops_of(pack.body) if run in statements_of(x)]
    side = [x.var.name for x in around if x.kind == "unrolled"]
    outer = [x.var.name for x in around if x.kind != "unrolled"]
    depth: list[For] = list(loops_of(run.body))
    lanes = target.lanes(S32.bits)
    steps: list[Step] = []
    if side:
        last = side.pop()
        steps.append(Step(tile, last, lanes, f"{last}v", f"{last}l"))
        side += [f"{last}v", f"{last}l"]
        steps += [Step(fission, tuple(side), ((side[-1], lanes),)), Step(sink, tuple(side))]
        steps.append(Step(simplify))
        steps += [Step(partition, (*outer, *side[:-1])), Step(guard_tails, tuple(side))]
    after = [Step(simplify)]
    terms = int(depth[-1].hi) if depth else 1
    if 1 < terms == S32.bits // pack.params[-1].dtype.bits:
        after.append(Step(vectorise, depth[-1].var.name, terms, False))
    if side:
        after.append(Step(vectorise, side[-1], lanes, False))
    return steps, [*after, Step(replace, target.instructions)]


def _copying_steps(pack: Kernel, target: Machine, threads: int) -> list[Step]:
    """Return the rewrites that split off short tiles and copy vectors, and those by which ``threads`` share them."""
    parts = pack.body.stmts if isinstance(pack.body, Block) else (pack.body,)
    packed = pack.params[-1]
    copies = [s for s in parts if any(isinstance(x, Store) and x.buffer is packed for x in statements_of(s))]
    loops: list[For] = [x for s in copies for x in loops_of(s)]
    names = [x.var.name for x in loops]
    steps: list[Step] = []
    moved = _Moved.of(copies[0]) if len(copies) == 1 else None
    if moved is not None:
        for tested, row in product((False, True), target.transpositions):
            if (tiles := _tiles(moved, row, tested)) is not None:
                return _transposing_steps(moved, tiles, row, target, threads)
        steps, names = _blocked(moved, names, target)
    share, join = _sharing_steps(names[:-1], threads)
    lanes = target.lanes(pack.params[0].dtype.bits)
    pair = _pair(moved, lanes) if moved is not None else ()
    cut = [n for n in names if n not in pair]
    steps += [*share, Step(partition, tuple(cut), BORDERS if pair else PIECES), Step(flatten), Step(simplify)]
    if pair:
        steps += [Step(coalesce, *pair, pair[-1], True), Step(vectorise, pair[-1], lanes, False)]
    elif loops and int(loops[-1].hi) <= lanes:
        steps.append(Step(vectorise, names[-1], lanes, False))
    return [*steps, Step(simplify, False), Step(narrow_index), *join, Step(strength_reduce), Step(unused_let)]


def _pair(moved: _Moved, lanes: int) -> tuple[str, ...]:
    """Return the last two loops where they are one vector in both memories, some of whose first elements are absent; or
    nothing.
    """
    *_, outer, inner = ("", *moved.extents)
    if not outer or moved.whole(outer):
        return ()
    step = moved.steps[inner]
    if not step or moved.steps[outer] != moved.extents[inner] * step:
        return ()
    return (outer, inner) if lanes // 2 < moved.extents[outer] * moved.extents[inner] <= lanes else ()


@dataclass(frozen=True)
class _Moved:
    """A packing nest: the iterations of its loops, outermost first, and the elements by which each moves the read
    position.

    ``plain``: elements are copied unchanged. Along ``masked`` loops some elements are absent; along ``ending`` loops
    the absent ones are the last.
    """

    extents: dict[str, int]
    steps: dict[str, int]
    read: str
    dtype: str
    plain: bool
    masked: frozenset[str]
    ending: frozenset[str]

    def with_loop(self, outer: str, columns: Sequence[str], width: int) -> _Moved:
        """Return the nest with a loop over tiles of ``width`` of the columns."""
        count = -(-prod(self.extents[n] for n in columns) // width)
        step = self.steps[columns[-1]] * width
        return with_fields(self, extents={outer: count, **self.extents}, steps={outer: step, **self.steps})

    @property
    def bits(self) -> int:
        return dtype(self.dtype).bits

    @property
    def bytes_read(self) -> int:
        return dtype(self.read).bytes

    @staticmethod
    def of(copy: Stmt) -> _Moved | None:
        """Return the description of a nest that copies elements of one operand with constant steps; None for other
        nests.
        """
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
        """Return whether the elements along the loops are all present, or all but the last ones along a single loop."""
        return not set(names) & (self.masked if len(names) > 1 else self.masked - self.ending)

    def columns(self, first: int, most: int, taken: set[str]) -> list[str]:
        """Return the loops that together step through contiguous reads, the innermost last."""
        columns: list[str] = []
        while True:
            run = first * prod(self.extents[n] for n in columns)
            next_ = [n for n, step in self.steps.items() if step == run and n not in taken and self.extents[n] > 1]
            if not next_ or not self.whole(next_[0], *columns):
                return columns
            if columns and prod(self.extents[n] for n in (*columns, next_[0])) > most:
                return columns
            columns.insert(0, next_[0])
            taken = taken | {next_[0]}


@dataclass(frozen=True)
class _Tiles:
    """Loops of tiles: those that make the columns, that of the rows, and that of a group.

    ``each`` is a loop within the loop over rows that counts them. ``piece`` is the number of columns that are
    contiguous in the packed operand; a tile has several such pieces.
    """

    columns: tuple[str, ...]
    rows: str
    group: tuple[str, ...]
    each: str = ""
    piece: int = 0


def _tiles(moved: _Moved, row: Instruction, tested: bool) -> _Tiles | None:
    """Return how the row transposes the nest, whose rows may be ``tested`` whether they exist; None if it does not."""
    if row.result.dtype != moved.dtype or prod(moved.extents.values()) < FEW:
        return None
    height, width, group = tile_shape(row)
    names = [n for n in moved.extents if moved.extents[n] > 1]
    is_tall = moved.bits < 32 and group == 1 and not is_joined(row)
    if len(names) < 2 or not (all(map(moved.whole, names[-3:])) or (is_tall and tested)):
        return None
    if is_joined(row):
        column, last = names[-2:]
        fits = moved.extents[last] == height and moved.steps[last] != 1 == moved.steps[column]
        if not fits:
            return None
        piece = moved.extents[column]
        next_ = [n for n in names[:-2] if moved.steps[n] == piece]
        if next_ and 2 * piece <= width:
            return _Tiles((next_[0], column), last, (), "", piece)
        return _Tiles((column,), last, ())
    if is_tall:
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


def _blocked(moved: _Moved, around: list[str], target: Machine, turns: int = 1) -> tuple[list[Step], list[str]]:
    """Return the rewrites that block the loop with the longest step, and the loops in their new order.

    An outer loop with shorter steps then finds the data of a block in the cache. If an iteration of that loop reads
    more, it runs whole, and the next loop is blocked. Data beyond the second-level cache is read in long blocks, unless
    its cache lines are read in parts. Blocks are multiples of ``turns``.
    """
    names, order = list(moved.extents), list(around)
    fits_l2 = max(moved.steps[n] * moved.extents[n] for n in names) * moved.bytes_read <= target.l2.bytes
    for far in sorted((n for n in around if moved.steps[n]), key=lambda n: -moved.steps[n]):
        nearer = [
            n for n in order[: order.index(far)] if 0 < moved.steps[n] < moved.steps[far] and moved.extents[n] > 1
        ]
        if not nearer:
            break
        step = moved.steps[far] * moved.bytes_read
        held = target.l2.kept // step
        part = moved.steps[nearer[-1]] * moved.bytes_read
        line = target.l1.line
        if part < line <= step and (fits_l2 or 2 * part <= line):
            held = min(held, _lines(moved, step, target))
        piece = prod(moved.extents[n] for n in names[names.index(far) + 1 :])
        size = max(-(-LEAST * 8 // (piece * moved.bits)), held)
        size -= size % turns if size > turns else 0
        if size >= moved.extents[far]:
            break
        place = order.index(nearer[0])
        if not held and size == 1:
            order.remove(far)
            order.insert(place, far)
            continue
        outer, inner = _fresh(f"{far}.b", names), _fresh(f"{far}.i", names)
        order[order.index(far)] = inner
        order.insert(place, outer)
        return [Step(tile, far, size, outer, inner), Step(reorder, tuple(order))], order
    return ([Step(reorder, tuple(order))] if order != around else []), order


def _fresh(name: str, taken: Iterable[str]) -> str:
    """Return a name that no loop of the nest has, because packing copies the kernel's loops, which may be blocked too.
    """
    while name in taken:
        name += "b"
    return name


def _lines(moved: _Moved, step: int, target: Machine) -> int:
    """Return the iterations whose cache lines stay in the first-level cache until they are read whole; some share sets.
    """
    l1 = target.l1
    apart = min(s * moved.bytes_read for s in moved.steps.values() if s * moved.bytes_read >= l1.line)
    places = min(l1.way // l1.line, l1.way // gcd(apart, l1.way))
    return places * l1.ways // l1.share // (step // apart)


def _transposing_steps(
    moved: _Moved, found: _Tiles, row: Instruction, target: Machine, threads: int
) -> list[Step]:  # fmt: skip
    """Return the rewrites that move tiles innermost and transpose them in registers; other loops keep their order.

    ``threads`` share the outermost ones.
    """
    height, width, group = tile_shape(row)
    length = width // found.piece * found.piece if found.piece else width
    written = found.piece or width
    names = tuple(moved.extents)
    rows = (found.rows, *((found.each,) if found.each else ()))
    inner = (*found.columns, *rows, *found.group)
    even = len(found.columns) == 1 or found.piece > 0
    place = (min if found.piece else max)(names.index(n) for n in found.columns)
    around = [n for n in names if n not in inner]
    steps = [Step(reorder, (*around, *inner))] if (*around, *inner) != names else []
    fused = found.columns[0]
    for n in found.columns[1:]:
        steps.append(Step(fuse, fused, n, f"{fused}_{n}"))
        fused = f"{fused}_{n}"
    line = "_".join(rows)
    if found.each:
        steps.append(Step(fuse, *rows, line))
    outer = _fresh(f"{fused}.o", names)
    steps.append(Step(tile, fused, length, outer, COLUMN))
    if even:
        before = [n for n in around if names.index(n) < place]
        around = [*before, outer, *(n for n in around if n not in before)]
        steps.append(Step(reorder, tuple(around)))
    else:
        around.append(outer)
    loops = (COLUMN, line, *found.group)
    lanes = height * (1 << (written - 1).bit_length() if is_joined(row) else group)
    turns = TURNS if found.piece and around[-1] != outer else 1
    blocks, around = _blocked(moved.with_loop(outer, found.columns, length), around, target, turns)
    turn, group_of_turns = _fresh(f"{around[-1]}.t", names), _fresh(f"{around[-1]}.g", names)
    if turns > 1:
        blocks.append(Step(tile, around[-1], turns, group_of_turns, turn))
        around[-1:] = [group_of_turns, turn]
    share, join = _sharing_steps([n for n in around if n != turn and (even or n != outer)], threads)
    return [
        *steps,
        *blocks,
        *share,
        Step(partition, (*around, *(() if moved.plain else (COLUMN,))), PIECES),
        Step(transpose, loops, (height, width), is_joined(row), found.piece),
        *([] if even else [Step(bind, (outer,), "unrolled")]),
        Step(flatten),
        Step(unroll),
        Step(simplify),
        Step(vectorise, READ, width * group, False),
        Step(vectorise, WRITTEN, lanes, False),
        Step(vectorise, loops[-1], max(height, group), False),
        Step(replace, target.transpositions),
        *([Step(gather_stores, turn, turns)] if turns > 1 else []),
        Step(simplify, False),
        Step(narrow_index),
        *join,
        Step(strength_reduce),
        Step(unused_let),
    ]  # fmt: skip
