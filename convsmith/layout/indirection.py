"""Tables of pointers to the pixels that a window meets: the data of the realisation `indirection`.

An output meets one pixel of the source for each tap, or none. A table holds, for the taps of all outputs, the offset
of that pixel, in elements from the start of an image; where there is none it holds ABSENT, for which a pointer to a
zero buffer stands. Four forms of the same table:

==========  ===========================================================================================================
row         the taps of an output row by row, outputs one after the other
column      the taps of an output column by column
compressed  column by column, and what neighbouring outputs have in common is there once: the next output starts
            `input_stride` pointers on, not a whole kernel
sections    compressed, and of each outer axis the rows at the top and at the bottom that meet padding, and one row in
            the middle that stands for all others: for those, an offset is added to every pointer that is not ABSENT
==========  ===========================================================================================================

With a kernel tile larger than the kernel each output has a tile of pointers, the rest of them ABSENT, and so no two
outputs have pointers in common.  Were columns shared, the pointers that a micro-kernel reads beyond the kernel would be
those of neighbours: valid to read, but their pixels would be multiplied by zero, and an infinity or NaN among them
would spoil the sum of an output that does not meet it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import conforms
from convsmith.diag.forking import cached_property
from convsmith.layout.block import ABSENT

FORMS = ("row", "column", "compressed", "sections")

POINTER_BYTES = 8

Entries = npt.NDArray[np.int64]


class Axis(NamedTuple):
    """One axis: extents of source, output and kernel, stride, dilation (0 is dense), front pad.

    Output `x` and tap `t` meet source `x * s + t * (d + 1) - p`; `transposed` the other way round, the source is where
    a strided window over the output meets it: `y * s + t * (d + 1) - p == x`.
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
        """Whether the numbers are whole, and none is too small."""
        least = ((self.i, 0), (self.o, 0), (self.k, 1), (self.s, 1), (self.d, 0), (self.p, -math.inf))
        return all(conforms(size, int) and size >= low for size, low in least)

    def meeting(self) -> Entries:
        """The source's coordinate for each output and tap, or -1."""
        x, t = np.arange(self.o, dtype=np.int64)[:, None], np.arange(self.k, dtype=np.int64)[None, :]
        if self.transposed:
            y, rest = np.divmod(x + self.p - t * (self.d + 1), self.s)
            there = (rest == 0) & (y >= 0) & (y < self.i)
        else:
            y = x * self.s + t * (self.d + 1) - self.p
            there = (y >= 0) & (y < self.i)
        return np.where(there, y, -1)

    @property
    def sections(self) -> Sections:
        """Where top, middle and bottom lie; without an output that meets the source with every tap, all is top."""
        if self.transposed:
            return Sections(self.o, self.o, self.o)
        last = self.i - 1 + self.p - (self.k - 1) * (self.d + 1)
        low, high = -(-self.p // self.s), min(last // self.s + 1, self.o)
        return Sections(low, high, self.o) if low < high else Sections(self.o, self.o, self.o)


class Sections(NamedTuple):
    """Outputs before `low` are the top, those from `high` on the bottom; there are `outputs` of them."""

    low: int
    high: int
    outputs: int

    @property
    def rows(self) -> int:
        return self.outputs - max(self.high - self.low - 1, 0)

    def place(self, output: int) -> Place:
        """The section of an output, its row, counted over all sections, and steps from the row's own output."""
        if output < self.low:
            return Place("top", output, 0)
        if output < self.high:
            return Place("mid", self.low, output - self.low)
        return Place("bot", output - (self.high - self.low - 1), 0)

    def outputs_of_rows(self) -> Entries:
        """The output whose pointers each row holds."""
        top = np.arange(min(self.low + 1, self.outputs), dtype=np.int64)
        return np.concatenate([top, np.arange(max(self.high, self.low + 1), self.outputs, dtype=np.int64)])


class Place(NamedTuple):
    """Where an output finds its pointers: `section` is top, mid or bot."""

    section: str
    row: int
    offset: int


@dataclass(frozen=True)
class Window:
    """The axes of a window, outermost first, and the elements between neighbours of the source along each."""

    axes: tuple[Axis, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.axes) <= 3 or len(self.axes) != len(self.strides):
            raise UsageError(
                f"a window has 1 to 3 axes with a stride each, not {len(self.axes)} and {len(self.strides)}",
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
        return math.prod(a.k for a in self.axes)

    @property
    def columns(self) -> int:
        """Taps of one column: those of all axes but the innermost."""
        return math.prod(a.k for a in self.axes[:-1])


@dataclass(frozen=True, eq=False)
class Table:
    """The pointers of a window in one of FORMS: `entries` has a row of pointers for each row of outputs or section.

    An output's pointers start `input_stride` after those of the output before it in its row, and are `kernel_tile`.
    """

    window: Window
    form: str
    kernel_tile: int
    input_stride: int
    entries: Entries

    @cached_property
    def sections(self) -> tuple[Sections, ...]:
        """Of each outer axis; in the other forms every row is there and counts as top."""
        outer = self.window.axes[:-1]
        return tuple(a.sections if self.form == "sections" else Sections(a.o, a.o, a.o) for a in outer)

    @property
    def bytes(self) -> int:
        return self.entries.size * POINTER_BYTES

    def place(self, *outputs: int) -> Place:
        """Where a row of outputs, named by its coordinates along the outer axes, finds its pointers.

        The offset is in elements. Of several axes the section is that of the first that is not in the middle.
        """
        places = [s.place(y) for s, y in zip(self.sections, outputs, strict=True)]
        row = 0
        for s, place in zip(self.sections, places):
            row = row * s.rows + place.row
        steps = zip(places, self.window.axes, self.window.strides)
        section = next((place.section for place in places if place.section != "mid"), "mid")
        return Place(section, row, sum(place.offset * a.s * stride for place, a, stride in steps))

    def window_of(self, *outputs: int) -> Entries:
        """The pointers of one output, offset added: `kernel_tile` of them, in the order of the table."""
        *outer, x = outputs
        place = self.place(*outer)
        found = self.entries[place.row, x * self.input_stride :][: self.kernel_tile]
        return np.where(found == ABSENT, ABSENT, found + place.offset)

    def pointers(self, base: int, zero: int, item: int) -> npt.NDArray[np.uint64]:
        """Addresses: of `item` bytes an element from `base` on, and `zero` for what is absent."""
        return np.where(self.entries == ABSENT, zero, base + self.entries * item).astype(np.uint64)


def recipe(window: Window, form: str) -> str:
    """A line from which `from_recipe` makes the table again: `sections 5:5:3:1:0:1@40 6:6:3:1:0:1@8`."""
    axes = (
        ":".join(map(str, a[:-1])) + (":t" if a.transposed else "") + f"@{stride}"
        for a, stride in zip(window.axes, window.strides)
    )
    return " ".join((form, *axes))


def from_recipe(line: str) -> Table:
    """The table of a line that `recipe` made."""
    form, *words = line.split()
    parts = [word.split("@") for word in words]
    axes = []
    for sizes, _ in parts:
        i, o, k, s, d, p = map(int, sizes.removesuffix(":t").split(":"))
        axes.append(Axis(i, o, k, s, d, p, sizes.endswith(":t")))
    return table(Window(tuple(axes), tuple(int(stride) for _, stride in parts)), form)


def check_tile(window: Window, kernel_tile: int | None) -> int:
    """The pointers of an output: those of the kernel, or of a tile that is no smaller."""
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
    """Rows and pointers of a row, without making the table."""
    *outer, inner = window.axes
    rows = math.prod(a.sections.rows if form == "sections" else a.o for a in outer)
    tile, step = check_tile(window, kernel_tile), input_stride(window, form, kernel_tile)
    return rows, (inner.o - 1) * step + tile if inner.o else 0


def input_stride(window: Window, form: str, kernel_tile: int | None = None) -> int:
    """Pointers from one output to the next: as far as columns are dense, neighbours share those that both meet."""
    tile, inner = check_tile(window, kernel_tile), window.axes[-1]
    if form in ("row", "column") or tile > window.taps:
        return tile
    return (inner.k if inner.d or inner.transposed else min(inner.s, inner.k)) * window.columns


@lru_cache(16)
def table(window: Window, form: str = "sections", kernel_tile: int | None = None) -> Table:
    """The table of a window; equal ones are made once and cannot be changed."""
    if form not in FORMS:
        raise UsageError(f"a table has no form {form!r}; legal are {', '.join(FORMS)}", code="bad-form")
    tile = check_tile(window, kernel_tile)
    *outer, inner = window.axes
    outputs = [a.sections.outputs_of_rows() if form == "sections" else np.arange(a.o) for a in outer]
    met = [a.meeting()[rows] for a, rows in zip(outer, outputs)] + [inner.meeting()]
    entries = _offsets(met, window.strides)
    # Axes of `entries`: outputs along each axis, then taps along each axis.
    rank, rows = len(window.axes), math.prod(len(x) for x in outputs)
    if form != "row":
        order = [*range(rank), 2 * rank - 1, *range(rank, 2 * rank - 1)]
        entries = entries.transpose(order)
    entries = entries.reshape(rows, inner.o, window.taps)
    step = input_stride(window, form, kernel_tile)
    found = np.full(shape_of(window, form, kernel_tile), ABSENT, np.int64)
    # Outputs that share columns agree on what those hold, so it does not matter which of them is written last.
    for x in range(inner.o):
        found[:, x * step : x * step + window.taps] = entries[:, x]
    found.flags.writeable = False
    return Table(window, form, tile, step, found)


def _offsets(met: Sequence[Entries], strides: Sequence[int]) -> Entries:
    """Offsets over outputs along each axis and taps along each axis; ABSENT where an axis meets nothing."""
    rank = len(met)
    total: Any = np.int64(0)
    there: Any = np.bool_(True)
    for axis, (y, stride) in enumerate(zip(met, strides)):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = y.shape
        total = total + y.reshape(shape) * stride
        there = there & (y.reshape(shape) >= 0)
    return np.where(there, total, ABSENT)
