"""The page that `bench` prints: at every width, while it measures, of several types, with doubtful figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import documented_titles, on_terminal, run, visible_lines

import convsmith as cs
from convsmith.cli import bench as bench_module
from convsmith.cli.bench_page import Row
from convsmith.machine.registry import target
from convsmith.measure.doubts import STARVED
from convsmith.measure.peak import peak_types
from convsmith.measure.timing import Measurement, PeerTime, Spread
from convsmith.measure.verification import Verdict
from convsmith.problem.problem import Problem

LINE = "mb1ic3ih8oc4oh6kh3ph0"
FAST = ["--threads", "1", "--rounds", "2"]
OTHERS = "torch,onnxruntime"


def spread(value: float) -> Spread:
    return Spread(value, value * 0.99, value * 1.01)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """Rows are made up; the list receives the problems that would have been measured."""
    kernel = cs.compile(LINE, threads=1, target="generic")
    seen: list[Problem] = []

    def fake(problem: Problem, *_: object) -> Row:
        seen.append(problem)
        peers = {name: PeerTime(spread(1e-3), spread(1.25)) for name in OTHERS.split(",")}
        times = Measurement(spread(123456.7e-6), spread(1234.5), spread(1500.0), spread(0.823), peers)
        types = peak_types(problem, target("avx512_vnni"))
        return Row(problem, kernel, Verdict(0, 1, "exact"), times, peak_types=types)

    monkeypatch.setattr(bench_module, "_row", fake)
    monkeypatch.setattr(bench_module, "installed", lambda name: True)
    monkeypatch.setattr(bench_module, "import_module", lambda name: None)
    return seen


@pytest.mark.sampled(4)
@pytest.mark.parametrize("libraries", ["", "torch", OTHERS])
@pytest.mark.parametrize("network", ["resnet50", "mobilenet_v2", "vgg16"])
@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
def test_a_row_is_one_line_at_every_width(measured: list[Problem], width: int, network: str, libraries: str) -> None:
    result = run("bench", network, *FAST, "--vs", libraries, COLUMNS=str(width))
    assert result.exit_code == 0, result.output
    heading, titles, *lines = result.stdout.splitlines()
    rows, mean, remarks = lines[: len(measured)], lines[len(measured)], lines[len(measured) + 1 :]
    assert heading.endswith("1 thread, --layout=axb (channels last)") and mean.startswith("geometric mean")
    assert all(len(line) <= width for line in (titles, *rows, mean))
    for row, problem in zip(rows, measured, strict=True):
        descriptor = replace(problem, name=None).descriptor()
        assert row.startswith(f"{descriptor} ") or (width < 80 and row[0] == "…" and row[1:20].strip() in descriptor)
        assert 'n"' not in row and " 123457 " in f"{row} "
        assert row.count("1.25") == (len(libraries.split(",")) if libraries else 0)
    assert remarks[0] == "peak: generic f32 1500.0 GFLOP/s"
    shown = [title for title in ("config", "verified", "GFLOP/s", "% peak", "+-") if title in titles]
    assert (len(shown) == 5) == (len(remarks) == 1)
    if len(remarks) > 1:
        assert remarks[1].startswith("left out, for the width: ") and "--wide" in remarks[1]
    if width != 120:  # a network whose names are short shows them there
        assert ("name" in titles) == (width > 120)
    if width >= 80 and not libraries:
        assert {"verified", "GFLOP/s", "% peak", "+-"} <= set(shown)
    if (width >= 120 and network == "resnet50") or width >= 160:
        assert "config" in shown


def test_a_pipe_prints_the_columns_that_the_documentation_shows(measured: list[Problem]) -> None:
    result = run("bench", "resnet50", *FAST, "--vs", OTHERS)
    assert documented_titles("problem") == {result.stdout.splitlines()[1]}
    assert "left out, for the width: " not in result.stdout


def test_wide_has_all_columns_and_names(measured: list[Problem]) -> None:
    result = run("bench", "resnet50", *FAST, "--vs", OTHERS, "--wide", COLUMNS="80")
    titles, first = result.stdout.splitlines()[1:3]
    assert titles.split()[:3] == ["problem", "name", "config"] and "rn50_3-64_k7_224_s2" in first
    assert "left out" not in result.stdout


def test_rows_appear_as_they_are_measured_on_both_streams(
    measured: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a row is measured, the rows before it are there already."""
    fake = bench_module._row
    printed: list[str] = []

    def noting(problem: Problem, *arguments: Any) -> Row:
        printed.append(f"measured {len(printed)}")
        return fake(problem, *arguments)

    monkeypatch.setattr(bench_module, "_row", noting)
    monkeypatch.setattr("convsmith.cli.output.note", lambda text, err=False: printed.append(f"{err} {text}"))
    assert run("bench", "vgg16", *FAST).exit_code == 0
    lines = [line for line in printed if line.startswith("measured") or "mb1ic" in line]
    kinds = ["measured" if line.startswith("measured") else line.split()[0] for line in lines]
    assert kinds == ["measured", "False", "True"] * 9


def test_json_on_standard_output_leaves_the_rows_to_standard_error(measured: list[Problem]) -> None:
    result = run("bench", "vgg16", *FAST, "--json", "-")
    assert len(json.loads(result.stdout)["rows"]) == 9
    assert result.stderr.count("mb1ic") == 9 and result.stderr.splitlines()[1].startswith("problem")


def test_types_have_their_own_units_and_peaks(measured: list[Problem]) -> None:
    result = run("bench", "-", *FAST, text=f"{LINE}\n--dt=u8:s8:s32 {LINE}\n--dt=u8:s8:f32 {LINE}\n")
    titles, *rows = result.stdout.splitlines()[1:5]
    assert "rate" in titles and "GOP" not in titles
    assert [row.split("1234.5 ")[1].split()[0] for row in rows] == ["GFLOP/s", "GOP/s", "GOP/s"]
    assert "peaks: generic f32 1500.0 GFLOP/s, generic u8:s8:s32 1500.0 GOP/s\n" in result.stdout
    result = run("bench", "-", *FAST, text=f"--dt=u8:s8:s32 {LINE}\n--dt=u8:s8:f32 {LINE}\n")
    assert " GOP/s " in result.stdout.splitlines()[1] and "GFLOP" not in result.stdout


def test_options_that_all_problems_share_are_in_the_heading(measured: list[Problem]) -> None:
    result = run("bench", "-", *FAST, text=f"--dir=FWD_B {LINE}\n--attr-post-ops=relu {LINE}\n")
    heading, _, *rows = result.stdout.splitlines()[:4]
    assert heading.endswith("1 thread, --layout=axb (channels last), --dir=FWD_B")
    assert rows[0].startswith(f"{LINE} ") and rows[1].startswith(f"--attr-post-ops=relu {LINE} ")
    text = f"{LINE}\n--dtag=abx {LINE}\n--matmul --stag=axb --dtag=axb 2x3x4:2x4x5\n"
    heading, _, *rows = run("bench", "-", *FAST, text=text).stdout.splitlines()[:5]
    assert heading.endswith("1 thread, --layout=axb (channels last)")
    assert rows[0].startswith(f"{LINE} ") and rows[1].startswith(f"--dtag=abx {LINE} ")
    assert rows[2].startswith("--matmul --stag=axb --dtag=axb 2x3x4:2x4x5 ")  # a layout of convolutions
    result = run("bench", "-", *FAST, text=f"--stag=abx --dtag=abx {LINE}\n--matmul 3x4:4x5\n{'3x4:4x6'}")
    heading, _, *rows = result.stdout.splitlines()[:5]
    assert heading.endswith("1 thread") and rows[0].startswith(f"--stag=abx --dtag=abx {LINE}")
    assert rows[2].startswith("--matmul 3x4:4x6")


@pytest.mark.parametrize("share", [1.0, STARVED, STARVED - 0.01, 0.3])
def test_a_starved_run_is_said(measured: list[Problem], monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    fake = bench_module._row

    def starved(*arguments: Any) -> Row:
        row = fake(*arguments)
        assert row.times is not None
        row.times = replace(row.times, cpu_share=share)
        return row

    monkeypatch.setattr(bench_module, "_row", starved)
    result = run("bench", "vgg16", *FAST)
    said = f"9 of 9 rows had less than 80% of the CPU time of their threads (the least {share:.0%})"
    assert (said in result.stdout) == (share < STARVED)


def test_the_share_of_cpu_time_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Calls that sleep take time and no CPU time."""
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)
    import time

    monkeypatch.setattr(bench_module, "bound_call", lambda *_: (lambda: time.sleep(1e-3), {}))
    path = tmp_path / "out.json"
    result = run("bench", LINE, *FAST, "--json", str(path))
    assert "1 of 1 rows had less than 80% of the CPU time" in result.stdout
    assert json.loads(path.read_text())["rows"][0]["cpu_share"] < 0.5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [80, 100])
def test_bench_on_a_terminal(width: int, tmp_path: Path) -> None:
    """Rows and progress are lines of the terminal, none of which is longer than it."""
    path = tmp_path / "problems.txt"
    long = "--attr-post-ops=relu+clip:0:6+linear:2:1+abs --attr-scales=wei:per_oc"
    path.write_text(f"{LINE}\n{long} {LINE}\n")
    status, output = on_terminal(width, "bench", str(path), *FAST, "--target", "generic", CONVSMITH_CACHE="off")
    assert status == 0, output
    lines = visible_lines(output)
    assert all(len(line) <= width for line in lines[1:] if "peak:" not in line and "rows" not in line), lines
    assert sum(line.startswith(LINE) and line.endswith("yes") for line in lines) == 1
    assert sum(line.startswith("…") and LINE in line and line.endswith("yes") for line in lines) == 1
    bars = [line for line in lines if "━" in line]
    assert any(" 1/2 " in bar and bar.endswith("…") for bar in bars)
    rest = [line for line in lines[2:] if line not in bars and not line.endswith("yes")]
    assert all(line.startswith(("geometric mean", "peak: ", "left out")) or " rows " in line for line in rest), rest
