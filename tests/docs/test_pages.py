"""The documentation shows the output that its commands print now, and its Python runs.

`python docs/update.py` brings the pages up to date.
"""

from __future__ import annotations

import difflib
import doctest
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from forked_commands import forked_commands

from convsmith.cli.main import main
from convsmith.diag.settings import settings
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES

ROOT = Path(__file__).parents[2]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


update = _load(ROOT / "docs" / "update.py")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with forked_commands(tmp_path_factory.mktemp("programs")) as folder:
        yield folder


@pytest.mark.parametrize("name", update.PAGES)
def test_outputs_are_up_to_date(name: str, programs: Path) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    new = update.updated(page, programs=programs)
    difference = "\n".join(difflib.unified_diff(page.splitlines(), new.splitlines(), name, "now", lineterm="", n=1))
    assert page == new, f"run `python docs/update.py {name}`\n{difference}"


@pytest.mark.slow
@pytest.mark.parametrize("row", [row.name for row in MICRO_ARCHITECTURES if row.name != update.CHOSEN])
@pytest.mark.parametrize("name", update.PAGES)
def test_a_page_whose_outputs_depend_on_the_cpu_names_it(
    name: str, row: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, chosen = (ROOT / name).read_text(encoding="utf-8"), update.CHOSEN
    monkeypatch.setattr(update, "CHOSEN", row)
    assert update.updated(page, programs=programs) == page or f"CONVSMITH_MICRO_ARCHITECTURE={chosen}" in page


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


NAMED = re.compile(r"`(?:\w+\()?(_?[a-z]+(?:_[a-z0-9]+)+|[A-Z][a-z]+[A-Za-z]*)(?:\.(_?[a-z_]+))?[^`/]*`")
"""A function or a class, and its attribute, in the source map; a call has an example's arguments."""


def test_the_source_map_names_functions_and_options_that_there_are() -> None:
    """Its functions, classes, options and the cases of its tests occur in the code."""
    files = [path for folder in ("convsmith", "tests") for path in (ROOT / folder).rglob("*.py")]
    modules, code = {path.stem for path in files}, "\n".join(path.read_text(encoding="utf-8") for path in files)
    for found in NAMED.finditer(SOURCE_MAP):
        for name in filter(None, found.groups()):
            is_known = name in modules or bool(re.search(rf"(?<![A-Za-z_]){name}", code))
            assert is_known, f"there is no {name} of {found[0]}"
    for option in set(re.findall(r"--([a-z][a-z_-]+)", SOURCE_MAP)):
        assert f'"--{option}' in code or f'_row("{option}"' in code, f"there is no option --{option}"
    for case in set(re.findall(r"\[([a-z0-9-]+)\]`", SOURCE_MAP)):
        assert f'"{case}"' in code, f"no test has a case {case!r}"


SOURCE_MAP = (ROOT / "docs" / "source-map.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"`test_\w+(\.py|\[[\w-]+\])?`|`tests/|docstring|kinds? `|`convsmith ")
"""Things that can show a row: a test, a file or folder of tests, a docstring, kinds of kernels of tests, a command."""


def rows_of_the_source_map() -> list[tuple[str, str, str]]:
    """The sentences of each document, their places here, and the tests or commands that show them."""
    cells = [row[2:-1].split(" | ") for row in SOURCE_MAP.splitlines() if row.startswith("| ")]
    return [(x[0], x[1], x[2]) for x in cells if len(x) == 3 and x[0] != "the document says"]


def test_something_shows_each_row_of_the_source_map() -> None:
    """A row without a test, a command or a kind of kernels says why it is not here."""
    sections = SOURCE_MAP.split("\n## ")[1:]
    assert len(sections) >= 5 and len(rows_of_the_source_map()) > 100
    kinds = {kind for path in (ROOT / "tests").rglob("*.py") for kind in _texts_of(path)}
    for says, here, shown in rows_of_the_source_map():
        assert SHOWN.search(shown) or here.startswith("not here: "), f"nothing shows {says!r}: {shown!r}"
        for listed in re.findall(r"kinds? ((?:`[a-z0-9-]+`(?:, )?)+)", shown):
            for kind in re.findall(r"`([a-z0-9-]+)`", listed):
                assert kind in kinds, f"no test names the kind {kind!r} of {says!r}"


def _texts_of(path: Path) -> set[str]:
    return set(re.findall(r'"([a-z0-9-]+)"', path.read_text(encoding="utf-8")))


COMMANDS = list(dict.fromkeys(re.findall(r"`convsmith ([^`]*)`", SOURCE_MAP)))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_source_map_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with settings.scope(database=tmp_path / "measurements.db"):
        result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code == 0 and result.output.count("\n") > 3, result.output


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
