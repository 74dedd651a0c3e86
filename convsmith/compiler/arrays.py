"""Requirements of a target on the arrays of a problem."""

from __future__ import annotations

from convsmith.diag.errors import UnsupportedError
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem

__all__ = ["check_arrays"]


def check_arrays(problem: Problem, target: Machine) -> None:
    """Raise UnsupportedError if an array has a type that kernels of `target` cannot store, or more bytes than half of
    the target's address space.
    """
    most = 1 << target.address_bits - 1
    for tensor in problem.tensors:
        if target.stored and tensor.dtype not in target.stored:
            raise UnsupportedError(
                f"{tensor.name} is an array of {tensor.dtype}; legal on {target.name} are arrays of "
                f"{' and '.join(target.stored)}",
                code="type",
            )
        if tensor.nbytes >= most:
            raise UnsupportedError(
                f"{tensor.name} has {tensor.nbytes} bytes; legal are fewer than {most} on {target.name}, whose "
                f"addresses have {target.address_bits} bits",
                code="memory",
            )
