"""`Tensor`: name, role, type, shape and layout of one array of a problem.

Names are oneDNN's: src, wei, bia, dst and, for gradients, diff_src, diff_wei, diff_bia, diff_dst.
"""

from __future__ import annotations

from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.layout.layout import Layout
from convsmith.problem.types import TYPES

__all__ = ["HOLDS", "Tensor"]

HOLDS = ("src", "wei", "bia", "dst", "scales", "zero_points", "operand", "rounding")
"""Contents of arrays: the problem's four, factors, integers to subtract, operands of post-ops, rounding terms."""


@record(frozen=True)
class Tensor:
    """One array of a problem.

    `role` is "in" (read), "out" (written) or "inout" (read, then written). `shape` is logical, `dims` holds the dims'
    names, `tag` is the layout as written. `default` holds the values used when a call omits the array, one for all
    elements or one per element; None if a call must pass the array. `holds` is one of `HOLDS`; a gradient has the value
    of the array of which it is the gradient. `post_op` is the position of the post-op whose operand it is.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    tag: str = "any"
    default: tuple[float, ...] | None = None
    holds: str = ""
    post_op: int | None = None

    @cached_property
    def layout(self) -> Layout:
        """The memory layout; `any` is row-major."""
        return Layout.of_tag(self.tag, self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the array in its layout."""
        return self.layout.size * TYPES[self.dtype].bits // 8
