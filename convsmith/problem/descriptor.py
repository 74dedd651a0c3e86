"""The grammar of benchdnn's convolution descriptors and option lines.

    g32mb1ic128ih56oc128oh56kh3sh1ph1dh0n"name"

A token is a dim followed by a number; tokens may come in any order; `_` between them is ignored; `n` starts the name,
which ends the descriptor. Rules:

- `mb` defaults to 2. `g1` gives the weights a group dim of extent 1; without `g` they have no group dim.
- A spatial axis (d, h, w) exists if the descriptor gives a non-default value for one of its dims. 1D uses w, 2D uses h
  and w, 3D uses all; a lone h is copied to w; a lone d is copied to h and w.
- Stride defaults to 1, dilation to 0 (dense).
- An explicit output size determines the back pad; the front pad then defaults to half of the total, rounded to zero.
  Without an output size, pads are symmetric (default 0) and the size is floor((i + 2p - keff) / s) + 1.
- A deconvolution exchanges i and o: its default output size is (i - 1) * s + keff - 2p.

This module handles text and numbers only; `convsmith.problem.conv` checks that they make a legal convolution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_text, limit_digits

__all__ = [
    "AXES",
    "KINDS",
    "STAGES",
    "Descriptor",
    "OptionLine",
    "names_batch",
    "output_size",
    "parse_descriptor",
    "print_descriptor",
    "split_items",
    "split_line",
    "split_stages",
]

KINDS = ("conv", "deconv", "matmul")
"""Words that name the kind of problem that a line describes."""

STAGES = "->"
"""Joins the stages of a chain."""

AXES = {1: "w", 2: "hw", 3: "dhw"}
_DIMS = ("g", "mb", "ic", "oc", *(kind + axis for kind in "iokspd" for axis in "dhw"))
_TOKEN = re.compile(f"({'|'.join(sorted(_DIMS, key=len, reverse=True))})(-?[0-9]*)")


class Descriptor(NamedTuple):
    """The numbers of a descriptor with all defaults filled in; a spatial tuple has one entry per axis."""

    g: int
    has_groups: bool
    mb: int
    ic: int
    oc: int
    i: tuple[int, ...]
    o: tuple[int, ...]
    k: tuple[int, ...]
    s: tuple[int, ...]
    d: tuple[int, ...]
    p: tuple[int, ...]
    name: str | None


class OptionLine(NamedTuple):
    """A line split into its options (name without dashes -> text) and its descriptor."""

    options: dict[str, str]
    descriptor: str


def output_size(i: int, k: int, s: int, d: int, front: int, back: int) -> int:
    """Return floor((i + front + back - keff) / s) + 1 with keff = (k - 1) * (d + 1) + 1.

    The result is below 1 if the kernel does not fit.
    """
    return (i + front + back - (k - 1) * (d + 1) - 1) // s + 1


def parse_descriptor(text: str, deconv: bool = False) -> Descriptor:
    """Return the numbers of the descriptor `text`.

    UsageError if it is malformed, lacks a dim, or implies no output size.
    """
    values, name = _tokens(text)
    for dim in ("ic", "oc"):
        if dim not in values:
            raise _fail(text, f"{dim} is missing")
    axes = {axis: _axis(text, values, axis, deconv) for axis in "dhw"}
    given = "".join(axis for axis in "dhw" if axes[axis] is not None)
    source = {"w": "w", "hw": "hw", "h": "hh", "dhw": "dhw", "d": "ddd"}.get(given)
    if source is None:
        raise _fail(
            text, f"its spatial axes are {given or 'none'}; legal are w, hw, h (w is its copy), dhw, d (h and w are)"
        )
    columns = list(zip(*(sizes for axis in source if (sizes := axes[axis]) is not None), strict=True))
    i, o, k, s, d, p = columns
    return Descriptor(
        values.get("g", 1), "g" in values, values.get("mb", 2), values["ic"], values["oc"], i, o, k, s, d, p, name
    )


def names_batch(text: str) -> bool:
    """Return whether the descriptor `text` gives `mb`; if not, `parse_descriptor` uses benchdnn's default of 2."""
    return "mb" in _tokens(text)[0]


def print_descriptor(descriptor: Descriptor) -> str:
    """Return the canonical text of `descriptor`, which `parse_descriptor` reads back as the same numbers.

    Default strides and dilations are omitted; if all axes are equal, only the first is printed.
    """
    c = descriptor
    axes = AXES[len(c.i)]
    square = all([sizes.count(sizes[0]) == len(axes) for sizes in (c.i, c.o, c.k, c.s, c.d, c.p)])
    printed = axes[:1] if square else axes

    def spatial(kind: str, sizes: tuple[int, ...]) -> str:
        return "".join([f"{kind}{axis}{size}" for axis, size in zip(printed, sizes)])

    text = f"g{c.g}" if c.has_groups else ""
    text += f"mb{c.mb}ic{c.ic}{spatial('i', c.i)}oc{c.oc}{spatial('o', c.o)}{spatial('k', c.k)}"
    if c.s.count(1) < len(axes):
        text += spatial("s", c.s)
    text += spatial("p", c.p)
    if any(c.d):
        text += spatial("d", c.d)
    return text + (f'n"{c.name}"' if c.name is not None else "")


def split_line(line: str) -> OptionLine:
    """Split a line `[--conv] [--name=value ...] descriptor`; an underscore in an option's name becomes a dash.

    Blanks inside the quotes of a problem's name belong to the name.
    """
    expect_text("line", line, "bad-descriptor")
    limit_digits(line, "bad-number")
    rest = line.strip()
    options: dict[str, str] = {}
    while rest.startswith("-"):
        word, _, rest = rest.partition(" ")
        rest = rest.lstrip()
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not word.startswith("--") or not (equals or name in KINDS):
            raise UsageError(
                f"cannot read {word!r} in {line.strip()!r}: options are written --name=value", code="bad-option"
            )
        if name in options:
            raise UsageError(f"--{name} is given twice in {line.strip()!r}", code="bad-option")
        options[name] = value
    if not rest:
        raise UsageError(
            f"no descriptor in {line.strip()!r}: expected one such as mb1ic64ih56oc64oh56kh3ph1", code="bad-descriptor"
        )
    before_name = re.split(r'n"', rest, maxsplit=1)[0]
    if blank := re.search(r"\s+(\S.*)?", before_name):
        raise _fail(
            rest, f"{blank.group().strip()!r} follows the descriptor; legal are options before it, and nothing after it"
        )
    return OptionLine(options, rest)


def split_stages(line: str) -> list[str]:
    """Split the line of a chain at every arrow outside the quotes of a name; any other line is one stage."""
    expect_text("line", line, "bad-descriptor")
    return [stage.strip() for stage in re.split(rf'{STAGES}(?=(?:[^"]*"[^"]*")*[^"]*$)', line)]


def split_items(text: str) -> list[str]:
    """Split `one+two` at every `+` except that of an exponent (`1e+10`); the empty text has no items."""
    items: list[str] = []
    for piece in text.split("+") if text else ():
        if items and re.search(r"[0-9.][eE]$", items[-1]):
            items[-1] += "+" + piece
        else:
            items.append(piece)
    return items


def _tokens(text: str) -> tuple[dict[str, int], str | None]:
    """Return the numbers by dim, as written, and the name."""
    values: dict[str, int] = {}
    for position, dim, digits in _scan(text):
        if dim == "n":
            return values, digits.strip('"') or None
        if digits in ("", "-"):
            raise _fail(text, f"{dim} at position {position} has no number")
        if dim in values:
            raise _fail(text, f"{dim} is given twice")
        if len(digits) > 19:
            raise _fail(text, f"{dim}={digits} is too large; legal are sizes below 2**63")
        values[dim] = int(digits)
    return values, None


def _scan(text: str) -> Iterator[tuple[int, str, str]]:
    position = 0
    while position < len(text):
        if text[position] == "_":
            position += 1
        elif text[position] == "n":
            yield position, "n", text[position + 1 :]
            return
        elif match := _TOKEN.match(text, position):
            yield position, match[1], match[2]
            position = match.end()
        else:
            raise _fail(
                text, f"cannot read {text[position:]!r} at position {position}; expected one of {' '.join(_DIMS)} n"
            )


def _axis(text: str, values: dict[str, int], axis: str, deconv: bool) -> tuple[int, int, int, int, int, int] | None:
    """Return (i, o, k, s, d, p) of `axis` with defaults filled in; None if the axis does not exist."""
    i, o, k = (values.get(kind + axis) for kind in "iok")
    s, d, p = values.get("s" + axis, 1), values.get("d" + axis, 0), values.get("p" + axis)
    if not (i or o or k or d or s != 1 or p):
        return None
    for dim, size in (("i" + axis, i), ("k" + axis, k)):
        if size is None:
            raise _fail(text, f"{dim} is missing")
    assert i is not None and k is not None
    if k < 1 or s < 1 or i < 0 or d < 0 or (p or 0) < 0:
        # No output size follows from illegal dims; the check of the whole problem reports them.
        return (i, o or 0, k, s, d, p or 0)
    keff = (k - 1) * (d + 1) + 1
    if o is None:
        p = p or 0
        o = (i - 1) * s + keff - 2 * p if deconv else output_size(i, k, s, d, p, p)
        if o < 0 or (o == 0 and i > 0):
            smallest = 1 + -(-(2 * p - keff + 1) // s) if deconv else keff - 2 * p
            raise _fail(
                text,
                f"k{axis}={k} (effective {keff}) does not fit i{axis}={i} with p{axis}={p} at both ends, so no o{axis} "
                f"follows; legal are i{axis} >= {max(smallest, 0)}, or an o{axis} of its own",
            )
    elif p is None:
        coarse, fine = (i, o) if deconv else (o, i)
        total = (coarse - 1) * s - fine + keff
        p = total // 2 if total >= 0 else -(-total // 2)
        if p < 0:
            smallest = max(output_size(i, k, s, d, 0, 0), 0)
            bounds = (
                f"the largest legal o{axis} is {i * s + keff - 1}" if deconv
                else f"the smallest legal o{axis} is {smallest}, and there is no largest"
            )  # fmt: skip
            raise UsageError(
                f"o{axis}={o} leaves {-total} elements of {'o' if deconv else 'i'}{axis}={fine} "
                f"{'unwritten' if deconv else 'unread'}, and without p{axis} the front pad would be {p} in {text!r}: "
                f"legal is to give p{axis}; with p{axis}=0 {bounds}",
                code="bad-output-size",
            )
    return (i, o, k, s, d, p)


def _fail(text: str, why: str) -> UsageError:
    return UsageError(f"descriptor {text!r}: {why}", code="bad-descriptor")
