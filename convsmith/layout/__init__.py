"""Physical layouts of tensors: blocks, tag spellings, and conversion of arrays.

Logical coordinates and masks (views) stand in `convsmith.statement.statement`.
"""

from __future__ import annotations

from convsmith.layout.layout import Layout
from convsmith.layout.reorder import from_layout, reorder, to_layout

__all__ = ["Layout", "from_layout", "reorder", "to_layout"]
