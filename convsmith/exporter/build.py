"""The code of an exported kernel: its entries, the functions that run them, and the library functions that LLVM calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.exporter.constants import built_in_contents
from convsmith.exporter.entry_points import entry_points_text
from convsmith.exporter.interface import Interface, interface_of
from convsmith.exporter.library_functions import PROVIDED, library_text
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.machine.registry import known_targets
from convsmith.measure.verification import narrow_limits
from convsmith.runtime.arrays import Array, is_within, numpy_dtype
from convsmith.schedule.config import Config
from convsmith.schedule.planned import with_wide_products

__all__ = ["BuiltKernel", "build_kernel"]

_OF_COMPILER = "__"
"""Prefix of functions that a compiler's runtime library for a machine provides."""


@record(frozen=True)
class BuiltKernel:
    """A kernel as object code and as assembly, with its interface.

    ``needs`` are functions of the compiler's library that the code calls; ``problem`` describes what it computes, and
    ``nodes`` are the names of the nodes of a model that it computes.
    """

    interface: Interface
    machine: Machine
    problem: str
    config: str
    object: bytes = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)
    needs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.interface.name

    def assembly(self) -> bytes:
        """Return the code as text that an assembler takes."""
        m = self.machine
        return llvm_bind.joined_code(self.texts, self.interface.symbols, m.triple, m.cpu, m.features, is_text=True)


def build_kernel(
    kernel: CompiledKernel, name: str, weights: Mapping[str, Array], nodes: tuple[str, ...] = ()
) -> BuiltKernel:
    """Return the code of ``kernel`` under ``name``, with the arrays ``weights`` built in; it computes the ``nodes`` of
    a model.

    UnsupportedError if the kernel has no code for a CPU.
    """
    kernel = _for_any(kernel, weights)
    artifact, machine = _exportable(kernel), kernel.target
    contents = built_in_contents(kernel, artifact, weights)
    interface = interface_of(name, artifact, [t.name for t in kernel.problem.tensors], frozenset(weights))
    word = f"i{artifact.address_bits}"
    texts: tuple[str, ...] = (kernel.llvm(), entry_points_text(interface, machine.triple, contents))
    while True:
        code = llvm_bind.joined_code(texts, interface.symbols, machine.triple, machine.cpu, machine.features)
        missing = llvm_bind.undefined_symbols(code)
        provided = [symbol for symbol in missing if symbol in PROVIDED]
        if not provided:
            break
        texts = (*texts, *(library_text(symbol, machine.triple, word) for symbol in provided))
    if unknown := [symbol for symbol in missing if not symbol.startswith(_OF_COMPILER)]:
        raise UnsupportedError(
            f"{kernel.problem}: code for {machine.name} calls {', '.join(unknown)} of a C library; available are "
            "levels with instructions for these",
            code="library",
        )
    return BuiltKernel(interface, machine, str(kernel.problem), str(kernel.config), code, texts, missing, nodes)


def _for_any(kernel: CompiledKernel, weights: Mapping[str, Array]) -> CompiledKernel:
    """Return ``kernel``, or a kernel for weights of any magnitude if the built-in weights exceed the limits of
    ``kernel``, because an exported kernel cannot fall back on another one.

    Weights of a call may be all integers of their type, and floating-point numbers within the limits.
    """
    limits = _exportable(kernel).limits
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


def _exportable(kernel: object) -> Artifact:
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
    if kernel.target.device is not None:
        levels = ", ".join(t.name for t in known_targets())
        raise UnsupportedError(
            f"target {kernel.target.name} is a device, whose kernels a driver starts; exported are kernels of CPUs: "
            f"{levels}",
            code="export",
        )
    return kernel.artifact
