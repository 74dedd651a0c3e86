"""The benchmarks' scripts run; what they measure is nobody's concern here."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from convsmith.problem.lines import parse_problem

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


def test_each_line_of_a_run_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option of one line does not hold for the next, although it would in a file."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    report = importlib.import_module("report")
    lines = ["--dir=FWD_B mb1ic4ih4oc4oh4kh3ph1", "mb1ic4ih4oc4oh4kh3ph1", "--matmul 3x4:4x5", "mb1ic2iw4oc2ow4kw1pw0"]
    run = report.bench(lines, "--threads", "1", "--rounds", "1", "--target", "generic")
    wanted = [line if "matmul" in line else f"--stag=axb --dtag=axb {line}" for line in lines]
    wanted[0] = "--dir=FWD_B --stag=axb --dtag=axb mb1ic4ih4oc4oh4kh3ph1"
    assert [row["problem"] for row in run["rows"]] == wanted


PARTS = {
    "report", "torch_networks", "library_networks", "audio_networks", "gpu_rows", "gpu_subjects", "tiny_networks",
    "cmsis_nn", "random_models", "onnx_peers", "row_processes", "live_bytes", "gpu_choices",
}  # fmt: skip
"""Modules that scripts share."""


@pytest.mark.parametrize("name", sorted({path.stem for path in BENCHMARKS.glob("*.py")} - PARTS))
def test_a_script_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    if name in ("gpu_calls", "torch_calls"):
        pytest.importorskip("torch")
    assert callable(importlib.import_module(name).main)


def test_the_lines_of_the_layers_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    from convsmith.problem.conv import Conv

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    layers = importlib.import_module("layers")
    for line in (*layers.LAYERS.values(), *layers.ODD.values()):
        assert Conv.parse(f"{layers.POST} {layers.LAST} {line}").bias


def test_the_best_library_is_the_one_that_gains_us_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    depthwise = importlib.import_module("depthwise")
    speedups = {"a": {"onednn": 1.5, "xnnpack": 1.2}, "b": {"onednn": 2.0, "xnnpack": 3.0}}
    rows = [
        {
            "name": name,
            "of_peak": {"median": 0.5},
            "libraries": {library: {"speedup": {"median": value}} for library, value in found.items()},
        }
        for name, found in speedups.items()
    ]
    assert depthwise._summary(rows) == ["1.55", "1.20 (a)", "50.0 %"]
    problem = parse_problem("g16mb1ic16ih5oc16oh5kh3ph1")
    assert depthwise._bytes(problem) == (2 * 25 + 9) * 16 * 4


def test_the_losses_of_a_suite_are_those_to_the_best_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    suite = importlib.import_module("suite")
    ratios = {"a": {"torch": 2.0, "onednn": 0.9}, "b": {"torch": 1.1}, "c": {}, "d": {"torch": 0.5}}
    rows = [
        {"problem": name, "libraries": {library: {"speedup": {"median": value}} for library, value in found.items()}}
        for name, found in ratios.items()
    ]
    assert [(ratio, name, row["problem"]) for ratio, name, row in suite.losses({"rows": rows})] == [
        (0.5, "torch", "d"), (0.9, "onednn", "a"),
    ]  # fmt: skip


def test_the_layers_beside_the_best_library_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    best = importlib.import_module("best")
    assert all(parse_problem(line).forward for group in best.GROUPS.values() for line in group.values())
    libraries = {"torch": {"speedup": {"median": 1.5}}, "ncnn": {"speedup": {"median": 0.8}}}
    assert best.best_ratio({"libraries": libraries}) == 0.8 and best.best_ratio({"libraries": {}}) is None


def test_the_page_of_chains_holds_one_and_two_threads_and_the_time_to_make_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    chains, report = importlib.import_module("chains"), importlib.import_module("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)
    name = next(iter(chains.BLOCKS))
    monkeypatch.setattr(chains, "lines", lambda: {("f32", name): chains.block_line((4, 8, 2, 8, 1), "f32")})
    chains.main(["--threads", "1,2", "--rounds", "1"])
    written = json.loads(next(tmp_path.glob("chains-*.json")).read_text())["chains"]
    assert [row["threads"] for row in written] == [1, 2] and all(row["verified"] for row in written)
    assert all(row["making"]["chain"] > 0 and len(row["making"]["stages"]) == 3 for row in written)
    page = capsys.readouterr().out
    assert "making, ratio" in page
    for threads in ("1 thread", "2 threads"):
        assert f"## f32, {threads}\n" in page
        assert f"Geometric means over blocks whose largest result exceeds a size, {threads} (goal" in page


def test_calls_from_torch_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    torch_calls = importlib.import_module("torch_calls")
    monkeypatch.setattr(torch_calls, "CALLS", [(4, 8, 5, 3)])
    monkeypatch.setattr(torch_calls, "LAYERS", [(4, 8, 5, 3, 1)])
    (call,), (step,) = torch_calls.calls(1, 3), torch_calls.training(1, 3, batch=2)
    assert call[0] == "4 -> 8, 5x5, 3x3" and float(call[2]) > 0 and float(step[-1]) > 0


def test_making_draws_problems_in_spaces_with_their_levels_threads_and_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    making, report = importlib.import_module("making"), importlib.import_module("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    by_space = {name: next(iter(making.drawn(name, 1, 5).values())) for name in ("f32-2", "int8-avx2", "dynamic")}
    assert by_space["f32-2"].threads == 2 and by_space["int8-avx2"].level.name.startswith("avx2")
    assert by_space["dynamic"].sizes.free and not by_space["f32-2"].sizes
    monkeypatch.setattr(making, "seconds", lambda *_: (0.0,) * 4)  # the warm-up
    making.main(["--space", "small", "--space", "dynamic", "--sample", "2", "--seed", "5"])
    page, data = capsys.readouterr().out, json.loads(next(tmp_path.glob("making-spaces-*.json")).read_text())
    assert "| small | 2 |" in page and "| dynamic | 2 |" in page
    for name, found in data["spaces"].items():
        assert list(found["problems"]) == list(making.drawn(name, 2, 5))
        assert found["within"]["50 %"] >= 1 and all(len(parts) == 4 for parts in found["problems"].values())


def test_the_survey_of_memory_lists_each_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    memory, report = importlib.import_module("memory"), importlib.import_module("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    memory.main(["--space", "small", "--space", "f16", "--sample", "2"])
    page, data = capsys.readouterr().out, json.loads(next(tmp_path.glob("memory-*.json")).read_text())
    assert "| small | 2 |" in page and "| f16 | 2 |" in page
    for x in (x for name in ("small", "f16") for x in data[name].values()):
        assert x["tensors"] > 0 and min(x["packed"], x["call"], x["packing"]) >= 0 and x["cause"]
