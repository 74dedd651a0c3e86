"""A convolution by Winograd's minimal filtering: a program of transforms around a batched matrix product.

Along each axis, F(m, r) computes a tile of m pixels of the result from n = m + r - 1 pixels of the source
(`arith/winograd.py`). With all axes nested, a tile has F frequencies, the product of all n. Each block of tiles runs
three nests, between which arrays of the block stay in the cache::

    src_w[f, tile, ic] = B^T of the source's pixels, zero where they are absent
    prod[f, tile, oc]  = sum over ic of src_w[f, tile, ic] * wei_w[f, ic, oc]
    dst[oc, pixels of the tile] = epilogue of A^T prod

`wei_w` is G of the weights, computed when they are packed. A transform of several axes takes one axis after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from convsmith.arith.linear_map import LinearCode, linear_code
from convsmith.arith.winograd import POINTS, Filtering, error_ratio, filtering
from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import cached_property
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, conj, is_true, minimum, true
from convsmith.ir.stmt import Alloc, For, If, Kernel, Stmt, Store, block
from convsmith.ir.types import DType, dtype
from convsmith.ir.value import Binary, Cast, Fma, Load, Select, Unary, Value, const, dtype_of
from convsmith.ir.walk import Rewriter, Substitute, substitute
from convsmith.layout.layout import Layout
from convsmith.problem.problem import Problem
from convsmith.statement.epilogue import Buffers, Epilogue
from convsmith.statement.naive import naive, zero_lanes
from convsmith.statement.statement import Dim, Statement, View

SOURCE, WEIGHTS, PRODUCTS = "src_w", "wei_w", "prod"
"""The transformed source, the transformed weights, and their products."""
FREQUENCY = "f"
"""The loop over frequencies."""
ERROR = 4.0
"""Maximum of the expected error relative to the direct statement's for which `--accuracy=relaxed` admits a transform.
"""


@dataclass(frozen=True)
class FilteredAxis:
    """An axis under F(m, r): input ``k`` of tile ``t`` is the source's pixel ``t * step + k * dilation + start``.

    ``pixel`` and ``tap`` are dims of the direct statement; taps are ``flipped`` where the source's pixel falls with the
    tap. The source has ``inputs`` pixels, the result ``outputs``; a block has ``block`` tiles.
    """

    letter: str
    pixel: str
    tap: str
    m: int
    r: int
    start: int
    step: int
    dilation: int
    flipped: bool
    inputs: int
    outputs: int
    block: int

    @property
    def n(self) -> int:
        """Inputs of a tile, and its frequencies."""
        return self.m + self.r - 1

    @property
    def tiles(self) -> int:
        """Tiles of the result."""
        return -(-self.outputs // self.m)

    @property
    def blocks(self) -> int:
        """Blocks of tiles."""
        return -(-self.tiles // self.block)

    @property
    def matrices(self) -> Filtering:
        """The matrices of F(m, r); taps in the order of the source's pixels."""
        made = filtering(self.m, self.r)
        return made._replace(weights=tuple(row[::-1] for row in made.weights)) if self.flipped else made

    @property
    def first(self) -> Index:
        """The tile in hand."""
        return Var(f"b{self.letter}") * self.block + Var(f"t{self.letter}")


@dataclass(frozen=True)
class Winograd:
    """The program of ``direct``, a statement of ``problem``, under F(m, r) along ``axes``.

    A block has tiles of several ``images``, an axis under F(1, 1), which multiplies by one. Transforms work on
    ``width`` channels at a time.
    """

    problem: Problem
    direct: Statement
    axes: tuple[FilteredAxis, ...]
    images: FilteredAxis
    width: int

    @property
    def tiled(self) -> tuple[FilteredAxis, ...]:
        """The axes that a block has tiles along: that of images, and those of the filter."""
        return (self.images, *self.axes)

    @cached_property
    def product(self) -> Statement:
        """The batched product of a block."""
        direct, axes = self.direct, self.axes
        (k,) = (d for d in direct.of("k") if not d.axis)
        (n,) = direct.of("n")
        tiles = tuple(Dim(f"t{x.letter}", x.block, "m", x.letter) for x in self.tiled)
        frequency = Dim(FREQUENCY, prod(x.n for x in axes), "batch")
        a = self._view(SOURCE, (frequency, *tiles, k))
        b = self._view(WEIGHTS, (frequency, k, n), is_constant=True)
        c = self._view(PRODUCTS, (frequency, *tiles, n))
        return Statement(
            (frequency, n, *tiles, k), (a, b), c, (k.name,), direct.acc, name="conv", finish="sum", whole_=direct
        )

    def _view(self, name: str, dims: Sequence[Dim], is_constant: bool = False) -> View:
        layout = Layout.from_tag("any", tuple(d.size for d in dims))
        coords: tuple[Index, ...] = tuple(Var(d.name) for d in dims)
        return View(name, self.direct.acc, layout, coords, (true(),) * len(coords), constant=is_constant)

    def naive(self) -> Kernel:
        """Return the nests of a block in the loops over images and blocks, and before it that of the weights."""
        buffers = Buffers(self.problem, self.direct.a, self.product.b, self.direct.c)
        source, weights, products = (buffers[name] for name in (self.direct.a.name, WEIGHTS, self.direct.c.name))
        one = naive(self.problem, self.product)
        given = {b.name: b for b in one.params}
        cached = {name: _cached(given[name]) for name in (SOURCE, PRODUCTS)}
        moved = {**{given[name]: b for name, b in cached.items()}, given[WEIGHTS]: weights}
        body = block(
            self._source_nest(source, cached[SOURCE]),
            Substitute({}, moved).stmt(one.body),
            self._result_nest(cached[PRODUCTS], products, buffers),
        )
        body = Alloc(cached[SOURCE], Alloc(cached[PRODUCTS], body))
        body = _loops(((Var(f"b{x.letter}"), as_index(x.blocks)) for x in self.tiled), body)
        body = block(body, *zero_lanes(self.direct.c, buffers))
        return Kernel("conv", buffers.params(), body, before=(self._weights_kernel(),))

    @property
    def error(self) -> float:
        """The expected error of the sums relative to the direct statement's, as a root mean square."""
        return prod(error_ratio(x.m, x.r) for x in self.axes)

    @property
    def is_exact(self) -> bool:
        """Whether small integers stay exact, because no number of the matrices has another divisor than two."""
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
    def transforms(self) -> tuple[tuple[str, ...], ...]:
        """For each transform of a call, the names of its loops over tiles and channels, outermost first."""
        return tuple((*(f"t{x.letter}_{end}" for x in self.tiled), f"{end}.o") for end in ("s", "d"))

    def lanes(self, end: str) -> tuple[str, ...]:
        """Return the names of the loops over channels, in a transform, that become vectors."""
        return tuple(f"{end}{n}.l" for n in range(len(self.axes)))

    def places(self, end: str) -> tuple[str, ...]:
        """Return the names of the loops of a transform over the places of a tile."""
        count = len(self.axes)
        return tuple(f"{end}{n}.{d}" for n in range(count) for d in range(count) if d != n)

    def _source_nest(self, source: Buffer, result: Buffer) -> Stmt:
        view = self.direct.a
        ends = {Var(f"t{x.letter}"): Var(f"t{x.letter}_s") for x in self.tiled}
        image = self.images.first
        (k,) = (d for d in self.direct.of("k") if not d.axis)

        def read(channel: Index, at: Sequence[Index]) -> Value:
            place = [x.first * x.step + i * x.dilation + x.start for x, i in zip(self.axes, at)]
            point = {Var(k.name): channel, Var(self.images.pixel): image}
            index = (*(substitute(c, point) for c in view.coords[:2]), *place)
            inside = conj(c for x, i in zip(self.tiled, (image, *place)) for c in (i >= 0, i < x.inputs))
            element: Value = Load(source, index, None)
            element = element if dtype_of(element) is result.dtype else Cast(result.dtype, element)
            there: Value = substitute(Select(inside, element, const(result.dtype, 0)), ends)
            return there

        def write(channel: Index, at: Sequence[Index], value: Value) -> Stmt:
            return Store(result, (self._frequency(at), *ends.values(), channel), value)

        codes = [linear_code(x.matrices.input) for x in self.axes]
        body = _Transform("s", result.dtype, self.width, codes).nest(k.size, read, write)
        return _loops(((v, as_index(x.block)) for v, x in zip(ends.values(), self.tiled)), body)

    def _result_nest(self, products: Buffer, result: Buffer, buffers: Buffers) -> Stmt:
        direct = self.direct
        ends = {Var(f"t{x.letter}"): Var(f"t{x.letter}_d") for x in self.tiled}
        (n,) = direct.of("n")
        epilogue = Epilogue(self.problem, direct, buffers)
        here = make_buffer("acc", dtype(direct.acc), (), "register")
        final = epilogue.value(Load(here, (), None))

        def read(channel: Index, at: Sequence[Index]) -> Value:
            return Load(products, (self._frequency(at), *ends.values(), channel), None)

        def write(channel: Index, at: Sequence[Index], value: Value) -> Stmt:
            inner = (as_index(0), *at)
            place = {Var(x.pixel): substitute(x.first, ends) * x.m + i for x, i in zip(self.tiled, inner)}
            point = {**place, Var(n.name): channel}
            element = _Finished(point, here, value).expr(final)
            index = tuple(substitute(c, point) for c in direct.c.coords)
            store = Store(result, index, element)
            inside = conj(i < x.outputs for x, i in zip(self.tiled, place.values()) if x.outputs % (x.m * x.block))
            return store if is_true(inside) else If(inside, store)

        codes = [linear_code(x.matrices.output) for x in self.axes]
        body = _Transform("d", products.dtype, self.width, codes).nest(n.size, read, write)
        return _loops(((v, as_index(x.block)) for v, x in zip(ends.values(), self.tiled)), body)

    def _weights_kernel(self) -> Kernel:
        view, (n,) = self.direct.b, self.direct.of("n")
        (k,) = (d for d in self.direct.of("k") if not d.axis)
        buffers = Buffers(self.problem, view, self.product.b)
        given, result = buffers[view.name], buffers[WEIGHTS]

        def read(channel: Index, at: Sequence[Index]) -> Value:
            taps = {Var(x.tap): i for x, i in zip(self.axes, at)}
            point = {**taps, Var(n.name): channel}
            element: Value = Load(given, tuple(substitute(c, point) for c in view.coords), None)
            return element if dtype_of(element) is result.dtype else Cast(result.dtype, element)

        def write(channel: Index, at: Sequence[Index], value: Value) -> Stmt:
            return Store(result, (self._frequency(at), Var(k.name), channel), value)

        codes = [linear_code(x.matrices.weights) for x in self.axes]
        body = _Transform("g", result.dtype, self.width, codes, "register").nest(n.size, read, write)
        return Kernel(WEIGHTS, (given, result), _loops([(Var(k.name), as_index(k.size))], body))

    def _frequency(self, at: Sequence[Index]) -> Index:
        number: Index = as_index(0)
        for x, i in zip(self.axes, at):
            number = number * x.n + i
        return number


Read = Callable[[Index, Sequence[Index]], Value]
"""Returns the element of a channel at a place of a tile."""
Write = Callable[[Index, Sequence[Index], Value], Stmt]
"""Returns the statement that stores the element of a channel at a place of a tile."""


@dataclass(frozen=True)
class _Transform:
    """The nest that multiplies each axis of a tile by a constant matrix: straight-line code along one axis, loops over
    the others, and between two axes an array of the given ``scope``.

    Names of loops and arrays begin with ``name``; ``width`` channels run side by side.
    """

    name: str
    dtype: DType
    width: int
    codes: Sequence[LinearCode]
    scope: str = "cache"

    def nest(self, channels: int, read: Read, write: Write) -> Stmt:
        """Return the nest over ``channels``."""
        outer = Var(f"{self.name}.o")
        left = minimum(as_index(self.width), as_index(channels) - outer * self.width)
        shape = [code.inputs for code in self.codes]
        parts: list[Stmt] = []
        between: list[Buffer] = []
        for n, code in enumerate(self.codes):
            last = n == len(self.codes) - 1
            if n:
                read = _reader(between[-1], outer * self.width)
            shape[n] = len(code.results)
            if not last:
                between.append(make_buffer(f"{self.name}{n}", self.dtype, (*shape, self.width), self.scope))
            put = write if last else _writer(between[-1], outer * self.width)
            parts.append(self._pass(n, code, shape, outer * self.width, left, read, put))
        body = block(*parts)
        for buffer in reversed(between):
            body = Alloc(buffer, body)
        return For(outer, as_index(0), as_index(-(-channels // self.width)), body)

    def _pass(
        self, n: int, code: LinearCode, shape: Sequence[int], first: Index, left: Index, read: Read, write: Write
    ) -> Stmt:
        """Return the nest of axis ``n``, in which the tile has the extents ``shape`` once the axis is done."""
        lane = Var(f"{self.name}{n}.l")
        others = [Var(f"{self.name}{n}.{d}") for d in range(len(shape))]

        def at(i: int) -> list[Index]:
            return [as_index(i) if d == n else v for d, v in enumerate(others)]

        slots = [
            make_buffer(f"{self.name}{n}_{i}", self.dtype, (self.width,), "register")
            for i in range(code.inputs + len(code.steps))
        ]
        held: list[Value] = [Load(slot, (lane,), None) for slot in slots]
        body: list[Stmt] = [Store(slots[i], (lane,), read(first + lane, at(i))) for i in range(code.inputs)]
        for slot, terms in zip(slots[code.inputs :], code.steps):
            body.append(Store(slot, (lane,), _sum([(float(c), held[i]) for c, i in terms], self.dtype)))
        body += [write(first + lane, at(i), held[result]) for i, result in enumerate(code.results)]
        made: Stmt = For(lane, as_index(0), left, block(*body))
        for slot in reversed(slots):
            made = Alloc(slot, made)
        return _loops(((others[d], as_index(shape[d])) for d in range(len(shape)) if d != n), made)


def _reader(buffer: Buffer, first: Index) -> Read:
    return lambda channel, at: Load(buffer, (*at, channel - first), None)


def _writer(buffer: Buffer, first: Index) -> Write:
    return lambda channel, at, value: Store(buffer, (*at, channel - first), value)


def _sum(terms: Sequence[tuple[float, Value]], type_: DType) -> Value:
    """Return the sum of products of constants and values."""
    start = next((n for n, (c, _) in enumerate(terms) if c == 1), 0)
    c, first = terms[start]
    total = first if c == 1 else Unary("neg", first) if c == -1 else Binary("mul", first, const(type_, c))
    for n, (factor, value) in enumerate(terms):
        if n == start:
            continue
        if abs(factor) == 1:
            total = Binary("add" if factor == 1 else "sub", total, value)
        else:
            total = Fma(const(type_, factor), value, total)
    return total


Variable = Var
"""Within a rewriter, ``Var`` is its method."""


class _Finished(Rewriter):
    """Replaces the sum by a value, and variables by the point of the result."""

    def __init__(self, point: Mapping[Var, Index], acc: Buffer, value: Value) -> None:
        super().__init__()
        self.point, self.acc, self.value = point, acc, value

    def Var(self, v: Variable) -> Index:
        return self.point.get(v, v)

    def Load(self, v: Load) -> Value:
        return self.value if v.buffer is self.acc else self._Load(v)


def _cached(b: Buffer) -> Buffer:
    return Buffer(b.name, b.dtype, b.shape, b.blocks, "cache")


def _loops(loops: Iterable[tuple[Var, Index]], body: Stmt) -> Stmt:
    for var, size in reversed(list(loops)):
        body = For(var, as_index(0), size, body)
    return body


def winograd(
    problem: Problem, direct: Statement, sizes: Mapping[str, int], blocks: Mapping[str, int], width: int
) -> Winograd:
    """Return the program of ``direct`` with F(m, r) along the pixel loops of ``sizes``, which give m.

    ``blocks`` gives the tiles of a block along a pixel loop, by default all, and its images, by default one.
    ConfigError where there is no such program.
    """
    text = ",".join(f"{n}:{m}" for n, m in sizes.items())

    def refuse(why: str) -> ConfigError:
        return ConfigError("winograd", f"--winograd={text}: {why}")

    pixels = {d.axis: d for d in direct.of("m") if d.axis}
    taps = {d.axis: d for d in direct.of("k") if d.axis}
    kinds = (direct.a.dtype, direct.b.dtype, direct.acc)
    if kinds != ("f32", "f32", "f32"):
        raise refuse(f"transforms are in f32; products of {':'.join(kinds)} have none")
    if not direct.constant or not pixels or pixels.keys() != taps.keys() or direct.sizes:
        raise refuse(f"legal are convolutions forward and by data, of constant sizes, not {problem}")
    if direct.of("batch"):
        raise refuse(f"legal are convolutions of one group, not {problem}")
    names = [d.name for d in pixels.values()]
    images = next(d for d in direct.of("m") if d.sort == "images")
    for option, given, legal in (("winograd", sizes, names), ("block", blocks, [images.name, *names])):
        for n, size in given.items():
            if n not in legal or size < 1:
                raise ConfigError("winograd", f"--{option}={n}:{size}: legal are {', '.join(legal)}, and at least 1")
    axes: list[FilteredAxis] = []
    for letter, coord in zip(pixels, direct.a.coords[2:]):
        pixel, tap = pixels[letter], taps[letter]
        m = sizes.get(pixel.name, 1)
        steps = dict(coord.terms)
        step, dilation = steps.pop(Var(pixel.name), 0), steps.pop(Var(tap.name), 0)
        if tap.size == 1:
            dilation = 1
        if steps or step < 1 or (m > 1 and (step, abs(dilation)) != (1, 1)):
            raise refuse(f"axis {letter} has a stride or dilation; legal with a tile of several pixels is none")
        if m > 1 and m + tap.size - 2 > len(POINTS):
            raise refuse(f"F({m}, {tap.size}) needs {m + tap.size - 2} points; there are {len(POINTS)}")
        start = coord.const + min(0, dilation) * (tap.size - 1)
        tiles = -(-pixel.size // m)
        axes.append(
            FilteredAxis(
                letter, pixel.name, tap.name, m, tap.size, start, step * m, abs(dilation), dilation < 0,
                direct.a.layout.shape[2 + len(axes)], pixel.size, min(blocks.get(pixel.name, tiles), tiles),
            )
        )  # fmt: skip
    together = min(blocks.get(images.name, 1), images.size)
    of_images = FilteredAxis(
        images.name, images.name, "", 1, 1, 0, 1, 1, False, images.size, images.size, together
    )  # fmt: skip
    return Winograd(problem, direct, tuple(axes), of_images, width)
