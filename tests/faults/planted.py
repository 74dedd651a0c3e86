"""Planted faults: the list, and what one test says about a copy of the package that holds one of them.

Each ``*.toml`` beside this file is a table of faults of one package:

    ["name of the fault"]
    file = "arith/ranges.py"
    old = "text that occurs once in that file"
    new = "what stands there instead"
    test = "tests/arith/test_ranges.py::test_products"

The test is an id of pytest's, with brackets for one case. It runs in a process of its own, with the copy before the
package itself on the path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "convsmith"
SECONDS = 300
"""Time that a test may take, in seconds: a fault that keeps it busy for longer is caught by nobody."""

_FAILED = re.compile(r"^FAILED (.+)", re.MULTILINE)
_PASSED = re.compile(r"^\d+ passed", re.MULTILINE)


class Change(Protocol):
    """A change of one file of the package."""

    @property
    def file(self) -> str: ...

    def planted(self) -> str:
        """The file's text with the change."""
        ...


@dataclass(frozen=True)
class Fault:
    """One replacement in one file, and the test that fails with it."""

    package: str
    name: str
    file: str
    old: str
    new: str
    test: str

    def planted(self) -> str:
        """The file's text with the fault. AssertionError where the old text does not occur exactly once."""
        text = (PACKAGE / self.file).read_text()
        times = text.count(self.old)
        assert times == 1, f"{self.name}: {self.old!r} occurs {times} times in {self.file}; legal is once"
        assert self.new != self.old, f"{self.name}: the new text is the old one"
        return text.replace(self.old, self.new)


def faults() -> list[Fault]:
    """Every fault on the list, by package."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        for name, fields in tomllib.loads(path.read_text()).items():
            found.append(Fault(path.stem, name, **fields))
    return found


def copy_of_the_package(directory: Path, fault: Change | None) -> None:
    """Put the package into a directory, with a fault."""
    copy = directory / PACKAGE.name
    shutil.copytree(PACKAGE, copy)  # bytecode and times too: only the changed file is compiled again
    if fault is not None:
        changed = copy / fault.file
        changed.write_text(fault.planted())
        for stale in changed.parent.glob(f"__pycache__/{changed.stem}.*"):
            stale.unlink()


def run_tests(
    directory: Path, tests: Iterable[str], seconds: float = SECONDS, tier: str = "not slow", *plugins: str
) -> subprocess.CompletedProcess[str]:
    """Run the tests of a tier against the copy of the package in a directory, for at most `seconds`.

    They end with the first failure. Plugins are files beside this one, which find the directory as `CONVSMITH_MUTANT`.
    """
    own = {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""}
    if plugins:
        own |= {"PYTHONPATH": os.pathsep.join((str(directory), str(HERE))), "CONVSMITH_MUTANT": str(directory)}
    own["HYPOTHESIS_STORAGE_DIRECTORY"] = str(directory / "examples")  # what fails here is no example for other runs
    options = ["-x", "-q", "-m", tier, "-p", "no:cacheprovider", "--color=no"]
    options += [part for plugin in plugins for part in ("-p", plugin)]
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, *tests],
        cwd=ROOT, env={**os.environ, **own}, timeout=seconds, capture_output=True, text=True,
    )  # fmt: skip


def is_failure(done: subprocess.CompletedProcess[str], test: str) -> bool:
    """Whether the test ran and failed; an error before it, or of pytest's, is no failure."""
    failed = _FAILED.search(done.stdout)
    return done.returncode == 1 and failed is not None and failed[1].startswith(test)


def is_success(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether tests ran and passed."""
    return done.returncode == 0 and _PASSED.search(done.stdout) is not None
