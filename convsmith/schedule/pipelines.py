"""The interface between a plan and the driver: naive nests, each with the rewrites that make a kernel of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.passes.manager import Step

SYMBOL = "convsmith"
"""The symbol of a main kernel without a name, and the prefix of the symbols of the kernels around it."""


class Pipelines(Protocol):
    """Kernels to be compiled for one machine: a main kernel, and kernels that prepare its arguments or finish its
    results.
    """

    @property
    def machine(self) -> Machine: ...

    @property
    def pipeline(self) -> Sequence[Step]:
        """The rewrites of the main kernel."""
        ...

    @property
    def preparing(self) -> Mapping[str, Sequence[Step]]:
        """The rewrites of the kernels that run before the main one, by name."""
        ...

    @property
    def each_call(self) -> frozenset[str]:
        """The names of the preparing kernels that run in each call; the others run while an operand is packed."""
        ...

    def naive(self) -> Kernel:
        """Return the naive nest of the main kernel, with the nests of the kernels before it."""
        ...

    def finishing(self) -> Sequence[tuple[Kernel, Sequence[Step]]]:
        """Return the naive nests of the kernels that run after the main one, with their rewrites."""
        ...

    def symbol(self, kernel: str = "") -> str:
        """Return the symbol of the main kernel, or of a kernel around it."""
        ...

    def threads(self, kernel: str = "") -> int:
        """Return the number of threads that share the main kernel, or a kernel around it."""
        ...
