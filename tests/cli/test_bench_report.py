"""`convsmith bench --report`: one text file with the machine, versions, layers and ratios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import convsmith.cli.bench as bench_module
from convsmith.cli.bench_report import LAYERS, report
from convsmith.cli.main import main
from convsmith.cli.problems import read_lines
from convsmith.machine.registry import target
from convsmith.problem.conv import Conv

FEW = ("--rounds", "1", "--threads", "1", "--target", "generic")


def test_a_short_list() -> None:
    """It has dense and depthwise layers, and several types; options of the command hold for lines without them."""
    listed = read_lines(LAYERS, {}, "axb")
    assert 10 <= len(listed.problems) <= 16 and listed.layout == "axb"
    convolutions = [x for x in listed.problems if isinstance(x, Conv)]
    assert {x.types[0] for x in convolutions} == {"f32", "bf16", "f16", "u8"}
    assert {(x.g or 1) > 1 for x in convolutions} == {True, False}
    strict = read_lines(LAYERS, {"accuracy": "strict"}, "axb")
    assert {x.accuracy for x in strict.problems if isinstance(x, Conv)} == {"strict"}


def test_a_report_of_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "installed", lambda name: False)
    file, data = tmp_path / "report.txt", tmp_path / "rows.json"
    words = ["bench", "mb1ic8ih6oc8kh3ph1", *FEW, "--vs", "torch", "--report", str(file), "--json", str(data)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    lines, content = file.read_text().splitlines(), json.loads(data.read_text())
    assert lines[0].startswith("convsmith bench: ") and lines[0].endswith("1 thread, --layout=axb (channels last)")
    facts = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[2:] if line and not line.startswith(" ")}
    assert facts["cpu"] == content["machine"]["cpu"] and facts["llvm"] == content["machine"]["llvm"]
    assert content["libraries"] == {"torch": None} and facts["torch"] == "not installed"
    assert not any("/" in line for line in lines if line.startswith("openmp"))
    row = next(line for line in lines if line.startswith("mb1ic8ih6oc8"))
    assert " yes " in row and row.endswith(content["rows"][0]["config"])


def test_rows_that_were_not_measured() -> None:
    """An error is a line, and libraries that cannot do problems are counted."""
    row = {"problem": "--stag=axb --dtag=axb mb1ic8ih6oc8kh3ph1", "verified": None, "seconds": None,
           "cannot": {"ncnn": "f32 only"}, "error": {"class": "UsageError", "message": "no"}}  # fmt: skip
    content = {"convsmith": "0", "sources": "abc", "machine": {"cpu": "A"}, "libraries": {"ncnn": "1"},
               "rows": [row, row], "layout": "axb", "complete": False}  # fmt: skip
    lines = report("A, 1 thread", content).splitlines()
    assert "ncnn cannot do 2 of the problems: f32 only" in lines
    assert f"{row['problem']}: UsageError: no" in lines and lines[-1].startswith("The run was ended")
    assert [line.split()[:2] for line in lines if line.startswith("mb1ic8")] == [["mb1ic8ih6oc8kh3ph1", "none"]] * 2


def test_without_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers are those of the list; of the libraries none is installed."""
    monkeypatch.setattr(bench_module, "installed", lambda name: False)
    file = tmp_path / "report.txt"
    result = CliRunner().invoke(main, ["bench", *FEW, "--budget", "0s", "--report", str(file)])
    assert "the budget is spent: 0 of 14 measured" in result.output
    assert file.read_text().splitlines()[-1].startswith("The run was ended")


def test_the_level_with_scalable_vectors_is_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never the default: a report without a target has rows for both levels, one with a target has not."""
    monkeypatch.setattr(bench_module, "installed", lambda name: False)
    monkeypatch.setattr(bench_module, "LAYERS", "mb1ic8ih6oc8kh3ph1")
    monkeypatch.setattr(bench_module, "scalable_level", lambda: target("generic"))
    file = tmp_path / "report.txt"
    result = CliRunner().invoke(main, ["bench", "--rounds", "1", "--report", str(file)])
    assert result.exit_code == 0 and "with generic, whose vectors" in result.output
    found = [line for line in file.read_text().splitlines() if line.startswith("mb1ic8ih6oc8")]
    assert len(found) == 2 and " yes " in found[1] and "--target=generic " in found[1]
    CliRunner().invoke(main, ["bench", *FEW, "--report", str(file)])
    assert len([line for line in file.read_text().splitlines() if line.startswith("mb1ic8ih6oc8")]) == 1
    result = CliRunner().invoke(main, ["bench", "--budget", "0s", "--report", str(file)])
    assert "the budget is spent: 0 of 2 measured" in result.output
