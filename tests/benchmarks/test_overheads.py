"""The benchmark of overheads measures both revisions in turns, and shows what both have."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import convsmith as cs
from convsmith.runtime import array_readers, cuda
from convsmith.runtime.device_library import OpenedOnce

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def overheads(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("overheads")


def test_the_fastest_turns_are_compared(
    overheads: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"old": iter([9.0, 8.0, 4.0, 6.0, 5.0, 7.0]), "new": iter([1.0, 1.0, 3.0, 5.0, 2.0, 9.0])}
    order: list[str] = []

    def run(what: str, tree: Path, _: Path) -> dict[str, float]:
        order.append(tree.name)
        return {what: next(times[tree.name]), **({"a new call": 1.0} if tree.name == "new" else {})}

    monkeypatch.setattr(overheads, "_run", run)
    for side in times:
        (tmp_path / side).mkdir()
    overheads.main([str(tmp_path / "old"), str(tmp_path / "new"), "--turns", "2"])
    page = capsys.readouterr().out
    assert "| fresh | 4.00 | 2.00 | 0.50 |" in page and "| warm | 6.00 | 5.00 | 0.83 |" in page
    assert "a new call" not in page, "the old revision does not have it"
    assert order[4:8:2] != order[8::2], "they take turns"


def test_measured_parts_run(overheads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "ROUNDS", 1)
    monkeypatch.setattr(overheads, "CALLS", 1)
    monkeypatch.setattr(cs, "suite", lambda _: ["mb1ic16ih4oc16oh4kh1ph0"], raising=False)
    found = {**overheads.fresh(), **overheads.warm()}
    assert {overheads.FRESH, overheads.WARM} <= found.keys() and min(found.values()) > 0


def test_calls_on_a_gpu_need_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(cuda, "_opened", OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    monkeypatch.setattr(cuda, "_driver", cuda._driver)
    monkeypatch.setattr(array_readers, "_by_class", {})
    module = importlib.import_module("gpu_overheads")
    monkeypatch.setattr(module, "CALLS", 1)
    found = {name: module.least(call) for name, call in module.calls().items()}
    assert len(found) == 4 and min(found.values()) > 0
