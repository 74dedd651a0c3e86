"""The versions that pyproject.toml admits are those that the files of constraints name, and leave users their PyTorch.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
TOOLS = {"test", "small-peers", "peers", "cuda"}
"""Extras of what convsmith is tested and compared with, and of drivers, whose newest versions are used."""
IMPORTED = [
    requirement
    for lines in (PROJECT["dependencies"], *(lines for name, lines in EXTRAS.items() if name not in TOOLS))
    for requirement in map(Requirement, lines)
    if requirement.name != "convsmith"
]


def constraints(name: str) -> dict[str, Version]:
    lines = (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins = {canonicalize_name(r.name): [(s.operator, s.version) for s in r.specifier] for r in found}
    assert all([operator for operator, _ in pin] == ["=="] for pin in pins.values()), "each line pins one version"
    return {package: Version(pin[0][1]) for package, pin in pins.items()}


def lowest(requirement: Requirement) -> Version:
    (bound,) = (s.version for s in requirement.specifier if s.operator == ">=")
    return Version(bound)


def test_the_lowest_versions_are_those_of_the_project() -> None:
    bounds = {canonicalize_name(r.name): lowest(r) for r in IMPORTED}
    assert bounds == constraints("lowest")


@pytest.mark.parametrize("name", ["tested", "newest"])
def test_the_project_admits_the_versions_that_tests_ran_with(name: str) -> None:
    admitted = {canonicalize_name(r.name): r.specifier for r in IMPORTED}
    for package, version in constraints(name).items():
        assert admitted[package].contains(version), f"{package} {version}"


def test_the_newest_versions_are_of_the_same_packages() -> None:
    assert set(constraints("newest")) == set(constraints("lowest"))


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.14.1", "2.15.0", "3.0"])
def test_an_installed_release_of_torch_stays(version: str) -> None:
    (torch,) = (requirement for requirement in IMPORTED if requirement.name == "torch")
    assert torch.specifier.contains(version)


@pytest.mark.parametrize("file", ["README.md", ".ci/run", ".ci/versions"])
def test_commands_that_install_torch_pin_it(file: str) -> None:
    for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
        if " install " in line and "peers]" in line:
            assert "constraints" in line, line
