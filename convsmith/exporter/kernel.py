"""Parts that an exported kernel has on every machine, and a test of which kernels can be exported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from convsmith.codegen.artifact import Artifact
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.exporter.interface import Interface
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.measure.verification import narrow_limits
from convsmith.runtime.arrays import Array, is_within, numpy_dtype
from convsmith.schedule.config import Config
from convsmith.schedule.planned import with_wide_products

__all__ = ["ExportedKernel", "LibraryKernel", "exportable", "for_any_operands"]


@record(frozen=True)
class LibraryKernel(ABC):
    """A kernel of an exported library, whatever its functions take.

    ``problem`` describes what it computes, and ``nodes`` are the names of the nodes of a model that it computes.
    ``needs`` are functions of the compiler's library that the code calls.
    """

    machine: Machine
    problem: str
    config: str
    nodes: tuple[str, ...]
    needs: tuple[str, ...]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the kernel."""

    @property
    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """Names of the functions that a program can call."""

    def manifest_rows(self) -> dict[str, Any]:
        """Return rows of the manifest that only kernels of this class have."""
        return {}


@record(frozen=True)
class ExportedKernel(LibraryKernel):
    """A kernel of fixed sizes with its interface."""

    interface: Interface

    @property
    def name(self) -> str:
        return self.interface.name

    @property
    def symbols(self) -> tuple[str, ...]:
        return self.interface.symbols

    @property
    def codes(self) -> dict[str, str]:
        """Messages by the codes of the function that checks the arrays of a call."""
        return {str(n): text for n, (_, _, text) in enumerate(self.interface.faults, 1)}


def for_any_operands(kernel: CompiledKernel, weights: Mapping[str, Array]) -> CompiledKernel:
    """Return ``kernel``, or a kernel for weights of any magnitude if the built-in weights exceed the limits of
    ``kernel``, because an exported kernel cannot fall back on another one.

    Weights of a call may be all integers of their type, and floating-point numbers within the limits.
    """
    limits = exportable(kernel).limits
    types = {t.name: numpy_dtype(t.dtype) for t in kernel.problem.inputs}
    known = {name: x for name, x in weights.items() if x.dtype == types.get(name)}
    if any(name in known and not is_within(known[name], limit) for name, limit in limits.items()):
        return kernel.without_limits()
    if narrow_limits(kernel).keys() <= known.keys():
        return kernel
    if not isinstance(kernel.config, Config):
        return kernel.without_limits()
    config = with_wide_products(kernel.config, kernel.target)
    return CompiledKernel(kernel.problem, kernel.target, config, config.threads)


def exportable(kernel: object) -> Artifact:
    """Return the artifact of `kernel`. UnsupportedError says why it cannot be exported."""
    if not isinstance(kernel, CompiledKernel) or kernel.dynamic:
        raise UnsupportedError(
            f"{type(kernel).__name__}: kernels of fixed sizes are exported, which compile() returns without dynamic=",
            code="export",
        )
    if kernel.artifact is None:
        raise UnsupportedError(
            f"{kernel.problem} has no elements in its source or destination: there is no code to export; available are "
            "problems with sizes of at least 1",
            code="export",
        )
    return kernel.artifact
