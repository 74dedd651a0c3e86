"""Who may import whom: the order of the folders, and what must not be known where.

All imports count: of modules, of functions, and those for type checking only.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import convsmith
from convsmith.machine.registry import target_names

ROOT = Path(convsmith.__file__).parent

PACKAGE = "convsmith/__init__.py"

LAYERS: dict[str, set[str]] = {
    "diag": set(),
    "layout": {"numpy"},
    "problem": {"ml_dtypes", "numpy"},
    "ir": {"ml_dtypes"},
    "arith": set(),
    "interp": {"numpy"},
    "passes": {"numpy"},
    "machine": {"llvmlite"},
    "statement": set(),
    "schedule": set(),
    "codegen": {"llvmlite", "numpy"},
    "compiler": {"cuda", "llvmlite", "numpy", "platformdirs"},
    "runtime": {"cuda", "llvmlite", "ml_dtypes", "numpy", "pyopencl"},
    "emulate": {"llvmlite", "ml_dtypes", "numpy", "wasmtime", "selenium"},
    "measure": {
        "ai_edge_litert", "flatbuffers", "llvmlite", "ncnn", "numpy", "onnx", "onnxruntime", "openvino", "torch",
    },
    "tune": {"distributed", "platformdirs"},
    "page": {"jinja2", "matplotlib", "numpy"},
    "frontend": {"numpy"},
    "exporter": {"numpy"},
    "network": {"numpy"},
    "onnx": {"numpy", "onnx", "onnxruntime"},
    PACKAGE: set(),
    "torch": {"numpy", "rich", "torch"},
    "cli": {"click", "matplotlib", "numpy", "onnxruntime", "rich"},
}
"""The folders, each importing only from those above it, with the packages of others that it may import."""

ORDER = list(LAYERS)

UNKNOWN = {
    "ir": {"problem"},
    "arith": {"layout", "problem"},
    "interp": {"problem", "passes", "codegen"},
    "passes": {"problem", "interp"},
    "machine": {"arith", "layout", "interp", "problem", "passes"},
    "statement": {"interp"},
    "schedule": {"interp"},
    "codegen": {"interp", "problem", "passes", "machine", "statement", "schedule"},
    "emulate": {"arith", "problem", "passes", "statement", "schedule", "compiler"},
    "measure": {"arith", "interp", "passes", "schedule", "tune"},
    "tune": {"interp"},
}
"""Imports that a folder must not have although it stands above."""

SEEN_BY_RUNTIME = {"diag", "layout", "ir.types", "machine.host", "codegen.artifact", "codegen.binder", "runtime"}


class Import(NamedTuple):
    """A line that imports a module, named in full."""

    file: Path
    line: int
    module: str

    @property
    def importer(self) -> str:
        return layer_of_parts(self.file.relative_to(ROOT).parts)

    @property
    def imported(self) -> str:
        """The folder of a module of ours, or the package of another."""
        first, *rest = self.module.split(".")
        if first != ROOT.name:
            return first
        return rest[0] if rest and rest[0] in ORDER else PACKAGE

    @property
    def ours(self) -> bool:
        return self.module.split(".")[0] == ROOT.name

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT.parent)}:{self.line} imports {self.module}"


def layer_of_parts(parts: tuple[str, ...]) -> str:
    return parts[0] if len(parts) > 1 else PACKAGE


def imports_of(file: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: a relative import"
            # A name may be a module of the package that it is imported from.
            yield from (Import(file, node.lineno, f"{node.module}.{a.name}") for a in node.names)


FILES = sorted(ROOT.rglob("*.py"))


@cache  # not while tests are collected, which every process does
def imports() -> list[Import]:
    return [i for file in FILES for i in imports_of(file)]


def fail_on(found: list[Import], why: str) -> None:
    assert not found, f"{why}:\n" + "\n".join(map(str, found))


def test_the_table_names_every_folder() -> None:
    folders = {layer_of_parts(file.relative_to(ROOT).parts) for file in FILES}
    assert folders == set(ORDER)
    assert {i.importer for i in imports()} <= folders


@pytest.mark.parametrize("folder", ORDER)
def test_imports_only_what_stands_above(folder: str) -> None:
    above = set(ORDER[: ORDER.index(folder) + 1])
    wrong = [i for i in imports() if i.importer == folder and i.ours and i.imported not in above]
    fail_on(wrong, f"{folder} may import {', '.join(ORDER[: ORDER.index(folder)]) or 'nothing of ours'}")


@pytest.mark.parametrize("folder", list(UNKNOWN))
def test_does_not_know(folder: str) -> None:
    wrong = [i for i in imports() if i.importer == folder and i.ours and i.imported in UNKNOWN[folder]]
    fail_on(wrong, f"{folder} must not know {', '.join(sorted(UNKNOWN[folder]))}")


def test_runtime_sees_only_an_artifact() -> None:
    legal = tuple(f"{ROOT.name}.{m}." for m in SEEN_BY_RUNTIME)
    wrong = [i for i in imports() if i.importer == "runtime" and i.ours and not f"{i.module}.".startswith(legal)]
    fail_on(wrong, f"runtime may import {', '.join(sorted(SEEN_BY_RUNTIME))}")


def test_target_folders_do_not_know_each_other() -> None:
    """A folder of one target imports what all share, and itself."""
    targets = {file.parent.name for file in FILES if file.parent.parent == ROOT / "machine"}
    assert len(targets) > 1
    wrong = []
    for i in imports():
        if i.file.parent.parent == ROOT / "machine" and i.ours and i.imported == "machine":
            folder = i.module.split(".")[2]
            if folder != i.file.parent.name and (folder in targets or folder == "registry"):
                wrong.append(i)
    fail_on(wrong, "a target imports another, or the registry")


@pytest.mark.parametrize("folder", ORDER)
def test_packages_of_others(folder: str) -> None:
    standard = sys.stdlib_module_names
    others = [i for i in imports() if i.importer == folder and not i.ours and i.imported not in standard]
    fail_on([i for i in others if i.imported not in LAYERS[folder]], f"{folder} may import {LAYERS[folder] or 'none'}")
    unused = LAYERS[folder] - {i.imported for i in others}
    assert not unused, f"{folder} no longer imports {unused}: take it off the table"


@pytest.mark.parametrize("file", [f for f in FILES if f.parent.name in ("passes", "codegen")], ids=lambda f: f.stem)
def test_targets_are_seen_as_facts(file: Path) -> None:
    """Neither passes nor code generation ask for the name of a target."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant):
            assert node.value not in target_names(), f"{file}:{node.lineno} names a target"
        elif isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                text = ast.unparse(side)
                names = text.split(".")
                asks = names[-1] in ("triple", "cpu") or names[-2:] in (["target", "name"], ["machine", "name"])
                assert not asks, f"{file}:{node.lineno} compares {text}"
