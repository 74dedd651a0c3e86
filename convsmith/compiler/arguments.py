"""A problem's tensors as arguments of a kernel."""

from __future__ import annotations

from convsmith.codegen.artifact import Argument
from convsmith.problem.tensor import Tensor

__all__ = ["argument_of"]


def argument_of(tensor: Tensor) -> Argument:
    """The argument that takes a tensor as it is."""
    return Argument(
        tensor.name, tensor.role, tensor.dtype, tensor.shape, tensor.layout.tag(), tensor.layout.size,  # type: ignore[arg-type]
        tensor.dims, tensor.default,
    )  # fmt: skip
