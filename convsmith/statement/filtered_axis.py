"""The axes of a convolution along which tiles of pixels are filtered, from its direct statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from convsmith.arith.linear_map import LinearCode, growth, linear_code
from convsmith.arith.winograd import (
    POINTS,
    Filtering,
    error_ratio,
    filtering,
    first_input,
    points_of,
    transposed_error_ratio,
    transposed_filtering,
    whole_scale,
)
from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.index import Index, Var, as_index, maximum, minimum
from convsmith.problem.problem import Problem
from convsmith.statement.phases import phases
from convsmith.statement.statement import Statement

FACTORS = ("f32", "bf16", "f16")
"""Types of factors that are transformed in f32."""
BYTES = ("u8", "s8")
"""Types of factors that are transformed in s16."""
ERROR = 4.0
"""Maximum expected error, relative to the direct statement, of a transform that `--accuracy=relaxed` admits."""
REACH = 32
"""Maximum number of pixels that a tile covers along an axis, at the finer side, which bounds the size of the matrices.
Straight-line code grows with their size, and the search for shared sums takes cubic time.
"""


class FilteringCodes(NamedTuple):
    """Straight-line code of the matrices of F(m, r), and the ``growth`` of magnitudes in them."""

    output: LinearCode
    weights: LinearCode
    input: LinearCode
    growth: float


@lru_cache
def _matrices(m: int, r: int, stride: int, pad: int | None, flipped: bool, scale: int) -> Filtering:
    if pad is not None:
        made = transposed_filtering(m, r, stride, pad)
    else:
        made = filtering(m, r, stride)
        made = made._replace(weights=tuple(row[::-1] for row in made.weights)) if flipped else made
    return made if scale == 1 else made._replace(weights=tuple(tuple(scale * x for x in row) for row in made.weights))


@lru_cache
def _codes(m: int, r: int, stride: int, pad: int | None, flipped: bool, scale: int) -> FilteringCodes:
    """Return the codes of an axis, by numbers: to hash a matrix of fractions takes longer than to rank a config."""
    matrices = _matrices(m, r, stride, pad, flipped, scale)
    output, weights, source = map(linear_code, matrices)
    return FilteringCodes(output, weights, source, growth(matrices))


@record(frozen=True)
class FilteredAxis:
    """An axis under F(m, r) with ``stride``.

    Input ``k`` of tile ``t`` is the source's pixel ``t * step + k * dilation + start``.

    ``pixel`` and ``tap`` are dims of the direct statement; taps are ``flipped`` where the source's pixel falls with the
    tap. The source has ``inputs`` pixels, the result ``outputs``; a block has ``block`` tiles. With a ``pad``, the
    correlation is transposed: a pixel of the source meets every pixel of the result that ``stride`` divides.

    All ``taps`` are in ``groups`` of r, of which the last may have absent taps. With several groups, r is m: group g of
    a tile filters the pixels that group 0 of tile ``t + g`` does, so that both share the transformed pixels. The
    weights' matrix is multiplied by ``scale``, which makes whole numbers of it.

    Where taps are dilated, the pixels of a tile are as far apart as its taps: they have one remainder by the number of
    ``phases``, and `phase` is the axis of these remainders.
    """

    letter: str
    pixel: str
    tap: str
    m: int
    r: int
    stride: int
    start: int
    step: int
    dilation: int
    flipped: bool
    inputs: int
    outputs: int
    block: int
    pad: int | None = None
    groups: int = 1
    taps: int = 1
    phases: int = 1
    scale: int = 1

    @property
    def pixels(self) -> int:
        """Pixels of the source that a tile reads."""
        return len(self.matrices.input[0])

    @property
    def frequencies(self) -> int:
        """Frequencies of a tile."""
        return len(self.matrices.input)

    @property
    def tiles(self) -> int:
        """Tiles of the result, of a phase."""
        return tiles_of(self.outputs, self.m, self.phases)

    @property
    def blocks(self) -> int:
        """Blocks of tiles."""
        return -(-self.tiles // self.block)

    @property
    def matrices(self) -> Filtering:
        """The matrices of F(m, r); taps in the order of the source's pixels."""
        return _matrices(self.m, self.r, self.stride, self.pad, self.flipped, self.scale)

    @property
    def codes(self) -> FilteringCodes:
        """Straight-line code of the matrices."""
        return _codes(self.m, self.r, self.stride, self.pad, self.flipped, self.scale)

    @property
    def error(self) -> float:
        """The expected error along the axis relative to the direct statement's, as a root mean square."""
        if self.pad is not None:
            return transposed_error_ratio(self.m, self.r, self.stride, self.pad)
        return error_ratio(self.m, self.r, self.stride)

    @property
    def group(self) -> str:
        """The loop over groups of taps."""
        return f"g{self.letter}"

    @property
    def sources(self) -> int:
        """Tiles of the source that a block transforms: those of all groups of taps."""
        return self.block + self.groups - 1

    @property
    def first(self) -> Index:
        """The number of the current tile."""
        return Var(f"b{self.letter}") * self.block + Var(f"t{self.letter}")

    @property
    def phase(self) -> FilteredAxis | None:
        """The axis of the phases of dilated taps, under F(1, 1); None for dense ones."""
        return plain_axis(f"p{self.letter}", f"p{self.letter}", self.phases, self.phases) if self.phases > 1 else None

    @property
    def offset(self) -> Index:
        """The phase of the current tile."""
        return as_index(0) if self.phase is None else self.phase.first

    @property
    def are_whole(self) -> bool:
        """Whether all tiles of all blocks are within the result."""
        return self.outputs % (self.m * self.block * self.phases) == 0

    @property
    def read(self) -> int:
        """Pixels of the source that a block reads, from the first to the last."""
        return min((self.sources - 1) * self.step + (self.pixels - 1) * self.dilation + 1, self.inputs)

    @property
    def first_read(self) -> Index:
        """The first pixel that a block reads, moved inwards so that all `read` pixels exist."""
        given = Var(f"b{self.letter}") * self.block * self.step + self.start
        if self.read == self.inputs:
            return as_index(0)
        return maximum(as_index(0), minimum(given, as_index(self.inputs - self.read)))

    @property
    def written(self) -> int:
        """Pixels of the result that the tiles of a block cover."""
        return min(self.block * self.m, self.outputs)

    @property
    def first_written(self) -> Index:
        """The first pixel of the result that a block covers."""
        return Var(f"b{self.letter}") * (self.block * self.m)


def plain_axis(letter: str, pixel: str, size: int, block: int) -> FilteredAxis:
    """Return an axis under F(1, 1), the identity, with ``block`` of its pixels in a block."""
    return FilteredAxis(letter, pixel, "", 1, 1, 1, 0, 1, 1, False, size, size, block)


def tiles_of(outputs: int, m: int, phases: int) -> int:
    """Return the tiles of m pixels of the result, of each phase."""
    return -(-outputs // (m * phases))


def dilations(direct: Statement) -> dict[str, int]:
    """Return the distances of the taps along the pixel loops of a direct statement whose taps are dilated."""
    taps = {d.axis: d for d in direct.of("k") if d.axis and d.size > 1}
    steps = [dict(coord.terms) for coord in direct.a.coords[2:]]
    pixels = [d for d in direct.of("m") if d.axis]
    found = {p.name: abs(own.get(Var(taps[p.axis].name), 1)) for p, own in zip(pixels, steps) if p.axis in taps}
    return {name: distance for name, distance in found.items() if distance > 1}


def filtered_axes(problem: Problem, direct: Statement, sizes: Mapping[str, int]) -> tuple[FilteredAxis, ...]:
    """Return the axes of ``direct``, a statement of ``problem``, with F(m, r) along the pixel loops of ``sizes``, which
    give m; a block has all tiles. ConfigError if a loop has no such tiles.

    Along the only axis, F(m, m) filters taps in groups of m if F(m, r) errs by more than `ERROR`, or needs too many
    points.
    """

    def refuse(why: str) -> ConfigError:
        return refusal(sizes, why)

    pixels = {d.axis: d for d in direct.of("m") if d.axis}
    taps = {d.axis: d for d in direct.of("k") if d.axis}
    kinds = (direct.a.dtype, direct.b.dtype, direct.acc)
    factors = {"f32": FACTORS, "s32": BYTES}.get(direct.acc, ())
    if not {*kinds[:2]} <= {*factors}:
        raise refuse(f"transforms are in f32, or in s16 for bytes; products of {':'.join(kinds)} have none")
    if not direct.constant or not pixels or pixels.keys() != taps.keys() or direct.sizes:
        raise refuse(f"legal are convolutions forward and by data, of constant sizes, not {problem}")
    check_names("winograd", sizes, [d.name for d in pixels.values()])
    classes = phases(direct)
    axes: list[FilteredAxis] = []
    for letter, coord in zip(pixels, direct.a.coords[2:]):
        pixel, tap = pixels[letter], taps[letter]
        inputs = direct.a.layout.shape[2 + len(axes)]
        steps = dict(coord.terms)
        step, dilation, pad = steps.pop(Var(pixel.name), 0), steps.pop(Var(tap.name), 0), None
        if (phase := classes.get(pixel.name)) is not None:
            steps, step, dilation, pad = {}, phase.stride, 1, phase.moved
        if tap.size == 1:
            dilation = 1
        m = sizes.get(pixel.name, 1 if pad is None else step)
        if steps or step < 1 or (m > 1 and abs(dilation) != 1 and step > 1):
            raise refuse(
                f"axis {letter} has a dilation with a stride, or a stride by data with one tap; legal with a tile of "
                "several pixels are dense taps, or stride 1"
            )
        spread = abs(dilation) if m > 1 else 1
        if pad is not None and m % step:
            raise refuse(f"{pixel.name}:{m} is no multiple of {step}, the stride by data along axis {letter}")
        of_class, groups, taps_of_group = m if pad is None else m // step, 1, tap.size
        if len(pixels) == 1 and step == 1 <= dilation and pad is None and 1 < m < tap.size and _is_long(m, tap.size):
            groups, taps_of_group = -(-tap.size // m), m
        if of_class > 1 and (points := points_of(of_class, taps_of_group, step)) > len(POINTS):
            raise refuse(f"F({m}, {tap.size}) needs {points} points; there are {len(POINTS)}")
        if (reach := max(m, (of_class - 1) * step + tap.size)) > REACH:
            raise refuse(
                f"a tile of F({m}, {tap.size}) with stride {step} covers {reach} pixels along axis {letter}; legal are "
                f"at most {REACH}"
            )
        if pad is None:
            start = coord.const + min(0, dilation) * (tap.size - 1)
            size = step * m * spread
        else:
            start, size = first_input(tap.size, step, pad), m // step
        axes.append(
            FilteredAxis(
                letter, pixel.name, tap.name, m, taps_of_group, step, start, size, abs(dilation), dilation < 0, inputs,
                pixel.size, tiles_of(pixel.size, m, spread), pad, groups, tap.size, spread,
            )
        )  # fmt: skip
    if direct.acc == "s32":
        try:
            return tuple(replace(x, scale=whole_scale(x.matrices)) for x in axes)
        except ValueError as error:
            raise refuse(f"{error}; legal for bytes are tiles of 2 pixels at 3 taps, for one") from None
    return tuple(axes)


def _is_long(m: int, taps: int) -> bool:
    """Return whether F(m, taps) needs too many points, or errs by more than `ERROR`."""
    return points_of(m, taps) > len(POINTS) or error_ratio(m, taps) > ERROR


def refusal(sizes: Mapping[str, int], why: str) -> ConfigError:
    """Return the error of tiles of these ``sizes``."""
    return ConfigError("winograd", f"--winograd={','.join(f'{n}:{m}' for n, m in sizes.items())}: {why}")


def check_names(option: str, given: Mapping[str, int], legal: Sequence[str]) -> None:
    """Raise ConfigError if an ``option`` gives a loop that is not ``legal``, or a number below 1."""
    for name, size in given.items():
        if name not in legal or size < 1:
            raise ConfigError("winograd", f"--{option}={name}:{size}: legal are {', '.join(legal)}, and at least 1")
