"""The code of an exported kernel: its entries, the functions that run them, and the library functions that LLVM calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from convsmith.codegen import llvm_bind
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.exporter.constants import built_in_contents
from convsmith.exporter.entry_points import entry_points_text
from convsmith.exporter.interface import interface_of
from convsmith.exporter.kernel import ExportedKernel, exportable, for_any_operands
from convsmith.exporter.library_functions import PROVIDED, library_text
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.runtime.arrays import Array

__all__ = ["BuiltKernel", "ObjectFile", "build_kernel", "self_contained"]

_OF_COMPILER = "__"
"""Prefix of functions that a compiler's runtime library for a machine provides."""


class ObjectFile(NamedTuple):
    """Object code, its modules as LLVM text, and the symbols that the code lacks."""

    object: bytes
    texts: tuple[str, ...]
    missing: tuple[str, ...]


@record(frozen=True)
class BuiltKernel(ExportedKernel):
    """A kernel of a CPU as object code, and its modules as LLVM text."""

    object: bytes = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)

    def assembly(self) -> bytes:
        """Return the code as text that an assembler takes."""
        m = self.machine
        return llvm_bind.joined_code(self.texts, self.interface.symbols, m.triple, m.cpu, m.features, is_text=True)


def build_kernel(
    kernel: CompiledKernel, name: str, weights: Mapping[str, Array], nodes: tuple[str, ...] = ()
) -> BuiltKernel:
    """Return the code of ``kernel`` under ``name``, with the arrays ``weights`` built in; it computes the ``nodes`` of
    a model.

    UnsupportedError if the code calls a function of a C library.
    """
    kernel = for_any_operands(kernel, weights)
    artifact, machine = exportable(kernel), kernel.target
    contents = built_in_contents(kernel, artifact, weights)
    interface = interface_of(name, artifact, [t.name for t in kernel.problem.tensors], frozenset(weights))
    texts = (kernel.llvm(), entry_points_text(interface, machine.triple, contents))
    made = self_contained(str(kernel.problem), texts, interface.symbols, machine)
    return BuiltKernel(
        interface, machine, str(kernel.problem), str(kernel.config), nodes, made.missing, made.object, made.texts
    )  # fmt: skip


def self_contained(
    title: str, texts: Sequence[str], symbols: Sequence[str], machine: Machine, outside: str = ""
) -> ObjectFile:
    """Return the object of modules that define ``symbols``, with the functions of a C library that LLVM calls;
    symbols that begin with ``outside`` may lie in other objects.

    UnsupportedError, about the ``title``, if the code calls another function of a C library.
    """
    word = f"i{machine.address_bits}"
    texts = tuple(texts)
    while True:
        code = llvm_bind.joined_code(texts, symbols, machine.triple, machine.cpu, machine.features)
        missing = llvm_bind.undefined_symbols(code)
        provided = [symbol for symbol in missing if symbol in PROVIDED]
        if not provided:
            break
        texts = (*texts, *(library_text(symbol, machine.triple, word) for symbol in provided))
    elsewhere = (_OF_COMPILER, outside) if outside else (_OF_COMPILER,)
    if unknown := [symbol for symbol in missing if not symbol.startswith(elsewhere)]:
        raise UnsupportedError(
            f"{title}: code for {machine.name} calls {', '.join(unknown)} of a C library; available are levels with "
            "instructions for these",
            code="library",
        )
    return ObjectFile(code, texts, missing)
