"""Arguments of a kernel derived from a problem's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convsmith.codegen.artifact import Argument, Role
from convsmith.layout.layout import Layout
from convsmith.problem.tensor import Tensor

if TYPE_CHECKING:
    from convsmith.ir.buffer import Buffer

__all__ = ["argument_of", "buffer_argument", "zero_argument"]


def argument_of(tensor: Tensor) -> Argument:
    """Return the argument that passes `tensor` in its own layout."""
    return Argument(
        tensor.name, tensor.role, tensor.dtype, tensor.shape, tensor.layout.tag(), tensor.layout.size,  # type: ignore[arg-type]
        tensor.dims, tensor.default, holds=tensor.holds,
    )  # fmt: skip


def buffer_argument(b: Buffer, role: Role, of: str = "") -> Argument:
    """Return the argument for the buffer `b` of a kernel if it is not an array of the problem: memory without a shape.
    """
    return Argument(b.name, role, b.dtype.name, (b.size,), "a", b.size, of=of)


def zero_argument(zero: Buffer, of: str, points: str) -> Argument:
    """Return the argument for the zero buffer of the tensor `of`, which holds its zero `points`, if it has any."""
    layout = Layout(zero.shape, zero.blocks)
    return Argument(zero.name, "zero", zero.dtype.name, zero.shape, layout.tag(), zero.size, of=of, recipe=points)
