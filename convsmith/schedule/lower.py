"""The rewrites that lower a scheduled nest: flat offsets, vectors, instructions, functions, tasks and pointers."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, is_false, is_true
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.machine.transpositions import square_transposition, tile_shape
from convsmith.passes.coalesce import coalesce
from convsmith.passes.collapse import collapse
from convsmith.passes.cse import cse
from convsmith.passes.fill_blocks import fill_blocks
from convsmith.passes.flatten import flatten
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.hoist import hoist
from convsmith.passes.hoist_pointers import hoist_pointers
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.outline import outline
from convsmith.passes.partition import partition
from convsmith.passes.replace import replace
from convsmith.passes.scale import scale
from convsmith.passes.share_storage import share_storage
from convsmith.passes.simplify import simplify
from convsmith.passes.stream import stream
from convsmith.passes.strength import strength_reduce
from convsmith.passes.sum_together import sum_together
from convsmith.passes.tile import tile
from convsmith.passes.transpose import COLUMN, READ, ROW, WRITTEN
from convsmith.passes.transpose_stores import transpose_stores
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.unvectorise import unvectorise
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.config import Config
from convsmith.schedule.copies import copied_type, copy_name, empty_terms, has_windows, is_copied, window_loops
from convsmith.schedule.loops import names
from convsmith.schedule.order import Nest
from convsmith.schedule.pointers import indirect
from convsmith.schedule.read import resident, row_loops
from convsmith.statement.statement import Statement, view_steps

TILES_AHEAD = 2
"""Register tiles from a vector of a source to the one whose cache line its load prefetches."""
LEAST_NEIGHBOURS = 4
"""Minimum number of neighbours in memory for which a tile of a result is transposed, rather than scattered."""


def lower_steps(st: Statement, config: Config, target: Machine, nest: Nest) -> list[Step]:
    """Return the rewrites from the nest that reads its operands as the config says to vectors and straight lines."""
    steps = [Step(guard_tails, names(nest.unrolled)), Step(flatten), Step(simplify), Step(share_storage)]
    if nest.rows:
        fragments = target.fragment_rows(st.a.factor, st.b.factor, st.acc)
        steps += [Step(unroll, names(nest.unrolled)), Step(simplify), Step(replace, fragments, (nest.lane.name,))]
    steps += _transposing_steps(st, nest, target)
    copied = is_copied(st, config)
    windows, rows = has_windows(config), row_loops(st, config, nest) if copied else ()
    if copied and windows:
        steps += _window_steps(st, config, target.lanes(dtype(st.a.dtype).bits))
    elif rows:
        steps += _row_steps(rows, target.lanes(dtype(copied_type(st, nest)).bits))
    steps.append(Step(narrow_index))
    if copied and not windows and not rows:
        steps.append(Step(vectorise, f"{copy_name(st)}1.l", nest.lanes, False))
    if nest.unit.dot and not nest.rows:
        steps += [Step(vectorise, x.name, nest.unit.terms, False) for x in nest.terms]
    steps += [Step(vectorise, f"{name}_s.l", nest.lanes, False) for name in resident(st, config).values()]
    steps += [Step(vectorise, nest.lane.name, nest.lanes, False), Step(replace, target.instructions)]
    stepping = [x.name for x in nest.reduce if x.level != "register" and x is not nest.depth]
    steps += [Step(coalesce, n, stepping[-1], stepping[-1]) for n in reversed(stepping[:-1])]
    steps.append(Step(simplify, False))
    if adds_zeros(st, nest.lanes):
        steps.append(Step(fill_blocks, st.c.name))
    if nest.units:
        steps.append(Step(scale, names(nest.units), target.instructions))
    if config.outline:
        steps.append(Step(outline))
    if config.threads > 1:
        steps.append(Step(collapse))
    steps += [Step(unused_let), Step(hoist), Step(cse), Step(strength_reduce), Step(unroll)]
    if config.realise == "peel" and not is_true(st.a.mask):
        steps.append(Step(simplify, False))  # pieces of the taps decide which pixels of a tile have a tap
    if target.scalar_types:
        steps.append(Step(unvectorise, target.scalar_types))
    if indirect(st, config):
        steps.append(Step(hoist_pointers))
    if nest.along_k:
        steps.append(Step(sum_together, nest.lanes))
    if config.stream:
        steps.append(Step(stream, _streamed(st, config, nest, target)))
    return steps


def _streamed(st: Statement, config: Config, nest: Nest, target: Machine) -> tuple[tuple[str, int], ...]:
    """Return the names under which fragments or vectors of the streamed operands are read, and the streamed result's,
    each with the bytes to the line that loads of its vectors prefetch.

    A result that is added to is loaded before it is stored.
    """
    legal = {view.name: 0 for view in st.factors if target.fragments is not None}
    if not nest.rows:
        legal = {n.name: target.costs.weights_ahead for n in st.factors[1:] if n.name in config.pack}
        if ahead := source_ahead(st, config, nest):
            legal[st.a.name] = ahead
        if has_full_vectors(st, config, nest.lanes) and target.fence:
            legal[st.c.name] = result_ahead(st, nest)
    if is_false(st.a.mask):  # nothing reads the factors
        legal = {n: ahead for n, ahead in legal.items() if n == st.c.name}
    if not set(config.stream) <= set(legal):
        raise ConfigError(
            "stream", f"--stream={','.join(config.stream)}: legal are operands whose fragments registers of their own "
            "hold, packed weights and a source that are read as vectors, and a result that full vectors of channels "
            "write once: "
            f"{', '.join(legal) or 'none here'}",
        )  # fmt: skip
    copy = {st.a.name: copy_name(st)} if is_copied(st, config) else {}
    return tuple((copy.get(n, f"{n}_p" if n in config.pack else n), legal[n]) for n in config.stream)


def source_ahead(st: Statement, config: Config, nest: Nest) -> int:
    """Return the bytes from a vector of the source to that which the register tile after the next one reads in its
    place; 0 where vectors do not lie along pixels of the source as the caller has it.
    """
    if nest.lane.role != "m" or config.realise != "peel" or st.a.name in config.pack or config.near or not st.constant:
        return 0
    steps = view_steps(st.a)
    moves = (x.tile * abs(steps.get(Var(x.dims[-1]), 0)) for x in reversed(nest.outside) if x.extent > 1)
    return TILES_AHEAD * next((move for move in moves if move), 0) * dtype(st.a.dtype).bytes


def result_ahead(st: Statement, nest: Nest) -> int:
    """Return the bytes from a vector of the result to that of the next register tile of pixels; 0 if there is none."""
    steps = view_steps(st.c)
    moves = (x.tile * abs(steps.get(Var(x.dims[-1]), 0)) for x in reversed(nest.outside) if x.role == "m")
    return next((move for move in moves if move), 0) * dtype(st.c.dtype).bytes


def has_full_vectors(st: Statement, config: Config, lanes: int) -> bool:
    """Return whether each element of the result is written once, in a vector of ``lanes`` channels that begins at a
    multiple of as many elements.
    """
    reduction = {d.name for d in st.of("k")}
    once = not config.split and not any(n in reduction for n, _ in config.cache)
    if not once or config.lane != st.n or st.of("batch") or st.residues or config.phases or not st.constant:
        return False
    (channels,) = (d.size for d in st.of("n"))
    dim = next((n for n, x in enumerate(st.c.coords) if Var(st.n) in variables_of(x)), -1)
    blocks = [b for b in st.c.layout.blocks if b.size > 1]
    inner = [b.size for b in blocks if b.stride == 1 and b.dim == dim]
    return bool(inner) and not any(n % lanes for n in (channels, *inner, *(b.stride for b in blocks if b.stride > 1)))


def adds_zeros(st: Statement, lanes: int) -> bool:
    """Return whether the result's layout adds elements to blocks of multiples of ``lanes`` adjacent channels."""
    layout = st.c.layout
    inner = next((b for b in layout.blocks if b.stride == 1 and b.size > 1), None)
    if inner is None or inner.size % lanes:
        return False
    return layout.shape[inner.dim] < layout.padded_shape[inner.dim]


def transposes(st: Statement, lane: str, along: str, lanes: int, target: Machine) -> Instruction | None:
    """Return the row of ``target`` that transposes tiles of ``lanes`` along the dim ``lane``, whose vectors would be
    scattered, and of neighbours along the dim ``along``; None where the result is not written by it.

    Gradients of the weights are written once for all pixels, so that their lanes follow from what they read.
    """
    steps = view_steps(st.c)
    if steps.get(Var(along)) != 1 or steps.get(Var(lane), 1) == 1 or st.residues or not st.constant:
        return None
    return None if target.vectors.scalable else square_transposition(target.transpositions, st.c.dtype, lanes)


def _transposing_steps(st: Statement, nest: Nest, target: Machine) -> list[Step]:
    """Return the rewrites that transpose tiles of a result whose vectors would be scattered."""
    if nest.rows or nest.along_k:
        return []
    for x in (*nest.pixels, *nest.vectors):
        row = transposes(st, nest.lane.dims[-1], x.dims[-1], nest.lanes, target)
        if row is not None and x.extent >= LEAST_NEIGHBOURS:
            scattered = Step(transpose_stores, x.name, nest.lane.name, tile_shape(row)[:2], LEAST_NEIGHBOURS)
            return [scattered, *register_transposing_steps(nest.lanes, target)]
    return []


def register_transposing_steps(lanes: int, target: Machine) -> list[Step]:
    """Return the rewrites that make instructions of tiles which are transposed in registers."""
    return [
        Step(unroll, (ROW, COLUMN)), Step(simplify), Step(vectorise, READ, lanes, False),
        Step(vectorise, WRITTEN, lanes, False), Step(replace, target.transpositions),
    ]  # fmt: skip


def _window_steps(st: Statement, config: Config, lanes: int) -> list[Step]:
    """Fuse the taps of a window that are contiguous into a loop of vectors; its empty terms become another loop."""
    taps = window_loops(st, config)
    last = taps[-1]
    steps = [Step(coalesce, tap, last, last) for tap in reversed(taps[:-1])]
    filled = (f"{copy_name(st)}.z",) if empty_terms(st, config) else ()
    for loop in (last, *filled):
        steps += [Step(tile, loop, lanes, loop + ".o", loop + ".l"), Step(partition, (loop + ".o",))]
        steps.append(Step(vectorise, loop + ".l", lanes, False))
    return steps


def _row_steps(loops: tuple[str, ...], lanes: int) -> list[Step]:
    """Make the ``loops`` along a row of the padded copy one loop, of vectors."""
    row, *channels = loops
    return [
        *(Step(coalesce, row, n, row) for n in channels),
        Step(tile, row, lanes, row + ".o", row + ".l"),
        Step(partition, (row + ".o",)),
        Step(vectorise, row + ".l", lanes, False),
    ]
