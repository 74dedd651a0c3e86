"""`convsmith export`: kernels as object code, assembly or a static library, for programs without Python."""

from __future__ import annotations

from pathlib import Path

import click

from convsmith.cli.models import ModelInputs, input_option, model_constants, models_or_problems
from convsmith.cli.output import note
from convsmith.cli.problems import ProblemCommand, choice_options, problem_options
from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.settings import settings
from convsmith.exporter.files import DEVICE_FORMATS, FORMATS, ExportedLibrary
from convsmith.exporter.library import export as export_library
from convsmith.exporter.library import export_kernels, kernels_for
from convsmith.exporter.micro_library import refuse_decisions
from convsmith.exporter.names import check_name, check_prefix, legal_name
from convsmith.exporter.target import THIS_MACHINE
from convsmith.problem.micro_kernel import is_micro_kernel

__all__ = ["export"]


@click.command(
    cls=ProblemCommand, epilog="Example: convsmith export mb1ic64ih56oc64kh3ph1 --name layer --weights w.npy -o layer",
)
@click.argument("source", metavar="DESCRIPTOR|FILE|MODEL.onnx|-")
@choice_options
@problem_options
@input_option
@click.option("-o", "--output", metavar="DIR", required=True, help="Directory of the files; it is made.")
@click.option("--format", "form", metavar="FORMAT",
              help=f"{', '.join(FORMATS)} (the default); source is assembly, which gcc -c and clang -c take. Of a "
                   f"device: {', '.join(DEVICE_FORMATS)}.")  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the library, and of its kernel where there is one.")
@click.option("--prefix", metavar="PREFIX",
              help="Beginning of kernels' names; the library's name by default if there are several.")  # fmt: skip
@click.option("--weights", multiple=True, metavar="[TENSOR=]FILE.npy",
              help="An array to build in, packed; the weights, or the tensor named. May be repeated.")  # fmt: skip
@click.option("--built-in", is_flag=True,
              help="Build in what a MODEL holds for each node: weights, biases, scales, zero points.")  # fmt: skip
def export(
    source: str, threads: int | None, target: str | None, config: str | None, layout: str, output: str,
    form: str | None, name: str | None, prefix: str | None, weights: tuple[str, ...], built_in: bool,
    inputs: ModelInputs, **options: str | bool | None,
) -> None:  # fmt: skip
    """Write kernels for programs without Python: code, a header for C and C++, declarations for Rust, a manifest, a
    CMake file and an example. The code calls no library; threads are the program's.

    For a device (sm_90a, opencl and others), the code is a module, which the header's functions load and launch through
    the driver.

    --target is cpu (this machine), a level, or a triple with features: aarch64-linux-gnu+dotprod, say. The lines of a
    FILE become one library, and so do the convolutions of a model: their names are --prefix and the names of its nodes.
    Nodes of one size share a kernel, unless their weights are --built-in; the manifest lists the nodes of each.

    The name of a micro-kernel, here or in XNNPACK, takes the place of a descriptor; its function has the arguments of
    XNNPACK's.
    """
    settings.validate()
    if form is not None and form not in (*FORMATS, *DEVICE_FORMATS):
        legal = choices(form, (*FORMATS, *DEVICE_FORMATS))
        raise UsageError(f"--format={form} is not legal; legal are {legal}", code="bad-format")
    if name is not None:
        check_name(name)
    if prefix is not None:
        check_prefix(prefix)
    where = THIS_MACHINE if target is None else target
    if is_micro_kernel(source):
        refuse_decisions(
            threads=threads, config=config, weights=weights or None, built_in=built_in or None, inputs=inputs or None,
            **{option: given or None for option, given in options.items()},
        )
        note(_page(export_library(source, output, target=where, format=form, name=name, prefix=prefix)))
        return
    if built_in:
        if weights or any(options.values()):
            raise UsageError("--built-in takes all from the model; legal is no --weights, nor options of problems",
                             code="bad-weights")  # fmt: skip
        listed, held = model_constants(source, layout, inputs)
    else:
        listed, held = models_or_problems(source, options, layout, inputs), []
    kernels = [kernel for p in listed.problems for kernel in kernels_for(p, where, threads, config)]
    if name is None and len(kernels) > 1:
        name = legal_name(Path(source).stem, "kernels") if source != "-" else "kernels"
    given = dict(map(_array, weights)) or held or None
    note(listed.heading(threads, config))
    library = export_kernels(
        kernels, output, format=form, name=name, prefix=prefix, weights=given, nodes=listed.nodes
    )
    note(_page(library))


def _array(text: str) -> tuple[str, str]:
    """Return the name of a tensor, empty for the weights, and the file of its values."""
    tensor, equals, file = text.partition("=")
    return (tensor, file) if equals and tensor.isidentifier() else ("", text)


_CONTENTS = {
    ".a": "object code", ".o": "object code", ".lib": "object code", ".obj": "object code",
    ".s": "assembly", ".h": "header for C and C++",
    ".rs": "declarations for Rust", ".txt": "for add_subdirectory of CMake", ".c": "example", ".json": "manifest",
    ".cubin": "machine code", ".ptx": "code for later generations", ".spv": "SPIR-V",
    ".wgsl": "WGSL", ".js": "module of JavaScript",
}  # fmt: skip
"""Contents of files by the ends of their names."""


def _page(library: ExportedLibrary) -> str:
    """Return the kernels of a library with their levels, and its files with their contents."""
    contents = {**_CONTENTS, ".h": "launch header for C and C++"} if library.is_for_device else _CONTENTS
    lines = [f"{kernel.name}  {kernel.problem}, {kernel.machine.name}" for kernel in library.kernels]
    width = max(len(str(file)) for file in library.files)
    return "\n".join([*lines, *(f"{file!s:{width}}  {contents[file.suffix]}" for file in library.files)])
