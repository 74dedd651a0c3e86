"""`Tensor`: one array that a problem takes or gives: its name, what happens to it, type, shape and layout.

Names are oneDNN's: src, wei, bia, dst and, for gradients, diff_src, diff_wei, diff_bia, diff_dst.
"""

from __future__ import annotations

from dataclasses import dataclass

from convsmith.diag.forking import cached_property
from convsmith.layout.layout import Layout

__all__ = ["Tensor"]


@dataclass(frozen=True)
class Tensor:
    """One array of a problem.

    `role` is "in" (read), "out" (written) or "inout" (read, then written). `shape` is logical, `dims` the names of its
    dims, `tag` the layout as written. `default` holds the values that stand where a call gives none: one for all
    elements, or one for each; None where a call must give the array.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    tag: str = "any"
    default: tuple[float, ...] | None = None

    @cached_property
    def layout(self) -> Layout:
        """Where the elements lie; `any` is plain order."""
        return Layout.parse(self.tag, self.shape)
