"""Micro-kernels as a library of functions with XNNPACK's arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import expect_text
from convsmith.exporter.files import FORMATS, ExportedLibrary, code_files, folder_of, legal_format, written
from convsmith.exporter.manifest import cmake_text
from convsmith.exporter.micro_example import micro_example_text
from convsmith.exporter.micro_header import micro_header_text
from convsmith.exporter.micro_kernel import build_micro_kernel
from convsmith.exporter.names import check_name, check_prefix, legal_name, unique_names
from convsmith.exporter.target import THIS_MACHINE, export_machine
from convsmith.frontend.micro_kernel_texts import MicroKernelTexts
from convsmith.machine.registry import target as known_target
from convsmith.problem.micro_kernel import MicroKernel, is_micro_kernel
from convsmith.statement.micro_kernel import sums_type

__all__ = ["export_micro_kernels", "micro_kernels_of", "refuse_decisions"]


def micro_kernels_of(given: Sequence[object]) -> list[str | MicroKernelTexts]:
    """Return the micro-kernels among ``given``, which are none or all. UsageError if there are problems beside them."""
    found = [x for x in given if isinstance(x, MicroKernelTexts) or (isinstance(x, str) and is_micro_kernel(x))]
    if found and len(found) < len(given):
        raise UsageError(
            f"micro-kernels and problems have different functions: {len(found)} of {len(given)} are micro-kernels; "
            "legal are libraries of one kind each",
            code="bad-problem",
        )
    return found


def refuse_decisions(**decisions: object) -> None:
    """Raise UsageError if one of ``decisions``, by the names of their options, is given for a micro-kernel."""
    if named := [name for name, given in decisions.items() if given is not None]:
        raise UsageError(
            f"{named[0]} is given for a micro-kernel, whose name encodes every decision; legal are target, format, "
            "name and prefix",
            code="bad-option",
        )


def export_micro_kernels(
    kernels: Sequence[str | MicroKernelTexts], directory: str | os.PathLike[str], *, target: str = THIS_MACHINE,
    format: str | None = None, name: str | None = None, prefix: str | None = None,
) -> ExportedLibrary:  # fmt: skip
    """Write micro-kernels to ``directory`` as one library; the arguments have the meaning that they have in `export`.

    A function has the name of the micro-kernel, or that of XNNPACK's function if ``kernels`` name it so, unless it is
    the only one and has a ``name``.
    """
    folder, form = folder_of(directory), legal_format(format, FORMATS)
    own = [_name_of(k) for k in kernels]
    library = check_name(name) if name is not None else own[0] if len(own) == 1 else "micro_kernels"
    before = "" if prefix is None else check_prefix(prefix)
    names = unique_names(_function_name(n, before) for n in ([library] if len(own) == 1 else own))
    built = [build_micro_kernel(_texts_of(k, target), n) for k, n in zip(kernels, names)]
    code = code_files(library, form, {k.name: k.code for k in built})
    command = f"cc -O2 example.c {' '.join(code)} -o example"
    texts = {
        f"{library}.h": micro_header_text(library, built),
        "CMakeLists.txt": cmake_text(library, form, tuple(code), built[0].machine.triple),
        "example.c": micro_example_text(library, command, built),
    }  # fmt: skip
    return written(library, folder, form, code, texts, built)


def _function_name(name: str, prefix: str) -> str:
    """Return ``name`` as it is, so that a function takes the place of XNNPACK's, or a name that begins with
    ``prefix``.
    """
    return legal_name(name, prefix=prefix) if prefix else check_name(name)


def _name_of(kernel: str | MicroKernelTexts) -> str:
    """Return the name of the function of a micro-kernel: XNNPACK's if ``kernel`` is such a name of a function."""
    if not isinstance(kernel, str):
        return kernel.name
    return kernel if kernel.isidentifier() else MicroKernel.parse(kernel).name


def _texts_of(kernel: str | MicroKernelTexts, target: str) -> MicroKernelTexts:
    """Return the micro-kernel for the machine that ``target`` names. UnsupportedError for a device."""
    if not isinstance(kernel, str):
        return kernel
    expect_text("target", target, "bad-target")
    m = MicroKernel.parse(kernel)
    sums = sums_type(m).name
    machine = known_target(None, (sums, sums, sums)) if target == THIS_MACHINE else export_machine(target)
    if machine.device is not None:
        raise UnsupportedError(
            f"{m}: a micro-kernel is a function of a CPU, and {machine.name} is a device; available are the levels of "
            "CPUs",
            code="export",
        )
    return MicroKernelTexts(m, machine)
