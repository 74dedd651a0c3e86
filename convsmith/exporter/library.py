"""`export`: kernels as files for programs without Python, and the library that they make."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import expect_text
from convsmith.exporter.build import BuiltKernel, build_kernel
from convsmith.exporter.device_build import DeviceKernel, build_device_kernel
from convsmith.exporter.device_example import device_example_text
from convsmith.exporter.device_header import device_header_text
from convsmith.exporter.drivers import has_driver
from convsmith.exporter.example import example_text
from convsmith.exporter.files import (
    DEVICE_FORMATS,
    FORMATS,
    ExportedLibrary,
    Files,
    code_files,
    folder_of,
    legal_format,
    written,
)
from convsmith.exporter.header import header_text
from convsmith.exporter.kernel import exportable
from convsmith.exporter.manifest import cmake_text
from convsmith.exporter.micro_library import export_micro_kernels, micro_kernels_of, refuse_decisions
from convsmith.exporter.names import check_name, check_prefix, legal_name, unique_names
from convsmith.exporter.rust import rust_text
from convsmith.exporter.target import THIS_MACHINE, export_machine
from convsmith.exporter.webgpu_module import webgpu_module_text
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.micro_kernel_texts import MicroKernelTexts
from convsmith.frontend.numpy_api import compile as compile_kernel
from convsmith.frontend.numpy_api import thread_count
from convsmith.problem.chain import Chain
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem
from convsmith.runtime.array_file import read_array
from convsmith.runtime.arrays import Array, as_array, numpy_dtype
from convsmith.schedule.wish import on_threads, read_decisions

__all__ = ["export", "export_kernels", "kernels_for", "weights_of"]

Exportable = str | Problem | CompiledKernel | MicroKernelTexts
Weights = Mapping[str, Array | str | os.PathLike[str]]


def export(
    problem: Exportable | Sequence[Exportable],
    directory: str | os.PathLike[str], *, target: str = THIS_MACHINE, format: str | None = None,
    name: str | None = None, prefix: str | None = None, threads: int | None = None, config: str | None = None,
    weights: Array | str | os.PathLike[str] | Weights | None = None,
) -> ExportedLibrary:  # fmt: skip
    """Write the kernels of one problem or several to `directory`, which is created: code, header, manifest, example.

    `target` is ``cpu`` (this machine), a level, a device such as "sm_90a", or a triple with features, such as
    "aarch64-linux-gnu+dotprod"; a compiled kernel keeps its own target. `format` is "static-library" (the default),
    "object" or "source" (assembly) for CPUs; the code of a device is a "module", which its driver loads. `name` is the
    library's, by default the problem's; a single kernel has the same name. The names of several kernels begin with
    `prefix`, by default the library's name; an empty prefix adds nothing. `weights`, an array or a file of
    `numpy.save`, is packed and built in; a dict builds in several arrays of one kernel, by name. `threads` and `config`
    are passed to `compile`.

    The names of micro-kernels, such as "f32_dwconv_up2x9", and what `micro_kernel` returns, become functions with
    XNNPACK's arguments; these names encode every decision, and a library has such functions alone.

    UsageError for an unknown target, format or name, for weights that do not fit, and for a directory that cannot be
    written; UnsupportedError for a kernel that cannot be exported.
    """
    if isinstance(problem, str | Problem) or not isinstance(problem, Sequence):
        problem = [problem]
    given: list[Any] = list(problem)
    if micro := micro_kernels_of(given):
        refuse_decisions(threads=threads, config=config, weights=weights)
        return export_micro_kernels(micro, directory, target=target, format=format, name=name, prefix=prefix)
    kernels = [k for p in given for k in kernels_for(p, target, threads, config)]
    return export_kernels(kernels, directory, format=format, name=name, prefix=prefix, weights=weights)


def kernels_for(
    problem: str | Problem | CompiledKernel, target: str, threads: int | None, config: str | None
) -> list[CompiledKernel]:
    """Return the kernel of ``problem`` for the machine that ``target`` names."""
    if not isinstance(problem, str | Problem):
        return [problem]
    expect_text("target", target, "bad-target")
    if target == THIS_MACHINE:
        return [compile_kernel(problem, threads=threads, config=config)]
    own = parse_problem(problem) if isinstance(problem, str) else problem
    machine = export_machine(target)
    chosen = None if config is None else read_decisions(config)
    count = thread_count((chosen.threads or None) if chosen is not None and threads is None else threads)
    if chosen is not None:
        chosen = on_threads(chosen, count)
    return [CompiledKernel(own, machine, chosen, count)]


def export_kernels(
    kernels: Sequence[CompiledKernel], directory: str | os.PathLike[str], *, format: str | None = None,
    name: str | None = None, prefix: str | None = None,
    weights: Array | str | os.PathLike[str] | Weights | list[dict[str, Array]] | None = None,
    nodes: Sequence[Sequence[str]] = (),
) -> ExportedLibrary:  # fmt: skip
    """Write kernels to `directory` as one library; the arguments have the meaning that they have in `export`. A list of
    `weights` has the arrays of each kernel. ``nodes`` are the names of the nodes of a model that each kernel computes.
    """
    folder = folder_of(directory)
    if not kernels:
        raise UsageError("no kernel to export; legal are one or more", code="no-problem")
    is_device = _is_device(kernels)
    form = legal_format(format, DEVICE_FORMATS if is_device else FORMATS)
    library = check_name(name) if name is not None else None if len(kernels) == 1 else "kernels"
    names = _names_of(kernels, library, prefix)
    several = weights if isinstance(weights, list) else [] if weights is None else [weights]
    if several and len(kernels) != len(several):
        raise UsageError(
            f"weights for {len(kernels)} kernels; legal are those of one kernel a library", code="bad-weights"
        )
    if several and is_device:
        raise UsageError(
            "weights are built into the code of CPUs; legal for a device is none: a program packs them once, by the "
            "function with _pack behind the kernel's name",
            code="bad-weights",
        )
    given = [weights_of(k.problem, arrays) for k, arrays in zip(kernels, several)] or [{}] * len(kernels)
    rows = [*zip(kernels, names, given, map(tuple, nodes or [()] * len(kernels)))]
    own = library or names[0]
    if is_device:
        files = _device_files(own, [build_device_kernel(k, n, of) for k, n, _, of in rows])
    else:
        files = _cpu_files(own, form, [build_kernel(*row) for row in rows])
    return written(own, folder, form, *files)


def _is_device(kernels: Sequence[CompiledKernel]) -> bool:
    """Return whether a device runs the kernels. UnsupportedError if one library cannot hold them all."""
    for k in kernels:
        exportable(k)
    runtimes = {k.target.device.runtime if k.target.device is not None else "" for k in kernels}
    if len(runtimes) > 1:
        raise UnsupportedError(
            f"kernels for {', '.join(dict.fromkeys(k.target.name for k in kernels))} run by different drivers; "
            "available are libraries for one of them each",
            code="export",
        )
    return runtimes != {""}


def _names_of(kernels: Sequence[CompiledKernel], library: str | None, prefix: str | None) -> list[str]:
    """Return the names of the kernels: the ``library``'s name for a single kernel without a prefix, otherwise the
    ``prefix`` (by default the library's name) followed by a name derived from the problem.
    """
    if len(kernels) == 1 and prefix is None:
        return [library or _name_of(kernels[0], "")]
    before = check_prefix(prefix) if prefix is not None else library or ""
    if len(kernels) == 1 and library is not None:
        return [legal_name(library, prefix=before)]
    return unique_names(_name_of(k, before) for k in kernels)


def _name_of(kernel: CompiledKernel, prefix: str) -> str:
    """Return an identifier for a kernel: the ``prefix``, followed by the name or the sizes of its problem."""
    if not isinstance(kernel, CompiledKernel):  # the error names the reason why it cannot be exported
        return "kernel"
    problem = kernel.problem
    if problem.name:
        return legal_name(problem.name, prefix=prefix)
    kind = type(problem).__name__.lower()
    own = kind if isinstance(problem, Chain) else legal_name(problem.descriptor(), kind)
    return legal_name(own, kind, prefix)


def weights_of(problem: Problem, weights: Array | str | os.PathLike[str] | Weights) -> dict[str, Array]:
    """Return the arrays to build in, by name, from one array or file for the weights, or several by name.

    The name of the only weights may be empty.
    """
    given = dict(weights) if isinstance(weights, Mapping) else {"": weights}
    if "" in given:
        names = [t.name for t in problem.inputs if t.holds == "wei"]
        if len(names) != 1:
            raise UsageError(
                f"weights: {problem} has {', '.join(names) or 'no weights'}; legal are arrays by name",
                code="bad-weights",
            )
        given[names[0]] = given.pop("")
    return {name: _loaded(problem, name, array) for name, array in given.items()}


def _loaded(problem: Problem, name: str, given: Array | str | os.PathLike[str]) -> Array:
    """Return an array, from a file where ``given`` is a path. UsageError if the file does not hold a numpy array."""
    if not isinstance(given, str | os.PathLike):
        return as_array(name, given)
    try:
        array = read_array(given)
    except ValueError as why:
        raise UsageError(
            f"weights {os.fspath(given)}: {why}; legal is a file of numpy.save with one array", code="bad-weights"
        ) from None
    wanted = {t.name: numpy_dtype(t.dtype) for t in problem.inputs}.get(name)
    if wanted is not None and array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)  # numpy.save loses the names of types such as bf16
    return array


def _cpu_files(name: str, format_: str, kernels: Sequence[BuiltKernel]) -> Files:
    """Return the files of a library for a CPU, but for its manifest."""
    code = code_files(name, format_, {k.name: k.code for k in kernels})
    command = f"cc -O2 example.c {' '.join(code)} -o example"
    texts = {
        f"{name}.h": header_text(name, kernels), f"{name}.rs": rust_text(name, kernels),
        "CMakeLists.txt": cmake_text(name, format_, tuple(code), kernels[0].machine.triple),
        "example.c": example_text(name, command, kernels),
    }  # fmt: skip
    return code, texts, kernels


def _device_files(name: str, kernels: Sequence[DeviceKernel]) -> Files:
    """Return the files of a library for a device, but for its manifest."""
    code = {f"{k.name}{end}": content for k in kernels for end, content in k.code.items()}
    if has_driver(kernels[0].machine):
        texts = {f"{name}.h": device_header_text(name, kernels), "example.c": device_example_text(name, kernels)}
    else:
        texts = {f"{name}.js": webgpu_module_text(name, kernels)}
    return code, texts, kernels
