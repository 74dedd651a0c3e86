"""The table of pointers through which a kernel reads pixels whose number is known only at the call.

The positions of the table's rows are sizes of the kernel. A call may run several rows of pixels, or all rows of small
images, as one long row (`joined_rows.py`): the table then has all of these rows, one after the other. The taps that no
pixel has, as in an image that is smaller than a window, are left out: the loops over taps begin and end at sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from convsmith.ir.buffer import UNKNOWN, make_buffer
from convsmith.ir.index import Index, Var, as_index, maximum, minimum, product
from convsmith.ir.types import PTR
from convsmith.layout.indirection import MAX_AXES, Axis, Window, input_stride, shape_of
from convsmith.passes import indirect as rewrite
from convsmith.passes.generalise import Place, generalise
from convsmith.passes.manager import Step
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.schedule.config import Config
from convsmith.schedule.joined_rows import PixelRows
from convsmith.schedule.pointers import Pointers, pointers
from convsmith.statement.fused import own_statement, stage_statement
from convsmith.statement.statement import Statement

FORM, JOINED_FORM = "bands", "column"
"""Forms of the table: of separate rows, and of rows that a kernel runs as one. Their outputs are equally far apart."""
MAX_JOINED_ROW = 64
"""Maximum number of pixels of rows that run as one. The last register tile of a longer row is a small part of it, and a
table of all rows would be large."""
MAX_JOINED_IMAGE, MAX_JOINED_POINTERS = 256, 1 << 16
"""Maximum numbers of pixels of an image whose last register tile is a large part of it, so that several images run as
one, and of pointers of the table of all these images.
"""


def table_name(source: str) -> str:
    """Return the name of the table of pointers into the array ``source``."""
    return f"{source}_table"


def section_sizes(axes: str) -> tuple[Var, ...]:
    """Return the sizes that determine the positions of the table's rows along the outer ``axes``."""
    return tuple(Var(f"{word}_{a}") for a in axes[:-1] for word in ("low", "high", "row", "step"))


def tap_bounds(axis: str) -> tuple[Var, Var]:
    """Return the sizes that are the first tap along ``axis`` that a call has, and the one after the last."""
    return Var(f"first_{axis}"), Var(f"past_{axis}")


class TableOfCall(NamedTuple):
    """The table at the sizes of a call, and the values of the kernel's ``sizes`` that depend on it, by name."""

    pointers: Pointers
    sizes: Mapping[str, int]


def table_of_call(q: Problem, n: int, arrays: Mapping[str, Tensor], config: Config) -> TableOfCall:
    """Return the table of ``q``, the problem of a call, or of its stage ``n``, whose kernel has these ``arrays``.

    The register tile of ``config`` decides how many tasks there are besides rows.
    """
    st = stage_statement(q, n)
    axes = "".join(d.axis for d in st.of("m") if d.axis)
    made = pointers(st, FORM)
    values = _tap_values(axes, made.window, config)
    own = own_statement(q, n)
    rows = PixelRows.of(own, config)
    if rows.extents[-1] > MAX_JOINED_ROW or st.residues:
        return TableOfCall(made, values | _section_values(axes, made.window))
    images = PixelRows.of(own, config, images=True)
    results = {name: t for name, t in arrays.items() if name != st.a.name}
    window = _with_images(st, made.window)
    if window is not None and images.are_even(results.values()) and (count := images.count_of_all(config.threads)):
        values |= _joined_values(axes, images.ends(count)[1:], window.taps) | images.values(count, results)
        return TableOfCall(made._replace(window=window, form=JOINED_FORM), values)
    count = rows.joined(config.threads) if rows.are_even(arrays.values()) else 1
    if count == 1:
        return TableOfCall(made, values | _section_values(axes, made.window))
    values |= _joined_values(axes, rows.ends(count), made.window.taps) | rows.values(count, arrays)
    return TableOfCall(made._replace(form=JOINED_FORM), values)


def _tap_values(axes: str, window: Window, config: Config) -> dict[str, int]:
    """Return the values of `tap_bounds` along all ``axes``: of the taps that read a pixel for some output. All taps
    count if absent pixels add zero points, which the sums of all weights take away again.
    """
    found = dict[str, int]()
    is_whole = bool(config.flip) or config.offsets == "sums"
    for letter, axis in zip(axes, window.axes):
        first, past = tap_bounds(letter)
        found[first.name], found[past.name] = (0, axis.k) if is_whole else axis.present_taps()
    return found


def _with_images(st: Statement, window: Window) -> Window | None:
    """Return ``window`` with the images of ``st`` as its outermost axis, if there are several small ones."""
    images = next(d.size for d in st.dims if d.sort == "images")
    strides = [b.stride for b in st.a.layout.blocks if b.dim == 0]
    pixels = math.prod(a.o for a in window.axes)
    is_small = pixels < MAX_JOINED_IMAGE and images * pixels * window.taps <= MAX_JOINED_POINTERS
    if images == 1 or len(strides) > 1 or len(window.axes) == MAX_AXES or not is_small:
        return None
    return Window((Axis(images, images, 1), *window.axes), (strides[0], *window.strides))


def _section_values(axes: str, window: Window) -> dict[str, int]:
    """Return the values of `section_sizes` for the table of a ``window`` over separate rows."""
    found = {}
    _, length = shape_of(window, FORM)
    rows = [a.sections.rows for a in window.axes[:-1]]
    for n, (letter, axis, stride) in enumerate(zip(axes[:-1], window.axes, window.strides)):
        s = axis.sections
        low, high = (s.low, s.high) if s.low < s.high else (axis.o, axis.o + 1)
        found[f"low_{letter}"], found[f"high_{letter}"] = low, high
        found[f"row_{letter}"] = math.prod(rows[n + 1 :]) * length
        found[f"step_{letter}"] = axis.s * stride
    return found


def _joined_values(axes: str, ends: Sequence[int], taps: int) -> dict[str, int]:
    """Return the values of `section_sizes` for a table of all rows, which loops with these ``ends`` run along."""
    found: dict[str, int] = {}
    for n, letter in enumerate(axes[:-1]):
        found |= {f"low_{letter}": 0, f"high_{letter}": 1, f"step_{letter}": 0}
        found[f"row_{letter}"] = math.prod(ends[n + 1 :]) * taps
    return found


def table_steps(st: Statement, places: tuple[Place, ...]) -> tuple[Step, ...]:
    """Return the rewrites that make ``st`` read its first factor, laid out by ``places``, through the table."""
    return (_pointer_step(st, places), *_pixel_steps(st, places))


def _pointer_step(st: Statement, places: tuple[Place, ...]) -> Step:
    """Return the rewrite that reads the source through the table, whose rows the sizes locate."""
    own = pointers(st, FORM)
    outputs = {d.axis: Var(d.name) for d in st.of("m") if d.axis}
    axes = "".join(outputs)
    place: Index = as_index(0)
    images = next(d.name for d in st.dims if d.sort == "images")
    moved: Index = product(Var(images), next(stride for dim, _, stride in places if dim == 0))
    for a in axes[:-1]:
        y, low, last = outputs[a], Var(f"low_{a}"), Var(f"high_{a}") - 1
        below = maximum(y - last, 0)
        inside = minimum(maximum(y, low), last) - low - product(minimum(below, 1), last - low)
        place = place + product(minimum(y, low) + below, Var(f"row_{a}"))
        moved = moved + product(inside, Var(f"step_{a}"))
    stride = input_stride(own.window, FORM)
    taps = {d.axis: d for d in st.of("k") if d.axis}
    apart, within = 1, {}
    for a in reversed([*axes[-1:], *axes[:-1]]):
        within[a] = apart
        apart *= taps[a].size
    place = place + outputs[axes[-1]] * stride
    for a in axes:
        place = place + Var(taps[a].name) * within[a]
    table = make_buffer(table_name(st.a.name), PTR, (UNKNOWN,))
    return Step(rewrite.indirect, st.a.name, table, own.zero, (place,), moved, st.sizes)


def _pixel_steps(st: Statement, places: tuple[Place, ...]) -> list[Step]:
    """Return the rewrites that make the distance of a pixel's channels a size, if the layout has one."""
    channels = tuple((0, size, stride) for dim, size, stride in places if dim == 1)
    if all(stride.is_const for _, _, stride in channels):
        return []
    return [Step(generalise, (), ((f"{st.a.name}_at", channels), (f"{st.a.name}_0", channels)), ())]
