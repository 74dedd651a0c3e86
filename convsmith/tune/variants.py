"""Variants of a config that the model compares with it: copied operands, weights in registers, blocks of channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as with_fields
from math import lcm, prod

from convsmith.ir.index import Var, is_true
from convsmith.ir.types import dtype
from convsmith.schedule.config import Config
from convsmith.schedule.copies import has_groups_apart, restrictable, shared_taps
from convsmith.schedule.loops import Loops, fused_chain, fused_name, loops_after_fusing
from convsmith.schedule.lower import TILES_AHEAD, has_full_vectors
from convsmith.schedule.packed_operands import is_filled
from convsmith.statement.parts import PART, splits
from convsmith.statement.statement import view_steps
from convsmith.tune.blocks import BLOCKS_A_THREAD
from convsmith.tune.costs.channels_apart import is_from_memory
from convsmith.tune.costs.copies import packed_elements, packs_vectors
from convsmith.tune.costs.far_lines import keeps_rows_of_channels, rows_of_few_channels, tiles_of_the_same_pixels
from convsmith.tune.costs.fetches import prefetches_weights, weights_stream
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.windows import weights_fit
from convsmith.tune.fragments import streamed_operand

MIN_BLOCK_STEPS = 8
"""Minimum number of instructions of a sum in a block, after which memory keeps the sum."""
BLOCK_OF_L2 = 16
"""The part of the second-level cache that the factors of a block fill is one by this number, if that is enough."""
BLOCK_OF_VECTORS = 4
"""The part that the factors of a block fill where vectors multiply, which load the sums of a block again at a higher
price.
"""
BLOCK_OF_PIXELS = 2
"""The part that the factors of a block fill where no taps share its elements, so that nothing else of it stays near."""
FAR_COPIES = 2
"""Packed factors whose lanes are taps and channels, relative to images in near caches, from which blocks of them are
packed.
"""
BLOCK_OF_TAPS = 4
"""The part that the factors of a block fill whose lanes are taps and channels."""
REPEATED = 1.5
"""Minimum number of times that taps repeat an element of a source that is packed in blocks for vectors."""
FAR_APART = 8
"""Minimum ratio of the distance of two channels to a page from which blocks of rows are copied, and number of channels.
"""
LONG_ROW = 4
"""Minimum number of tiles of pixels of a row that is copied at once."""
MOST_IMAGES = 4
"""The size of a block, by the size that it is to have, up to which it consists of whole images or rows."""
PIXELS_OF_SHARED_TAPS = 4
"""Pixels of a step of a gradient whose taps share converted elements."""
FEW_TILES = (1, 2, 3)
"""Tiles of a block of channels."""
LEAST_ABSENT = 1 / 16
"""Minimum part of the pixels of taps which meet padding alone that loops over the present taps leave out."""


def nearby(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return ``config`` with a copy of the pixels that a tile reads, made once for all channels of the result.

    None if no copy can be made, or fragments whose lanes are pixels would pass weights that the second-level cache does
    not hold.
    """
    pixels = [n for n in config.order if n != model.images and loops.kinds[n] == "m"]
    a = model.st.a
    fits = model.strided_access and config.realise == "peel" and is_true(a.mask) and a.requantised is None
    fits = fits and bool(pixels) and not model.target.vectors.scalable
    if not fits or config.lane in (model.batch, model.k) or model.n not in loops.extents:
        return None
    is_turned = model.unit.rows > 1 and config.lane in pixels
    if model.st.b.bytes >= model.target.l2.bytes if is_turned else loops.extents[model.n] <= config.size(model.n):
        return None
    tiles = prod(-(-loops.extents[n] // config.size(n)) for n in config.order if loops.kinds[n] == "m")
    if config.threads > 1 and tiles < BLOCKS_A_THREAD * config.threads:
        return None
    inner = config.lane if config.lane in pixels else pixels[-1]
    outer = [n for n in config.order if n == model.images]
    outer += [n for n in (model.batch,) if n in config.order]
    outer += [n for n in pixels if n != inner] + [inner]
    order = (*outer, *(n for n in config.order if n not in outer))
    return config.changed(
        order=order, pack=tuple(n for n in config.staged("pack") if n != a.name), pack_at=((a.name, inner),)
    )


def nearby_in_blocks(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return ``config`` with copies of longer rows of pixels than a tile reads, which stay in the second-level cache
    while all channels of the result pass: prefetchers follow such rows of a source, and of a result, in memory.

    None if no copy can be made, if loads wait for no lines of memory, or if a row would be too short; and where
    channels are so close, or so few, that prefetches of the loads of tiles are as good.
    """
    costs, channels = model.target.costs, model.sizes[model.k]
    near = nearby(model, loops, config) if costs.late_line and is_from_memory(model) else None
    apart = model.src.get(Var(model.k), 0) * model.bytes
    if near is None or loops.kinds[config.lane] != "m" or min(channels, apart // costs.page) < FAR_APART:
        return None
    tile, most = config.size(config.lane), min(costs.page // 2, model.target.l2.kept // channels) // model.bytes
    size, threads = most // tile * tile, config.threads if config.threads > 1 else 0
    if size < LONG_ROW * tile or -(-loops.extents[config.lane] // size) < max(BLOCKS_A_THREAD * threads, 2):
        return None
    order = (*(n for n in near.order if n not in (model.n, config.lane)), model.n, config.lane)
    place = model.st.a.name, f"{config.lane}:{size}"
    return near.changed(order=order, cache=((config.lane, size),), pack_at=(place,))


def in_blocks(model: Model, loops: Loops, config: Config) -> Iterator[Config]:
    """Yield a gradient of the weights whose factors are packed where they are read: each group packs its own channels,
    in blocks of pixels, or all pixels if these are too few for two blocks. There are none if factors are not packed by
    transposing tiles, nor on vectors unless rows fill one, and taps repeat elements of a packed source that exceeds
    the second-level cache, or the factors of 1x1 weights exceed it. Scalable vectors keep the factors and sums of a
    block on one unit, and have none.

    Both factors of a block stay in the second-level cache while all tiles of the result read them. Several threads sum
    parts of the pixels in blocks of their own.
    """
    terms = config.tiles_at("k_step")
    whole = all(is_true(view.mask) for view in model.st.factors)
    joined = [n for n, kind in loops.kinds.items() if kind != "k" and len(loops.dims[n]) > 1]
    apart = not joined or (joined == [config.lane] and _packs_far(model, config))
    filled = is_filled(model.st, model.st.a.name, config) and is_true(model.st.b.mask) and apart
    even = (whole or filled) and not config.staged("unfold")
    plain = model.unit.dot and not model.target.vectors.scalable
    if model.st.constant or not (plain and even) or len(terms) != 1:
        return
    pixels, _ = terms[0]
    is_long = len(loops.dims[pixels]) == 1 and loops.extents[pixels] >= model.lanes
    streams = len(loops.dims[pixels]) > 1 and _streams_blocks(model, config)
    if config.threads > 1:
        if model.unit.rows > 1 or (parts := _parts_of_threads(model, loops, config)) is None:
            return
        config, loops = parts
        ((pixels, _),) = config.tiles_at("k_step")
    if model.unit.rows == 1 and not (streams or (is_long and _repeats_far(model, config))):
        return
    if not all(packs_vectors(model, view, pixels, config.lane) for view in model.st.factors):
        return
    groups = model.batch if loops.extents.get(model.batch, 1) > 1 else ""
    names = [view.name for view in model.st.factors]
    part = ((PART, 1),) if config.threads > 1 else ()
    sizes = [*_blocks(model, loops, config)]
    if streams and (part or len(config.reduce) > 1):
        sizes = [*filter(None, [_contiguous_pixels(model, loops, config)])]
    if model.unit.rows == 1:
        steps = model.terms // (terms[0][1] * config.threads)
        least = model.target.costs.reload
        sizes = [x for x in sizes[-1:] if steps * prod(size / loops.extents[n] for n, size in x) >= least]
    for tiles in sizes:
        pack_at = tuple((n, groups or tiles[-1][0]) for n in names)
        yield config.changed(cache=(*part, *tiles), pack=(), pack_at=pack_at)
    if groups and not sizes and model.unit.rows > 1:
        yield config.changed(pack=(), pack_at=tuple((n, groups) for n in names))


def _packs_far(model: Model, config: Config) -> bool:
    """Return whether packed copies of both factors are so far larger than near caches that writing and reading them
    takes longer than loading the sums again for each block.
    """
    return packed_elements(model, config) * model.bytes + model.st.b.bytes > FAR_COPIES * model.target.costs.images_near


def _parts_of_threads(model: Model, loops: Loops, config: Config) -> tuple[Config, Loops] | None:
    """Return the config with a part of the outermost loop over pixels that threads divide equally for each of them, and
    the loops of a part; None if there is no such loop, or the result has no room for parts.

    Of fused loops over pixels only those within that loop stay fused.
    """
    ((_, step),) = config.tiles_at("k_step")
    names = [n for fused in config.reduce for n in loops.dims[fused]]
    divided = [n for n in names if not model.sizes[n] % (config.threads * (step if n == names[-1] else 1))]
    if not (splits(model.whole) and divided):
        return None
    parted = divided[0]
    if parted not in loops.extents:
        config = _fused_within(loops, config, parted)
        for pair in config.fuse:
            model.fuse(*pair)
        loops = loops_after_fusing(model.st, config)
    split = config.changed(split=((parted, config.threads),), order=(PART, *config.order))
    return split, with_fields(loops, extents={**loops.extents, parted: loops.extents[parted] // config.threads})


def _fused_within(loops: Loops, config: Config, outer: str) -> Config:
    """Return ``config`` with the loops over pixels apart that are fused, except those within ``outer``."""
    ((pixels, step),) = config.tiles_at("k_step")
    names = loops.dims[pixels]
    around = names[: names.index(outer) + 1]
    inner, pairs = fused_chain(names[len(around) :] or names[-1:])
    apart = [fused_name(*pair) for pair in fused_chain(names)[1]]
    others = (pair for pair in config.fuse if fused_name(*pair) not in apart)
    reduce = (n for name in config.reduce for n in ((*dict.fromkeys((*around, inner)),) if name == pixels else (name,)))
    return config.changed(fuse=(*others, *pairs), reduce=tuple(reduce), k_step=((inner, step),))


def _repeats_far(model: Model, config: Config) -> bool:
    """Return whether taps repeat most elements of a packed source, which exceeds the second-level cache."""
    elements = packed_elements(model, config)
    return elements >= REPEATED * prod(model.st.a.layout.shape) and elements * model.bytes > model.target.l2.bytes


def _streams_blocks(model: Model, config: Config) -> bool:
    """Return whether the factors of a gradient of 1x1 weights are read by several threads, or exceed the second-level
    cache.
    """
    size = sum(view.bytes for view in model.st.factors)
    alone = config.reduce == (config.tiles_at("k_step")[0][0],)
    if config.threads > 1:
        return alone
    return size > model.target.l2.bytes and (alone or (model.unit.rows == 1 and not has_taps(model)))


def has_taps(model: Model) -> bool:
    """Return whether a gradient of the weights is one of several taps."""
    return any(d.axis and d.size > 1 for d in model.st.of("m"))


def _blocks(model: Model, loops: Loops, config: Config) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield tiles of a loop over pixels, of sizes with which the factors of a block fill a part of the second-level
    cache, if that makes two blocks or more.

    Blocks of rows are equal, so that taps share them; the next larger divisor repeats fewer rows at their borders.
    Where lanes are taps and channels, a block has rows of one image.
    """
    ((pixels, step),) = config.tiles_at("k_step")
    shared = dict(shared_taps(model.st, config).keys())
    most = _most_pixels(model, config)
    outer, inner = 1, prod(loops.extents[n] for n in config.reduce)
    around: tuple[tuple[str, int], ...] = ()
    for name in config.reduce:
        inner //= loops.extents[name]
        if name == pixels or (loops.extents[name] > 1 and inner <= MOST_IMAGES * most):
            break
        if len(model.dims[config.lane]) > 1:
            around += ((name, 1),) if loops.extents[name] > 1 else ()
        else:
            outer *= loops.extents[name]
    whole, unit = loops.extents[name], step if name == pixels else 1
    size = max(most // (outer * inner * unit), 1) * unit
    sizes = [size]
    if unit == 1:
        divisors = [n for n in range(1, whole + 1) if whole % n == 0]
        repeats = any(loops.extents[tap] > 1 for tap, pixel in shared.items() if pixel == name)
        sizes = [*[n for n in divisors if n <= size][-1:], *[n for n in divisors if n > size][:repeats]]
    yield from ((*around, (name, n)) for n in sizes if 2 * n <= whole)


def _most_pixels(model: Model, config: Config) -> int:
    """Return the pixels of a block whose factors fill a part of the second-level cache."""
    ((_, step),) = config.tiles_at("k_step")
    shared = dict(shared_taps(model.st, config).keys())
    channels = sum(prod(d.size for d in model.st.of(kind) if d.name not in shared) for kind in "mn")
    several = len(config.reduce) > 1 and (config.threads > 1 or has_taps(model))
    if model.unit.rows > 1:
        part = BLOCK_OF_L2 if len(model.dims[config.lane]) == 1 else BLOCK_OF_TAPS
    else:
        part = BLOCK_OF_VECTORS if several else BLOCK_OF_PIXELS
    return max(MIN_BLOCK_STEPS * step, model.target.l2.bytes // part // (channels * model.bytes))


def _contiguous_pixels(model: Model, loops: Loops, config: Config) -> tuple[tuple[str, int], ...]:
    """Return tiles of the loops over pixels, in whose order a block is contiguous: equal parts of an image that exceeds
    a block, or several images or rows. There are none if all pixels are one block.
    """
    ((pixels, step),) = config.tiles_at("k_step")
    most, inner = _most_pixels(model, config), prod(loops.extents[n] for n in config.reduce)
    tiles: list[tuple[str, int]] = []
    for name in (n for n in config.reduce if loops.extents[n] > 1):
        count, unit = loops.extents[name], step if name == pixels else 1
        inner //= count
        size = most // (inner * unit) * unit
        if size >= count:
            return tuple(tiles)
        if size:
            blocks = -(-count // size)
            return (*tiles, (name, -(-count // (blocks * unit)) * unit))
        tiles.append((name, 1))
    return ()


def with_converted(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return ``config`` with a copy of the source converted to the type of sums, or None.

    Threads copy rows of an image.
    """
    of_image = model.images in config.order and loops.kinds[config.lane] == "n"
    if not (model.copies_converted and of_image and config.realise == "peel"):
        return None
    rows = not any(len(model.dims[n]) > 1 for n in loops.of("m"))
    return config.changed(realise="pad_copy") if rows or config.threads == 1 else None


def without_padding(model: Model, loops: Loops, config: Config) -> Config:
    """Return ``config`` with loops of a padded copy over the taps that exist, if enough of them meet padding alone."""
    if config.realise != "pad_copy" or not model.inside or model.unit.rows > 1 or not model.st.constant:
        return config
    taps = restrictable(model.st, loops, config)
    axes = {d.axis for d in model.st.of("k") if d.name in taps}
    along = {d.name for d in model.st.of("m") if d.axis in axes}
    present = prod(x.mean() / x.extent for name, x in model.inside.items() if name in along)
    restrict = (n for n in config.reduce if n in taps)
    return config if 1 - present < LEAST_ABSENT else config.changed(restrict=tuple(restrict))


def with_copied_rows(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return ``config`` with a copy of each image, whose pixels have few channels, or None: vectors of whole rows are
    copied from beyond the second-level cache, where tiles would wait for their lines.
    """
    if not model.target.costs.row_wait:
        return None
    plain = config.realise == "peel" and loops.kinds[config.lane] == "n" and model.unit.rows == 1
    plain = plain and model.st.a.name not in config.packed and model.st.a.requantised is None
    fused = any(len(model.dims[n]) > 1 for n in loops.of("m"))
    if not plain or fused or model.lacking_terms(config):
        return None
    return config.changed(realise="pad_copy") if rows_of_few_channels(model) else None


def with_groups_together(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return ``config`` with a copy of the groups of a register tile that makes them adjacent lanes, or None: of groups
    of one channel that lie apart. Each tile of groups passes all pixels of an image, whose copy the second-level cache
    keeps.
    """
    if config.lane != model.batch:
        return None
    st = model.st
    image = prod(st.a.layout.shape[2:]) * config.size(config.lane) * model.bytes
    plain = st.constant and config.realise == "peel" and not (st.shifted or st.sizes or model.classes or model.phases)
    plain = plain and bool(model.images) and st.a.layout.is_plain and st.a.requantised is None
    if not plain or image > model.target.l2.kept or not has_groups_apart(st, config):
        return None
    groups = [n for n in config.order if loops.kinds[n] != "m"]
    pixels = [n for n in config.order if n not in groups and n != model.images]
    images = [n for n in config.order if n == model.images]
    return config.changed(realise="pad_copy", order=(*images, *groups, *pixels))


def with_packed_source(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return ``config`` with a packed source in place of its copy with borders, or None if taps repeat elements.

    Tiles then leave out the pixels beyond borders, and packing leaves out those that a stride passes over.
    """
    plain = config.realise == "pad_copy" and model.unit.dot and model.unit.rows == 1 and not model.phases
    plain = plain and not model.unit.copied
    if not (plain and model.is_copied and model.reads_once()) or model.classes or model.st.a.requantised is not None:
        return None
    return config.changed(realise="peel", pack=(model.st.a.name, *config.staged("pack")))


def with_paired_taps(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return ``config`` with the taps of a row in the place of channels as the terms that an instruction adds up, or
    None: of a copied source whose channels lie apart, and where taps leave fewer of these terms empty.
    """
    terms, taps = model.unit.terms, model.st.reduce[-2:-1]
    plain = model.unit.dot and model.unit.rows == 1 and config.realise == "pad_copy"
    if not (plain and taps and model.is_copied) or config.tiles_at("k_step") != ((model.k, terms),) or model.classes:
        return None
    (tap,) = taps
    channels, count = model.sizes[model.k], model.sizes[tap]
    is_row = tap in loops.extents and config.size(tap) == 1 and model.src.get(Var(tap)) == 1
    if not is_row or -(-count // terms) * channels >= count * -(-channels // terms):
        return None
    return config.changed(k_step=((tap, terms),))


def with_shared_taps(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return the config of a gradient of the weights of groups of one channel with several pixels in straight lines, so
    that an element which several of them read through different taps is converted to the type of sums once.

    None if no taps share pixels, elements have the type of sums, or lanes are not adjacent, or if the register tile has
    several pixels already.
    """
    st, pixel = model.st, model.st.reduce[-1]
    alone = config.lane == model.batch and model.src.get(Var(model.batch), 1) == 1 and not config.tiles_at("k_step")
    if st.constant or not alone or st.a.dtype == st.acc or pixel not in loops.extents:
        return None
    if pixel in dict(config.tiles_at("register")):
        return None
    taps = [n for n, size in config.tiles_at("register") if size > 1 and loops.axes[n]]
    if loops.axes[pixel] not in {loops.axes[n] for n in taps} or loops.extents[pixel] < PIXELS_OF_SHARED_TAPS:
        return None
    return config.changed(k_step=((pixel, PIXELS_OF_SHARED_TAPS),))


def holding(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return ``config`` with a window's weights held in registers while pixels of its channels stream, or None."""
    tile = dict(config.tiles_at("register"))
    if config.lane != model.batch or not model.st.constant or model.stride_of(config.lane) > 1:
        return None
    vectors = -(-tile[config.lane] // model.lanes)
    if not weights_fit(loops, tile, vectors, model.target.registers, model.src, model.bytes == 1):
        return None
    names = [n for n in config.order if n != model.images and loops.kinds[n] == "m"]
    channels = [n for n in config.order if n not in names and n != model.images]
    images = [n for n in config.order if n == model.images]
    return config.changed(order=(*images, *channels, *names), resident=(model.st.b.name,))


def with_near_channels(model: Model, loops: Loops, config: Config) -> Iterator[Config]:
    """Yield ``config`` with blocks of channels outside of the loops over pixels: of a few tiles, and of as many
    channels as leave the rows under a tile of windows in the first-level cache until the next tiles read them.
    """
    if config.lane != model.batch or not model.st.constant or model.src.get(Var(model.batch)) != 1 or model.phases:
        return
    along = [n for n in loops.of("m") if loops.axes[n]]
    if config.staged("resident") or not along:
        return
    row = model.dims[along[-1]][-1]
    line = model.target.l1.line // model.bytes
    sizes = {**{n: 1 for n in model.sizes}, **dict(config.tiles_at("register")), config.lane: line}
    sizes |= {n: model.sizes[n] for n in (*model.st.reduce, row)}
    channel = sum(array.touched(sizes)[0][0] for array in model.traffic.of(config)) / line
    unit, count = lcm(config.size(config.lane), line), loops.extents[config.lane]
    parts = -(-count * channel // model.target.l1.kept)
    size = int(-(-count // (parts * unit)) * unit)
    for tiles in sorted({size // unit, *FEW_TILES}):
        if tiles * unit < count:
            yield config.changed(cache=((config.lane, tiles * unit),))


def streamed(model: Model, loops: Loops, config: Config) -> tuple[str, ...]:
    """Return the operands whose fragments bypass the nearest cache, or that are prefetched, and a result that
    bypasses the caches or that is accumulated with prefetches.
    """
    if model.unit.rows == 1:
        result, cost = model.st.c, model.target.costs
        size = result.layout.size * dtype(result.dtype).bytes
        is_added = model.adds_result and 0 < cost.prefetched_results <= size
        far = is_added or size > cost.result_near
        if not far and 2 * size > cost.result_near:
            source = model.st.a.layout.size * dtype(model.st.a.dtype).bytes
            far = source < size and size + source > cost.result_near
        passes = far and model.target.fence and has_full_vectors(model.st, config, model.lanes)
        return (*_prefetched(model, loops, config), *((result.name,) if passes else ()))
    if not model.target.fragments:
        return ()
    panels, columns = model.panels(loops, config), config.size(config.lane) // model.lanes
    chosen = streamed_operand(panels, columns, model.target.costs.fragment_kept)
    roles = ("source", "weights") if loops.kinds[config.lane] != "m" else ("weights", "source")
    return tuple(view.name for view, role in zip(model.st.factors, roles) if role == chosen)


def _prefetched(model: Model, loops: Loops, config: Config) -> tuple[str, ...]:
    """Return the packed weights and the source, if loads of their vectors prefetch lines."""
    fetched = (model.st.b.name,) if prefetches_weights(model.st, config, model.target) else ()
    fetched = (*fetched, *_prefetched_copies(model, config))
    return (*fetched, model.st.a.name) if _prefetches_pixels(model, loops, config) else fetched


def _prefetched_copies(model: Model, config: Config) -> tuple[str, ...]:
    """Return the factors of a gradient of the weights that blocks of pixels pack, if loads of their vectors prefetch
    lines: a block is packed between products, during which no prefetcher runs ahead. Those whose pixels are adjacent
    are read in as many streams as there are channels, each of which ends before the line that would be prefetched.
    """
    least, near = model.target.costs.prefetched_copies, dict(config.staged_at("pack_at"))
    if model.st.constant or not least:
        return ()
    pixel = Var(model.st.reduce[-1])
    large = (view for view in model.st.factors if view.name in near and view.bytes >= least)
    return tuple(view.name for view in large if abs(view_steps(view).get(pixel, 0)) > 1)


def _prefetches_pixels(model: Model, loops: Loops, config: Config) -> bool:
    """Return whether loads of vectors of pixels prefetch lines."""
    source, costs = model.st.a, model.target.costs
    plain = (
        model.st.constant
        and config.realise == "peel"
        and source.name not in config.staged("pack")
        and not config.staged_at("pack_at")
        and loops.kinds[config.lane] == "m"
        and not weights_stream(model.st, config, model.target)
    )
    if not plain or not 0 < costs.prefetched_pixels <= prod(source.layout.shape) * model.bytes:
        return False
    if model.strided_access and TILES_AHEAD * config.size(config.lane) >= loops.extents[config.lane]:
        return False  # those of the next channel
    few = tiles_of_the_same_pixels(model, loops, config) <= costs.prefetched_passes
    return (few or is_from_memory(model)) and keeps_rows_of_channels(model, config)
