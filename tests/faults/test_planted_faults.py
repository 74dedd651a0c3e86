"""The suite is tested: each fault on the list is planted in a copy of the package, and its test has to fail."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from planted import PACKAGE, ROOT, SECONDS, Fault, copy_of_the_package, faults, is_failure, is_success, run_tests

FAULTS = faults()


@cache
def names_of_tests(file: str) -> frozenset[str]:
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(x.name for x in tree.body if isinstance(x, ast.FunctionDef) and x.name.startswith("test_"))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a copy of the package goes, which does not stay."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_there_are_faults_in_every_package() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {fault.file.partition("/")[0] for fault in FAULTS} == packages == {fault.package for fault in FAULTS}
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS) >= 150


@pytest.mark.parametrize("package", sorted({fault.package for fault in FAULTS}))
def test_every_fault_can_be_planted(package: str) -> None:
    for fault in FAULTS:
        if fault.package == package:
            assert fault.file.startswith(f"{package}/"), fault.name
            text = fault.planted()
            if fault.file.endswith(".py"):
                ast.parse(text, fault.file)
            file, _, name = fault.test.partition("::")
            assert name.partition("[")[0] in names_of_tests(file), f"{fault.name}: there is no test {fault.test}"


@pytest.mark.slow
def test_without_a_fault_every_named_test_passes(directory: Path) -> None:
    copy_of_the_package(directory, None)
    done = run_tests(directory, sorted({fault.test for fault in FAULTS}), 10 * SECONDS)
    assert is_success(done), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.package}: {fault.name}")
def test_a_planted_fault_is_caught(fault: Fault, directory: Path) -> None:
    copy_of_the_package(directory, fault)
    done = run_tests(directory, [fault.test])
    assert is_failure(done, fault.test), f"{fault.test} does not fail with {fault.new!r}\n{done.stdout}{done.stderr}"
