"""Blocks of the rows of a large source, which are copied next to their use, in a product of many columns.

Each tile of columns reads all rows of the source again. A register tile reads as many rows at once as it has, which lie
on pages of their own if rows are long. Where the tables of addresses lack pages of the source, and lines arrive more
slowly than the tile multiplies them, the tiles of columns read a block of rows, of a part of the terms, from a copy
that the second-level cache keeps; the first-level cache keeps the weights of a tile of columns and of these terms
meanwhile. Memory keeps the sums between two parts.
"""

from __future__ import annotations

from convsmith.compiler.memory import flaw_within
from convsmith.ir.index import Var, is_true
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.memory import MemoryLevel
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.near_copies import is_transposed
from convsmith.schedule.planned import plan_for
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.costs.thread_parts import share

__all__ = [
    "columns_around_rows", "copied_rows", "in_copied_blocks", "outpaces_lines", "panel_depth", "running",
    "spread_depth",
]  # fmt: skip

MIN_PASSES = 32
"""Minimum number of tiles of columns, each of which reads all rows, from which a copy of each block of rows pays."""
PANEL = (3, 4)
"""The part of the first-level cache that the weights of a tile of columns and of a part of the terms may fill."""
ROWS = 2
"""Ratio of the second-level cache to a block of rows."""
TURN = 0.5
"""Register tiles in the time which the weights of a block take to arrive, beside the arithmetic of its own tiles."""


def in_copied_blocks(problem: Problem, st: Statement, config: Config, target: Machine) -> Config:
    """Return the config of a product whose direct statement is ``st`` with blocks of rows that are copied, if these are
    faster: of a large source that many tiles of columns read, where an instruction transposes its rows.
    """
    found = columns_around_rows(st, config, target)
    if found is None:
        return config
    (loops, row, term), size, wide = found, dtype(st.a.dtype).bytes, config.size(config.lane)
    passes = -(-loops.extents[config.lane] // wide)
    panel, all_terms = wide * size, loops.extents[term]
    read = st.a.bytes + panel * all_terms
    if passes < MIN_PASSES or read <= target.costs.pages_near or not outpaces_lines(st, config, target):
        return config
    depth = panel_depth(all_terms, panel, passes, target.l1.line // size, target)
    own = share(loops.extents[row], config.size(row), config.threads)
    count, block = copied_rows(own, depth * size, config.size(row), target, config.threads)
    tiles = ((row, count * block), (term, depth), (row, block))
    other = config.changed(
        cache=tuple((n, x) for n, x in tiles if x < loops.extents[n]), pack_at=((st.a.name, f"{row}:{block}"),),
        stream=tuple(n for n in config.staged("stream") if n != st.c.name),
    )  # fmt: skip
    if flaw_within(problem, other, target) is not None:
        return config
    return other if is_transposed(plan_for(problem, other, target).main, st.a.name) else config


def columns_around_rows(st: Statement, config: Config, target: Machine) -> tuple[Loops, str, str] | None:
    """Return the loops of a plain product of fixed sizes, with that over rows and that over terms, if its columns are
    around its rows and the terms of a row are contiguous; None if not, or on a device.
    """
    if target.device is not None or not _is_plain_product(st, config) or st.sizes:
        return None
    loops, order = loops_after_fusing(st, config), config.order
    rows, terms = running(loops, "m"), running(loops, "k")
    if len(rows) != 1 or len(terms) != 1 or loops.residues or any(loops.extents[n] > 1 for n in loops.of("batch")):
        return None
    (row,), (term,) = rows, terms
    outside = config.lane in order and row in order and order.index(config.lane) < order.index(row)
    return (loops, row, term) if outside and view_steps(st.a).get(Var(term)) == 1 else None


def running(loops: Loops, kind: str) -> list[str]:
    """Return the loops of a kind that have several iterations; the last one if none has."""
    found = loops.of(kind)
    return [n for n in found if loops.extents[n] > 1] or found[-1:]


def outpaces_lines(st: Statement, config: Config, target: Machine, late: float = 1.0) -> bool:
    """Return whether a register tile multiplies a line of each row by its columns in less time than one takes to arrive
    from beyond the second-level cache, or ``late`` times that.
    """
    line, size = target.l1.line, dtype(st.a.dtype).bytes
    vectors = config.size(config.lane) * size * 8 / target.vector_bits
    arrival = line * (target.prices["l2_byte"] + target.prices["streamed_pixels_byte"])
    return vectors * target.prices["multiply_add"] * line / size <= late * arrival


def panel_depth(terms: int, panel: int, panels: int, line: int, target: Machine) -> int:
    """Return the depth of the parts of ``terms`` whose weights, ``panel`` bytes for each term, the first-level cache
    keeps for a tile of columns; all of them if it holds them, so that memory keeps no sums.

    Parts are equal but for the last one, and begin with a cache line of the source's rows, which has ``line`` terms: a
    copy of whole lines loads none of them twice, and its transposition has no tile that ends before the part. Where no
    such depth has as few parts, and lines that the second-level cache keeps for all ``panels``, parts are equal.

    >>> from convsmith.machine.registry import target
    >>> [panel_depth(terms, 64, 64, 16, target("avx2")) for terms in (512, 1024, 4096)]
    [512, 352, 373]
    """
    numerator, denominator = PANEL
    if terms * panel <= target.l1.bytes:
        return terms
    most = max(1, target.l1.bytes * numerator // (denominator * panel))
    equal = -(-terms // -(-terms // most))
    whole = (n for n in range(-(-equal // line) * line, most + 1, line) if target.l2.lines_kept(n * panel, 0) >= panels)
    return next(whole, spread_depth(terms, equal, panel, panels, target.l2))


def spread_depth(terms: int, depth: int, panel: int, panels: int, cache: MemoryLevel) -> int:
    """Return ``depth``, that of a part of ``terms``, or a little more if ``cache`` would not keep a line of each of
    ``panels``, of ``panel`` bytes for each term, because their distance is close to a multiple of a way: a copy writes
    them in turn.

    >>> from convsmith.machine.registry import target
    >>> spread_depth(1024, 352, 64, 64, target("avx2").l2), spread_depth(2048, 256, 64, 64, target("avx2").l2)
    (352, 257)
    """
    if depth == terms:
        return depth
    others = range(depth, min(terms, depth + cache.ways))
    return next((n for n in others if cache.lines_kept(n * panel, 0) >= panels), depth)


def copied_rows(rows: int, row: int, tile: int, target: Machine, threads: int = 1) -> tuple[int, int]:
    """Return how many equal blocks ``rows`` consist of, and the rows of each in whole register tiles, of which the
    second-level cache keeps a copy with ``row`` bytes of each. For several ``threads``, all blocks are whole.

    >>> from convsmith.machine.registry import target
    >>> copied_rows(1024, 342 * 4, 6, target("avx2")), copied_rows(1024, 342 * 4, 6, target("avx2"), threads=2)
    ((12, 90), (19, 54))
    """
    most = max(1, target.l2.bytes // (ROWS * row * tile))
    tiles = -(-rows // tile)
    fewest = -(-tiles // most)
    counts = range(fewest, fewest * (2 if threads > 1 else 1) + 1)
    count = min(counts, key=lambda n: n * (-(-tiles // n) + TURN))
    return count, -(-tiles // count) * tile


def _is_plain_product(st: Statement, config: Config) -> bool:
    """Return whether ``config`` computes a product of matrices of floats of one type, with vectors along columns of
    packed weights, without transforms, parts of sums, phases and copies of other operands.
    """
    levels = config.tiles_at("winograd") or config.tiles_at("split") or config.tiles_at("k_step")
    copies = config.staged("resident") or config.staged("unfold") or config.staged_at("pack_at")
    if levels or copies or config.phases or config.realise != "peel" or config.consumer is not None:
        return False
    if not st.constant or len(st.factors) != 2 or st.shifted or st.sums or config.staged("pack") != (st.b.name,):
        return False
    is_float = st.a.dtype == st.b.dtype == st.acc == st.a.factor == st.b.factor and dtype(st.acc).kind == "float"
    return is_float and config.lane in [d.name for d in st.of("n")] and all(is_true(v.mask) for v in st.factors)
