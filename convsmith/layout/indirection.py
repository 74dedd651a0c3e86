"""Indirection buffers: tables of pointers to the source pixels that the taps of a window read.

For each output and tap, a table holds the offset of the pixel that the tap reads, in elements from the start of an
image. A tap that reads padding has the entry ABSENT, which becomes a pointer to a zero buffer. Five forms of one table:

==========  ===========================================================================================================
row         the taps of an output row by row, outputs one after the other
column      the taps of an output column by column
compressed  column by column; columns shared by neighbouring outputs are stored once, so the next output starts
            `input_stride` pointers on instead of a whole kernel
sections    compressed; along each outer axis only the rows at the top and at the bottom that read padding are stored,
            and one row for the middle, whose other rows add an offset to every pointer that is not ABSENT
bands       column by column, with the rows of sections; outputs share no columns
==========  ===========================================================================================================

If the kernel tile is larger than the kernel, each output has a whole tile of pointers, padded with ABSENT, and outputs
share no columns.  With shared columns, a micro-kernel would read its neighbours' pointers beyond the kernel.  Those
pixels are multiplied by zero, but an infinity or NaN among them would make the sum NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import conforms
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.layout.block import ABSENT

FORMS = ("row", "column", "compressed", "sections", "bands")
"""Legal forms of a table."""
SECTIONED = ("sections", "bands")
"""Forms that store one row for the middle of each outer axis."""
SHARING = ("compressed", "sections")
"""Forms in which neighbouring outputs share columns."""

POINTER_BYTES = 8

MAX_AXES = 3
"""Maximum number of axes of a window."""

Entries = npt.NDArray[np.int64]


class Axis(NamedTuple):
    """One axis: extents of source, output and kernel, stride, dilation (0 is dense), front pad.

    Tap `t` of output `x` reads the source coordinate `x * s + t * (d + 1) - p`. If `transposed`, it reads the
    coordinate `y` that satisfies `y * s + t * (d + 1) - p == x`, if there is one.
    """

    i: int
    o: int
    k: int
    s: int = 1
    d: int = 0
    p: int = 0
    transposed: bool = False

    @property
    def is_legal(self) -> bool:
        """Whether all sizes are integers and large enough."""
        least = ((self.i, 0), (self.o, 0), (self.k, 1), (self.s, 1), (self.d, 0), (self.p, -math.inf))
        return all(conforms(size, int) and size >= low for size, low in least)

    def meeting(self) -> Entries:
        """Return the source coordinate for each output and tap; -1 for padding."""
        x, t = np.arange(self.o, dtype=np.int64)[:, None], np.arange(self.k, dtype=np.int64)[None, :]
        if self.transposed:
            y, remainder = np.divmod(x + self.p - t * (self.d + 1), self.s)
            inside = (remainder == 0) & (y >= 0) & (y < self.i)
        else:
            y = x * self.s + t * (self.d + 1) - self.p
            inside = (y >= 0) & (y < self.i)
        return np.where(inside, y, -1)

    def present_taps(self) -> tuple[int, int]:
        """Return the first tap that reads the source for some output, and the one after the last; (0, 0) if none does.
        """
        present = np.flatnonzero((self.meeting() >= 0).any(axis=0))
        return (int(present[0]), int(present[-1]) + 1) if len(present) else (0, 0)

    @property
    def sections(self) -> Sections:
        """Rows of the top, middle and bottom; if no output reads the source with every tap, all rows belong to the top.
        """
        if self.transposed:
            return Sections(self.o, self.o, self.o)
        last = self.i - 1 + self.p - (self.k - 1) * (self.d + 1)
        low, high = -(-self.p // self.s), min(last // self.s + 1, self.o)
        return Sections(low, high, self.o) if low < high else Sections(self.o, self.o, self.o)


class Sections(NamedTuple):
    """The three sections of one axis: outputs before `low` are the top, outputs from `high` on are the bottom."""

    low: int
    high: int
    outputs: int

    @property
    def rows(self) -> int:
        """Number of rows stored: the middle has one."""
        return self.outputs - max(self.high - self.low - 1, 0)

    def place(self, output: int) -> Place:
        """Return where the pointers of `output` are stored; the middle's offset counts outputs from its first."""
        if output < self.low:
            return Place("top", output, 0)
        if output < self.high:
            return Place("mid", self.low, output - self.low)
        return Place("bot", output - (self.high - self.low - 1), 0)

    def outputs_of_rows(self) -> Entries:
        """Return, for each stored row, the output to which its pointers belong."""
        top = np.arange(min(self.low + 1, self.outputs), dtype=np.int64)
        return np.concatenate([top, np.arange(max(self.high, self.low + 1), self.outputs, dtype=np.int64)])


class Place(NamedTuple):
    """The place of an output's pointers: `section` (top, mid or bot), row of the table, and offset to add to them."""

    section: str
    row: int
    offset: int


@record(frozen=True)
class Window:
    """The axes of a window, outermost first, and the distance in elements between neighbouring pixels along each."""

    axes: tuple[Axis, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.axes) <= MAX_AXES or len(self.axes) != len(self.strides):
            raise UsageError(
                f"a window has 1 to {MAX_AXES} axes with a stride each, not {len(self.axes)} and {len(self.strides)}",
                code="bad-window",
            )
        for axis, stride in zip(self.axes, self.strides):
            if not (isinstance(axis, Axis) and axis.is_legal and conforms(stride, int)):
                raise UsageError(
                    f"a window has the axis {axis!r} with stride {stride!r}; legal are whole numbers: extents i and o "
                    "of at least 0, a kernel k and a stride s of at least 1, a dilation d of at least 0, any front pad "
                    "p, and any distance between pixels",
                    code="bad-window",
                )

    @property
    def taps(self) -> int:
        """Number of taps."""
        return math.prod(a.k for a in self.axes)

    @property
    def columns(self) -> int:
        """Number of taps in one column: the product over all axes except the innermost."""
        return math.prod(a.k for a in self.axes[:-1])


@record(frozen=True, eq=False)
class Table:
    """The pointers of a window in one of `FORMS`; `entries` has one row for each row of outputs or section.

    An output has `kernel_tile` pointers, which start `input_stride` after those of its predecessor in the row.
    """

    window: Window
    form: str
    kernel_tile: int
    input_stride: int
    entries: Entries

    @cached_property
    def sections(self) -> tuple[Sections, ...]:
        """The sections of each outer axis; forms without sections store every row as top."""
        outer = self.window.axes[:-1]
        return tuple(a.sections if self.form in SECTIONED else Sections(a.o, a.o, a.o) for a in outer)

    @property
    def bytes(self) -> int:
        """Size of the table in bytes."""
        return self.entries.size * POINTER_BYTES

    def place(self, *outputs: int) -> Place:
        """Return where the pointers of a row of outputs are stored; `outputs` are its coordinates along the outer axes.

        The offset is in elements. With several outer axes, the section is that of the first axis outside its middle.
        """
        places = [s.place(y) for s, y in zip(self.sections, outputs, strict=True)]
        row = 0
        for s, place in zip(self.sections, places):
            row = row * s.rows + place.row
        steps = zip(places, self.window.axes, self.window.strides)
        section = next((place.section for place in places if place.section != "mid"), "mid")
        return Place(section, row, sum(place.offset * a.s * stride for place, a, stride in steps))

    def window_of(self, *outputs: int) -> Entries:
        """Return the `kernel_tile` pointers of one output, offset added, in the order of the table."""
        *outer, x = outputs
        place = self.place(*outer)
        entries = self.entries[place.row, x * self.input_stride :][: self.kernel_tile]
        return np.where(entries == ABSENT, ABSENT, entries + place.offset)

    def pointers(self, base: int, zero: int, item: int) -> npt.NDArray[np.uint64]:
        """Return the table as addresses: `base` + entry * `item` bytes, or `zero` for ABSENT."""
        return np.where(self.entries == ABSENT, zero, base + self.entries * item).astype(np.uint64)


def recipe(window: Window, form: str) -> str:
    """Return a line from which `from_recipe` builds the table, such as `sections 5:5:3:1:0:1@40 6:6:3:1:0:1@8`."""
    axes = (
        ":".join(map(str, a[:-1])) + (":t" if a.transposed else "") + f"@{stride}"
        for a, stride in zip(window.axes, window.strides)
    )
    return " ".join((form, *axes))


def from_recipe(line: str) -> Table:
    """Return the table described by a line that `recipe` returned."""
    form, *words = line.split()
    parts = [word.split("@") for word in words]
    axes = []
    for sizes, _ in parts:
        i, o, k, s, d, p = map(int, sizes.removesuffix(":t").split(":"))
        axes.append(Axis(i, o, k, s, d, p, sizes.endswith(":t")))
    return table(Window(tuple(axes), tuple(int(stride) for _, stride in parts)), form)


def check_tile(window: Window, kernel_tile: int | None) -> int:
    """Return the number of pointers per output: `kernel_tile`, or all taps if it is None.

    UsageError if the tile has fewer pointers than the kernel has taps.
    """
    tile = window.taps if kernel_tile is None else kernel_tile
    if tile < window.taps:
        kernel = "x".join(str(a.k) for a in window.axes)
        raise UsageError(
            f"a kernel tile of {tile} is smaller than the {kernel} kernel, which has {window.taps} taps: legal are "
            f"{window.taps} or more, or several passes",
            code="kernel-tile",
        )
    return tile


def shape_of(window: Window, form: str, kernel_tile: int | None = None) -> tuple[int, int]:
    """Return the shape of the table (rows, pointers in a row) without building it."""
    *outer, inner = window.axes
    rows = math.prod(a.sections.rows if form in SECTIONED else a.o for a in outer)
    tile, step = check_tile(window, kernel_tile), input_stride(window, form, kernel_tile)
    return rows, (inner.o - 1) * step + tile if inner.o else 0


def input_stride(window: Window, form: str, kernel_tile: int | None = None) -> int:
    """Return the number of pointers from one output to the next; smaller than the kernel if neighbours share columns.
    """
    tile, inner = check_tile(window, kernel_tile), window.axes[-1]
    if form not in SHARING or tile > window.taps:
        return tile
    return (inner.k if inner.d or inner.transposed else min(inner.s, inner.k)) * window.columns


@lru_cache(16)
def table(window: Window, form: str = "sections", kernel_tile: int | None = None) -> Table:
    """Return the table of `window` in `form`; results are cached and read-only."""
    if form not in FORMS:
        raise UsageError(f"a table has no form {form!r}; legal are {', '.join(FORMS)}", code="bad-form")
    tile = check_tile(window, kernel_tile)
    *outer, inner = window.axes
    outputs = [a.sections.outputs_of_rows() if form in SECTIONED else np.arange(a.o) for a in outer]
    coordinates = [a.meeting()[rows] for a, rows in zip(outer, outputs)] + [inner.meeting()]
    entries = _offsets(coordinates, window.strides)
    # Axes of `entries`: outputs along each axis, then taps along each axis.
    rank, rows = len(window.axes), math.prod(len(x) for x in outputs)
    if form != "row":
        order = [*range(rank), 2 * rank - 1, *range(rank, 2 * rank - 1)]
        entries = entries.transpose(order)
    entries = entries.reshape(rows, inner.o, window.taps)
    step = input_stride(window, form, kernel_tile)
    stored = np.full(shape_of(window, form, kernel_tile), ABSENT, np.int64)
    # Outputs that share a column have equal entries in it, so the order of writes does not matter.
    for x in range(inner.o):
        stored[:, x * step : x * step + window.taps] = entries[:, x]
    stored.flags.writeable = False
    return Table(window, form, tile, step, stored)


def _offsets(met: Sequence[Entries], strides: Sequence[int]) -> Entries:
    """Return offsets over outputs along each axis and taps along each axis; ABSENT where `met` is negative on an axis.
    """
    rank = len(met)
    total: Any = np.int64(0)
    inside: Any = np.bool_(True)
    for axis, (y, stride) in enumerate(zip(met, strides)):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = y.shape
        total = total + y.reshape(shape) * stride
        inside = inside & (y.reshape(shape) >= 0)
    return np.where(inside, total, ABSENT)
