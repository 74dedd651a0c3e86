"""A convolution by Winograd's minimal filtering: a program of transforms around a batched matrix product.

Along each axis, F(m, r) computes a tile of m pixels of the result from (m - 1) * stride + r pixels of the source
(`arith/winograd.py`). In a gradient of the source or a deconvolution with a stride, the pixels of the result in one
residue class are a convolution with stride 1 and a part of the taps, with its own F(m, r). Where taps are dilated,
pixels as far apart as the taps are a convolution with dense taps, and a block has tiles of each such phase. With all
axes nested, a tile has the product of the frequencies of all axes. Each block of tiles runs three nests, between which
arrays of the block stay in the cache::

    src_w[f, tile, ic] = B^T of the source's pixels, zero where they are absent
    prod[f, tile, oc]  = sum over ic of src_w[f, tile, ic] * wei_w[f, ic, oc]
    dst[oc, pixels of the tile] = epilogue of A^T prod

`wei_w` is G of the weights, computed when they are packed. Sources of 16 bits are converted to f32 as they are
transformed. Bytes are transformed exactly, in s16, with a multiple of G that has whole numbers: the sums in s32 are
divided by this multiple, a power of two, after A^T. The transforms process the channels of all groups as one dim; each
group has its own product. A transform of several axes takes one axis after the other. In layouts whose channels are
strided, a transform processes one group of channels at a time through a copy in which the channels are contiguous
(`statement/channel_copies.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import frexp, prod

from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, conj, is_true, minimum, true
from convsmith.ir.rewrite import Rewriter, Substitute, substitute
from convsmith.ir.stmt import Alloc, If, Kernel, Stmt, Store, block
from convsmith.ir.types import DType, dtype
from convsmith.ir.value import Binary, Cast, Load, Select, Value, const, dtype_of
from convsmith.layout.layout import Layout
from convsmith.layout.tags import MAX_DIMS
from convsmith.problem.attributes import ZERO_POINTS
from convsmith.problem.problem import Problem
from convsmith.statement.channel_copies import ChannelCopy, has_vectors_of_channels
from convsmith.statement.epilogue import Buffers, Epilogue, differs_by_channel, source_point
from convsmith.statement.filtered_axis import FilteredAxis, check_names, filtered_axes, plain_axis, refusal
from convsmith.statement.naive import naive, zero_lanes
from convsmith.statement.statement import Dim, Statement, View
from convsmith.statement.tile_transform import TileTransform, loop_nest

SOURCE, WEIGHTS, PRODUCTS = "src_w", "wei_w", "prod"
"""The transformed source, the transformed weights, and their products."""
FREQUENCY = "f"
"""The loop over frequencies."""
WORD = "s16"
"""The type of the transformed factors of bytes."""
LARGEST_WORD, LARGEST_SUM = 2**15 - 1, 2**31 - 1
"""The largest numbers of 16 and of 32 bits."""
SOURCES = 2.0**64
"""Largest magnitude of sources for which no sum overflows, whatever the weights within their limit are. It is the
square root of f32's range; weights may use the other half, divided by the growth in the transforms.
"""


@record(frozen=True)
class Winograd:
    """The program of ``direct``, a statement of ``problem``, under F(m, r) along ``axes``.

    ``images`` is an axis under F(1, 1), the identity, because a block has tiles of several images. The transforms of
    the factors and that of the sums work on ``widths`` channels at a time; ``spread`` such groups in sequence share no
    memory, so that they may be units of scalable vectors. A cache line has ``line`` bytes.
    """

    problem: Problem
    direct: Statement
    axes: tuple[FilteredAxis, ...]
    images: FilteredAxis
    widths: tuple[int, int]
    line: int
    spread: int = 1

    @property
    def factors(self) -> str:
        """The type of transformed factors."""
        return WORD if self.is_integer else self.direct.acc

    @property
    def is_integer(self) -> bool:
        """Whether the transforms compute in integers."""
        return self.direct.acc == "s32"

    @property
    def divided_bits(self) -> int:
        """The bits of the power of two that divides the sums."""
        return prod(x.scale for x in self.axes).bit_length() - 1

    def width(self, end: str) -> int:
        """Return the channels on which the transform at ``end`` works at a time: of the source (``s``), of the weights
        (``g``) or of the result (``d``).
        """
        return self.widths[end == "d"]

    @property
    def tiled(self) -> tuple[FilteredAxis, ...]:
        """The axes along which a block has tiles: images, and the axes of the filter, each with its phases."""
        return (self.images, *(x for axis in self.axes for x in (axis, axis.phase) if x is not None))

    @property
    def placed(self) -> tuple[FilteredAxis, ...]:
        """The axes along which a pixel has a place: images, and the axes of the filter."""
        return (self.images, *self.axes)

    @property
    def array_bytes(self) -> int:
        """The bytes of the transformed source and of the sums of a block."""
        return sum(prod(v.layout.shape) * dtype(v.dtype).bytes for v in (self.product.a, self.product.c))

    def in_blocks(self, sizes: Mapping[str, int]) -> Winograd:
        """Return the program with the given ``sizes`` of a block: tiles along a pixel loop (by default all) and images
        (by default one). ConfigError if another loop is named.
        """
        check_names("block", sizes, [x.pixel for x in self.placed])
        images, *axes = (
            replace(x, block=min(sizes.get(x.pixel, 1 if x is self.images else x.tiles), x.tiles)) for x in self.placed
        )  # fmt: skip
        return replace(self, images=images, axes=tuple(axes))

    @cached_property
    def product(self) -> Statement:
        """The batched product of a block."""
        direct, axes = self.direct, self.axes
        (k,) = (d for d in direct.of("k") if not d.axis)
        (n,) = direct.of("n")
        tiles = tuple(Dim(f"t{x.letter}", x.block, "m", x.letter) for x in self.tiled)
        split = tuple(x for x in self.axes if x.groups > 1)
        of_taps = tuple(Dim(x.group, x.groups, "k", x.letter) for x in split)
        frequency = Dim(FREQUENCY, prod(x.frequencies for x in axes), "batch")
        groups = direct.of("batch")
        sources = tuple(replace(d, size=x.sources) for d, x in zip(tiles, self.tiled))
        a = self._view(SOURCE, self.factors, (frequency, *sources), k)
        moved = {Var(f"t{x.letter}"): Var(f"t{x.letter}") + Var(x.group) for x in split}
        a = replace(a, coords=tuple(substitute(c, moved) for c in a.coords))
        b = self._view(WEIGHTS, self.factors, (frequency, *groups, *of_taps, k), n, is_constant=True)
        c = self._view(PRODUCTS, direct.acc, (frequency, *tiles), n)
        summed = (*(d.name for d in of_taps), k.name)
        return Statement(
            (frequency, *groups, n, *tiles, *of_taps, k), (a, b), c, summed, direct.acc, name="conv", finish="sum",
            part_of=direct,
        )  # fmt: skip

    def _view(
        self, name: str, type_: str, outer: Sequence[Dim], channel: Dim, is_constant: bool = False
    ) -> View:  # fmt: skip
        """Return the view of an array of ``type_`` with a dim for each of ``outer``, and channels as the last dim.

        If the groups are not in ``outer``, the channels of all groups form the last dim. A transform accesses the same
        element of every frequency, so the layout spreads frequencies over the sets of a cache.
        """
        groups = [d for d in self.direct.of("batch") if d not in outer]
        sizes = (*(d.size for d in outer), channel.size * prod(d.size for d in groups))
        last: Index = Var(channel.name)
        for d in groups:
            last = Var(d.name) * channel.size + last
        coords: tuple[Index, ...] = (*(Var(d.name) for d in outer), last)
        layout = Layout.from_tag("any", sizes)
        layout = layout if is_constant else layout.spread(self.line // dtype(type_).bytes)
        return View(name, type_, layout, coords, (true(),) * len(coords), constant=is_constant)

    @property
    def first_group(self) -> dict[Var, Index]:
        """Substitutes group 0, so that a channel index counts from the first channel of all groups."""
        return {Var(d.name): as_index(0) for d in self.direct.of("batch")}

    def naive(self) -> Kernel:
        """Return the nests of a block inside the loops over images and blocks, preceded by the nest that transforms the
        weights.
        """
        buffers = Buffers(self.problem, self.direct.a, self.product.b, self.direct.c)
        source, weights, products = (buffers[name] for name in (self.direct.a.name, WEIGHTS, self.direct.c.name))
        one = naive(self.problem, self.product)
        given = {b.name: b for b in one.params}
        cached = {name: replace(given[name], scope="cache") for name in (SOURCE, PRODUCTS)}
        moved = {**{given[name]: b for name, b in cached.items()}, given[WEIGHTS]: weights}
        body = block(
            self._source_nest(source, cached[SOURCE], buffers),
            Substitute({}, moved).stmt(one.body),
            self._result_nest(cached[PRODUCTS], products, buffers),
        )
        body = Alloc(cached[SOURCE], Alloc(cached[PRODUCTS], body))
        body = loop_nest(((Var(f"b{x.letter}"), as_index(x.blocks)) for x in self.tiled), body)
        body = block(body, *zero_lanes(self.direct.c, buffers))
        return Kernel("conv", buffers.params(), body, before=(self._weights_kernel(),))

    @property
    def error(self) -> float:
        """The expected error of the sums relative to the direct statement's, as a root mean square."""
        return prod(x.error for x in self.axes)

    @property
    def limit(self) -> float:
        """Largest power of two such that weights up to it, with sources up to `SOURCES`, overflow in no transform and
        no sum.

        Half of f32's range is left for rounding.
        """
        (k,) = (d for d in self.direct.of("k") if not d.axis)
        most = 2.0**127 / (SOURCES * k.size * prod(x.codes.growth * x.groups for x in self.axes))
        return 2.0 ** (frexp(most)[1] - 1)

    @property
    def is_exact(self) -> bool:
        """Whether small integers stay exact, because every divisor in the matrices is a power of two."""
        rows = (row for x in self.axes for row in x.matrices.weights)
        return all(c.denominator & (c.denominator - 1) == 0 for row in rows for c in row)

    @property
    def tasks(self) -> int:
        """The number of blocks of all images."""
        return prod(x.blocks for x in self.tiled)

    @property
    def stepping(self) -> tuple[str, ...]:
        """Names of the loops over images and blocks, outermost first."""
        return tuple(f"b{x.letter}" for x in self.tiled)

    @property
    def transforms(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """For each transform of a call, its loops over groups of channels and copied pixels, and its loops over tiles,
        outermost first.
        """
        copied = {copy.name: (copy.pixels,) for copy in self.copies}
        return tuple(
            ((f"{end}.o", *copied.get(end, ())), tuple(f"t{x.letter}_{end}" for x in self.tiled)) for end in ("s", "d")
        )

    @cached_property
    def copies(self) -> tuple[ChannelCopy, ...]:
        """The copies of groups of channels of the source and of the result, for those whose channels are strided.

        Rows of one image are contiguous in memory. With one axis, the rows are images, which other channels separate.
        """
        last, in_rows = self.axes[-1], len(self.axes) > 1
        ends = (
            ("s", self.direct.a, [x.read for x in self.placed], in_rows and last.read == last.inputs),
            ("d", self.direct.c, [x.written for x in self.placed], in_rows and last.written == last.outputs),
        )
        return tuple(
            ChannelCopy.of(end, dtype(view.dtype), extents, self.width(end), end == "s", are_whole)
            for end, view, extents, are_whole in ends if not has_vectors_of_channels(view, self.width(end))
        )  # fmt: skip

    def lanes(self, end: str) -> tuple[str, ...]:
        """Return the names of the loops over channels, in a transform, that become vectors."""
        return tuple(f"{end}{n}.l" for n in range(len(self.axes)))

    def _source_nest(self, source: Buffer, result: Buffer, buffers: Buffers) -> Stmt:
        view = self.direct.a
        (k,) = (d for d in self.direct.of("k") if not d.axis)
        transform = self._transform("s", result.shape[-1], result.dtype)
        ends = self._ends("s")
        copy = next((copy for copy in self.copies if copy.reads), None)
        first = [x.first_read for x in self.placed]
        point = source_point(self.problem, view, buffers)

        def element(image: Index, channel: Index, place: Sequence[Index]) -> Value:
            point = {**self.first_group, Var(k.name): channel, Var(self.images.pixel): image}
            return Load(source, (*(substitute(c, point) for c in view.coords[:2]), *place), None)

        def read(channel: Index, at: Sequence[Index]) -> Value:
            place = [x.first * x.step + x.offset + i * x.dilation + x.start for x, i in zip(self.axes, at)]
            image = self.images.first
            inside = conj(c for x, i in zip(self.placed, (image, *place)) for c in (i >= 0, i < x.inputs))
            value = element(image, channel, place)
            if copy is not None:
                index = [i - start for i, start in zip((image, *place), first)]
                value = Load(copy.buffer, (*index, channel - transform.first), None)
            value = value if dtype_of(value) is result.dtype else Cast(result.dtype, value)
            value = value if point is None else Binary("sub", value, Cast(result.dtype, point))
            there: Value = substitute(Select(inside, value, const(result.dtype, 0)), ends)
            return there

        def write(channel: Index, at: Sequence[Index], value: Value) -> Stmt:
            return Store(result, (self._frequency(at), *ends.values(), channel), value)

        body = transform.body(read, write)
        if copy is None:
            return self._of_tiles("s", transform.nest(body))

        def move(at: Sequence[Index], channel: Index) -> Stmt:
            image, *place = (i + start for i, start in zip(at, first))
            return Store(copy.buffer, (*at, channel), element(image, transform.first + channel, place))

        read_in = copy.nest([as_index(n) for n in copy.buffer.shape[:-1]], transform.left, move)
        return transform.nest(Alloc(copy.buffer, block(read_in, self._of_tiles("s", body))))

    def _result_nest(self, products: Buffer, result: Buffer, buffers: Buffers) -> Stmt:
        direct = self.direct
        ends = self._ends("d")
        (n,) = direct.of("n")
        epilogue = Epilogue(self.problem, direct, buffers)
        here = make_buffer("acc", dtype(direct.acc), (), "register")
        final = epilogue.value(Load(here, (), None))
        transform = self._transform("d", products.shape[-1], products.dtype)
        copy = next((copy for copy in self.copies if not copy.reads), None)

        def read(channel: Index, at: Sequence[Index]) -> Value:
            return Load(products, (self._frequency(at), *ends.values(), channel), None)

        def write(channel: Index, at: Sequence[Index], value: Value) -> Stmt:
            inner = (as_index(0), *at)
            place = {
                Var(x.pixel): substitute((x.first * x.m + i) * x.phases + x.offset, ends)
                for x, i in zip(self.placed, inner)
            }
            point = {**place, **self.first_group, Var(n.name): channel}
            if self.divided_bits:
                value = Binary("shr", value, const(products.dtype, self.divided_bits))
            element = _Finished(point, here, value).expr(final)
            store = Store(result, tuple(substitute(c, point) for c in direct.c.coords), element)
            if copy is not None:
                index = [i - x.first_written for x, i in zip(self.placed, place.values())]
                store = Store(copy.buffer, (*index, channel - transform.first), element)
            inside = conj(i < x.outputs for x, i in zip(self.placed, place.values()) if not x.are_whole)
            return store if is_true(inside) else If(inside, store)

        body = transform.body(read, write)
        if copy is None:
            return self._of_tiles("d", transform.nest(body))

        def move(at: Sequence[Index], channel: Index) -> Stmt:
            point = {Var(x.pixel): x.first_written + i for x, i in zip(self.placed, at)}
            point |= {**self.first_group, Var(n.name): transform.first + channel}
            index = tuple(substitute(c, point) for c in direct.c.coords)
            return Store(result, index, Load(copy.buffer, (*at, channel), None))

        there = [minimum(as_index(x.written), x.outputs - x.first_written) for x in self.placed]
        written_out = copy.nest(there, transform.left, move)
        return transform.nest(Alloc(copy.buffer, block(self._of_tiles("d", body), written_out)))

    def _ends(self, end: str) -> dict[Var, Index]:
        """Return the variables over the tiles of a block that the transform at ``end`` uses in place of the product's
        variables.
        """
        return {Var(f"t{x.letter}"): Var(f"t{x.letter}_{end}") for x in self.tiled}

    def _of_tiles(self, end: str, body: Stmt) -> Stmt:
        """Return the loops over the tiles of a block around ``body``."""
        tiles = (v for v in self._ends(end).values() if isinstance(v, Var))
        counts = (x.sources if end == "s" else x.block for x in self.tiled)
        return loop_nest(((v, as_index(n)) for v, n in zip(tiles, counts)), body)

    def _transform(self, end: str, channels: int, type_: DType) -> TileTransform:
        codes = [x.codes.input if end == "s" else x.codes.output for x in self.axes]
        return TileTransform(end, type_, self.width(end), codes, channels, self.spread)

    def _weights_kernel(self) -> Kernel:
        view, (n,) = self.direct.b, self.direct.of("n")
        (k,) = (d for d in self.direct.of("k") if not d.axis)
        split = [(Var(x.group), as_index(x.groups)) for x in self.axes if x.groups > 1]
        outer = [(Var(d.name), as_index(d.size)) for d in (*self.direct.of("batch"), k)]
        outer[-1:-1] = split
        buffers = Buffers(self.problem, view, self.product.b)
        given, result = buffers[view.name], buffers[WEIGHTS]

        def read(channel: Index, at: Sequence[Index]) -> Value:
            taps = [i + (Var(x.group) * x.r if x.groups > 1 else 0) for x, i in zip(self.axes, at)]
            point = {**{Var(x.tap): i for x, i in zip(self.axes, taps)}, Var(n.name): channel}
            element: Value = Load(given, tuple(substitute(c, point) for c in view.coords), None)
            element = element if dtype_of(element) is result.dtype else Cast(result.dtype, element)
            there = conj(i < x.taps for x, i in zip(self.axes, taps) if x.groups > 1)
            return element if is_true(there) else Select(there, element, const(result.dtype, 0))

        def write(channel: Index, at: Sequence[Index], value: Value) -> Stmt:
            return Store(result, (self._frequency(at), *(v for v, _ in outer), channel), value)

        codes = [x.codes.weights for x in self.axes]
        transform = TileTransform("g", result.dtype, self.width("g"), codes, n.size, self.spread)
        body = transform.nest(transform.body(read, write))
        return Kernel(WEIGHTS, (given, result), loop_nest(outer, body))

    def _frequency(self, at: Sequence[Index]) -> Index:
        number: Index = as_index(0)
        for x, i in zip(self.axes, at):
            number = number * x.frequencies + i
        return number


class _Finished(Rewriter):
    """Replaces the sum by a value, and variables by the point of the result."""

    def __init__(self, point: Mapping[Var, Index], acc: Buffer, value: Value) -> None:
        super().__init__()
        self.point, self.acc, self.value = point, acc, value

    def visit_Var(self, v: Var) -> Index:
        return self.point.get(v, v)

    def visit_Load(self, v: Load) -> Value:
        return self.value if v.buffer is self.acc else self._Load(v)


def winograd(
    problem: Problem, direct: Statement, sizes: Mapping[str, int], widths: tuple[int, int], line: int, spread: int = 1
) -> Winograd:  # fmt: skip
    """Return the program of ``direct`` with F(m, r) along the pixel loops of ``sizes``, which give m.

    A block has all tiles of an image. Vectors of transformed factors and of sums have ``widths`` channels, cache lines
    ``line`` bytes, and ``spread`` vectors in sequence share no memory. ConfigError if there is no such program.
    """
    axes = filtered_axes(problem, direct, sizes)
    images = next(d for d in direct.of("m") if d.sort == "images")
    made = Winograd(problem, direct, axes, plain_axis(images.name, images.name, images.size, 1), widths, line, spread)
    if dilated := [x.pixel for x in axes if x.phases > 1]:
        if made.copies:
            raise ConfigError(
                "winograd", f"{problem}: channels are strided, and a transform copies adjacent pixels of them; legal "
                "with dilated taps are layouts whose channels are contiguous",
            )  # fmt: skip
        if len(made.tiled) + 2 > MAX_DIMS:  # frequencies and channels
            raise ConfigError(
                "winograd", f"{problem}: taps are dilated along {' and '.join(dilated)}, and arrays have {MAX_DIMS} "
                "dims at most; legal with them are tiles of one axis of a convolution in one or two dims",
            )  # fmt: skip
    if made.is_integer and (why := _unfit_integers(made)):
        raise refusal(sizes, why)
    return made


def _unfit_integers(made: Winograd) -> str:
    """Return the reason why the numbers of a transform do not fit in its types of integers, or an empty string.

    Sums may wrap around as long as each result, multiplied by the power of two that divides it, is in range.
    """
    a, b = made.direct.factors
    if a.narrow or b.narrow or a.requantised is not None or b.requantised is not None:
        return "legal are factors of bytes as they lie in memory"
    if made.problem.quantity(ZERO_POINTS, "wei") is not None or differs_by_channel(made.problem):
        return "legal are zero points of the source alone, one for all of its channels"
    source, weights = (255 if v.dtype == "u8" else 128 for v in (a, b))
    source = 255 if made.direct.shifted else source
    of_source = source * prod(x.codes.input.largest for x in made.axes)
    of_weights = weights * prod(x.codes.weights.largest for x in made.axes)
    if max(of_source, of_weights) > LARGEST_WORD:
        return "transformed numbers exceed 16 bits"
    terms = prod(d.size for d in made.direct.dims if d.name in made.direct.reduce)
    if (terms * source * weights << made.divided_bits) > LARGEST_SUM:
        return f"sums of {terms} products, multiplied by {1 << made.divided_bits}, exceed 32 bits"
    return ""
