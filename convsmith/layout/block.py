"""One block of a layout: how a dim of a tensor or of a buffer is addressed in memory."""

from __future__ import annotations

from typing import NamedTuple

ABSENT = -(1 << 63)
"""Entry of a pointer table for a tap that reads padding."""


class LayoutBlock(NamedTuple):
    """A block with ``size`` positions along dim ``dim``, ``stride`` elements apart."""

    dim: int
    size: int
    stride: int
