"""The events of copying and packing operands in each call."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from math import prod

from convsmith.ir.index import Index, Mod, Var, is_true
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.transpositions import MAX_READ_STRIDE
from convsmith.schedule.config import Config
from convsmith.schedule.copies import has_rows_of_channels, shared_taps
from convsmith.schedule.loops import Loops, fused_dims
from convsmith.statement.statement import View, steps_evenly, view_steps
from convsmith.tune.costs.features import Events
from convsmith.tune.costs.shared_facts import SharedFacts

__all__ = ["copied", "packed", "packed_elements", "transposes_channels", "window_bytes", "window_rows"]

WORD = 4
"""The size in bytes of the elements for which costs of packing are fitted. Vectors hold more of narrower ones, which
saves no time where tables of addresses lack pages of the packed operand.
"""
ROW_ENDS = 8
"""Vectors that are copied in the time in which the ends of a row are: its padding and a vector that is not full."""
SINGLY = 3
"""Ratio of the time of packing elements one by one to that of packing vectors of them."""


def copied(facts: SharedFacts, loops: Loops, config: Config) -> Events:
    """Return the events of copying the source in each call."""
    if config.realise == "window_copy":
        return _windows(facts, loops, config)
    if config.realise != "pad_copy":
        return ()
    bordered = facts.bordered(config.lane)
    if (facts.converts or facts.unit.copied) and not bordered:
        return _converted(facts, config)
    elements = prod(facts.st.a.layout.shape)
    if facts.joins_groups(config):
        return (("pack", elements * min(facts.bytes / WORD, 1.0)),)
    if transposes_channels(facts, config):
        return ("pack", elements), ("beyond_line", _lines_again(facts))
    if not bordered and has_rows_of_channels(facts.st.a.layout) and not facts.lacking_terms(config):
        row = facts.st.a.layout.shape[-1] * facts.sizes[facts.k]
        vectors = -(-row * facts.bytes * 8 // facts.target.vector_bits)
        return (("copy", elements // row * (vectors + ROW_ENDS)),)
    return (("copy", elements / (facts.lanes if bordered else facts.sizes[facts.k])),)


def transposes_channels(facts: SharedFacts, config: Config) -> bool:
    """Return whether a padded copy moves channels that lie apart next to each other."""
    is_apart = not facts.bordered(config.lane) and facts.src.get(Var(facts.k)) != 1
    return config.realise == "pad_copy" and is_apart and not facts.converts


def _lines_again(facts: SharedFacts) -> float:
    """Return the cache lines of the source that a copy of one row after the other loads again, because a line has
    elements of several rows, and the first-level cache does not keep the lines of all channels of a row.
    """
    line, (images, channels, *outer, row) = facts.target.l1.line, facts.st.a.layout.shape
    size, rows = row * facts.bytes, prod(outer)
    image = channels * rows * size / line
    lines = min(image, channels * (1 + (size - 1) / line))
    if size >= line or lines * line <= facts.target.l1.bytes:
        return 0.0
    return images * (rows * lines - image)


def _converted(facts: SharedFacts, config: Config) -> Events:
    """Return the events of copying the source with its elements converted, at each call.

    A single thread copies whole images, which may exceed the caches. Several threads copy the rows that each needs,
    again for each tap and for each block of channels of the result whose loop is outside.
    """
    images = next((d.size for d in facts.st.dims if d.sort == "images"), 1)
    elements, again, far = prod(facts.st.a.layout.shape), 1, False
    size = dtype(facts.unit.copied or facts.st.acc).bytes
    if config.threads == 1:
        far = elements // images * size > facts.target.costs.images_near
    else:
        row = next((d for d in facts.st.of("m") if d.axis), None)
        again = prod(d.size for d in facts.st.of("k") if row is not None and d.axis == row.axis)
        own = row.name if row is not None else ""
        outside = takewhile(lambda n: own not in fused_dims(config, n), config.order) if own else ()
        again *= prod(-(-facts.sizes[n] // config.size(n)) for n in outside if n == facts.n)
    vectors = elements * size / (facts.lanes * dtype(facts.st.acc).bytes)
    lines = elements // (facts.st.a.layout.shape[-1] * facts.st.a.layout.shape[1])
    return ("copy", again * vectors), ("streamed_line", 2 * vectors * far), ("call", again * lines)


def _windows(facts: SharedFacts, loops: Loops, config: Config) -> Events:
    """Return the events of copying windows: a loop over each row and tap, vectors of each run of memory. Channels that
    lie apart are loaded one by one, and stored together for each tap.

    Rows that several tiles of rows read are copied again.
    """
    row, taps = facts.st.of("m")[-1].name, loops.dims[config.tiles_at("k_step")[0][0]]
    run = prod(facts.sizes[n] for n in taps[-2:])
    runs = prod(d.size for d in facts.st.of("m", "batch") if d.name != row) * prod(facts.sizes[n] for n in taps[:-2])
    vectors = -(-run * facts.bytes * 8 // facts.target.vector_bits)
    again, held = 1.0, window_bytes(facts, taps)
    own = {d.name for d in facts.st.of("m", "batch")}
    for rows, size in (tile for tile in config.tiles_at("cache") if tile[0] in own):
        step, more = window_rows(facts, rows)
        again = (size * step + more) / size
        held *= size * step + more
    if facts.src.get(Var(taps[-1])) == 1:
        move, count = "window" if held <= facts.target.l1.bytes else "window_far", vectors
        return (move, runs * again * facts.sizes[row] * count), ("call", runs * again)
    elements = runs * again * facts.sizes[row] * run
    evicted = ("clash", elements * _evicted_channels(facts))
    return ("window_element", elements), evicted, ("call", runs * again)


def _evicted_channels(facts: SharedFacts) -> float:
    """Return the part of the channels of a pixel whose lines evict each other from the first-level cache, before the
    next tap reads them, because they share few sets.
    """
    l1, channels, apart = facts.target.l1, facts.sizes[facts.k], facts.src.get(Var(facts.k), 0) * facts.bytes
    kept = l1.lines_kept(apart, facts.target.costs.added_ways) if apart > l1.line else channels
    return max(0.0, 1 - kept / channels)


def window_bytes(facts: SharedFacts, taps: tuple[str, ...]) -> int:
    """Return the bytes of the windows of the pixels of a row, each of which has the terms of ``taps`` after padding."""
    terms = prod(facts.sizes[n] for n in taps)
    return facts.sizes[facts.st.of("m")[-1].name] * -(-terms // facts.unit.terms) * facts.unit.terms * facts.bytes


def window_rows(facts: SharedFacts, rows: str) -> tuple[int, int]:
    """Return the distance in source rows between two iterations of ``rows``, and the further rows of a window."""
    axis = next(d.axis for d in facts.st.dims if d.name == rows)
    taps = [d for d in facts.st.of("k") if d.axis == axis]
    nearest = min((abs(facts.src.get(Var(d.name), 0)) for d in taps), default=0)  # taps of a gradient move backwards
    step = facts.src.get(Var(rows), 0) // nearest if nearest else 1
    return step, max(0, prod(d.size for d in taps) - step)


def packed(facts: SharedFacts, config: Config) -> list[Events]:
    """Return the events of packing each operand in each call, or in the blocks of a gradient of the weights."""
    names = config.staged("pack")
    found = [_packing(facts, view, config) for view in facts.st.factors if view.name in names and not view.constant]
    found += [_unfolding(facts, view) for view in facts.st.factors if view.name in config.staged("unfold")]
    if not facts.st.constant:
        near = {operand for operand, _ in config.staged_at("pack_at")}
        found += [_packing_near(facts, view, config) for view in facts.st.factors if view.name in near]
    return found


def _packing_near(facts: SharedFacts, view: View, config: Config) -> Events:
    """Return the events of packing an operand in the blocks of a reduction; taps share the rows of a block."""
    elements: float = _indexed(facts, view)
    tiles = dict(config.tiles_at("cache"))
    if view.name == facts.st.a.name:
        for (tap, pixel), rows in shared_taps(facts.st, config).items():
            pixels, taps = facts.sizes[pixel], facts.sizes[tap]
            step = max(facts.src.get(Var(pixel), 0) // facts.src.get(Var(tap), 1), 1)  # rows of the source
            size = tiles.get(pixel, pixels)
            elements *= (rows - (pixels - size) * step) / (size * taps)
    if not facts.unit.dot:
        far = elements / facts.lanes if view.bytes > facts.target.l2.bytes else 0.0
        return ("pack", elements), ("beyond_line", far)
    if facts.unit.rows > 1 and _is_near_singly(facts, view, config):
        return (("pack_far", elements),)
    singles = (("lane_load", elements),) if facts.unit.rows == 1 and _is_apart(facts, view, config) else ()
    return ("pack_near", elements / _filled_rows(facts, view, config)), *singles


def _is_near_singly(facts: SharedFacts, view: View, config: Config) -> bool:
    """Return whether the blocks of a reduction copy the terms of fragments one by one: channels do not fill vectors,
    and the terms of rows are not adjacent. Terms of lanes may be as far apart as a transposition of tiles permits.
    Taps and channels that are adjacent lanes fill vectors together.
    """
    steps, terms, lanes = view_steps(view), facts.dims[config.tiles_at("k_step")[0][0]], facts.dims[config.lane]
    if len(lanes) > 1 and steps.get(Var(lanes[-1])) == 1 and steps_evenly(steps, lanes, facts.sizes):
        return False
    most = MAX_READ_STRIDE if Var(lanes[-1]) in steps else 1
    return not (0 < steps.get(Var(terms[-1]), 0) <= most or _fills_vectors(facts, steps))


def _filled_rows(facts: SharedFacts, view: View, config: Config) -> float:
    """Return the part of the rows that are channels, in tiles that are transposed because terms are adjacent in memory.
    """
    steps, terms = view_steps(view), [name for name, _ in config.tiles_at("k_step")]
    channels = next((d for d in facts.st.of("m", "n") if not d.axis and d.size > 1 and Var(d.name) in steps), None)
    if facts.unit.rows > 1 or channels is None or not terms or steps.get(Var(facts.dims[terms[-1]][-1])) != 1:
        return 1.0
    tile = facts.lanes if channels.name == config.lane else config.size(channels.name)
    return min(tile, channels.size, facts.lanes) / facts.lanes


def _packing(facts: SharedFacts, view: View, config: Config) -> Events:
    """Return the events of packing an operand in each call.

    Terms of a gradient of the weights that an instruction adds up are elements of their own for each tap, except the
    taps that share rows.
    """
    times, unfolded = 1.0, view.name in config.staged("unfold")
    part = _part_of_taps(facts, view, config)
    near = facts.target.costs.pages_near if facts.st.constant else facts.target.l2.bytes
    if facts.unit.dot:
        elements = _indexed(facts, view)
        vectors = unfolded or packs_vectors(facts, view, config.tiles_at("k_step")[0][0], config.lane)
        place = "pack" if vectors else "pack_far"
        if not vectors and (singly := _in_blocks(facts, view, config)):
            place, times = "pack", singly
        elif (vectors or facts.st.constant) and elements * part * facts.bytes <= near:
            times = min(facts.bytes / WORD, 1.0)
    else:
        elements = _indexed(facts, view) if unfolded else prod(view.layout.shape)
        place = "pack" if elements * facts.bytes <= facts.target.l2.bytes else "pack_far"
    singles = (("lane_load", elements * part),) if _is_apart(facts, view, config) else ()
    return ("pack_call", part), (place, elements * part * times), *singles


def _is_apart(facts: SharedFacts, view: View, config: Config) -> bool:
    """Return whether many groups of terms are packed one by one, because some of their elements are absent: those of
    columns beside borders, which padded copies have where vectors are packed.
    """
    is_joined = 0 < view_steps(view).get(Var(facts.dims[config.lane][-1]), 0) <= MAX_READ_STRIDE
    is_padded = config.realise == "pad_copy" and facts.unit.rows == 1
    is_present = is_true(view.mask) or view.name in config.staged("unfold") or is_padded
    return not (is_present or is_joined) and facts.unit.terms > 1 and _has_columns(facts, config)


def _part_of_taps(facts: SharedFacts, view: View, config: Config) -> float:
    """Return the elements of an operand that is packed in each call, as a fraction of the iterations that index it:
    taps that share rows read the same elements.
    """
    if not facts.unit.dot or view.name != facts.st.a.name or view.name in config.staged("unfold"):
        return 1.0
    return prod(rows / prod(facts.sizes[n] for n in pair) for pair, rows in shared_taps(facts.st, config).items())


def packed_elements(facts: SharedFacts, config: Config) -> float:
    """Return the elements of the packed source of a gradient of the weights, some of which are repeated for taps."""
    return _indexed(facts, facts.st.a) * _part_of_taps(facts, facts.st.a, config)


def _in_blocks(facts: SharedFacts, view: View, config: Config) -> int:
    """Return how many times as long as in vectors packing an operand takes whose channels are in blocks in memory: once
    where tiles are whole blocks, and `SINGLY` where elements are copied one by one. Return 0 for another operand, and
    where elements are absent, or terms do not follow each other in memory.
    """
    steps, terms = view_steps(view), facts.dims[config.tiles_at("k_step")[0][0]]
    if facts.unit.rows > 1 or facts.st.constant or not is_true(view.mask):
        return 0
    if not steps_evenly(steps, terms, facts.sizes):
        return 0
    for atom, step in steps.items():
        if isinstance(atom, Mod) and step == 1:
            channels = {n for n, _ in atom.num.terms}
            tiles = [size for n, size in config.tiles_at("register") if Var(facts.dims[n][-1]) in channels]
            alone = len(channels) == 1 and bool(tiles)
            return 1 if alone and not any(size % atom.den for size in tiles) else SINGLY
    return 0


def _has_columns(facts: SharedFacts, config: Config) -> bool:
    """Return whether the source of a gradient of the weights has the columns of fragments, whose terms lie in groups.
    """
    return not facts.st.constant and {*facts.dims[config.lane]} <= {d.name for d in facts.st.of("m")}


def _indexed(facts: SharedFacts, view: View) -> int:
    """Return the iterations of all loops that index an operand."""
    indexes = {v.name for x in view.coords for v in variables_of(x)}
    return prod(n for name, n in facts.sizes.items() if name in indexes)


def _unfolding(facts: SharedFacts, view: View) -> Events:
    """Return the events of unfolding an operand in each call: vectors of channels are copied, or single elements."""
    elements, steps = _indexed(facts, view), view_steps(view)
    lanes = facts.target.vector_bits // (8 * facts.bytes)
    is_vector = any(steps.get(Var(d.name)) == 1 and d.size >= lanes for d in facts.st.of("m", "n") if not d.axis)
    copies = ("window_far", elements / lanes) if is_vector else ("lane_load", elements)
    return ("pack_call", 1), copies


def _fills_vectors(facts: SharedFacts, steps: Mapping[Index, int]) -> bool:
    """Return whether the channels that follow each other in memory fill the side of a transposed tile. Few channels
    need to fill more than half of it, together with those of the next taps, to which tiles join them.
    """
    side = facts.unit.rows if facts.unit.rows > 1 else facts.lanes
    moving = [d for d in facts.st.dims if d.kind in ("m", "n") and d.size > 1]
    channels = next((d.size for d in moving if steps.get(Var(d.name)) == 1), 0)
    taps = next((d.size for d in moving if channels and steps.get(Var(d.name)) == channels), 1)
    is_joined = facts.unit.rows == 1 and 2 * channels <= side < 2 * channels * taps
    return channels >= side or is_joined


def packs_vectors(facts: SharedFacts, view: View, terms: str, lane: str) -> bool:
    """Return whether vectors are packed of an operand whose terms are iterations of the loop ``terms``, for vectors
    along ``lane``.

    Vectors of near terms are copied, vectors of adjacent channels are transposed, of few channels together with those
    of the next taps. Joined loops that do not follow each other in memory are copied element by element.
    """
    steps, dims = view_steps(view), facts.dims[terms]
    is_vector = 0 < steps.get(Var(dims[-1]), 0) <= MAX_READ_STRIDE or _fills_vectors(facts, steps)
    is_vector = is_vector or 0 < steps.get(Var(facts.dims[lane][-1]), 0) <= MAX_READ_STRIDE
    return is_vector and steps_evenly(steps, dims, facts.sizes)
