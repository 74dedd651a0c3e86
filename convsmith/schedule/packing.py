"""The rewrites of a packing kernel, which loads vectors and writes sequentially.

If adjacent elements of the packed operand are far apart in the original, and vice versa, tiles of both are transposed
in registers. Threads share a long copy of an operand that changes in each call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace as with_fields
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from convsmith.diag.record import record
from convsmith.ir.index import Ge0, Var, parts_of
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store
from convsmith.ir.types import S32, dtype
from convsmith.ir.value import Load, Select
from convsmith.ir.walk import loops_of, statements_of, variables_of, walk
from convsmith.machine.base import Machine
from convsmith.machine.transpositions import is_joined, tile_shape
from convsmith.passes.bind import bind
from convsmith.passes.collapse import collapse
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten, offset
from convsmith.passes.fuse import fuse
from convsmith.passes.gather_stores import gather_stores
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.outline import outline
from convsmith.passes.partition import partition
from convsmith.passes.reorder import INNERMOST, reorder
from convsmith.passes.replace import replace
from convsmith.passes.scope import perfect_nest, wrap
from convsmith.passes.simplify import simplify
from convsmith.passes.strength import strength_reduce
from convsmith.passes.transpose import READ, WRITTEN, transpose
from convsmith.passes.unroll import unroll
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.fill import fill
from convsmith.schedule.loops import Loop, loops_in, names
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
MAX_TURNS = 8
"""Maximum number of iterations whose stores are gathered place by place."""
MIN_BLOCK_BYTES = 256
"""Minimum number of contiguous bytes that a block writes."""
MAX_READ_STRIDE = 2
"""Maximum distance of neighbouring elements that are read as a vector."""
MIN_TASKS = 8
"""Minimum number of iterations of shared loops per thread."""
MAX_UNROLLED_TILES = 4
"""Maximum number of tiles in a row that are unrolled, because their columns are unevenly spaced in the packed operand.
"""


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
    moved = _Moved.of(copies[0]) if len(copies) == 1 else None
    found = None if moved is None else _transposition(moved, target)
    if moved is not None and found is not None:
        transposed = _order_transposed(s, moved, *found, target, sharing)
        s.run(flatten)
        _lower_sums(s, pack, target, sums)
        _lower_transposed(s, transposed, target)
    else:
        loops = [x for part in copies for x in loops_in(part)]
        vectors = _order_copy(s, pack, loops, moved, target, sharing, is_constant)
        if moved is not None and is_constant and _is_scattered(moved, vectors):
            vectors = _CopyVectors((), vectors.lanes)
        s.run(flatten)
        _lower_sums(s, pack, target, sums)
        _lower_copy(s, vectors)
    s.run(simplify, False)
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


def _share(s: Schedule, loops: Sequence[Loop], threads: int) -> None:
    """Distribute ``loops`` over ``threads``, before they are split."""
    if threads > 1:
        s.run(bind, tuple(loops), "parallel", MIN_TASKS * threads)


class _CopyVectors(NamedTuple):
    """The loops that become a vector of ``lanes``: two that are contiguous in both memories, or one, or none."""

    loops: tuple[Loop, ...]
    lanes: int


def _order_copy(
    s: Schedule, pack: Kernel, loops: Sequence[Loop], moved: _Moved | None, target: Machine, threads: int,
    is_constant: bool,
) -> _CopyVectors:  # fmt: skip
    """Split off short tiles of a copy, which ``threads`` share; return the loops that become vectors. Long runs of a
    constant operand stay loops.
    """
    whole = list(loops)
    if moved is not None:
        whole = _block(s, moved, whole, target)
    _share(s, whole[:-1], threads)
    lanes = target.lanes(pack.params[0].dtype.bits)
    pair = _pair(moved, lanes) if moved is not None else ()
    if moved is not None and not is_constant and _is_long_run(moved, lanes):
        whole[-1:] = s.tile(whole[-1], lanes, "ol", ("copy", "copy"))
        s.run(partition, tuple(whole[:-1]), PIECES)
        return _CopyVectors(tuple(whole[-1:]), lanes)
    s.run(partition, tuple(x for x in whole if x.name not in pair), BORDERS if pair else PIECES)
    if pair:
        by_name = {x.name: x for x in whole}
        return _CopyVectors(tuple(by_name[n] for n in pair), lanes)
    return _CopyVectors(tuple(whole[-1:]) if loops and loops[-1].extent <= lanes else (), lanes)


def _is_long_run(moved: _Moved, lanes: int) -> bool:
    """Return whether the innermost loop copies adjacent elements, all present, that fill more than a vector."""
    last = [*moved.extents][-1]
    return moved.steps[last] == 1 and moved.extents[last] > lanes and last not in moved.masked


def _is_scattered(moved: _Moved, vectors: _CopyVectors) -> bool:
    """Return whether the lanes of vectors of a short copy are apart in the original."""
    is_apart = len(vectors.loops) == 1 and moved.steps[vectors.loops[0].name] > 1
    return is_apart and prod(moved.extents.values()) < SHORT_COPY


def _lower_copy(s: Schedule, vectors: _CopyVectors) -> None:
    """Vectorise a copy."""
    s.run(simplify)
    if len(vectors.loops) > 1:
        s.run(fuse, *vectors.loops, vectors.loops[-1], "conditions")
    if vectors.loops:
        s.run(vectorise, vectors.loops[-1], vectors.lanes, False)


def _pair(moved: _Moved, lanes: int) -> tuple[str, ...]:
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


@record(frozen=True)
class _Moved:
    """A packing nest: the iterations of its loops, outermost first, and the elements by which each moves the read
    position.

    In a ``plain`` nest, elements are copied unchanged. Along ``masked`` loops some elements are absent; along
    ``ending`` loops only the last ones are. ``tests`` are the sets of loops that conditions of existence depend on.
    """

    extents: dict[str, int]
    steps: dict[str, int]
    read: str
    dtype: str
    plain: bool
    masked: frozenset[str]
    ending: frozenset[str]
    tests: tuple[frozenset[str], ...] = ()

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
        tests = tuple(frozenset(v.name for v in variables_of(c)) for c in conds)
        masked = Counter(name for test in tests for name in test)
        falling = {v.name for c in conds if isinstance(c, Ge0) for v, n in c.arg.terms if isinstance(v, Var) and n < 0}
        ending = frozenset(n for n in falling if masked[n] == 1)
        read, extents = reads[0].buffer.dtype.name, {x.var.name: int(x.hi) for x in nest}
        return _Moved(extents, steps, read, s.buffer.dtype.name, plain, frozenset(masked), ending, tests)

    def whole(self, *names: str) -> bool:
        """Return whether all elements along the loops are present, or all except the last ones along a single loop."""
        return not set(names) & (self.masked if len(names) > 1 else self.masked - self.ending)

    def absent_apart(self, tiles: _Tiles) -> bool:
        """Return whether the absent elements of ``tiles`` are whole rows or whole columns."""
        rows, columns = {tiles.rows, tiles.each}, {*tiles.columns}
        return not any(test & rows and test & columns for test in self.tests)

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


@record(frozen=True)
class _Tiles:
    """Loops of tiles: the loops that form the columns, the loop of rows, and the loop of a group.

    ``each`` is a loop within the loop over rows that counts them. ``piece`` is the number of columns that are
    contiguous in the packed operand; a tile has several such pieces.
    """

    columns: tuple[str, ...]
    rows: str
    group: tuple[str, ...]
    each: str = ""
    piece: int = 0


def _tiles(moved: _Moved, row: Instruction, tested: bool) -> _Tiles | None:
    """Return the tiles in which the row transposes the nest, whose rows may be ``tested`` for existence; None if it
    cannot.
    """
    if row.result.dtype != moved.dtype or prod(moved.extents.values()) < SHORT_COPY:
        return None
    height, width, group = tile_shape(row)
    names = [n for n in moved.extents if moved.extents[n] > 1]
    is_tall = moved.bits < 32 and group == 1 and not is_joined(row)
    if len(names) < 2 or not (all(map(moved.whole, names[-3:])) or (is_tall and tested)):
        return None
    if is_joined(row):
        column, last = names[-2:]
        apart = moved.steps[column]
        if moved.extents[last] != height or moved.steps[last] == 1 or not 0 < apart <= MAX_READ_STRIDE:
            return None
        piece = moved.extents[column]
        next_ = [n for n in names[:-2] if moved.steps[n] == piece * apart]
        if next_ and 2 * piece <= width:
            return _Tiles((next_[0], column), last, (), "", piece)
        return _Tiles((column,), last, ())
    if is_tall:
        *_, lane, last = names
        columns = moved.columns(1, MAX_UNROLLED_TILES * width, {lane, last})
        count = moved.extents[lane] * moved.extents[last]
        apart = moved.steps[last] > 1 and moved.steps[lane] > 1 and count <= height < 2 * count
        return _Tiles(tuple(columns), lane, (), last) if columns and apart else None
    inner = names[-1:] if group > 1 else []
    if inner and ((moved.extents[inner[0]], moved.steps[inner[0]]) != (group, 1) or len(names) < 3):
        return None
    lane = names[-1 - len(inner)]
    if moved.steps[lane] in (0, group) or moved.extents[lane] > height:
        return None
    columns = moved.columns(group, MAX_UNROLLED_TILES * width, {lane, *inner})
    return _Tiles(tuple(columns), lane, tuple(inner)) if columns else None


def _block(s: Schedule, moved: _Moved, around: list[Loop], target: Machine, turns: int = 1) -> list[Loop]:
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
            break
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


def _lines(moved: _Moved, step: int, target: Machine) -> int:
    """Return the iterations whose cache lines stay in the first-level cache until they are read completely; some share
    sets.
    """
    l1 = target.l1
    apart = min(s * moved.bytes_read for s in moved.steps.values() if s * moved.bytes_read >= l1.line)
    places = min(l1.way // l1.line, l1.way // gcd(apart, l1.way))
    return places * l1.ways // l1.share // (step // apart)


def _transposition(moved: _Moved, target: Machine) -> tuple[_Tiles, Instruction] | None:
    """Return the tiles of a copy that an instruction of ``target`` transposes, with that row; None if there is none."""
    for tested, row in product((False, True), target.transpositions):
        tiles = _tiles(moved, row, tested)
        if tiles is not None and moved.absent_apart(tiles):
            return tiles, row
    return None


class _TransposedTiles(NamedTuple):
    """Tiles that ``row`` transposes: the numbers of elements that are read and written at once, and the loop ``last``
    that becomes ``height`` lanes.

    The stores of ``turns`` iterations of the loop ``turn`` are gathered if there are several.
    """

    row: Instruction
    read: int
    written: int
    last: Loop
    height: int
    turn: Loop | None
    turns: int


def _order_transposed(
    s: Schedule, moved: _Moved, found: _Tiles, row: Instruction, target: Machine, threads: int
) -> _TransposedTiles:
    """Move tiles that ``row`` transposes in registers to the innermost place; other loops keep their order. ``threads``
    share the outermost loops.
    """
    height, width, group = tile_shape(row)
    length = width // found.piece * found.piece if found.piece else width
    written = found.piece or width
    order = tuple(moved.extents)
    over = {n: Loop(n, n, (), "copy", "copy", extent) for n, extent in moved.extents.items()}
    rows = (found.rows, *((found.each,) if found.each else ()))
    inner = (*found.columns, *rows, *found.group)
    even = len(found.columns) == 1 or found.piece > 0
    place = (min if found.piece else max)(order.index(n) for n in found.columns)
    around = [over[n] for n in order if n not in inner]
    if (wanted := (*around, *(over[n] for n in inner))) != tuple(over.values()):
        s.run(reorder, wanted)
    fused = s.fuse([over[n] for n in found.columns])
    line = s.fuse([over[n] for n in rows])
    outer, column = s.tile(fused, length, "oc", ("copy", "copy"))
    if even:
        before = [x for x in around if order.index(x.name) < place]
        around = [*before, outer, *(x for x in around if x not in before)]
        s.run(reorder, tuple(around))
    else:
        around.append(outer)
    loops = (column, line, *(over[n] for n in found.group))
    lanes = height * (1 << (written - 1).bit_length() if is_joined(row) else group)
    turns = MAX_TURNS if found.piece and around[-1] != outer else 1
    around = _block(s, moved.with_loop(outer.name, found.columns, length), around, target, turns)
    turn = None
    shared = [x for x in around if even or x is not outer]
    if turns > 1:
        of_turns, turn = s.tile(around[-1], turns, "gt", ("copy", "copy"))
        around[-1:] = [of_turns, turn]
        shared[-1:] = [of_turns]
    _share(s, shared, threads)
    s.run(partition, (*around, *(() if moved.plain else (column,))), PIECES)
    s.run(transpose, loops, (height, width), is_joined(row), found.piece)
    if not even:
        s.run(bind, (outer,), "unrolled")
    return _TransposedTiles(row, width * group, lanes, loops[-1], max(height, group), turn, turns)


def _lower_transposed(s: Schedule, tiles: _TransposedTiles, target: Machine) -> None:
    """Vectorise tiles, which instructions transpose.

    Rows and columns are unrolled last, so that rewrites see each once; but they are unrolled first if vectors are
    longer than the pieces that they write, because the last vector of a tile ends with the tile.
    """
    if is_joined(tiles.row):
        s.run(unroll)
        s.run(simplify)
    s.run(vectorise, READ, tiles.read, False)
    s.run(vectorise, WRITTEN, tiles.written, False)
    s.run(vectorise, tiles.last, tiles.height, False)
    s.run(replace, target.transpositions)
    if tiles.turn is not None:
        s.run(gather_stores, tiles.turn, tiles.turns)
