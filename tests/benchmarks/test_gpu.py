"""The script that measures layers on a GPU: it runs on a device of OpenCL, and goes on where it was interrupted."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from opencl_driver import require_opencl

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    require_opencl()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("gpu")
    monkeypatch.setattr(module.report, "RESULTS", module.report.RESULTS)
    return module


def test_small_layers_are_measured(gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--target", "opencl", "--small", "--rounds", "1", "--out", str(tmp_path)]
    gpu.main([*words, "--only", "int8,weights,depthwise"])
    file = tmp_path / "gpu-opencl.json"
    rows = json.loads(file.read_text())["rows"]
    assert [row["kind"] for row in rows] == ["int8", "int8", "weights", "weights", "depthwise"]
    assert all(row["right"] and row["seconds"] > 0 and row["bytes"] > 0 for row in rows)
    page = next(tmp_path.glob("gpu-opencl-*.md")).read_text()
    assert page in capsys.readouterr().out and page.count("| yes |") == len(rows)
    file.write_text(json.dumps({"rows": rows[:-1]}))
    gpu.main([*words, "--resume", str(file), "--only", "depthwise"])
    assert json.loads(file.read_text())["rows"][:-1] == rows[:-1]


def test_layers_are_those_of_the_networks(gpu: Any) -> None:
    found = [problem for _, problem in gpu.layers("bf16", small=False)]
    assert {p.mb for p in found} == {32, 128} and {t.dtype for p in found for t in p.tensors} == {"bf16"}
    assert len(found) == 2 * (23 + 9) and all(p.g > 1 for _, p in gpu.layers("depthwise", small=False))
