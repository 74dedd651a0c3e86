"""The rewrites that lower a scheduled nest: flat offsets, vectors, instructions, functions, tasks and pointers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace as with_fields

from convsmith.arith.evaluate import evaluate
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Mod, Var, is_false, is_true
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.machine.transpositions import tile_shape
from convsmith.passes.async_copies import async_copies
from convsmith.passes.block_messages import block_messages
from convsmith.passes.collapse import collapse
from convsmith.passes.cross_blocks import cross_blocks
from convsmith.passes.delay_barriers import delay_barriers
from convsmith.passes.fetch_next import fetch_next
from convsmith.passes.fetch_pixels import fetch_pixels
from convsmith.passes.fetch_rows import fetch_rows
from convsmith.passes.fill_blocks import fill_blocks
from convsmith.passes.flatten import flatten
from convsmith.passes.form_fma import form_fma
from convsmith.passes.fuse import fuse
from convsmith.passes.gather_guards import gather_guards
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.hoist_pointers import hoist_pointers
from convsmith.passes.inline_indices import inline_indices
from convsmith.passes.interleave import interleave
from convsmith.passes.load_matrices import load_matrices
from convsmith.passes.map_to_threads import map_to_threads
from convsmith.passes.merge_terms import merge_terms
from convsmith.passes.multicast import multicast
from convsmith.passes.name_indices import name_indices
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.near_pointers import near_pointers
from convsmith.passes.outline import outline
from convsmith.passes.partition import partition
from convsmith.passes.replace import replace as rows_of
from convsmith.passes.reverse import reverse
from convsmith.passes.scale import scale
from convsmith.passes.share_guards import share_guards
from convsmith.passes.share_registers import share_registers
from convsmith.passes.share_storage import share_storage
from convsmith.passes.signal_steps import signal_steps
from convsmith.passes.simplify import simplify
from convsmith.passes.split_barriers import split_barriers
from convsmith.passes.split_fma import split_fma
from convsmith.passes.store_matrices import store_matrices
from convsmith.passes.stream import stream
from convsmith.passes.strength import strength_reduce
from convsmith.passes.sum_together import sum_together
from convsmith.passes.take_turns import take_turns
from convsmith.passes.trade_lanes import trade_lanes
from convsmith.passes.transpose import READ, TILE, WRITTEN
from convsmith.passes.transpose_stores import transpose_stores
from convsmith.passes.unroll import unroll
from convsmith.passes.unswitch_uniform import unswitch_uniform
from convsmith.passes.unvectorise import unvectorise
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.blocks_of_terms import follow_blocks
from convsmith.schedule.config import Config
from convsmith.schedule.copies import copied_type, empty_terms, has_windows
from convsmith.schedule.fetched_rows import rows_below
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import Loop, loops_after_fusing
from convsmith.schedule.nest import Nest
from convsmith.schedule.order import TileLoops
from convsmith.schedule.product_shape import fragment_rows, single_row
from convsmith.schedule.read import Reads, has_masks
from convsmith.schedule.rows_against_taps import rows_against_taps
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.schedule.transposed_results import MIN_NEIGHBOURS, transposed_along
from convsmith.statement.statement import Statement, steps_evenly, view_steps

RUNS = (2, 4, 8, 16)
"""Numbers of adjacent elements of a fragment in a lane, which accesses them as vectors."""
TASKS = 2
"""Number of blocks of a loop over vectors for each of the threads that share it."""
TILES_AHEAD = 2
"""Number of register tiles between a vector of a source and the vector whose cache line its load prefetches."""


def flatten_tiles(s: Schedule, parts: Sequence[KernelPlan]) -> None:
    """Bring the nests of a kernel to flat offsets."""
    for k in parts:
        if k.nest.has_lanes:
            s.run(guard_tails, k.nest.unrolled)
    s.run(flatten)


def flat_code(s: Schedule, machine: Machine) -> None:
    """Simplify flat offsets. Arrays of a CPU's kernel share memory; devices multiply and add in one operation."""
    s.run(simplify)
    if machine.device is None:
        s.run(share_storage)
    else:
        s.run(form_fma, machine.scalar_types)


def pick_fragments(s: Schedule, k: KernelPlan, tile: TileLoops) -> None:
    """Replace the loops of a nest on fragments by instructions, whose loops are the products of ``tile`` if lanes of a
    warp share the fragments; transpose tiles of a result that would be scattered.
    """
    st, nest, products = k.columns, k.nest, tile.products
    if products is not None:
        multiply_fragments(s, k.machine, products.row, products.inner, products.loads)
    elif not nest.has_lanes:
        return
    elif nest.rows:
        fragments = fragment_rows(st, k.machine, nest.lane.role == "m")
        s.run(unroll, nest.unrolled)
        s.run(simplify)
        s.run(rows_of, fragments, (nest.lane,))
        _transpose_results(s, k, [tile.written[x] for x in nest.rows])
    elif not nest.along_k:
        _transpose_results(s, k, [*nest.pixels, *nest.vectors])


def multiply_fragments(
    s: Schedule, machine: Machine, row: Instruction, inner: tuple[Loop, ...], loads: tuple[Instruction, ...] = ()
) -> None:
    """Replace the loops ``inner`` by ``row``, and give each lane its elements of fragments, which the instructions
    ``loads`` may load.
    """
    s.run(rows_of, (row,), inner)
    if loads:
        s.run(load_matrices, (row,), loads)
    if machine.matrix_stores:
        s.run(store_matrices, (row,), machine.matrix_stores)
    trades = tuple(machine.transpositions)
    if trades:
        s.run(trade_lanes, (row,), trades)
    neighbours = s.spread_lanes((row, *trades), RUNS)
    s.run(simplify)
    if machine.messages:
        s.run(block_messages, machine.messages)
    for x in neighbours:
        s.run(unswitch_uniform, x)
        s.run(vectorise, x, x.extent, False)


def vectorise_nest(s: Schedule, k: KernelPlan, reads: Reads) -> None:
    """Make vectors of the innermost loops of a nest and of its copies."""
    nest = k.nest
    for x in nest.runs if reads.tile.products is None and not nest.has_lanes else ():
        if x not in nest.accumulators:
            continue
        s.run(unswitch_uniform, x)
        s.run(vectorise, x, x.extent, False)
    for copy, vector in reads.loaded:
        s.run(vectorise, copy.lane, vector.extent, False)
    for copy in reads.shared.values():
        if copy.lane is not None and copy.lane.extent > 1:
            s.run(vectorise, copy.lane, copy.lane.extent, False)
    if not nest.has_lanes:
        return
    if reads.source is not None and reads.source.lane is not None and not reads.source.loops:
        s.run(vectorise, reads.source.lane, reads.source.lane.extent, False)
    if nest.unit.dot and not nest.rows:
        for x in nest.terms:
            s.run(vectorise, x, nest.unit.terms, False)
    for copy in reads.resident:
        s.run(vectorise, copy.lane, nest.lanes, False)
    if crosses_blocks(k.columns, nest, k.machine):
        s.run(cross_blocks, nest.lane)
    s.run(vectorise, nest.lane, nest.lanes, False, has_masks(k))


def run_threads(s: Schedule, k: KernelPlan, reads: Reads) -> None:
    """Make the code of one thread of the loops over the threads of groups, with the barriers between them."""
    if reads.tile.thread is None:
        return
    s.run(map_to_threads)
    if k.config.load_ahead:
        s.run(delay_barriers)
    if k.config.barriers == "split":
        s.run(split_barriers)
    if k.config.copies == "async":
        s.run(async_copies)


def make_vectors(
    s: Schedule, machine: Machine, vectorise: Callable[[], None], singles: Collection[Instruction] = ()
) -> None:  # fmt: skip
    """Make the vectors of a kernel by ``vectorise``, determine the width of indices, and select the instructions of
    ``machine`` for vectors, among those of one term the ``singles``. Scalar multiply-adds become two operations where
    it lacks the one.
    """
    if machine.device is not None:
        vectorise()
        s.run(narrow_index)
        return
    s.run(narrow_index)
    vectorise()
    s.run(rows_of, tuple(x for x in machine.instructions if x in singles or not x.is_single))
    if machine.relaxed_fma:
        s.run(split_fma, machine.vector_bits)


def straight_code(
    s: Schedule, machine: Machine, outlines: bool, is_shared: bool, through_table: bool, peels: bool = False,
    guards: bool = False, signals: bool = False, carries: bool = False, clusters: Sequence[Loop] = (),
    registers: tuple[int, int] | None = None, teams: int = 1,
) -> None:  # fmt: skip
    """Make straight-line code with names for indices.

    The kernel calls functions if ``outlines``, host threads share its iterations if ``is_shared``, it reads
    ``through_table`` of pointers, or it ``peels`` iterations whose terms are absent; its tiles have ``guards`` if some
    of their taps may be absent. Statements of a kernel with ``signals`` order the operands that a copy engine brings.
    Loops of a thread of a device carry offsets if the kernel ``carries`` them; those of a CPU always do. Groups of the
    loops ``clusters`` share copies. Lanes take so many ``registers``, and leave so many to threads that start copies,
    unless that is None. Several ``teams`` take turns.
    """
    if machine.device is not None:
        s.run(name_indices)
        if carries:
            s.run(strength_reduce)
        s.run(unroll)
        if signals:
            s.run(signal_steps, tuple(row for row in machine.instructions if row.is_asynchronous))
        if teams > 1:
            s.run(take_turns, teams)
        if registers is not None:
            s.run(share_registers, *registers)
        for loop in clusters:
            assert machine.device.engine is not None
            s.run(multicast, loop, machine.device.engine.together)
        return
    if outlines:
        s.run(outline)
    if is_shared:
        s.run(collapse)
    for rewrite in (name_indices, strength_reduce, unroll):
        s.run(rewrite)
    if peels:
        s.run(simplify, False)  # pieces of the taps determine which pixels of a tile have a tap
    if guards:
        s.run(inline_indices)
        s.run(gather_guards)
        s.run(share_guards)
    if machine.scalar_types:
        s.run(unvectorise, machine.scalar_types)
    if through_table:
        s.run(hoist_pointers)
    if machine.repeated_reach:
        s.run(near_pointers, machine.repeated_reach)


def join_steps(s: Schedule, k: KernelPlan) -> None:
    """Coalesce the loops of the reduction that step through contiguous memory."""
    nest = k.nest
    if not nest.has_lanes:
        return
    stepping = [x for x in nest.reduce if x.level != "register" and x not in nest.depth]
    for x in reversed(stepping[:-1]):
        s.run(fuse, x, stepping[-1], stepping[-1], "nowhere")
    if fetches_pixels(k.columns, k.config, k.machine) and k.columns.a.name in k.config.staged("fetch"):
        s.run(fetch_pixels, k.columns.a.name, nest.pixels[-1], stepping[-1])
    if k.columns.a.name not in k.config.staged("stream"):  # prefetches follow the rows
        for row, tap in rows_against_taps(k.columns, nest):
            s.run(reverse, row, tap)
    follow_blocks(s, k.columns, k.config, nest, stepping)


def single_of(k: KernelPlan) -> Instruction | None:
    """Return the instruction of one term that multiplies the factors of ``k``, if its config names it, or one that adds
    up its products; otherwise None.
    """
    row = k.machine.rows.get(k.config.instruction)
    return row if row is None or row.is_single else single_row(row, k.config, k.machine)


def merge_products(s: Schedule, k: KernelPlan) -> None:
    """Merge products of one term into those of an instruction with several, which the config names without terms."""
    single = single_of(k)
    if single is not None and single.name != k.config.instruction:
        s.run(merge_terms, single, k.machine.rows[k.config.instruction])


def finish_result(s: Schedule, k: KernelPlan, reads: Reads) -> None:
    """Add the zeros of blocked layouts, and make vectors scalable, those of copies too."""
    if not k.nest.has_lanes:
        return
    if adds_zeros(k.columns, k.nest.lanes):
        s.run(fill_blocks, k.columns.c.name, k.nest.lanes)
    copied = reads.source.vectors if reads.source is not None and k.machine.vectors.scalable else ()
    if units := (*k.nest.units, *copied):
        shared = (TASKS * k.config.threads,) if k.config.threads > 1 else ()
        s.run(scale, units, k.machine.instructions, *shared)


def write_beside_products(s: Schedule, parts: Sequence[KernelPlan]) -> None:
    """Write the results of tiles of fragments between the products of the next tile, if a unit of its own multiplies
    fragments.
    """
    if any(k.nest.rows and any(x.is_apart for x in k.machine.fragments) for k in parts):
        s.run(interleave)
        s.run(simplify, False)


def stream_operands(s: Schedule, k: KernelPlan, reads: Reads) -> None:
    """Sum the lanes of sums along a reduction loop, and bypass the first cache for the operands that the config
    streams.
    """
    if k.nest.has_lanes and k.nest.along_k:
        s.run(sum_together, k.nest.lanes)
    if k.config.staged("stream"):
        s.run(stream, _streamed(k, reads))
    for operand in check_fetches(k):
        interleaved, below = not k.columns.constant, rows_below(k.columns, k.config, k.machine)
        if operand == k.columns.a.name and below is not None:
            s.run(fetch_rows, operand, *below)
        elif operand != k.columns.a.name or interleaved:
            s.run(fetch_next, reads.name(operand), k.machine.prefetches_by_loads, interleaved)


def _streamed(k: KernelPlan, reads: Reads) -> tuple[tuple[str, int], ...]:
    """Return the names under which fragments or vectors of the streamed operands are read, and the name of the streamed
    result, each with the bytes to the line that loads of its vectors prefetch.

    A result that a ``sum`` adds to is loaded before it is stored.
    """
    source, legal = k.columns.a.name, check_streams(k)
    copy = {source: reads.source.name} if reads.source is not None else {}
    copy |= {n: n for n, _ in k.config.staged_at("pack_at")}  # those that pack it read the caller's array
    return tuple((copy.get(n, reads.name(n)), legal[n]) for n in k.config.staged("stream"))


def check_streams(k: KernelPlan) -> dict[str, int]:
    """Return, for each operand that the kernel can stream, the bytes to the line that its loads prefetch. ConfigError
    if the config streams another operand.
    """
    st, config, nest, target = k.columns, k.config, k.nest, k.machine
    if not config.staged("stream"):
        return {}
    legal = {view.name: 0 for view in st.factors if target.fragments}
    if not nest.rows:
        legal = {n.name: target.costs.weights_ahead for n in st.factors[1:] if n.name in config.staged("pack")}
        legal |= {n: target.costs.weights_ahead for n, _ in config.staged_at("pack_at")}
        if ahead := source_ahead(st, config, nest):
            legal[st.a.name] = ahead
        if has_full_vectors(st, config, nest.lanes) and target.fence:
            legal[st.c.name] = result_ahead(st, nest)
    if is_false(st.a.mask):  # every term is absent, so no factor is read
        legal = {n: ahead for n, ahead in legal.items() if n == st.c.name}
    if not set(config.staged("stream")) <= set(legal):
        raise ConfigError(
            "stream",
            f"--stream={','.join(config.staged('stream'))}: legal are operands whose fragments registers of their own "
            "hold, packed weights and a source that are read as vectors, operands of --pack_at=, and a result that "
            "full vectors of channels write once: "
            f"{', '.join(legal) or 'none here'}",
        )
    return legal


def check_fetches(k: KernelPlan) -> tuple[str, ...]:
    """Return the operands whose next part the kernel fetches. ConfigError if the config fetches another operand than
    packed weights that are read as vectors, a source of which tiles read several pixels, or windows of groups, and
    factors of a gradient.
    """
    asked = k.config.staged("fetch")
    constant = [view for view in k.columns.factors[1:] if view.constant]
    legal = [n.name for n in constant if n.name in k.config.staged("pack") and not k.nest.rows]
    if fetches_pixels(k.columns, k.config, k.machine) or rows_below(k.columns, k.config, k.machine):
        legal.append(k.columns.a.name)
    legal += fetched_factors(k.columns, k.config, k.machine)
    if not set(asked) <= set(legal):
        raise ConfigError(
            "fetch",
            f"--fetch={','.join(asked)}: legal are packed weights that are read as vectors, a source whose pixels have "
            "one tap, beside such weights, or whose windows are read as vectors of groups, and factors of a gradient "
            "of 1x1 weights whose channels are contiguous: "
            f"{', '.join(legal) or 'none here'}",
        )
    return asked


def fetches_pixels(st: Statement, config: Config, target: Machine) -> bool:
    """Return whether tiles of several pixels of a row can fetch the pixels of a later tile: vectors are weights, and
    the caller's source is read where it is, once for each tile of channels. Prefetches of pixels may leave the array.
    """
    if target.prefetches_by_loads or config.phases or config.has_transform:
        return False
    if len(st.factors) < 2 or not st.constant or st.residues:
        return False
    loops, row = loops_after_fusing(st, config), target.rows.get(config.instruction)
    plain = config.realise == "peel" and st.a.name not in (*config.staged("pack"), *dict(config.staged_at("pack_at")))
    once = all(d.size == 1 for d in st.of("k") if d.axis) and target.device is None
    tiled = [n for n, size in config.tiles_at("register") if loops.kinds.get(n) == "m" and size > 1]
    vectors = loops.kinds.get(config.lane) == "n" and len(tiled) == 1 and (row is None or row.rows == 1)
    return plain and once and vectors


def fetched_factors(st: Statement, config: Config, target: Machine) -> tuple[str, ...]:
    """Return the factors of a gradient of the weights of which tiles of vectors can fetch the next block of pixels:
    each pixel has one tap and at least a cache line of channels, and the next pixel follows in memory.
    """
    if len(st.factors) < 2 or st.constant or target.prefetches_by_loads or target.device is not None:
        return ()
    loops, row = loops_after_fusing(st, config), target.rows.get(config.instruction)
    taps = [d for d in st.dims if d.axis and d.kind != "k" and d.size > 1]
    if taps or not is_true(st.a.mask) or loops.kinds.get(config.lane) not in ("m", "n") or (row and row.rows > 1):
        return ()
    pixels = [d.name for d in st.of("k")]

    read = [view for view in st.factors if view.name not in config.staged("pack") and view.layout.is_plain]
    steps = {view: view_steps(view) for view in read}
    wide = [x for x in read if steps[x].get(Var(pixels[-1]), 0) * dtype(x.dtype).bytes >= target.l1.line]
    return tuple(view.name for view in wide if steps_evenly(steps[view], pixels, st.extents))


def source_ahead(st: Statement, config: Config, nest: Nest) -> int:
    """Return the bytes from a vector of the source to the corresponding vector of the register tile after the next one;
    0 unless vectors run along pixels of the caller's source.
    """
    if (
        nest.lane.role != "m"
        or config.realise != "peel"
        or st.a.name in config.staged("pack")
        or config.staged_at("pack_at")
        or not st.constant
    ):
        return 0
    steps = view_steps(st.a)

    def moved(dim: str, tile: int) -> int:
        if (classes := st.residues.get(dim, 1)) == 1:
            return tile * abs(steps.get(Var(dim), 0))
        at = ({v: n * classes * (v.name == dim) for e in steps for v in variables_of(e)} for n in (0, tile))
        first, last = (sum(c * int(evaluate(e, values)) for e, c in steps.items()) for values in at)
        return abs(last - first)

    around = (x for x in reversed(nest.to_tile) if x.role != "k")
    moves = (moved(x.dims[-1], x.tile) for x in around if x.extent > 1)
    return TILES_AHEAD * next((move for move in moves if move), 0) * dtype(st.a.dtype).bytes


def result_ahead(st: Statement, nest: Nest) -> int:
    """Return the bytes from a vector of the result to the vector of the next register tile of pixels; 0 if there is
    none.
    """
    steps, classes = view_steps(st.c), st.residues
    pixels = ((x.tile, x.dims[-1]) for x in reversed(nest.outside) if x.role == "m")
    moves = (tile * classes.get(dim, 1) * abs(steps.get(Var(dim), 0)) for tile, dim in pixels)
    return next((move for move in moves if move), 0) * dtype(st.c.dtype).bytes


def has_full_vectors(st: Statement, config: Config, lanes: int) -> bool:
    """Return whether each element of the result is written once, in a vector of ``lanes`` channels that begins at a
    multiple of ``lanes``. The vectors of the last channels may write zeros that the layout adds; residue classes of
    pixels, of which each writes its own, may have no taps.
    """
    reduction = {d.name for d in st.of("k")}
    once = not config.tiles_at("split") and not any(n in reduction for n, _ in config.tiles_at("cache"))
    if not once or config.lane != st.n or st.of("batch") or config.phases or not st.constant:
        return False
    (channels,) = (d.size for d in st.of("n"))
    dim = next((n for n, x in enumerate(st.c.coords) if Var(st.n) in variables_of(x)), -1)
    blocks = [b for b in st.c.layout.blocks if b.size > 1]
    inner = [b.size for b in blocks if b.stride == 1 and b.dim == dim]
    if adds_zeros(st, lanes) and channels % lanes:
        channels = st.c.layout.padded_shape[dim]
    return bool(inner) and not any(n % lanes for n in (channels, *inner, *(b.stride for b in blocks if b.stride > 1)))


def crosses_blocks(st: Statement, nest: Nest, target: Machine) -> bool:
    """Return whether vectors of the result may cross blocks of channels at places that depend on another loop."""
    if target.vectors.scalable or nest.along_k:
        return False
    lane = Var(nest.lane.dims[-1])
    blocks = (x for x in view_steps(st.c) if isinstance(x, Mod) and lane in variables_of(x))
    return any(step % x.den and v != lane for x in blocks for v, step in x.num.terms)


def adds_zeros(st: Statement, lanes: int) -> bool:
    """Return whether the result's layout pads blocks of multiples of ``lanes`` adjacent channels."""
    layout = st.c.layout
    inner = layout.contiguous
    if inner is None or inner.size % lanes:
        return False
    return layout.shape[inner.dim] < layout.padded_shape[inner.dim]


def _transpose_results(s: Schedule, k: KernelPlan, along: Sequence[Loop]) -> None:
    """Transpose tiles of a result whose vectors would be scattered, if its elements are contiguous along one of the
    loops ``along``.
    """
    if found := transposed_along(k, along):
        x, row = found
        apart = k.columns.residues.get(x.dims[-1], 1)
        s.run(transpose_stores, x, k.nest.lane, tile_shape(row)[:2], MIN_NEIGHBOURS, apart)
        pick_transpositions(s, k.nest.lanes, k.machine)


def pick_transpositions(s: Schedule, lanes: int, machine: Machine) -> None:
    """Select instructions for tiles that are transposed in registers."""
    s.run(vectorise, f"{TILE}{READ}", lanes, False)
    s.run(vectorise, f"{TILE}{WRITTEN}", lanes, False)
    s.run(rows_of, machine.transpositions)


def vectorise_copy(s: Schedule, k: KernelPlan, source: Copy) -> Copy:
    """Fuse the loops of a copy along contiguous memory to one loop of vectors, and likewise the loops over its padding
    terms; return the copy with the loops from vector to vector.
    """
    st, config = k.columns, k.config
    if not source.loops:
        return source
    filled: tuple[Loop, ...] = ()
    if has_windows(config):
        *outer, last = source.loops
        lanes = k.machine.lanes(dtype(st.a.dtype).bits)
        if empty_terms(st, config) and source.lane is not None:
            filled = (source.lane,)
        for x in reversed(outer):
            s.run(fuse, x, last, last, "nowhere")
    else:
        last, *channels = source.loops
        lanes = k.machine.lanes(dtype(copied_type(st, k.nest)).bits)
        for x in channels:
            s.run(fuse, last, x, last, "nowhere")
    found = []
    for loop in (last, *filled):
        vectors, lane = s.tile(loop, lanes, "ol", ("copy", "copy"))
        s.run(partition, (vectors,))
        s.run(vectorise, lane, lanes, False)
        found.append(vectors)
    return with_fields(source, vectors=(*found,))
