"""Copies by tiles that instructions transpose in registers."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from convsmith.diag.record import record
from convsmith.ir.instruction import Instruction
from convsmith.machine.base import Machine
from convsmith.machine.transpositions import MAX_READ_STRIDE, is_joined, tile_shape
from convsmith.passes.bind import bind
from convsmith.passes.fuse import fuse
from convsmith.passes.gather_stores import gather_stores
from convsmith.passes.partition import partition
from convsmith.passes.reorder import reorder
from convsmith.passes.replace import replace
from convsmith.passes.simplify import simplify
from convsmith.passes.transpose import COLUMN, READ, ROW, TILE, WRITTEN, transpose
from convsmith.passes.unroll import unroll
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.copy_nest import BORDERS, PIECES, CopyNest, block, share
from convsmith.schedule.loops import Loop
from convsmith.schedule.schedule import Schedule

MAX_TURNS = 8
"""Maximum number of iterations whose stores are gathered place by place."""
GROUP_PIECES = 8
"""Maximum number of pieces of a loop over taps, in each of which the absent groups of a tile are constant."""
MAX_UNROLLED_TILES = 4
"""Maximum number of tiles in a row that are unrolled, because their columns are unevenly spaced in the packed operand.
"""


@record(frozen=True)
class Tiles:
    """Loops of tiles: the loops that form the columns, the loop of rows, and the loop of a group.

    ``each`` is a loop within the loop over rows that counts them. ``piece`` is the number of columns that are
    contiguous in the packed operand; a tile has several such pieces.
    """

    columns: tuple[str, ...]
    rows: str
    group: tuple[str, ...]
    each: str = ""
    piece: int = 0


def _tiles(moved: CopyNest, row: Instruction, tested: bool) -> Tiles | None:
    """Return the tiles in which the row transposes the nest, whose rows, or groups of elements, may be ``tested`` for
    existence; None if it cannot.
    """
    if row.result.dtype != moved.dtype or moved.is_short:
        return None
    height, width, group = tile_shape(row)
    names = [n for n in moved.extents if moved.extents[n] > 1]
    is_tall = moved.bits < 32 and group == 1 and not is_joined(row)
    by_rows = is_tall or is_joined(row) or group > 1
    if len(names) < 2 or not (all(map(moved.whole, names[-3:])) or (by_rows and tested)):
        return None
    if is_joined(row):
        column, last = names[-2:]
        apart = moved.steps[column]
        if moved.extents[last] != height or moved.steps[last] == 1 or not 0 < apart <= MAX_READ_STRIDE:
            return None
        piece = moved.extents[column]
        next_ = [n for n in names[:-2] if moved.steps[n] == piece * apart]
        if next_ and 2 * piece <= width:
            return Tiles((next_[0], column), last, (), "", piece)
        return Tiles((column,), last, ())
    if is_tall:
        *_, lane, last = names
        columns = moved.columns(1, MAX_UNROLLED_TILES * width, {lane, last})
        count = moved.extents[lane] * moved.extents[last]
        apart = moved.steps[last] > 1 and moved.steps[lane] > 1 and count <= height < 2 * count
        return Tiles(tuple(columns), lane, (), last) if columns and apart else None
    inner = names[-1:] if group > 1 else []
    if inner and ((moved.extents[inner[0]], moved.steps[inner[0]]) != (group, 1) or len(names) < 3):
        return None
    lane = names[-1 - len(inner)]
    if moved.steps[lane] in (0, group) or moved.extents[lane] > height:
        return None
    columns = moved.columns(group, MAX_UNROLLED_TILES * width, {lane, *inner}, tested)
    return Tiles(tuple(columns), lane, tuple(inner)) if columns else None


def _across(moved: CopyNest, tiles: Tiles) -> list[frozenset[str]]:
    """Return the tests for existence whose outcome differs between both the rows and the columns of ``tiles``."""
    rows, columns = {tiles.rows, tiles.each}, {*tiles.columns, *tiles.group}
    return [test for test in moved.tests if test & rows and test & columns]


def _absent_apart(moved: CopyNest, tiles: Tiles) -> bool:
    """Return whether the absent elements of ``tiles`` are whole rows, or the same ones in all rows, except in the first
    and last iterations of a loop around the tiles, at borders.
    """
    inner = {tiles.rows, tiles.each, *tiles.columns, *tiles.group}
    return all(any(moved.extents[n] > BORDERS for n in test - inner) for test in _across(moved, tiles))


def transposition(moved: CopyNest, target: Machine) -> tuple[Tiles, Instruction] | None:
    """Return the tiles of a copy that an instruction of ``target`` transposes, with that row; None if there is none."""
    for tested, row in product((False, True), target.transpositions):
        tiles = _tiles(moved, row, tested)
        if tiles is not None and _absent_apart(moved, tiles):
            return tiles, row
    return None


class TransposedTiles(NamedTuple):
    """Tiles that ``row`` transposes: the numbers of elements that are read and written at once, and their loops
    ``column`` and ``last``, of which the last becomes ``height`` lanes. The names of loops begin with ``name``.

    The stores of ``turns`` iterations of the loop ``turn`` are gathered if there are several. If rows ``differ``, each
    row of a tile at a border has absent elements of its own.
    """

    row: Instruction
    read: int
    written: int
    column: Loop
    last: Loop
    height: int
    turn: Loop | None
    turns: int
    name: str
    differ: bool


def order_transposed(
    s: Schedule, moved: CopyNest, found: Tiles, row: Instruction, target: Machine, threads: int = 1, name: str = TILE,
    is_near: bool = False,
) -> TransposedTiles:  # fmt: skip
    """Move tiles that ``row`` transposes in registers to the innermost place; other loops keep their order, or, if the
    copy ``is_near`` and stays in a cache, read the original in the order of memory. ``threads`` share the outermost
    loops.
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
    turns = MAX_TURNS if found.piece and around[-1] != outer and not is_near else 1
    tiled = moved.with_loop(outer.name, found.columns, length)
    if is_near:
        around.sort(key=lambda x: -tiled.steps[x.name])
        s.run(reorder, tuple(around))
    else:
        around = block(s, tiled, around, target, turns)
    turn = None
    shared = [x for x in around if even or x is not outer]
    if turns > 1:
        of_turns, turn = s.tile(around[-1], turns, "gt", ("copy", "copy"))
        around[-1:] = [of_turns, turn]
        shared[-1:] = [of_turns]
    share(s, shared, threads)
    whole = not found.group or moved.whole(*found.columns, *found.group)
    differ = bool(_across(moved, found))
    pieces = BORDERS if differ else PIECES if whole else GROUP_PIECES
    s.run(partition, (*around, *(() if moved.plain else (column,))), pieces)
    s.run(transpose, loops, (height, width), is_joined(row), found.piece, name)
    if not even:
        s.run(bind, (outer,), "unrolled")
    return TransposedTiles(row, width * group, lanes, column, loops[-1], max(height, group), turn, turns, name, differ)


def lower_transposed(s: Schedule, tiles: TransposedTiles, target: Machine) -> None:
    """Vectorise tiles, which instructions transpose.

    Rows and columns are unrolled last, so that rewrites see each once; but they are unrolled first if vectors are
    longer than the pieces that they write, because the last vector of a tile ends with the tile, and so are rows that
    differ, because the mask of a vector is constant. Where no element of a tile exists, its columns are one run of
    zeros.
    """
    height = tiles.height
    if is_joined(tiles.row):
        s.run(unroll, (f"{tiles.name}{ROW}", f"{tiles.name}{COLUMN}"))
        s.run(simplify)
        s.run(fuse, tiles.column, tiles.last, tiles.last.name, "nowhere")
        height = tiles.row.operands[0].size
    elif tiles.differ:
        s.run(unroll, (f"{tiles.name}{ROW}",))
        s.run(simplify)
    s.run(vectorise, f"{tiles.name}{READ}", tiles.read, False)
    s.run(vectorise, f"{tiles.name}{WRITTEN}", tiles.written, False)
    s.run(vectorise, tiles.last, height, False)
    s.run(replace, target.transpositions)
    if tiles.turn is not None:
        s.run(gather_stores, tiles.turn, tiles.turns)
