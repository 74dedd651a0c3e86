"""`convsmith machine`: the facts, and the ceilings that are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from commands import on_terminal, run, visible_lines

from convsmith.machine.registry import host_targets
from convsmith.measure.ceilings import Ceiling, known_ceilings
from convsmith.runtime.threads import available_cpus

HOST = [t.isa for t in host_targets()]


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

    monkeypatch.setattr("convsmith.cli.machine.known_ceilings", lambda: [made_up(c) for c in known])
    monkeypatch.setattr("convsmith.cli.machine.ROUNDS", 1)
    monkeypatch.setattr("convsmith.cli.machine.available_cpus", lambda: 4)
    monkeypatch.setattr("convsmith.cli.machine.default_threads", lambda: 2)
    yield seen


def test_all_ceilings_on_one_thread_and_on_all(sampled: list[tuple[str, str, int]]) -> None:
    result = run("machine")
    assert result.exit_code == 0 and "openmp" in result.stdout
    rows = [row.split() for row in result.stdout.splitlines()]
    assert ["generic", "f32:f32:f32", "10.0", "20.0"] in rows and ["L1", "10.0", "20.0"] in rows
    assert {(name, threads) for name, types, threads in sampled if types} == {(n, t) for n in HOST for t in (1, 2)}
    assert "f32:f32:f32" in result.stderr  # no terminal: the rows are on standard error too


@pytest.mark.parametrize(
    "arguments,products,reads,threads",
    [
        (["--threads", "2"], HOST, True, [2]),
        (["--threads", "1,2"], HOST, True, [1, 2]),
        (["--isa", "generic"], ["generic"], False, [1, 2]),
        (["--measure", "reads", "--threads", "1"], [], True, [1]),
        (["--measure", "multiply-adds"], HOST, False, [1, 2]),
        (["--measure", "all", "--isa", "generic"], ["generic"], True, [1, 2]),
        (["--measure", "nothing"], [], False, []),
        (["--threads", "100000"], HOST, True, [4]),
        (["--threads", "3,4,5,6"], HOST, True, [3, 4]),
    ],
)
def test_only_what_is_asked_for_is_measured(
    sampled: list[tuple[str, str, int]], arguments: list[str], products: list[str], reads: bool, threads: list[int]
) -> None:
    result = run("machine", *arguments, "--json")
    assert result.exit_code == 0, result.output
    ceilings = json.loads(result.stdout)["ceilings"]
    assert set(ceilings) == {*(["fma_gflops"] if products else []), *(["read_gbs"] if reads else [])}
    assert list(ceilings.get("fma_gflops", {})) == products
    assert sorted({count for *_, count in sampled}) == threads
    assert {name for name, types, _ in sampled if types} == set(products)
    assert any(not types for _, types, _ in sampled) == reads
    figures = [f for rows in ceilings.get("fma_gflops", {}).values() for f in rows.values()]
    assert all(figure == {str(n): 10.0 * n for n in threads} for figure in figures)
    assert ("CPUs" in result.stderr) == any(int(n) > 4 for n in "".join(arguments[1:2]).split(",") if n.isdecimal())


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--threads", "0"], "--threads=0: expected whole numbers of at least 1"), (["--threads", "two"], "two"),
        (["--isa", "sse9"], "isa 'sse9' is unknown"), (["--measure", "everything"], "everything"),
    ],
)  # fmt: skip
def test_what_is_not_legal(arguments: list[str], said: str) -> None:
    result = run("machine", *arguments)
    assert result.exit_code == 2 and said in result.stderr and not result.stdout


def test_progress_on_a_terminal() -> None:
    status, output = on_terminal(80, "machine", "--isa", "generic", "--threads", str(available_cpus()))
    lines = visible_lines(output)
    assert status == 0 and any("0/1" in line and "generic f32:f32:f32" in line for line in lines)
    assert sum(line.startswith("generic f32:f32:f32 ") for line in lines) == 1


@pytest.mark.parametrize("together", [False, True])
def test_rows_are_there_once_where_both_streams_are_one(together: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "convsmith.cli.main", "machine", "--isa", "generic", "--threads", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT if together else subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    row = "\ngeneric f32:f32:f32 "
    assert done.stdout.count(row) == 1 and (together or done.stderr.count(row) == 1)
