"""The config of a product whose weights come anew in each call: they are packed next to their use, or read in place.

A kernel packs its weights once for many calls. If each call brings other weights, packing all of them ahead of the
product writes and reads as many bytes beyond the caches once more, which takes longer than a product of few rows. The
reduction is then cut into parts, of which the first-level cache keeps a block of the weights as wide as a register
tile. Tiles of rows read the block in place if they are few, and otherwise a copy: of all columns of the part. Where
many tiles of columns read a large source, blocks of its rows are copied as well. Weights that are rows of terms, as
PyTorch's are, are transposed in registers on the way to a copy, tile by tile. The sums have the same terms in the same
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convsmith.compiler.memory import flaw_within
from convsmith.ir.index import Var, is_true
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.schedule.near_copies import is_transposed
from convsmith.schedule.planned import plan_for
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.copied_blocks import copied_rows, outpaces_lines, panel_depth, running, spread_depth
from convsmith.tune.costs.expected import model_of
from convsmith.tune.costs.features import Section, cycles
from convsmith.tune.costs.model import Model

__all__ = ["config_of_plain_weights"]

TILES_IN_PLACE = 2
"""Maximum number of tiles of rows that read the weights in place."""
STREAMS = 8
"""Maximum number of rows of weights, each on pages of its own, that are read in place side by side: prefetchers follow
so many streams.
"""
BLOCK = 2
"""Maximum ratio of a block of weights that is copied, and of the sums that its products are added to, to the images
whose loads arithmetic hides: the last cache keeps them from one block to the next.
"""
MIN_GAIN, MIN_GAIN_OF_TRANSPOSED = 1.05, 1.25
"""Minimum ratio of the cycles of a call that packs all weights first to those of a call that does not, from which a
kernel of its own is worth compiling: that of weights whose columns are contiguous, and that of others.
"""
OUT_OF_TURN = 1.08
"""Ratio of the time of a product with columns outermost, as its copies need, to that with rows outermost, where these
stay while the weights stream.
"""
FAR_SOURCE, MIN_PASSES = 4, 16
"""Minimum numbers of second-level caches that a source fills and of tiles of columns that read it, from which blocks of
its rows are copied beside those of weights.
"""
LATE = 2.0
"""Ratio of the time in which a line of a short run of a row arrives to that of a line among many."""
SPARE = 1
"""Vector registers besides those of sums and weights of a register tile."""
MIN_RUN = 512
"""Minimum number of contiguous bytes of a row of weights that a block transposes."""


def config_of_plain_weights(problem: Problem, config: Config, target: Machine) -> Config | None:
    """Return the config for calls of ``problem`` that bring other weights than the calls before; None if the kernel of
    ``config``, which packs all weights, is expected to be about as fast.
    """
    if target.device is not None or config.consumer is not None or not _is_plain(config):
        return None
    target = target.with_vectors(config.vector_registers)
    model, loops = model_of(problem, config, target)
    st, lane = model.st, config.lane
    if not _is_product(model, loops, config):
        return None
    (terms,) = running(loops, "k")
    in_rows = view_steps(st.b).get(Var(lane)) == 1
    if not in_rows and view_steps(st.b).get(Var(terms)) != 1:
        return None
    elements = prod(st.b.layout.shape)
    made = _reading_rows(config, model, loops, terms) if in_rows else _transposing(config, model, loops, terms)
    if made is None:
        return None
    other = made.changed(
        order=(lane, *(n for n in config.order if n != lane)),
        pack=tuple(n for n in config.staged("pack") if n != st.b.name), stream=(),
    )  # fmt: skip
    product = model.cycles(loops, config)
    # A transposition reads and writes whole lines, which costs as much beyond the caches as within them.
    events = ("pack_far" if in_rows else "pack", "pack_near")
    ahead, near = (cycles((Section(1, (("packing", ((event, elements),)),)),), target) for event in events)
    least = MIN_GAIN if in_rows else MIN_GAIN_OF_TRANSPOSED
    again = OUT_OF_TURN if config.order.index(lane) > 0 else 1
    if product + ahead < least * (product * again + near) or flaw_within(problem, other, target) is not None:
        return None
    return other if in_rows or is_transposed(plan_for(problem, other, target).main, st.b.name) else None


def _reading_rows(config: Config, model: Model, loops: Loops, terms: str) -> Config:
    """Return ``config`` with blocks of weights whose columns are contiguous, which are read in place or copied."""
    tiles = prod(-(-loops.extents[n] // config.size(n)) for n in loops.of("m"))
    depth = max(1, model.target.l1.kept // (config.size(config.lane) * model.bytes))
    row = view_steps(model.st.b)[Var(terms)] * model.bytes
    if tiles > TILES_IN_PLACE:
        return _copying_rows(config, model, loops, terms, depth)
    if row >= model.target.costs.page:
        depth = min(depth, STREAMS)
    return config.changed(cache=((terms, depth),) if depth < loops.extents[terms] else ())


def _copying_rows(config: Config, model: Model, loops: Loops, terms: str, depth: int) -> Config:
    """Return ``config`` with copies of blocks of at most ``depth`` terms, in equal parts. A block has all columns of a
    thread, or as many as have few sums, in equally many blocks for each thread, and is copied row by row: rows of one
    tile are shorter than what prefetchers follow, begin and end within lines that the next tile reads again, and fall
    into few sets where the weights have a power of two of columns.
    """
    lane, tile = config.lane, config.size(config.lane)
    tiles, rows = -(-loops.extents[lane] // tile), prod(loops.extents[n] for n in loops.of("m"))
    block = BLOCK * model.target.costs.images_near
    blocks = -(-tiles // max(1, block // (rows * tile * model.bytes)))
    width = tile * -(-tiles // (-(-blocks // config.threads) * config.threads))
    all_terms, panel, source = loops.extents[terms], tile * model.bytes, model.st.a.name
    depth = _whole_lines(all_terms, max(1, min(depth, block // (width * model.bytes))), model)
    near = panel_depth(all_terms, panel, width // tile, model.target.l1.line // model.bytes, model.target)
    if size := _rows_of_source(config, model, loops, near) if near < all_terms else 0:
        depth = near
        config = config.changed(fetch=tuple(n for n in config.staged("fetch") if n != source))
    depth = spread_depth(all_terms, depth, panel, width // tile, model.target.l2)
    (row, *_), place = running(loops, "m"), terms if depth < all_terms else lane
    parts = ((lane, width), (terms, depth), *(((row, size),) if size else ()))
    cache = tuple((n, each) for n, each in parts if each < loops.extents[n])
    copies = ((model.st.b.name, place), *(((source, f"{row}:{size}"),) if size else ()))
    return config.changed(cache=cache, pack_at=copies)


def _rows_of_source(config: Config, model: Model, loops: Loops, depth: int) -> int:
    """Return the rows of the source of which blocks are copied, if many tiles of columns read one of several
    second-level caches, whose lines are late because each run of a row ends with a part of ``depth`` terms; 0 if
    not.
    """
    st, (row, *others), target = model.st, running(loops, "m"), model.target
    passes = -(-loops.extents[config.lane] // config.size(config.lane))
    is_far = st.a.bytes > FAR_SOURCE * target.l2.bytes and passes >= MIN_PASSES
    in_rows = not others and model.src.get(Var(model.k)) == 1
    if not (is_far and in_rows and outpaces_lines(st, config, target, LATE)):
        return 0
    _, size = copied_rows(loops.extents[row], depth * model.bytes, config.size(row), target)
    return size if size < loops.extents[row] else 0


def _whole_lines(terms: int, most: int, model: Model) -> int:
    """Return the depth of equal blocks of ``terms``, at most ``most``: of whole cache lines of the rows of the source,
    where these are contiguous and a block has a line. Tiles would otherwise load the lines at both ends for two blocks.
    """
    depth, line = -(-terms // -(-terms // most)), model.target.l1.line // model.bytes
    if most < line or depth == terms or model.src.get(Var(model.k)) != 1:
        return depth
    return min(-(-depth // line), most // line) * line


def _transposing(config: Config, model: Model, loops: Loops, terms: str) -> Config | None:
    """Return ``config`` with blocks of weights whose terms are contiguous, which are transposed: whole tiles of the
    instruction that does so, and the register tile of such blocks that the model expects to be fastest; None if no
    block divides the weights.
    """
    lane, lanes = config.lane, model.filled(config.lane)
    tiles = _register_tiles(config, loops, lanes, model.target)
    for tiled in sorted(tiles, key=lambda c: (model.cycles(loops, c), str(c))):
        most = model.target.l1.bytes // (tiled.size(lane) * model.bytes)  # each tile of rows reads the copy again
        depth = next((n for n in range(most // lanes * lanes, 0, -lanes) if not loops.extents[terms] % n), 0)
        if depth * model.bytes >= MIN_RUN:
            cache = ((terms, depth),) if depth < loops.extents[terms] else ()
            return tiled.changed(cache=cache, pack_at=((model.st.b.name, lane),))
    return None


def _register_tiles(config: Config, loops: Loops, lanes: int, target: Machine) -> Iterator[Config]:
    """Yield ``config`` with register tiles of rows along one loop, whose vectors of ``lanes`` divide the columns."""
    lane, (rows, *_) = config.lane, reversed(running(loops, "m"))
    for vectors in range(1, target.registers // 2):
        most = min((target.registers - SPARE) // vectors - 1, loops.extents[rows])
        if loops.extents[lane] % (vectors * lanes) == 0:
            for size in range(1, most + 1):
                yield config.changed(register=((rows, size), (lane, vectors * lanes)))


def _is_plain(config: Config) -> bool:
    """Return whether a config has neither transforms, parts of sums nor phases, and copies nothing but packed operands.
    """
    levels = config.tiles_at("winograd") or config.tiles_at("split") or config.tiles_at("k_step")
    copies = config.staged("resident") or config.staged("unfold") or config.staged_at("pack_at")
    return not (levels or copies or config.phases) and config.realise == "peel"


def _is_product(model: Model, loops: Loops, config: Config) -> bool:
    """Return whether the statement is a product of matrices of one type, with vectors along columns of packed weights
    that exceed the second-level cache, and one loop over the terms.
    """
    st: Statement = model.st
    if not st.constant or len(st.factors) != 2 or st.shifted or st.sums or model.unit.dot or loops.residues:
        return False
    weights = st.b
    is_single = len(running(loops, "k")) == len(running(loops, "n")) == 1 and not any(
        loops.extents[n] > 1 for n in loops.of("batch")
    )
    is_far = prod(weights.layout.shape) * model.bytes > model.target.l2.bytes
    return (
        loops.kinds[config.lane] == "n" and is_single and is_far and weights.name in config.staged("pack")
        and st.a.dtype == weights.dtype == st.acc and all(is_true(view.mask) for view in st.factors)
    )  # fmt: skip
