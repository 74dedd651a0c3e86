"""A problem's tensors as arguments of a kernel, and what tells one packing of them from another."""

from __future__ import annotations

import hashlib

from convsmith.codegen.artifact import Argument
from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Kernel
from convsmith.layout.layout import Layout
from convsmith.problem.attributes import ZERO_POINTS
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor

__all__ = ["argument_of", "packing_note", "zero_argument"]


def argument_of(tensor: Tensor) -> Argument:
    """The argument that takes a tensor as it is."""
    return Argument(
        tensor.name, tensor.role, tensor.dtype, tensor.shape, tensor.layout.tag(), tensor.layout.size,  # type: ignore[arg-type]
        tensor.dims, tensor.default,
    )  # fmt: skip


def zero_argument(problem: Problem, zero: Buffer, of: str) -> Argument:
    """What stands for absent pixels of a tensor; it holds the tensor's zero points, where there are any."""
    given = problem.quantity(ZERO_POINTS, of) is not None
    points = problem.attribute_name(ZERO_POINTS, of) if given else ""
    layout = Layout(zero.shape, zero.blocks)
    return Argument(zero.name, "zero", zero.dtype.name, zero.shape, layout.tag(), zero.size, of=of, recipe=points)


def packing_note(pack: Kernel) -> str:
    """The same for packing kernels that write the same."""
    return hashlib.sha256(str(pack).encode()).hexdigest()[:16]
