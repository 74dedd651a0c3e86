"""The code of an exported kernel: its entries, the functions that run them, and the library functions that LLVM calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from convsmith.codegen import llvm_bind
from convsmith.codegen.library_functions import PROVIDED, library_text
from convsmith.codegen.object_symbols import undefined_symbols
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.exporter.constants import built_in_contents
from convsmith.exporter.entry_points import entry_points_text
from convsmith.exporter.interface import interface_of
from convsmith.exporter.kernel import ExportedKernel, exportable, for_any_operands
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.runtime.arrays import Array

__all__ = ["BuiltKernel", "LinkedCode", "build_kernel", "linked_code"]

_OF_COMPILER = ("__", "_fltused")
"""Beginnings of symbols that the runtime library of a machine's compiler provides: functions, among them the one that
reaches for pages of a large stack on Windows, and the mark of programs with floating-point numbers there.
"""


@record(frozen=True)
class LinkedCode:
    """Modules as LLVM text, and their object code, whose visible symbols are ``symbols``.

    It calls no library but that of the compiler, whose functions it ``needs``.
    """

    machine: Machine
    symbols: tuple[str, ...]
    needs: tuple[str, ...]
    object: bytes = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)

    def assembly(self) -> bytes:
        """Return the code as text that an assembler takes."""
        m = self.machine
        return llvm_bind.joined_code(self.texts, self.symbols, m.triple, m.cpu, m.features, is_text=True)


@record(frozen=True)
class BuiltKernel(ExportedKernel):
    """A kernel of a CPU with its code."""

    code: LinkedCode


def linked_code(
    texts: tuple[str, ...], symbols: tuple[str, ...], machine: Machine, problem: str, outside: str = ""
) -> LinkedCode:
    """Return the code of the modules ``texts``, which compute ``problem``, with the library functions that LLVM calls;
    symbols that begin with ``outside`` may lie in other objects.

    UnsupportedError if the code calls another function of a C library.
    """
    word = f"i{machine.address_bits}"
    while True:
        code = llvm_bind.joined_code(texts, symbols, machine.triple, machine.cpu, machine.features)
        missing = undefined_symbols(code)
        provided = [symbol for symbol in missing if symbol in PROVIDED]
        if not provided:
            break
        texts = (*texts, *(library_text(symbol, machine.triple, word) for symbol in provided))
    elsewhere = (*_OF_COMPILER, outside) if outside else _OF_COMPILER
    if unknown := [symbol for symbol in missing if not symbol.startswith(elsewhere)]:
        raise UnsupportedError(
            f"{problem}: code for {machine.name} calls {', '.join(unknown)} of a C library; available are levels with "
            "instructions for these",
            code="library",
        )
    return LinkedCode(machine, symbols, missing, code, texts)


def build_kernel(
    kernel: CompiledKernel, name: str, weights: Mapping[str, Array], nodes: tuple[str, ...] = ()
) -> BuiltKernel:
    """Return the code of ``kernel`` under ``name``, with the arrays ``weights`` built in; it computes the ``nodes`` of
    a model.

    UnsupportedError if the code calls a function of a C library.
    """
    kernel = for_any_operands(kernel, weights)
    artifact, machine, problem = exportable(kernel), kernel.target, str(kernel.problem)
    contents = built_in_contents(kernel, artifact, weights)
    interface = interface_of(name, artifact, [t.name for t in kernel.problem.tensors], frozenset(weights))
    texts = (kernel.llvm(), entry_points_text(interface, machine.triple, contents))
    code = linked_code(texts, interface.symbols, machine, problem)
    return BuiltKernel(machine, problem, str(kernel.config), nodes, code.needs, interface, code)
