"""Micro-architectures: the CPUs on which costs differ from the reference costs of a level.

A level has reference facts, which hold on the smaller machines that have it. A micro-architecture replaces costs of the
levels of its instruction set. The default is the micro-architecture of the host, which the system's description of the
CPU determines; CONVSMITH_MICRO_ARCHITECTURE selects another one. The host's caches are detected only for measurements
and pages; configs use the reference caches. Measured on an Intel server, cache tiles for its second-level cache of 2
MiB made kernels 19 % slower in the mean of 22 problems and one of them 4 times slower; tiles for its first-level cache
of 48 KiB made 40 problems 2 % slower.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.record import record
from convsmith.diag.settings import settings
from convsmith.machine.base import Machine
from convsmith.machine.costs import FarRates
from convsmith.machine.host import Cpu, cpu, cpu_features

__all__ = ["MICRO_ARCHITECTURES", "MicroArchitecture", "micro_architecture", "named", "of_host", "preferred"]


@record(frozen=True)
class MicroArchitecture:
    """CPUs with the same costs.

    ``architecture`` is the first word of the LLVM triple of the levels that the costs apply to; empty matches all.
    ``vendor`` and ``families`` are the system's names; empty matches all. ``needs`` are features that distinguish the
    CPUs from older ones of a family. ``costs`` are the costs, by name, that differ from a level's reference costs;
    ``by_bits`` are further costs for the levels whose vectors have these bits.
    """

    name: str
    architecture: str = ""
    vendor: str = ""
    families: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    costs: tuple[tuple[str, Any], ...] = ()
    by_bits: tuple[tuple[int, tuple[tuple[str, Any], ...]], ...] = ()

    def has(self, cpu: Cpu, features: frozenset[str]) -> bool:
        """Return whether a CPU with these features belongs to the micro-architecture."""
        named = self.vendor in ("", cpu.vendor) and (not self.families or cpu.family in self.families)
        return named and set(self.needs) <= features

    def costs_of(self, bits: int) -> dict[str, Any]:
        """Return the costs that differ from the reference costs of a level whose vectors have ``bits``, by name."""
        return {**dict(self.costs), **dict(dict(self.by_bits).get(bits, ()))}

    def of(self, level: Machine) -> Machine:
        """Return the level with the costs of the micro-architecture, if it has the level's architecture."""
        changes = self.costs_of(level.vector_bits)
        if not changes or self.architecture not in ("", level.triple.partition("-")[0]):
            return level
        groupings = tuple(map(self.of, level.groupings))
        return replace(level, costs=replace(level.costs, **changes), groupings=groupings)


_INTEL_SERVER = (
    ("scatter_far", 1.9), ("crossing", 1.3), ("page_turn", 6.0), ("refill", 11.0),
    ("slow", (("vdpbf16ps_512", 4.8), ("vdpbf16ps_512_single", 4.8))),
    ("result_near", 32 << 20), ("prefetched", 512 << 10), ("prefetched_transforms", 512 << 10),
    ("prefetched_pixels", 3 << 19), ("prefetched_passes", 3), ("exposed", 6.0), ("prefetched_results", 3 << 19),
    ("transform", 1.5), ("transform_far", FarRates(0.19, 0.56, 0.175)),
    ("transform_prefetched", FarRates(0.47, 3.3, 0.62)), ("far_run", 8.0), ("fetched_blocks", 1 << 20),
    ("fetched_pixels", 3 << 20), ("part_load", 1.0), ("blocks_kept", 1 << 20), ("channel_line", 13.0),
)  # fmt: skip

_INTEL_SERVER_BY_BITS = ((256, (
    ("result_moves", 1), ("spill", 2.0), ("waited_near", 0.4), ("crossed_line", 0.5), ("arriving_line", 9.0),
    ("late_line", 30.0),
)), (512, (
    ("multiply_add", 0.72), ("broadcast", 0.9), ("latency", 5.6), ("exposed", 10.2), ("straight_call", 13.75),
    ("turn", 2.0), ("beyond", 1.5), ("exposed_near", 0.42), ("refill", 15.3), ("extend", 1.0),
    ("waited_near", 0.2), ("crossed_line", 1.0), ("arriving_line", 13.0), ("late_line", 40.0), ("result_step", 0.1),
    ("spill", 2.0),
)))  # fmt: skip

_ZEN = (
    ("prefetched_transforms", 1 << 20), ("far_run", 8.0), ("fetched_pixels", 2 << 20), ("fetched_blocks", 2 << 20),
    ("prefetched_pixels", 5 << 19), ("result_near", 32 << 20),
    ("prefetched_copies", 1 << 20), ("waited", 0.5), ("copied_line", 1.5), ("memory_line", 10.0),
    ("memory_part", 40.0), ("memory_run", 30.0), ("weights_near", 16 << 20), ("memory_weight", 0.06),
    ("transform_prefetched", FarRates(24.0, 24.0, 4.0)),
)  # fmt: skip
_ZEN3 = (
    *_ZEN, ("weights_near", 8 << 20), ("memory_weight", 0.09), ("images_far", 8 << 20), ("page_turn", 3.0),
    ("turned_pages", 64), ("streamed_weights", 4 << 20), ("channel_line", 13.0),
)  # fmt: skip
_ZEN4_BY_BITS = ((512, (
    ("broadcast_pair", 0.75), ("columns", 1.0), ("interleaved", 1.5), ("pack_channels", 0.25), ("transform", 0.7),
)),)  # fmt: skip
_ZEN3_BY_BITS = ((256, (("widen", 0.2),)),)
_ZEN5 = (
    *_ZEN, ("straight_call", 5.0), ("turn", 1.0), ("spill", 1.0), ("exposed_near", 0.5), ("exposed_far", 0.2),
    ("run", 1.5), ("streamed_pixels", 2.0), ("memory_wait", 60.0), ("memory_page", 800.0), ("row_wait", 35.0),
    ("part_load", 0.3), ("added_ways", 4), ("result_near", 28 << 20), ("late_line", 30.0),
    ("late_result", 60.0),
)  # fmt: skip
_ZEN5_BY_BITS = ((512, (("multiply_add", 0.5), ("exposed", 20.0), ("interleaved", 0.5), ("transform", 0.5))),)

MICRO_ARCHITECTURES = (
    MicroArchitecture("znver4", "x86_64", "AuthenticAMD", ("25",), ("avx512f",), _ZEN, _ZEN4_BY_BITS),
    MicroArchitecture("znver3", "x86_64", "AuthenticAMD", ("25",), ("avx2",), _ZEN3, _ZEN3_BY_BITS),
    MicroArchitecture("znver5", "x86_64", "AuthenticAMD", ("26",), ("avx512f",), _ZEN5, _ZEN5_BY_BITS),
    MicroArchitecture(
        "intel-server", "x86_64", "GenuineIntel", ("6",), ("avx512f",), _INTEL_SERVER, _INTEL_SERVER_BY_BITS
    ),
    MicroArchitecture("generic"),
)
"""A CPU's micro-architecture is the first match; the last one matches every CPU.

The reference costs of the levels of x86 were measured on Zen 4. On Intel servers, loads from beyond the second-level
cache are slower; the rates of transforms that prefetch weights were fitted on Sapphire Rapids to 120 configs of 23
problems (13 % of error). At 512 bits, Emerald Rapids starts two multiply-adds in a cycle, so that tiles of four vectors
by six pixels, which load less, are faster than those of two by fourteen. Its costs were fitted to the layers of
ResNet-50 and MobileNetV2 and to 37 problems of all directions: 50 of 90 first choices changed, which take 0.97 of the
time in the mean. At 256 bits, a result moves once between memories and vectors beyond the registers cost half: seven of
52 first choices changed, depthwise ones most, which take 0.96 of the time. Costs fitted to phases in which another
tenant used the second thread of the core made 60 of 90 choices slower, by 3 % in the mean. The first choices and
fastest configs of a Sapphire Rapids lose no more with them, where both were measured: 21 of 58 problems. Windows of
groups wait there, as on Zen 5, for the first lines of runs from beyond the second-level cache, more of them than
prefetchers follow: of 384 drawn depthwise choices of f32, bf16 and bytes, 12 changed at 512 bits, which take 0.59 of
the time in the mean, 0.30 at least and 1.14 at most, and 13 at 256 bits, which take 0.83, 0.64 and 1.00. Gradients of
1x1 weights fetch the next block of factors of 1 MiB and more: 80 of 384 drawn ones of f32 and f64 changed at 512 bits,
which take 0.77 of the time in the mean, 0.36 at least and 1.02 at most. Blocks of 1 MiB, of which the cache of 2 MiB
keeps one beside the sums, have longer rows than blocks of half: 0.978 of the time of 36 gradients in the mean. Tiles of
pixels fetch none: layers of many results lose up to 4 %, while those of few take down to 0.34 of the time. First layers
of bytes, of three channels in channels last, lose a cycle by each load of a pixel that lacks a term, so that they copy
the source into padded rows: five of them take 0.68 to 0.90 of the time at 512 bits, four 0.76 to 0.83 at 256 bits.
Steps of epilogues of bytes, which products on vectors do not hide, moved one of 100 choices to products on fragments,
which takes 0.73 to 0.94. Vectors beyond the registers cost half as at 256 bits: nine of 1,300 choices changed,
depthwise ones, which take 0.91 of the time in the mean, 0.75 at least and 1.18 at most.

Lines of pixels whose channels lie apart arrive there from L3 at 18 to 25 GB/s. Arithmetic hides them where a single
tile of channels reads them. The first of several tiles waits for them, and the others take longer from the second-level
cache than from a copy. Prefetches take 0.86 to 0.97 of the time of one to three tiles of channels and 1.1 of that of
eleven, except from memory, where they take 0.4 to 0.9 of it for any number of tiles: of 205 drawn problems in channels
first, 45 first choices of f32 changed, which take 0.88 of the time in the mean, 0.35 at least and 1.11 at most, 46 of
f64, which take 0.87, 0.38 and 1.44, and 14 at 256 bits, which take 0.95 in the mean. Copies of half a page of each
channel take 0.37 to 0.92 of the time of copies of tiles where channels in memory are 8 pages apart or more, and 1.2 to
2.2 of the time of prefetches where they are closer. In channels last, fetching the pixels of the next tile takes 0.88
of the time of 23 drawn sources of 2.7 MiB and more in the mean, 0.35 at least and 1.00 at most, and 0.99 of that of 16
smaller ones. Blocks of channels whose lines the first-level cache keeps take 0.79 of the time of eight drawn sums of
f64 over several taps in the mean, 0.50 at least and 1.05 at most; of 400 drawn problems of f32, one choice changed.

Zen 3, which lacks AVX-512, has the costs of memory of Zen 4: of 450 drawn problems of f32 on one thread, 148 first
choices changed, which take 0.875 of the time in the mean, 0.39 at least and 1.22 at most. A second-level cache of 512
KiB in place of the reference one changed 85 of these choices, which take 1.02 of the time in the mean. Where bytes are
multiplied as words, because weights are beyond the limit of products of bytes, a load of a pair of bytes and its
unpacking take two instructions beside the four of two vectors. Copies of words take 0.80 to 0.97 of the time of layers
of 64 and more channels of the result, and 0.97 to 1.1 of those of 24 and 32; ResNet-50 in bytes takes 0.90, MobileNetV2
0.92. The last cache of the one that was measured, which other cores share, delivers 40 GB/s to arrays of up to 8 MiB
and no more than the memory, 8 to 11 GB/s, to those of 12 MiB. So weights beyond 8 MiB come from memory in each pass,
and transforms of fewer pixels, which have fewer weights, are chosen more often: of 2,000 drawn problems of f32 on one
thread, 20 first choices changed, which take 0.93 of the time in the mean, 0.78 at least and 1.21 at most, and five
layers of 7x7 pixels with 256 to 1,024 channels take 0.68 to 0.84. Nor does a cache keep images and results beyond 8
MiB: of 1,000 drawn problems, half of them in batches, 29 first choices changed, which take 0.85 of the time in the
mean, 0.45 at least and 1.34 at most. The depthwise ones among them, which fetch the pixels of the tile below, take
0.79. Results of more than 64 channels, each on pages of its own, turn pages: of 2,800 drawn problems of f32 and f64, 23
first choices changed, which take 0.83 of the time in the mean, 0.33 at least and 1.24 at most. With that price for
fewer channels, too, 13 more of 1,000 changed, which take 1.08, 0.58 and 2.06.

The costs of Zen 4 and Zen 5 were fitted to searches of the layers of ResNet-50 and MobileNetV2
(`benchmarks/measurements/`), on Zen 5 also to 61 depthwise layers of other sizes, 30 to 220 configs each: loads of a
transform's weights prefetch lines there. Zen 5 starts two multiply-adds of 512 bits in a cycle, calls of straight code
and vectors that registers do not hold cost it little, and windows wait longer for lines of the second-level cache. Its
last cache delivers half as much as the second one, so that pixels may pass weights again: nine of 400 first choices of
six spaces changed, which take 0.94 of the time in the mean and 1.02 at most. Tiles of pixels whose vectors are weights
wait for the lines of sources beyond the second-level cache, which no prefetcher follows; fetching those of the next
tile takes 0.62 to 1.0 of the time of 1x1 layers of 3 MiB and more, and 1.0 to 1.02 below 2 MiB. Loads under a mask that
pack blocks of pixels read 7 GB/s from memory, whole ones 13, and either 22 to 28 if they prefetch. Vectors of pixels
prefetch those of large sources, and wait for half of the lines from beyond that cache: about 40 of 270 choices in
channels first changed, which take 0.90 of the time in the mean, 0.28 at least and 1.07 at most. Windows of more streams
than prefetchers follow wait for lines from memory, and blocks of channels for their runs: eight of 446 depthwise
choices of seven spaces changed, which take 0.74 of the time in the mean, 0.34 at least and 1.06 at most. A set of its
first-level cache has 12 ways, and lines beyond them cost 4.5 cycles each, which arithmetic hides; tiles of groups wait
for short runs of channels from memory, and transforms for their arrays: 21 of 1,178 first choices of five spaces
changed, which take 0.87 of the time in the mean, 0.37 at least and 1.03 at most. Dot products of a gradient of the
weights interleave there, too, the pixels of a vector of channels as they load it, in half a cycle: of 300 drawn
problems in channels last and bf16, 105 choices changed, and 40 of them that were timed take 0.90 of the time in the
mean, 0.72 at least and 1.26 at most; at twice the price, 24 of them take 1.06 of that time, and at half of it 1.01.
Its last cache also delivers the cache lines of blocks of channels faster than rows of pixels that are read again from
the second one, which interrupt streams of lines: of 120 drawn problems in blocks of 16 channels, 18 choices of
gradients of 1x1 weights changed, which take 0.97 of the time in the mean, 0.77 at least and 1.05 at most.
Results of 28 MiB and more are stored past its last cache of 32 MiB: of 48 drawn problems with results of 28 to 32 MiB,
23 choices changed at 512 bits, which take 0.93 of the time in the mean, 0.68 at least and 1.03 at most, and ten of 24
at 256 bits, which take 0.95, 0.81 and 1.00. Below, results of a few channels stay in that cache from one call to the
next: a layer of 25 MiB takes 1.17. The bytes of a smaller source count, too, since its lines evict those of the result:
eight layers of few channels take 0.90 of the time in the mean, 0.73 at least and 1.01 at most. Copies beside tiles of
pixels wait 30 cycles for the first line of a short run from memory, so that longer runs of a channel are copied, and
stores of such tiles 60 cycles for that of a run of a result in memory: of 233 drawn problems in channels first with
arrays of 16 MiB and more, in six spaces, 86 first choices changed, which take 0.83 of the time in the mean, 0.25 at
least and 1.27 at most. Loads of a transform's weights that the last cache keeps are hidden by its products, and those
beyond half of that cache come from memory in each pass: of 36 layers of 3x3 taps and 128 to 1024 channels, and 442
configs of both widths, first choices lose 0.2 % at 512 bits, which lost 9.5 %, and 0.7 % at 256, which lost 2.1 %. The
costs are those of both widths together, which lose 7 % at 512 bits and 4 % at 256 where they are fitted to one half of
these layers and judged on the other.

Costs of memory that were fitted on Zen 5 hold on Zen 4, as drawn problems of five spaces show, whose first choices were
measured with each group of costs and without it. Windows of groups that wait for the first lines of far runs changed 16
of 585 depthwise choices, which take 0.66 of the time in the mean and 1.14 at most; those that wait for lines from
memory, 29, which take 0.73 and 0.98. Sources from memory whose tiles fetch the pixels of the next one take 0.97 of the
time (13 of 240 choices), vectors of pixels that prefetch them 0.96 (15 of 300), and transforms with these rates 0.89 (3
of 400). Other costs of Zen 5 made choices slower there, of lines that pixels stream, of exposed loads and of runs in
the second-level cache among them. A pair of bf16 elements in all lanes is loaded by an instruction of its own, so that
tiles of one vector, with as many of these loads as products, are slower than their products: 74 of 400 first choices in
bf16 changed, which take 0.95 of the time in the mean, 0.57 at least and 1.16 at most. Transforms copy channels that lie
apart there in half of the time of packing: 11 of 158 choices in channels first changed, which take 0.77 of the time in
the mean, 0.53 at least and 1.09 at most. The transforms of 48 kernels, timed without their products, take 0.7 of the
time of their loads, stores and arithmetic one after the other, in f32 and in bf16: 16 of 235 first choices of five
spaces changed, which take 0.94 of the time in the mean, 0.74 at least and 1.05 at most. Two taps of depthwise bf16 are
interleaved there in a cycle a vector, and multiplied by one instruction: of 36 choices in channels last that memory
does not bound, those with such products take 0.87 of the time of those with one term in the mean, 0.68 at least and
1.10 at most. Dot products of a gradient of the weights interleave the pixels of a vector of channels as they load it:
62 of some 280 choices in channels last and bf16 changed on one thread, which take 0.86 of the time in the mean, 0.63 at
least and 1.02 at most, and 31 of 140 on two, 0.75 in the mean.
"""


def micro_architecture(cpu: Cpu, features: frozenset[str]) -> MicroArchitecture:
    """Return the micro-architecture of a CPU with these features."""
    return next(row for row in MICRO_ARCHITECTURES if row.has(cpu, features))


@cache
def of_host() -> MicroArchitecture:
    """Return the micro-architecture of the CPU that this process runs on."""
    return micro_architecture(cpu(), cpu_features())


def named(name: str) -> MicroArchitecture:
    """Return the micro-architecture `name`. UsageError for an unknown name."""
    for row in MICRO_ARCHITECTURES:
        if row.name == name:
            return row
    known = choices(name, [row.name for row in MICRO_ARCHITECTURES])
    raise UsageError(
        f"CONVSMITH_MICRO_ARCHITECTURE={shown(name)}: the micro-architecture is unknown; known are {known}",
        code="bad-setting",
    )


def preferred() -> MicroArchitecture:
    """Return the micro-architecture that the compiler chooses for: the one in the setting, or else the host's."""
    name = settings.micro_architecture
    return of_host() if name is None else named(name)
