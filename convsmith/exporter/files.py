"""The files of an exported library: forms of code, and writing them to a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from convsmith.codegen.artifact import object_format
from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.exporter.archive import archive, bsd_archive
from convsmith.exporter.build import LinkedCode
from convsmith.exporter.kernel import LibraryKernel
from convsmith.exporter.manifest import manifest_text

__all__ = [
    "DEVICE_FORMATS", "FORMATS", "ExportedLibrary", "Files", "code_files", "folder_of", "legal_format", "library_file",
    "library_of", "object_end", "written",
]  # fmt: skip

FORMATS = ("object", "source", "static-library")
"""Forms of code: object files; assembly, which `gcc -c` and `clang -c` take; an archive of object files."""
DEVICE_FORMATS = ("module",)
"""Forms of code of a device: files that its driver loads."""
_MICROSOFT = "-windows-msvc"
"""The end of triples whose programs Microsoft's tools, or those of LLVM in their place, compile and link."""

Files = tuple[Mapping[str, bytes], Mapping[str, str], Sequence[LibraryKernel]]
"""The files of the code and of texts, by their names, and the kernels."""



@record(frozen=True)
class ExportedLibrary:
    """The files of an exported library and its kernels with their interfaces; programs link the files `code`, or load
    those of a device.
    """

    name: str
    directory: Path
    code: tuple[Path, ...]
    files: tuple[Path, ...]
    kernels: tuple[LibraryKernel, ...]

    @property
    def is_for_device(self) -> bool:
        """Whether a device runs the kernels."""
        return self.kernels[0].machine.device is not None

    @property
    def header(self) -> Path:
        """The header for C and C++."""
        return self.directory / f"{self.name}.h"

    @property
    def manifest(self) -> Path:
        """The description of the library as JSON."""
        return self.directory / f"{self.name}.json"


def folder_of(directory: object) -> Path:
    """Return the path of a directory. UsageError for what names none."""
    if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
        message = f"directory={shown(directory)} is not legal: expected the path of a directory"
        raise UsageError(message, code="bad-file")
    return Path(directory)


def legal_format(format_: object, legal: tuple[str, ...]) -> str:
    """Return a form of code, by default the last of those that are ``legal``. UsageError for others."""
    if format_ is None:
        return legal[-1]
    if not isinstance(format_, str) or format_ not in legal:
        message = f"format {shown(format_)} is not legal; legal are {choices(format_, legal)}"
        raise UsageError(message, code="bad-format")
    return format_


def code_files(name: str, format_: str, kernels: Mapping[str, LinkedCode]) -> dict[str, bytes]:
    """Return the files of the code of kernels of the library ``name``, by their names."""
    if format_ == "source":
        return {f"{own}.s": code.assembly() for own, code in kernels.items()}
    machine = next(iter(kernels.values())).machine
    end = object_end(machine.triple)
    if format_ == "object":
        return {f"{own}{end}": code.object for own, code in kernels.items()}
    members = [(f"{own}{end}", code.object, code.symbols) for own, code in kernels.items()]
    return {library_file(name, machine.triple): library_of(members)}


def object_end(triple: str) -> str:
    """Return the end of the name of an object file, as linkers of a triple's system expect it."""
    return ".obj" if triple.endswith(_MICROSOFT) else ".o"


def library_file(name: str, triple: str) -> str:
    """Return the name of the file of a static library, as linkers of a triple's system expect it."""
    return f"{name}.lib" if triple.endswith(_MICROSOFT) else f"lib{name}.a"


def library_of(members: Sequence[tuple[str, bytes, Sequence[str]]]) -> bytes:
    """Return the static library of object files: the name of each, its bytes, and the symbols that it defines."""
    is_apple = object_format(members[0][1]) == "mach-o"
    return (bsd_archive if is_apple else archive)(members)


def written(
    name: str, directory: Path, format_: str, code: Mapping[str, bytes], texts: Mapping[str, str],
    kernels: Sequence[LibraryKernel],
) -> ExportedLibrary:  # fmt: skip
    """Write the files of a library. UsageError if the directory cannot be written."""
    files = (*code, *texts, f"{name}.json")
    manifest = manifest_text(name, format_, files, kernels)
    contents = {**code, **{file: text.encode() for file, text in {**texts, f"{name}.json": manifest}.items()}}
    file = ""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, content in contents.items():
            (directory / file).write_bytes(content)
    except (OSError, ValueError) as error:  # ValueError: a NUL, or a character that no name of a file has
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{printable(str(directory / file))}: cannot be written: {why}", code="bad-file") from None
    return ExportedLibrary(
        name, directory, tuple(directory / file for file in code), tuple(directory / file for file in files),
        tuple(kernels),
    )  # fmt: skip
