"""Named costs of a micro-architecture, by which the cost model ranks configs.

Only ratios of costs matter, because the model compares configs of one problem. A level of an instruction set sets the
costs that depend on the width of its vectors. The defaults of all others were measured on Zen 4 and hold on Intel
servers; a micro-architecture whose costs differ replaces them in its row. CPUs with AMX start two multiply-adds of a
vector in a cycle, where the level counts one: the costs of fragments are 1.4 times the measured cycles, as kernels of
either kind take the same time then. The costs of threads (`meeting`, `between_cores`) were measured on an Intel server
with two cores, whose L2 caches exchange lines: rows of 21 KiB that two cores share take 5 us of a chain of three
kernels, and each kernel of it 2.5 us beside its work.
"""

from __future__ import annotations

from typing import NamedTuple

from convsmith.diag.record import record


class FarRates(NamedTuple):
    """Rates of cache lines from beyond the second-level cache in a transform, relative to the rate in the model of
    products: for weights that are read ``first``, for weights that are read ``again``, and for ``arrays`` between the
    nests of a block.
    """

    first: float
    again: float
    arrays: float


WAITING = FarRates(1.0, 6.0, 2.0)
"""Rates measured on Zen 5, which fit measurements of Zen 4 as well, for loads of weights that prefetch no lines."""
PREFETCHING = FarRates(1.5, 6.0, 4.0)
"""Rates for loads of weights that prefetch lines."""


@record(frozen=True)
class Costs:
    """Costs of one core."""

    multiply_add: float
    """Cycles between the starts of two independent multiply-adds of a vector."""
    broadcast: float
    """Cycles to load one element into all lanes of a vector."""
    latency: float
    """Cycles from a multiply-add to one that depends on it."""
    broadcast_pair: float = 0
    """Cycles to load a pair of 16-bit floating-point elements into all lanes for an instruction that multiplies pairs:
    LLVM makes it no operand of that instruction. 0 stands for `broadcast`.
    """
    slow: tuple[tuple[str, float], ...] = ()
    """Instructions that are slower than a multiply-add, with the cycles between the starts of two of them."""
    convert: float = 0
    """Cycles that converting a 16-bit floating-point element of the source takes from the arithmetic of a step."""
    widen: float = 0
    """Cycles that widening the bytes of a pixel, which all lanes share, to words takes from the arithmetic of a step; 0
    where no copy of the source has words.
    """
    extend: float = 0
    """Cycles of the unit that extends the bytes of a vector to the type of sums, as windows load them."""
    temporaries: int = 0
    """Registers that a multiply-add needs besides its operands."""

    call: float = 25
    """Cycles to call a register tile and to set up its loops."""
    straight_call: float = 11
    """Cycles to call a register tile that has no loops."""
    turn: float = 6
    """Cycles from one register tile to the next within a function."""
    hidden: float = 0.66
    """Fraction of the register file that accumulators may use before the latency of their initialisation and write-back
    shows.
    """
    hidden_far: float = 0.5
    """`hidden` for a result that is as large as weights and is written to memory beyond the caches."""
    exposed: float = 10
    """Multiply-adds that a tile loses for each accumulator beyond that fraction."""
    lane_sum: float = 4
    """Cycles for the horizontal sum of one accumulator among several; half of it if the sums fill half a vector."""
    scatter: float = 1.9
    """Cycles to store a lane of a vector whose lanes are scattered elements of a cache line."""
    scatter_far: float = 7.5
    """Cycles to store a lane of a vector whose lanes are elements of different cache lines."""
    scatter_clash: float = 34
    """Cycles to store to a cache line of a result that other ones have evicted from a set of the first-level cache."""
    page: int = 4096
    """Bytes of a page."""
    page_turn: float = 0
    """Cycles to store a vector of a result beyond the caches that lies on another page than the vectors before it."""
    turned_pages: int = 0
    """Channels of such a result, each on pages of its own, up to which these pages keep their entries in the first
    table of addresses, so that they cost nothing.
    """
    long_epilogue: int = 24
    """Operations of an epilogue above which it gets a loop of its own: LLVM compiles long unrolled code slowly."""
    instruction: int = 8
    """Bytes of an instruction on vectors with an operand in memory."""
    byte_product: int = 3
    """Instructions of a multiply-add of vectors of which an operand is extended from bytes."""
    masked_word: int = 4
    """Minimum bytes of an element of which a masked store of a vector takes no longer than another one."""
    code_kept: int = 32 << 10
    """Bytes of code that the first-level cache of instructions keeps."""
    code_byte: float = 0.037
    """Cycles to fetch a byte of code that it does not keep, measured on Zen 5."""
    pages: int = 64
    """Pages that have an entry in the first table of addresses."""
    pages_near: int = 8 << 20
    """Bytes of arrays whose pages all have an entry in the tables of addresses."""
    page_near: float = 0.5
    """Cycles to look up a page that the first table of addresses lacks, relative to one that all tables lack."""
    page_walk: float = 25
    """Cycles to look up the address of a page without an entry in the tables of addresses."""
    gather: float = 1.3
    """Slow-down of a step whose source lanes come from two vectors."""
    gather_singly: float = 5
    """Slow-down of a step whose source lanes come from more than two vectors, so that each lane is loaded alone."""
    interleave: float = 0
    """Cycles to interleave a vector of the columns of several pixels, as terms of a dot product; 0 where kernels have
    none.
    """
    columns: float = 0
    """Cycles to interleave a vector of the terms of two taps, whose products one instruction adds up; 0 where products
    of taps are added one by one.
    """
    interleaved: float = 0
    """Cycles of arithmetic to interleave the rows of memory that are the terms of a vector of a gradient's factor; 0
    where kernels pack both factors.
    """
    lane_load: float = 0.8
    """Cycles to load one lane of a vector whose elements are apart in memory."""
    part_load: float = 0
    """Cycles to load terms of which a pixel lacks some, in addition to a broadcast."""
    result_step: float = 0
    """Cycles of an operation of the epilogue on a vector of results; 0 where products on vectors hide them."""
    crossing: float = 1.15
    """Slow-down of a step whose vectors of pixels start at any tap, and so lie on two cache lines."""
    arriving: float = 2
    """Slow-down of loads from cache lines that are still in flight to the first-level cache, as in a gradient of the
    weights.
    """
    clash: float = 4.5
    """Cycles to load a pixel in each step whose line others of the same set evict from the first-level cache."""
    added_ways: int = 0
    """Ways of a set of the first-level cache beyond those of the reference cache, from which configs follow."""
    copy: float = 2
    """Cycles to copy one pixel's channels into a padded copy."""
    window: float = 6
    """Cycles to copy a vector of a run of memory into a copy of windows that the first-level cache holds."""
    window_far: float = 7.5
    """Cycles to copy a vector of a run of memory into a larger copy of windows."""
    window_element: float = 1.75
    """Cycles to copy an element of a channel that lies apart into a copy of windows."""
    pack: float = 0.5
    """Cycles to pack an element of 4 bytes in each call, if the operand fits in the second-level cache."""
    pack_near: float = 0.2
    """Cycles to pack an element in an iteration of a loop, into memory that stays in a cache until it is read."""
    pack_channels: float = 0
    """Cycles to copy an element from channels that lie apart to vectors of channels for a transform, or back. 0 stands
    for `pack`.
    """
    pack_call: float = 8000
    """Cycles to allocate the packed operand of a call and to call the kernel that packs it."""
    pack_far: float = 3
    """Cycles to pack an element of 4 bytes in each call, if the operand does not fit in the second-level cache."""
    result_moves: int = 2
    """Times that a line of a result moves: it is fetched before it is written."""
    reload: int = 32
    """Multiply-adds of an accumulator that amortise storing it to memory and loading it again."""
    weights_byte: float = 0
    """Cycles to load a byte of weights that no cache keeps from one call to the next, in addition; 0 if caches keep
    them.
    """
    memory_byte: int = 2
    """Multiply-adds in the time of loading one byte from main memory."""
    thread_start: int = 1 << 20
    """Multiply-adds of one lane each that amortise starting a thread for a part of a reduction."""
    meeting: float = 14000
    """Cycles from the end of a nest on the first thread to the start of the next nest on all threads."""
    between_cores: float = 2
    """Bytes per cycle that a core loads from cache lines that another core has written."""

    weights_near: int = 1 << 62
    """Bytes of weights that the last cache keeps from one pass over them to the next."""
    memory_weight: float = 0
    """Cycles to load a byte of weights beyond those from memory, in addition to its delivery by a nearer cache."""
    weights_kept: int = 1 << 18
    """Bytes of packed weights that stay in the second-level cache while the pixels stream through it."""
    streamed_weights: int = 0
    """Bytes of packed weights of a product that stream for each tile of rows from beyond the second-level cache, faster
    than a source does for each tile of columns.
    """
    blocks_kept: int = 1 << 19
    """Bytes of both factors in a block of pixels that the second-level cache keeps until all tiles of a gradient of the
    weights have read them.
    """
    images_near: int = 1 << 21
    """Bytes of images and results up to which arithmetic hides the loads."""
    refill: float = 32
    """Bytes that the second-level cache delivers in the time of one multiply-add."""
    scattered_rows: float = 4
    """Ratio of an intermediate to the second-level cache from which computing it row by row pays where its channels are
    far apart, so that each row is written in short pieces, once for each vector of channels.
    """
    scalable_units: int = 4
    """Minimum number of units of a scalable vector for which a tile of several vectors leaves channels: of SVE, 512
    bits.
    """
    inner_taps: float = 1.04
    """Slow-down of arithmetic in which the taps of a row run within the channels, as straight-line code."""
    result_near: int = 1 << 62
    """Bytes of a result, with those of a smaller source, from which stores past the caches are faster."""
    beyond: float = 3
    """Cost of loading a cache line from L3 or memory, relative to L2."""
    waited: float = 1.0
    """Part of the time of a cache line from L3 or memory for which vectors of pixels wait."""
    waited_near: float = 0
    """Part of the time of a cache line from the second-level cache for which vectors of pixels wait."""
    copied_line: float = 0
    """Cycles to wait for a cache line from L3 or memory that is copied next to the tiles that read it."""
    crossed_line: float = 0
    """Cycles to load the second cache line of a vector of pixels that lies on two, where channels lie apart."""
    arriving_line: float = 0
    """Cycles between two cache lines of pixels from L3 or memory, where each channel of the pixels lies apart."""
    late_line: float = 0
    """Cycles to wait in addition for such a line from memory that no load has prefetched."""
    late_result: float = 0
    """Cycles to wait for the first line of each run of a result in memory, where vectors of pixels store a run of each
    channel in turn.
    """
    channel_line: float = 0
    """Cycles to wait for a line of pixels from beyond the second-level cache that a tile of several taps reads, where
    each channel lies apart and the first-level cache loses the lines between two tiles; 0 where loads hide them.
    """
    streamed: float = 8
    """Cost of loading a cache line that a nest streams from main memory again and again, relative to L2."""
    streamed_pixels: float = 8
    """Cost of loading a cache line of pixels that pass packed weights again and again, relative to L2, and of pixels of
    a gradient of 1x1 weights in blocks of channels, if it is lower than `beyond`.
    """
    exposed_near: float = 0.35
    """Part of the time in which the second-level cache delivers lines that windows of few multiply-adds wait for."""
    exposed_far: float = 0.35
    """Ratio of the time in which such windows wait for a line from beyond that cache to that of its delivery from it,
    where it does not hold all images.
    """
    run: float = 1.0
    """Lines that arrive in the time which the first line of a run of neighbours takes besides."""
    far_run: float = 0.0
    """Lines that arrive from beyond the second-level cache in the time which the first one of a run takes besides."""
    images_far: int = 32 << 20
    """Bytes of images and results from which no cache keeps them, so that their lines come from memory."""
    streams: int = 32
    """Streams of lines from memory that prefetchers follow at once."""
    memory_line: float = 0
    """Cycles that a transform waits for a line from memory, and windows for one of more streams than that."""
    memory_part: float = 0
    """Cycles that they wait in addition if a register tile reads a small part of each line."""
    memory_run: float = 0
    """Cycles that windows wait for the first line of the run of a block of channels in memory."""
    memory_page: float = 0
    """Cycles that fused stages wait for the first lines of a page of a source in memory whose rows are apart."""
    memory_wait: float = 0
    """Cycles that a register tile waits for lines from memory, one of each of its pixels, that end a short run."""
    row_wait: float = 0
    """Cycles that a register tile waits for the lines of a row of few channels from beyond the second-level cache."""
    evicted_run: float = 2.0
    """Lines that arrive in the time of a run whose lines other ones have evicted, because they fall into few sets."""
    spill: float = 4.0
    """Multiply-adds in the time of storing a vector that registers do not hold and loading it again."""
    prefetched: int = 0
    """Minimum bytes of packed weights from which loads of their vectors prefetch lines; 0 if no load does."""
    prefetched_transforms: int = 0
    """Minimum bytes of a transform's weights from which loads of their vectors prefetch lines; 0 if no load does."""
    weights_ahead: int = 4096
    """Bytes from a vector of packed weights, or of an operand that blocks of a sum pack, to the cache line that its
    load prefetches.
    """
    prefetched_copies: int = 0
    """Minimum bytes of a factor of a gradient of the weights of which loads that pack a block of pixels prefetch lines;
    0 if no load does.
    """
    prefetched_pixels: int = 0
    """Minimum bytes of a source from which loads of its vectors of pixels prefetch lines; 0 if no load does."""
    prefetched_passes: int = 1 << 30
    """Maximum number of tiles of channels that read the same vectors of pixels and prefetch those of later pixels. Each
    of them loads the later lines to the first-level cache again, where they evict those that the next one reads.
    """
    fetched_pixels: int = 0
    """Minimum bytes of a source of which tiles of pixels fetch those of the next tile; 0 if no tile does."""
    fetched_blocks: int = 0
    """Minimum bytes of a factor of a gradient of the weights of which tiles fetch the next block of pixels; 0 if no
    tile does.
    """
    fetched_weights: int = 0
    """Minimum bytes of packed weights of which tiles of pixels fetch the next tile of channels, where caches keep them
    from one call to the next; 0 if no tile does.
    """
    prefetched_results: int = 0
    """Minimum bytes of a result from which loads of its vectors, to add to them, prefetch lines; 0 if no load does."""

    fragment_product: float = 22
    """Cycles of a product of two fragments."""
    fragment_move: float = 11
    """Cycles to load or to store a fragment."""
    fragment_move_far: float = 33
    """Cycles to load a fragment from the second-level cache."""
    fragment_row: float = 0
    """Cycles of a vector unit to put another row of pixels into a fragment whose rows are loaded one by one."""
    fragment_turn: float = 84
    """Cycles between two register tiles of fragments."""
    fragment_configuration: float = 170
    """Cycles to configure the registers of fragments for another shape and back."""
    fragment_kept: int = 48 << 10
    """Bytes of fragments that stay in the first-level cache between register tiles that all use them."""
    fragment_finish: float = 6
    """Cycles to load a row of sums from memory and to store its result."""
    fragment_run: float = 45
    """Cycles to begin a run of memory that results of a register tile of fragments fill, half a page or more from the
    next run, in a result that no near cache holds.
    """
    fragment_line: float = 10
    """Cycles to wait for a line of an image beyond near caches that a tile of fragments reads in a row of its own,
    beside those rows that fill one fragment.
    """
    fragment_pixel: float = 4
    """Cycles to begin a pixel in each register tile with some of its results, if the first-level cache holds all
    weights and the pixel comes from beyond it; otherwise loads hide this cost.
    """

    transform: float = 1.0
    """Ratio of the measured time of a transform to the sum of the times of its loads, stores and arithmetic."""
    word_transform: float = 1.0
    """Ratio of the time of an expected cycle of a transform of bytes to that of dot products of bytes, whose several
    instructions take longer than the model counts.
    """
    interrupted: float = 0
    """Cycles to wait for a cache line of a transform's weights from beyond the second-level cache if other register
    tiles of the same weights interrupt their stream; 0 where loads prefetch lines.
    """
    transform_far: FarRates = WAITING
    """Rates of lines in a transform whose loads prefetch no weights."""
    transform_prefetched: FarRates = PREFETCHING
    """Rates of lines in a transform whose loads prefetch weights."""

    def prefetches_transform(self, size: int) -> bool:
        """Return whether loads of vectors of a transform's packed weights of ``size`` bytes prefetch lines."""
        return 0 < self.prefetched_transforms <= size

    def prefetches(self, size: int) -> bool:
        """Return whether loads of vectors of packed weights of ``size`` bytes prefetch lines."""
        return 0 < self.prefetched <= size
