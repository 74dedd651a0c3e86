"""What the documentation shows is what its commands print now, and its Python runs.

`python docs/update.py` brings the pages up to date.
"""

from __future__ import annotations

import difflib
import doctest
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from convsmith.cli.main import main
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES

ROOT = Path(__file__).parents[2]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


update = _load(ROOT / "docs" / "update.py")


@pytest.mark.parametrize("name", update.PAGES)
def test_outputs_are_up_to_date(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    new = update.updated(page)
    difference = "\n".join(difflib.unified_diff(page.splitlines(), new.splitlines(), name, "now", lineterm="", n=1))
    assert page == new, f"run `python docs/update.py {name}`\n{difference}"


@pytest.mark.slow
@pytest.mark.parametrize("row", [row.name for row in MICRO_ARCHITECTURES if row.name != update.CHOSEN])
@pytest.mark.parametrize("name", update.PAGES)
def test_a_page_whose_outputs_depend_on_the_cpu_names_it(name: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page, chosen = (ROOT / name).read_text(encoding="utf-8"), update.CHOSEN
    monkeypatch.setattr(update, "CHOSEN", row)
    assert update.updated(page) == page or f"CONVSMITH_MICRO_ARCHITECTURE={chosen}" in page


@pytest.mark.parametrize("name", update.PAGES)
def test_python_in_a_page_runs(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    for block in update.code_blocks(page, "python"):
        if "import torch" in block:
            pytest.importorskip("torch")
        exec(compile(block, name, "exec"), {})
    for block in update.code_blocks(page, "pycon"):
        examples = doctest.DocTestParser().get_doctest(block, {}, name, name, 0)
        failures = doctest.DocTestRunner().run(examples)
        assert failures.failed == 0


@pytest.mark.parametrize("name", update.PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page):
        if "://" not in target:
            assert (ROOT / name).parent.joinpath(target).exists(), f"{name} links to {target}"


@pytest.mark.parametrize("name", [page for page in update.PAGES if page.startswith("docs/")])
def test_files_that_a_page_names_exist(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    for word in re.findall(r"`([a-z0-9_]+(?:/[a-z0-9_]+)*/[a-z0-9_]*(?:\.py)?)`", page):
        assert (ROOT / word).exists() or (ROOT / "convsmith" / word).exists(), f"{name} names {word}"


def test_the_source_map_names_what_there_is() -> None:
    """Its files and tests exist, and a docstring that it calls a test is one."""
    page = (ROOT / "docs" / "source-map.md").read_text(encoding="utf-8")
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for word in re.findall(r"`(test_[a-z0-9_]+)`", page):
        assert f"def {word}(" in tests, f"there is no {word}"
    for word in re.findall(r"`([a-z_]+/[a-zA-Z0-9_/.]*)`", page):
        assert (ROOT / word).exists() or (ROOT / "convsmith" / word).exists(), f"there is no {word}"
    for row in page.splitlines():
        cells = row.split(" | ")
        if len(cells) == 3 and "docstring" in cells[2]:
            for word in re.findall(r"`passes/([a-z_]+\.py)`", cells[1]):
                text = (ROOT / "convsmith" / "passes" / word).read_text(encoding="utf-8")
                assert "Before::" in text, f"passes/{word} has no docstring that is a test"


def test_the_commands_of_the_source_map_exist() -> None:
    """A command and the options that a row gives it are those of the program."""
    page = (ROOT / "docs" / "source-map.md").read_text(encoding="utf-8")
    found = re.findall(r"`convsmith ([a-z]+)([^`]*)`", page)
    assert len(found) >= 3
    for name, rest in found:
        command = main.get_command(click.Context(main), name)
        assert command is not None, f"there is no convsmith {name}"
        legal = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= legal, f"convsmith {name}{rest}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_outputs_are_replaced_in_place() -> None:
    page = "a\n```console\n$ x=2\n$ echo $((x + 1))\nold\n```\nb\n```console measured\n$ echo 2 ms\n1 ms\n```\n"
    new = update.updated(page)
    assert new == page.replace("old", "3")
    assert update.updated(page, measured=True) == new.replace("1 ms", "2 ms")


def test_a_command_that_fails_ends_the_program() -> None:
    with pytest.raises(SystemExit, match="exit status 1"):
        update.updated("```console\n$ echo fine\n$ false | cat\n```\n")
