"""Spellings of layout tags. This module parses and prints tags; it does not know the sizes of tensors.

A tag such as `aBcd16b` has two parts: one letter per dim, outermost first, then inner blocks, outermost first. oneDNN
capitalises blocked dims (`nChw16c`), TVM capitalises all dims (`NCHW16c`, `NHWC`); both spellings are legal. Letters
come from one of these alphabets:

- the dims in order: `a b c ...`;
- activations: `n c` and the last of the spatial dims `d h w` (`nhwc`, `nCw16c`);
- weights: `o i d h w`, with groups `g o i d h w` (`OIhw16i16o`, `hwigo`);
- meta tags of any rank: `x` stands for all dims not named, in order (`abx`, `axb`, `aBx16b`).

Two further spellings contain sizes: `4n2c7h7w32n32c` (dense blocks), and `dim:size:stride` blocks joined by `_`
(`a:2:6400_b:20:1`), which can express any strides. `any` leaves the choice to convsmith.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from convsmith.diag.errors import UsageError

__all__ = [
    "ANY",
    "MAX_DIMS",
    "SizedBlock",
    "TagForm",
    "infer_ndims",
    "parse_sized",
    "parse_tag",
    "print_strided",
    "print_tag",
]

ANY = "any"
MAX_DIMS = 6
_TAG = re.compile(r"([A-Za-z]+)((?:[0-9]+[a-z])*)")
_INNER = re.compile(r"([0-9]+)([a-z])")
_SIZED = re.compile(r"(?:[0-9]+[a-z])+")
_STRIDED = re.compile(r"([a-z]):([0-9]+):([0-9]+)")


class TagForm(NamedTuple):
    """A parsed tag: the `order` of the dims and the `inner` blocks (dim, size), both outermost first."""

    order: tuple[int, ...]
    inner: tuple[tuple[int, int], ...]


class SizedBlock(NamedTuple):
    """A block with an explicit size; `stride` is None if blocks are dense."""

    dim: int
    size: int
    stride: int | None


def _alphabets(ndims: int) -> tuple[str, ...]:
    """Return the alphabets for a tensor of `ndims` dims; letter j of an alphabet names dim j."""
    names = ["abcdef"[:ndims]]
    for leading in ("nc", "oi", "goi"):
        spatial = ndims - len(leading)
        if 0 <= spatial <= 3:
            names.append(leading + "dhw"[3 - spatial :])
    return tuple(names)


def _fail(tag: str, ndims: int, why: str) -> UsageError:
    alphabets = ", ".join(_alphabets(ndims))
    return UsageError(
        f"layout tag {tag!r} does not suit a tensor of {ndims} dims: {why}; legal are orders of {alphabets}, "
        "blocks (nChw16c, NCHW16c), meta tags (abx, axb, aBx16b), blocks with sizes (4n2c7h7w32n32c) or strides "
        "(a:2:20_b:20:1), and 'any'",
        code="bad-tag",
    )


def _alphabet(tag: str, letters: str, ndims: int) -> str:
    """Return the alphabet that consists of exactly the dims that `letters` (lower case) names."""
    for alphabet in _alphabets(ndims):
        if set(alphabet) == set(letters):
            return alphabet
    raise _fail(tag, ndims, f"it names the dims {''.join(sorted(set(letters)))}")


def parse_tag(tag: str, ndims: int) -> TagForm:
    """Return the form of `tag`, a tag without sizes, for a tensor of `ndims` dims (1 to 6)."""
    match = _TAG.fullmatch(tag)
    if not match or tag in (ANY, "undef"):
        raise _fail(tag, ndims, "it does not name an order of dims")
    letters, inner_text = match.groups()
    if "x" in letters:
        unnamed = "".join(c for c in "abcdef"[:ndims] if c not in letters.lower())
        letters = letters.replace("x", unnamed, 1)
    lower = letters.lower()
    if len(set(lower)) != len(lower):
        raise _fail(tag, ndims, "it names a dim twice")
    alphabet = _alphabet(tag, lower, ndims)
    inner = []
    for size, letter in _INNER.findall(inner_text):
        if letter not in alphabet or int(size) < 1:
            raise _fail(tag, ndims, f"the block {size}{letter} is not a block of one of its dims")
        inner.append((alphabet.index(letter), int(size)))
    capitals = {alphabet.index(c.lower()) for c in letters if c.isupper()}
    if capitals != {dim for dim, _ in inner} and not letters.isupper():
        raise _fail(tag, ndims, "capital letters must name exactly the blocked dims, or all dims")
    return TagForm(tuple(alphabet.index(c) for c in lower), tuple(inner))


def print_tag(form: TagForm) -> str:
    """Return the `aBcd16b` spelling of `form`. Inverse of `parse_tag`."""
    blocked = {dim for dim, _ in form.inner}
    order = "".join("abcdef"[dim].upper() if dim in blocked else "abcdef"[dim] for dim in form.order)
    return order + "".join(f"{size}{'abcdef'[dim]}" for dim, size in form.inner)


def parse_sized(text: str, ndims: int) -> tuple[SizedBlock, ...] | None:
    """Return the blocks of a spelling with sizes, outermost first; None if `text` has no sizes."""
    if _SIZED.fullmatch(text):
        raw = [(letter, int(size), None) for size, letter in _INNER.findall(text)]
        alphabet = _alphabet(text, "".join(letter for letter, _, _ in raw), ndims)
        return tuple(SizedBlock(alphabet.index(letter), size, stride) for letter, size, stride in raw)
    if ":" not in text:
        return None
    blocks = []
    for item in text.split("_"):
        match = _STRIDED.fullmatch(item)
        if not match:
            raise _fail(text, ndims, f"{item!r} is not dim:size:stride")
        blocks.append((match[1], int(match[2]), int(match[3])))
    alphabet = _alphabet(text, "".join(letter for letter, _, _ in blocks), ndims)
    return tuple(SizedBlock(alphabet.index(letter), size, stride) for letter, size, stride in blocks)


def print_strided(blocks: tuple[tuple[int, int, int], ...]) -> str:
    """Return the `dim:size:stride` spelling of `blocks` (dim, size, stride)."""
    return "_".join(f"{'abcdef'[dim]}:{size}:{stride}" for dim, size, stride in blocks)


def infer_ndims(tag: str, axes: int) -> int:
    """Return the rank of a tensor whose physical array in `tag` has `axes` axes: 4 for `nChw16c` and 5 axes."""
    if _SIZED.fullmatch(tag) or ":" in tag:
        return len(set(re.findall("[a-z]", tag)))
    match = _TAG.fullmatch(tag)
    return axes - len(_INNER.findall(match[2])) if match else axes
