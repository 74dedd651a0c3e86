"""`convsmith tune` and `convsmith db`: what they print, and their messages for bad requests and bad files."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from child_processes import children_of
from commands import run

import convsmith as cs
from convsmith.diag.errors import UnsupportedError
from convsmith.machine.registry import target
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem
from convsmith.tune.records import origin
from convsmith.tune.records.database import Database
from convsmith.tune.records.measured import Measured
from convsmith.tune.search.process import WorkerProcess
from convsmith.tune.search.search import Outcome

LINE = "mb1ic8ih6oc40oh6kh3ph1"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with cs.settings.scope(database=tmp_path / "m.db"):
        yield tmp_path / "m.db"


def test_what_tune_measures_is_kept_and_used(path: Path, tmp_path: Path) -> None:
    result = run("tune", LINE, "--budget=1500ms", "--threads=1", "--wide")
    assert result.exit_code == 0, result.output
    assert re.search(rf"{LINE} +[\d.]+ [num]s +\d+\.\d\d +\d+ ", result.stdout)
    assert re.search(r"^\d+ compiled", result.stdout, re.MULTILINE)
    best = run("db", "best", "--wide").stdout.splitlines()
    assert len(best) == 2 and LINE in best[1] and "--target=" in best[1]
    config = best[1][best[1].index("--target=") :]
    assert str(cs.compile(LINE, src_tag="axb", dst_tag="axb", threads=1).config) == config
    listed = run("db", "list").stdout
    assert "1 problems" in listed and "(this machine)" in listed and str(path) in listed

    assert run("db", "export", str(tmp_path / "rows.json")).exit_code == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    for name, arguments in {"imported": ("import", "rows.json"), "merged": ("merge", "m.db")}.items():
        with cs.settings.scope(database=tmp_path / f"{name}.db"):
            verb, file = arguments
            assert f"{len(rows)} of {len(rows)} rows are new" in run("db", verb, str(tmp_path / file)).stdout
            assert f"0 of {len(rows)} rows are new" in run("db", verb, str(tmp_path / file)).stdout
            assert run("db", "best", "--wide").stdout.splitlines()[1] == best[1]


def test_refused_configs_are_counted_below_their_problem(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reasons of each problem stand below its row, and those of all at the end."""

    def searched(problem: Problem, *_: object, **__: object) -> Outcome:
        return Outcome(problem, None, Counter(), Counter(cache=112, registers=300), 0.1, "budget")

    monkeypatch.setattr("convsmith.cli.tune.search", searched)
    lines = path.with_name("lines.txt")
    lines.write_text(f"{LINE}\nmb2ic8ih6oc40oh6kh3ph1\n")
    shown = run("tune", str(lines), "--budget=1s", "--threads=1").stdout.splitlines()
    rows = [n for n, line in enumerate(shown) if "oc40oh6kh3ph1" in line]
    assert [shown[n + 1] for n in rows] == ["    412 refused: 300 registers, 112 cache"] * 2
    assert "all problems: 824 refused: 600 registers, 224 cache" in shown


def test_a_budget_of_nothing_measures_nothing(path: Path) -> None:
    result = run("tune", "resnet50", "--budget=0")
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    assert "budget 0: nothing is measured, and the model's choices stay" in result.stdout
    assert not path.exists()


@pytest.mark.parametrize("budget", ["-1s", "5 days", "s", "nan", "inf"])
def test_an_illegal_budget_is_named(path: Path, budget: str) -> None:
    result = run("tune", LINE, f"--budget={budget}")
    assert result.exit_code == 2
    assert f"{budget!r} is no time; legal are 0, 30s, 500ms, 2m" in result.stderr


def test_a_bad_database_is_one_message(path: Path) -> None:
    path.write_text("no database " * 100)
    for command in (("tune", LINE), ("db", "list"), ("db", "best"), ("db", "export", "-")):
        result = run(*command)
        assert result.exit_code == 2 and result.stderr.count("\n") == 1
        assert f"DatabaseError: {path}: is damaged (file is not a database)" in result.stderr


def test_without_a_database_there_is_nothing_to_show(path: Path) -> None:
    assert "there is no database; `convsmith tune` makes one" in run("db", "list").stderr
    with cs.settings.scope(database="off"):
        assert "CONVSMITH_DATABASE=off: there is no database" in run("tune", LINE).stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is no export of a database"),
        ('{"schema": 9, "machines": {}, "rows": []}', "schema 9, legal is 2"),
        ('{"schema": 1, "machines": {}, "rows": [{"problem": "x"}]}', "row 1 is no measurement"),
    ],
)
def test_a_bad_export_is_refused(path: Path, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "rows.json").write_text(content)
    result = run("db", "import", str(tmp_path / "rows.json"))
    assert result.exit_code == 2 and message in result.stderr
    with Database(path) as database:
        assert database.rows() == []


def test_the_space_is_shown_for_any_target(path: Path) -> None:
    result = run("tune", "--space", LINE, "--target=avx2", "--threads=1")
    assert result.exit_code == 0 and not path.exists()
    found = re.search(r"^    all +(\d+)   (\d+) refused: (\d+) registers", result.stdout, re.MULTILINE)
    assert found and int(found[1]) > 20 and int(found[2]) >= int(found[3]) > 20


def test_the_report_states_the_error_of_the_model(path: Path) -> None:
    row = Measured("p", "first", "m", "c", "avx2", 1, "ok", 1.0, 1e-5, 0.0, 20, 100.0)
    with Database(path) as database:
        database.put([row])
    assert "no problem has two measured configs" in run("tune", "--report").stdout
    with Database(path) as database:
        database.put([replace(row, config="fast", ratio=0.5, rounds=9)])
        database.name_machine("m", "a machine")
    result = run("tune", "--report")
    assert re.search(r"^m c +1 +2 +41% +\+100% +\+100%$", result.stdout, re.MULTILINE)
    assert "a machine; worst: p" in result.stdout


def test_the_configs_of_an_exhaustive_search_are_counted(path: Path) -> None:
    words = ("tune", "--space", "--exhaustive", "--target=avx2", "--threads=1", "--along=code", "--matmul", "2x2:2x2")
    result = run(*words)
    assert result.exit_code == 0 and "16 configs that are expected to take at most 1.8 of the least" in result.stdout
    wide = run(*words, "--wide").stdout.splitlines()
    assert sum(line.strip().startswith("--target=avx2") for line in wide) == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "tune needs a network, a descriptor or a file, or --report"),
        (("none.onnx",), "none.onnx: cannot be read: No such file"),
        ((LINE, "--target=nothing"), "target 'nothing' is unknown"),
        ((LINE, "--within=1.1"), "--within and --along are for --exhaustive"),
        ((LINE, "--along=tile"), "--within and --along are for --exhaustive"),
        ((LINE, "--exhaustive", "--space", "--along=tiles"), "--along=tiles: the dimensions of this space are"),
        ((LINE, "--cluster=tcp://127.0.0.1:1"), "--cluster=tcp://127.0.0.1:1: no scheduler answers"),
    ],
)
def test_an_illegal_request_is_one_message(
    path: Path, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convsmith.tune.search.cluster.CONNECT_SECONDS", 0.5)
    result = run("tune", *arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_rows_of_devices_are_those_of_this_machine(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device's rows have its name as their machine; the rows of a device that is absent are another machine's."""
    names = {"cuda": "A GPU"}

    def device_name(runtime: str) -> str:
        if runtime not in names:
            raise UnsupportedError("there is no device")
        return names[runtime]

    monkeypatch.setattr(origin, "device_name", device_name)
    machine = origin.machine_key(target("sm_90a"))
    near, far, gone, absent = (str(parse_problem(f"mb{n}ic8iw8oc8kw1").canonical()) for n in (1, 2, 3, 4))
    config, compiler = "--target=sm_90a --lane=oc", origin.compiler_key()
    row = Measured(near, config, machine, compiler, "sm_90a", 1, "ok", 1.0, 1e-5, 0.0, 20)
    with Database(path) as database:
        database.put([row, replace(row, problem=far, machine="other")])
        for problem, name in ((gone, "gone"), (absent, "opencl")):
            database.put([replace(row, problem=problem, target=name, config=f"--target={name} --lane=oc")])
    shown = run("db", "best").stdout
    assert [line.split()[0] for line in shown.splitlines()[1:]] == [near]
    listed = run("db", "list").stdout
    assert re.search(rf"^{machine} .*\(this machine\)$", listed, re.MULTILINE)
    assert re.search(r"^other .*\(another machine: hints\)$", listed, re.MULTILINE)


def tuning(path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A tuner in a process of its own."""
    command = [sys.executable, "-m", "convsmith.cli.main", "tune", LINE, "--threads=1", *arguments]
    environment = {**os.environ, "CONVSMITH_DATABASE": str(path)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)


def test_two_tuners_write_to_one_database(path: Path) -> None:
    tuners = [tuning(path, "--budget=2s", f"--layout={layout}") for layout in ("axb", "abx")]
    assert [tuner.wait() for tuner in tuners] == [0, 0]
    with Database(path) as database:
        assert len({row.problem for row in database.rows()}) == 2


def test_a_killed_tuner_leaves_what_it_measured(path: Path) -> None:
    tuner = tuning(path, "--budget=600s")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and measured(path)):
        time.sleep(0.05)
    tuner.kill()
    tuner.wait()
    kept = measured(path)
    assert kept
    assert run("tune", LINE, "--budget=1s", "--threads=1").exit_code == 0
    assert kept <= measured(path)


def measured(path: Path) -> set[str]:
    with Database(path) as database:
        return {row.config for row in database.rows()}


@pytest.mark.sampled(4)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of child processes")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_the_tuner_and_its_workers(path: Path, ending: signal.Signals) -> None:
    """The terminal's cursor is shown again where the tuner can do so, and no process prints a traceback."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "convsmith.cli.main", "tune", LINE, "--threads=1", "--budget=600s"]
    environment = {**os.environ, "CONVSMITH_DATABASE": str(path)}
    tuner = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave, env=environment)
    os.close(slave)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and measured(path)):
        time.sleep(0.05)
    workers = children_of(tuner.pid)
    tuner.send_signal(ending)
    status = tuner.wait()
    said = b""
    try:  # until the last process that writes to the terminal has ended
        while part := os.read(master, 1 << 16):
            said += part
    except OSError:
        pass
    assert workers and b"Traceback" not in said
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in workers):
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    if ending != signal.SIGKILL:
        assert status == 128 + ending and said.rfind(b"\x1b[?25h") > said.rfind(b"\x1b[?25l")


def test_a_worker_runs_no_file_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with the name of a module is not imported, however the tuner was started."""
    for name in ("base64", "json", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the current directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "", *sys.path])
    with WorkerProcess() as worker:
        answer = worker.ask(op="compile", problem=LINE, target="generic", threads=1, config="nonsense")
    assert answer["status"] == "refused"
