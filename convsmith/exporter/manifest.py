"""The manifest of an exported library, and its CMakeLists.txt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from convsmith.codegen.llvm_bind import llvm_version
from convsmith.exporter.header import C_TYPES
from convsmith.exporter.interface import Parameter
from convsmith.exporter.kernel import ExportedKernel, LibraryKernel
from convsmith.frontend.public import public
from convsmith.layout.layout import Layout

__all__ = ["SCHEMA", "cmake_text", "manifest_text"]

SCHEMA = 1
"""Version of the manifest's schema."""


def manifest_text(name: str, format_: str, files: Sequence[str], kernels: Sequence[LibraryKernel]) -> str:
    """Return the manifest of the library ``name`` as JSON."""
    content = {
        "schema": SCHEMA, "library": name, "format": format_, "convsmith": public("__version__"),
        "llvm": llvm_version(), "files": list(files), "kernels": [_kernel(k) for k in kernels],
    }  # fmt: skip
    return json.dumps(content, indent=2) + "\n"


def _kernel(kernel: LibraryKernel) -> dict[str, Any]:
    m = kernel.machine
    needs = kernel.interface.artifact.needs if isinstance(kernel, ExportedKernel) else m.needs
    row = {
        "name": kernel.name, "problem": kernel.problem, "nodes": list(kernel.nodes), "config": kernel.config,
        "target": {
            "level": m.name, "triple": m.triple, "cpu": m.cpu, "features": m.features, "needs": list(needs),
            "permissions": list(m.permissions),
        },
    }  # fmt: skip
    if isinstance(kernel, ExportedKernel):
        row |= _interface(kernel)
    symbols = {"symbols": list(kernel.symbols), "undefined_symbols": list(kernel.needs)}
    return {**row, **symbols, **kernel.manifest_rows()}


def _interface(kernel: ExportedKernel) -> dict[str, Any]:
    interface = kernel.interface
    return {
        "parts": interface.threads,
        "parameters": list(map(_parameter, interface.parameters)),
        "packings": [
            {"symbol": p.symbol, "operand": p.operand, "parameters": list(map(_parameter, p.parameters))}
            for p in interface.packings
        ],
        "built_in": sorted(interface.built_in),
        "limits": {name: x for name, x in interface.artifact.limits.items() if name not in interface.built_in},
        "codes": kernel.codes,
    }  # fmt: skip


def _parameter(p: Parameter) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": p.name, "c_type": C_TYPES[p.type], "bytes": p.nbytes, "alignment": p.alignment,
        "written": p.is_written, "optional": p.is_optional,
    }  # fmt: skip
    if p.of:
        row["packed"] = p.of
    if p.tensor is not None:
        t = p.tensor
        layout = Layout.parse(t.layout, t.shape)
        row |= {
            "dtype": t.dtype, "shape": list(t.shape), "dims": list(t.dims), "layout": t.layout,
            "strides": list(layout.strides) if layout.is_plain else None,
            "default": None if t.default is None else list(t.default),
        }  # fmt: skip
    return row


_CMAKE = """\
# {name}: kernels compiled by convsmith. In a project of yours:
#   add_subdirectory({name})
#   target_link_libraries(program PRIVATE {name})
cmake_minimum_required(VERSION 3.16)
project({name} LANGUAGES {languages})

{library}
target_include_directories({name} {scope} ${{CMAKE_CURRENT_SOURCE_DIR}})

if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  add_executable({name}_example example.c)
  set_target_properties({name}_example PROPERTIES C_STANDARD 11)
  target_link_libraries({name}_example PRIVATE {name})
endif()
"""
_LIBRARIES = {
    "source": "add_library({name} STATIC {files})\nset_target_properties({name} PROPERTIES LINKER_LANGUAGE C)",
    "object": "add_library({name} INTERFACE)\ntarget_link_libraries({name} INTERFACE\n  {paths})",
    "static-library": (
        "add_library({name} STATIC IMPORTED GLOBAL)\n"
        "set_target_properties({name} PROPERTIES IMPORTED_LOCATION ${{CMAKE_CURRENT_SOURCE_DIR}}/{files})"
    ),
}


_PAGES = "\ntarget_link_options({name} {scope} -Wl,-z,max-page-size=16384)"
"""Options of the linker for programs on Android, whose pages may have 16 KiB."""


def cmake_text(name: str, format_: str, code: Sequence[str], triple: str) -> str:
    """Return the CMakeLists.txt for the files ``code`` of a ``triple``."""
    paths = "\n  ".join(f"${{CMAKE_CURRENT_SOURCE_DIR}}/{file}" for file in code)
    library = _LIBRARIES[format_].format(name=name, files=" ".join(code), paths=paths)
    languages = "C ASM" if format_ == "source" else "C"
    scope = "PUBLIC" if format_ == "source" else "INTERFACE"
    if "-linux-android" in triple:
        library += _PAGES.format(name=name, scope=scope)
    return _CMAKE.format(name=name, library=library, languages=languages, scope=scope)
