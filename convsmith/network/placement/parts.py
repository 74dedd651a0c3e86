"""Parts of values: values that lie in the memory of others, whose strides they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from convsmith.layout.layout import Layout
from convsmith.network.placement.layouts import FIRST, LAST, layout_of, same_memory

__all__ = ["Part", "home_of", "order_of", "tag_within"]


class Part(NamedTuple):
    """The memory of a value: `offset` bytes from the start of the value `whole`."""

    whole: str
    offset: int


def home_of(name: str, parts: Mapping[str, Part]) -> Part:
    """Return the value that is part of no other in whose memory a value lies, with its offset there."""
    offset = 0
    while name in parts:
        name, start = parts[name]
        offset += start
    return Part(name, offset)


def tag_within(shape: tuple[int, ...], strides: Sequence[int], tag: str) -> str:
    """Return the layout of a part of `shape` with the `strides` of its whole, whose layout is `tag`."""
    own = Layout.plain(shape, strides).tag()
    return tag if tag in (FIRST, LAST) and same_memory(shape, own, tag) else own


def order_of(shape: tuple[int, ...], tag: str) -> list[int]:
    """Return the dims of several elements, outermost in memory first."""
    strides = layout_of(shape, tag).strides
    return sorted((n for n, size in enumerate(shape) if size > 1), key=lambda n: -strides[n])
