"""Pointer tables as text: pixels are letters, padding is 0, in the notation of XNNPACK's document on indirection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from string import ascii_lowercase, ascii_uppercase

from convsmith.diag.errors import UnsupportedError
from convsmith.layout.block import ABSENT
from convsmith.layout.indirection import Axis, Entries, Table, Window, table
from convsmith.problem.problem import Problem
from convsmith.statement.views import statement

__all__ = ["TITLES", "indirection_page", "pixel_window"]

TITLES = {
    "row": "row first, uncompressed",
    "column": "column first, uncompressed",
    "compressed": "column first, compressed",
    "sections": "compressed, in sections",
}

_MAX_LINES = 24
"""Maximum number of lines printed for one table."""
_SECTION_NAMES = {"top": "top", "mid": "middle", "bot": "bottom"}


def pixel_window(problem: Problem) -> Window:
    """Return the window of `problem` over an image with one element per pixel."""
    axes = statement(problem).axes
    if not axes:
        raise UnsupportedError("a matrix product has no pixels; pointer tables are available for convolutions")
    return Window(axes, tuple(math.prod(a.i for a in axes[n + 1 :]) for n in range(len(axes))))


def indirection_page(problem: Problem, kernel_tile: int | None = None) -> str:
    """Return a page with the image, the kernel, and the pointer table in each form that has a title."""
    window = pixel_window(problem)
    page = [*_pictures(window), ""]
    for form in TITLES:
        t = table(window, form, kernel_tile)
        page += [f"{TITLES[form]}: {t.entries.size} pointers, {t.bytes} bytes, input stride {t.input_stride}"]
        page += [*_shortened(list(_rows(t))), ""]
    page += ["output_y | section | row in indirection buffer | input offset"]
    page += ["-------- | ------- | ------------------------- | ------------"]
    t = table(window, "sections", kernel_tile)
    places = [(y, t.place(*y)) for y in product(*(range(a.o) for a in window.axes[:-1]))]
    listed = [f"{_coordinates(y):<8} | {p.section:<7} | {p.row:<25} | {p.offset}" for y, p in places]
    page += [*_shortened(listed), ""]
    page += _shortened([f"row {_coordinates(y)}: {_sum(t, y)}" for y, _ in places])
    return "\n".join(page)


def _coordinates(outputs: Sequence[int]) -> str:
    return " ".join(map(str, outputs)) or "0"


def _pictures(window: Window) -> Iterator[str]:
    """Yield source, kernel and output next to each other; only sizes for three axes or more pixels than letters."""
    pixels, taps, outputs = (math.prod(getattr(a, f) for a in window.axes) for f in "iko")
    axes = window.axes if len(window.axes) > 1 else (Axis(1, 1, 1), *window.axes)
    if len(axes) > 2 or pixels > len(ascii_uppercase) or taps > len(ascii_lowercase):
        for name, f in (("input", "i"), ("kernel", "k"), ("output", "o")):
            yield f"{name} {'x'.join(str(getattr(a, f)) for a in window.axes)}"
        return
    rows, columns = axes
    heads = {"input": _padded(rows, columns), "kernel": _letters(ascii_lowercase, rows.k, columns.k)}
    if pixels + outputs <= len(ascii_uppercase):
        heads["output"] = _letters(ascii_uppercase[len(ascii_uppercase) - outputs :], rows.o, columns.o)
    image = next(iter(heads))
    widths = [max(len(name), *map(len, lines), 0) for name, lines in heads.items()]
    height = max(map(len, heads.values()))
    blank = rows.p and not rows.transposed  # the kernel is drawn next to the image, below its padding
    yield "  ".join(name.ljust(w) for name, w in zip(heads, widths)).rstrip()
    yield ""
    for y in range(height + (1 if blank else 0)):
        cells = []
        for name, lines, w in zip(heads, heads.values(), widths):
            at = y - (1 if blank and name != image else 0)
            cells.append((lines[at] if 0 <= at < len(lines) else "").ljust(w))
        if any(c.strip() for c in cells):
            yield "  ".join(cells).rstrip()


def _letters(alphabet: str, height: int, width: int) -> list[str]:
    return [alphabet[y * width : (y + 1) * width] for y in range(height)]


def _padded(rows: Axis, columns: Axis) -> list[str]:
    """Return the image with a 0 for each padding element that some output reads."""
    front_y, back_y = _pads(rows)
    front_x, back_x = _pads(columns)
    inside = ["0" * front_x + line + "0" * back_x for line in _letters(ascii_uppercase, rows.i, columns.i)]
    width = front_x + columns.i + back_x
    return ["0" * width] * front_y + inside + ["0" * width] * back_y


def _pads(a: Axis) -> tuple[int, int]:
    if a.transposed or not a.o:
        return 0, 0
    return a.p, max(0, (a.o - 1) * a.s + (a.k - 1) * (a.d + 1) - a.p - a.i + 1)


def _name(entry: int, letters: bool) -> str:
    """Return the letter of a pixel, or its number counted from 1; 0 for padding."""
    if entry == ABSENT:
        return "0"
    return ascii_uppercase[entry] if letters else str(entry + 1)


def _text(entries: Entries, window: Window) -> str:
    letters = math.prod(a.i for a in window.axes) <= len(ascii_uppercase)
    return ("" if letters else " ").join(_name(int(e), letters) for e in entries)


def _rows(t: Table) -> Iterator[str]:
    sections = {}
    for outputs in product(*(range(a.o) for a in t.window.axes[:-1])):
        place = t.place(*outputs)
        sections[place.row] = _SECTION_NAMES[place.section]
    for number, row in enumerate(t.entries):
        note = f" ({sections[number]})" if t.form == "sections" else ""
        yield _text(row, t.window) + note


def _sum(t: Table, outputs: Sequence[int]) -> str:
    """Return, for example, `ADBECF + 1 * 3 = DGEHFI`: the row that an output reads, the offset, and their sum."""
    place = t.place(*outputs)
    row = t.entries[place.row]
    shifted = row.copy()
    shifted[row != ABSENT] += place.offset
    step = t.window.axes[0].s * t.window.strides[0]
    offset = f"{place.offset // step} * {step}" if len(outputs) == 1 else str(place.offset)
    return f"{_text(row, t.window)} + {offset} = {_text(shifted, t.window)}"


def _shortened(lines: list[str]) -> list[str]:
    """Return `lines` without the middle lines if there are many, and with long lines truncated."""
    cut = [line if len(line) <= 400 else f"{line[:200]} ... {line[-60:]}" for line in lines]
    if len(cut) <= _MAX_LINES:
        return cut
    return [*cut[: _MAX_LINES - 4], f"... ({len(cut) - _MAX_LINES + 1} more)", *cut[-3:]]
