"""A problem's tensors as arguments of a kernel, and what tells one packing of them from another."""

from __future__ import annotations

import hashlib

from convsmith.codegen.artifact import Argument
from convsmith.ir.stmt import Kernel
from convsmith.problem.tensor import Tensor

__all__ = ["argument_of", "packing_note"]


def argument_of(tensor: Tensor) -> Argument:
    """The argument that takes a tensor as it is."""
    return Argument(
        tensor.name, tensor.role, tensor.dtype, tensor.shape, tensor.layout.tag(), tensor.layout.size,  # type: ignore[arg-type]
        tensor.dims, tensor.default,
    )  # fmt: skip


def packing_note(pack: Kernel) -> str:
    """The same for packing kernels that write the same."""
    return hashlib.sha256(str(pack).encode()).hexdigest()[:16]
