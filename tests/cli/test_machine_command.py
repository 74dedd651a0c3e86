"""`convsmith machine`: the facts, and the ceilings that are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime

import pytest
from commands import on_terminal, run, visible_lines

from convsmith.compiler.cache import disk_cache
from convsmith.machine.registry import host_targets
from convsmith.measure import ceilings
from convsmith.measure.ceilings import Ceiling, known_ceilings
from convsmith.runtime.threads import available_cpus

MEASURE = ("--measure=multiply-adds", "--target=generic")
HOST = [t.name for t in host_targets()]


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, int]]]:
    """Samples are made up; the list receives level, types and threads of each ceiling that is measured."""
    known = known_ceilings()
    seen: list[tuple[str, str, int]] = []

    def made_up(ceiling: Ceiling) -> Ceiling:
        def sample(threads: int) -> float:
            seen.append((ceiling.name, ceiling.types, threads))
            return 10.0 * threads

        return Ceiling(ceiling.table, ceiling.name, ceiling.types, sample)

    monkeypatch.setattr(ceilings, "_in_process", {})
    monkeypatch.setattr(ceilings, "_METHOD", -2)  # keys of no other test
    monkeypatch.setattr(ceilings, "MIN_SHARE", 0.0)
    monkeypatch.setattr("convsmith.cli.machine.known_ceilings", lambda: [made_up(c) for c in known])
    monkeypatch.setattr("convsmith.cli.machine.ROUNDS", 1)
    monkeypatch.setattr("convsmith.cli.machine.available_cpus", lambda: 4)
    monkeypatch.setattr("convsmith.cli.machine.default_threads", lambda: 2)
    yield seen
    cache = disk_cache()
    assert cache is not None
    cache.clear()


def test_all_ceilings_on_one_thread_and_on_all(sampled: list[tuple[str, str, int]]) -> None:
    result = run("machine", "--measure")
    assert result.exit_code == 0 and "openmp" in result.stdout and "micro_architecture" in result.stdout
    devices = "sm_90a, sm_89, sm_86, sm_80, sm_70, opencl, xe_hpc, xe_hpg, xe_lp, webgpu+subgroups, webgpu"
    assert f"device targets      {devices}\n" in result.stdout
    assert "cache tiles in L1 of 32 KiB, L2 of " in result.stdout
    rows = [row.split()[:-1] for row in result.stdout.splitlines() if row]
    assert ["generic", "f32:f32:f32", "10.0", "20.0"] in rows and ["L1", "10.0", "20.0"] in rows
    assert {(name, threads) for name, types, threads in sampled if types} == {(n, t) for n in HOST for t in (1, 2)}
    assert "f32:f32:f32" in result.stderr  # no terminal: the rows are on standard error too


def test_kept_figures_are_printed_with_their_date_and_nothing_is_measured(sampled: list[tuple[str, str, int]]) -> None:
    """Only those that are kept are in the table; a number of threads without a figure has none."""
    nothing = run("machine")
    assert nothing.exit_code == 0 and "`convsmith machine --measure` measures" in nothing.stdout and not sampled
    assert json.loads(run("machine", "--json").stdout)["ceilings"] == {}
    assert run("machine", *MEASURE, "--threads", "1").exit_code == 0 and sampled
    sampled.clear()
    kept = run("machine")
    (row,) = (row.split() for row in kept.stdout.splitlines() if row.startswith("generic"))
    today = datetime.now(UTC).date()
    assert row[:4] == ["generic", "f32:f32:f32", "10.0", "-"] and abs(date.fromisoformat(row[4]) - today).days <= 1
    figure = {"rate": 10.0, "date": row[4], "is_steady": True}
    assert json.loads(run("machine", "--json").stdout)["ceilings"] == {
        "fma_gflops": {"generic": {"f32:f32:f32": {"1": figure}}}
    }
    assert not sampled


def test_a_figure_of_a_busy_machine_is_not_kept(
    sampled: list[tuple[str, str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "MIN_SHARE", 2.0)  # no sample gets as much CPU time
    result = run("machine", *MEASURE, "--threads", "1")
    (row,) = (row.split() for row in result.stdout.splitlines() if row.startswith("generic"))
    assert row == ["generic", "f32:f32:f32", "busy"]
    assert json.loads(run("machine", "--json").stdout)["ceilings"] == {}


@pytest.mark.parametrize(
    "arguments,products,reads,threads",
    [
        (["--measure", "--threads", "2"], HOST, True, [2]),
        (["--measure", "--threads", "1,2"], HOST, True, [1, 2]),
        (["--measure", "--target", "generic"], ["generic"], True, [1, 2]),
        (["--measure", "multiply-adds", "--target", "generic"], ["generic"], False, [1, 2]),
        (["--measure", "reads", "--threads", "1"], [], True, [1]),
        (["--measure", "multiply-adds"], HOST, False, [1, 2]),
        (["--measure", "all", "--target", "generic"], ["generic"], True, [1, 2]),
        ([], [], False, []),
        (["--threads", "100000", "--measure"], HOST, True, [4]),
        (["--threads", "3,4,5,6", "--measure"], HOST, True, [3, 4]),
    ],
)
def test_only_what_is_asked_for_is_measured(
    sampled: list[tuple[str, str, int]], arguments: list[str], products: list[str], reads: bool, threads: list[int]
) -> None:
    result = run("machine", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["ceilings"]
    assert set(found) == {*(["fma_gflops"] if products else []), *(["read_gbs"] if reads else [])}
    assert list(found.get("fma_gflops", {})) == products
    assert sorted({count for *_, count in sampled}) == threads
    assert {name for name, types, _ in sampled if types} == set(products)
    assert any(not types for _, types, _ in sampled) == reads
    figures = [f for rows in found.get("fma_gflops", {}).values() for f in rows.values()]
    assert all({n: f["rate"] for n, f in by.items()} == {str(n): 10.0 * n for n in threads} for by in figures)
    assert ("CPUs" in result.stderr) == any(int(n) > 4 for n in "".join(arguments[1:2]).split(",") if n.isdecimal())


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--threads", "0"], "--threads=0: expected whole numbers of at least 1"), (["--threads", "two"], "two"),
        (["--target", "sse9"], "target 'sse9' is unknown"), (["--measure", "everything"], "everything"),
    ],
)  # fmt: skip
def test_what_is_not_legal(arguments: list[str], said: str) -> None:
    result = run("machine", *arguments)
    assert result.exit_code == 2 and said in result.stderr and not result.stdout


def test_progress_on_a_terminal() -> None:
    status, output = on_terminal(80, "machine", *MEASURE, "--threads", str(available_cpus()))
    lines = visible_lines(output)
    assert status == 0 and any("0/1" in line and "generic f32:f32:f32" in line for line in lines)
    assert sum(line.startswith("generic f32:f32:f32 ") for line in lines) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("together", [False, True])
def test_rows_are_there_once_where_both_streams_are_one(together: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "convsmith.cli.main", "machine", *MEASURE, "--threads", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT if together else subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    row = "\ngeneric f32:f32:f32 "
    assert done.stdout.count(row) == 1 and (together or done.stderr.count(row) == 1)


def test_facts_continue_below_their_beginning() -> None:
    narrow, wide = (run("machine", COLUMNS=width).stdout.splitlines() for width in ("80", None))
    too_long = [line for line in narrow if len(line) > 80]
    assert narrow != wide and all(len(line[20:].split()) == 1 for line in too_long)  # a path stays whole
    facts = "\n".join(narrow).partition("\n\n")[0].replace("\n" + " " * 20, " ")
    assert facts == "\n".join(wide).partition("\n\n")[0]
