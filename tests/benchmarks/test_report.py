"""The benchmarks' scripts run; what they measure is nobody's concern here."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = '--stag=axb --dtag=axb mb1ic4ih4oc4oh4kh3ph1n"tiny"'


def test_a_run_of_bench_becomes_a_page_and_a_json_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    report = importlib.import_module("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    run = report.bench([TINY], "--threads", "1", "--rounds", "1")
    page = report.Report("tiny", "A tiny layer")
    page.data = {"runs": [run]}
    page.table("Times", ["layer", "% of peak"], [[run["rows"][0]["name"], report.percent(run["rows"][0]["of_peak"])]])
    page.write()
    written = json.loads(next(tmp_path.glob("tiny-*.json")).read_text())
    assert written["runs"][0]["rows"][0]["verified"] is True
    text = next(tmp_path.glob("tiny-*.md")).read_text()
    assert "| tiny | " in text and written["machine"]["cpu"] in text
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("name", ["layers", "networks", "latency", "packing"])
def test_a_script_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    assert callable(importlib.import_module(name).main)


def test_the_lines_of_the_layers_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    from convsmith.problem.conv import Conv

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    layers = importlib.import_module("layers")
    for line in (*layers.LAYERS.values(), *layers.ODD.values()):
        assert Conv.parse(f"{layers.POST} {layers.LAST} {line}").bias
