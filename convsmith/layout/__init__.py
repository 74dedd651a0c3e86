"""Memory layouts of tensors: blocks, spellings of tags, and conversion of arrays between layouts.

This package knows nothing of padding masks; `convsmith.statement.views` maps loop variables to tensor coordinates.
"""

from __future__ import annotations

from convsmith.layout.layout import Layout
from convsmith.layout.reorder import from_layout, reorder, to_layout

__all__ = ["Layout", "from_layout", "reorder", "to_layout"]
