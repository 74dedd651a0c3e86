"""Blocks: how memory is addressed by the coordinates of a tensor or of a buffer."""

from __future__ import annotations

from typing import NamedTuple

ABSENT = -(1 << 63)
"""The entry of a table of pointers that stands for an absent pixel."""


class LayoutBlock(NamedTuple):
    """``size`` steps of dim ``dim``, ``stride`` elements apart."""

    dim: int
    size: int
    stride: int
