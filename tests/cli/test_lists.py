"""Arguments of commands: quoted lines, benchdnn's files, defaults that are said, and one problem or many."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from commands import run

import convsmith as cs
from convsmith.cli.main import main
from convsmith.cli.problems import build
from convsmith.compiler.service import repro
from convsmith.problem import conv, matmul, options
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config_rows import CONFIG_ROWS

LINE = "mb1ic3ih8oc4oh6kh3ph0"
LAST = "--stag=axb --dtag=axb"
ONE = ["--threads", "1", "--target", "generic"]
FAST = {"bench": ["--rounds", "1"], "verify": [], "explain": [], "show": []}


def command_of(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)


# -- options
@pytest.mark.parametrize("name", list(FAST))
def test_every_option_of_a_problem_is_an_option_of_the_command(name: str) -> None:
    known = {text for option in command_of(name).params for text in option.opts}
    legal = {f"--{option}" for option in (*options._COMMON_OPTIONS, *conv._OPTIONS, *matmul._OPTIONS)}
    assert legal <= known


@pytest.mark.parametrize(
    "words,line",
    [
        (["--dt=bf16 ic2iw4oc2kw1"], f"--dt=bf16 {LAST} mb2ic2iw4oc2ow4kw1pw0"),
        (["--conv mb1ic2iw4oc2kw1"], f"{LAST} mb1ic2iw4oc2ow4kw1pw0"),
        (["--matmul --bia_dt=f32 3x4:4x5"], "--matmul --bia-dt=f32 --bia-mask=2 3x4:4x5"),
        (["--attr_post_ops=relu", "mb1ic2iw4oc2kw1"], f"{LAST} --attr-post-ops=relu mb1ic2iw4oc2ow4kw1pw0"),
        (["--dir=FWD_B", '--dt=bf16 mb1ic2iw4oc2kw1n"a b"'], f"--dir=FWD_B --dt=bf16 {LAST} mb1ic2iw4oc2ow4kw1pw0"),
        (["--dt=f16 --attr-acc-mode=any mb1ic2iw4oc2kw1"],
         f"--dt=f16 {LAST} --attr-acc-mode=any mb1ic2iw4oc2ow4kw1pw0"),
    ],
)  # fmt: skip
def test_a_quoted_line_is_its_words(words: list[str], line: str) -> None:
    result = run("verify", *words, "--threads", "1")
    assert result.exit_code == 0 and f"right: {line}: exact" in result.stdout, result.output


def test_a_config_is_not_taken_for_a_line() -> None:
    """No decision of a config has the name of an option of problems."""
    known = {f"--{word}" for word in CONFIG_ROWS}
    legal = {f"--{option}" for option in (*options._COMMON_OPTIONS, *conv._OPTIONS, *matmul._OPTIONS)}
    assert not known & legal
    config = "--target=generic --lane=oc --register=oc:4,ow:3"
    assert run("verify", LINE, "--config", config).exit_code == 0
    assert run("verify", LINE, f"--config={config}").exit_code == 0


# -- defaults
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", list(FAST))
@pytest.mark.parametrize(
    "line,said",
    [
        (LINE, "1 thread, --layout=axb (channels last)"),
        ("ic3ih8oc4kh3", "1 thread, --layout=axb (channels last), a batch of 2 where no mb is given"),
        (f"--stag=abx --dtag=abx {LINE}", "1 thread, --stag=abx --dtag=abx"),
        (f"--layout=abx --dir=FWD_B {LINE}", "1 thread, --layout=abx (channels first), --dir=FWD_B"),
        (f"--layout=aBx16b {LINE}", "1 thread, --layout=aBx16b"), ("--matmul 3x4:4x5", "1 thread, --matmul"),
    ],
)  # fmt: skip
def test_the_first_line_says_what_holds(name: str, line: str, said: str) -> None:
    """The first line, or the one behind the verdict of `explain`."""
    result = run(name, *line.split(), *ONE, *FAST[name])
    first = result.stdout.splitlines()[name == "explain"]
    assert result.exit_code == 0, result.output
    assert first.endswith(f", {said}") if name == "bench" else first.removeprefix("# ") == said


def test_threads_are_said_as_they_are_asked() -> None:
    with cs.settings.scope(threads=3):
        assert run("verify", LINE).stdout.startswith("3 threads, ")
        config = "--target=generic --lane=oc --register=oc:4 --threads=2"
        assert run("verify", LINE, "--config", config).stdout.startswith("2 threads, ")


def test_all_commands_speak_of_the_same_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[object, ...]] = []

    def noted(*arguments: object) -> cs.CompiledKernel:
        built.append(arguments)
        return build(*arguments)  # type: ignore[arg-type]

    for name in FAST:
        monkeypatch.setattr(f"convsmith.cli.{name}.build", noted)
        assert run(name, LINE, *ONE, *FAST[name]).exit_code == 0
    asked = {(*arguments[:4], *filter(None, arguments[4:])) for arguments in built}
    assert len(built) == 4 and asked == {(cs.Conv.parse(f"{LAST} {LINE}"), 1, "generic", None)}


@pytest.mark.parametrize("option,comment", [("--llvm", "; "), ("--asm", "# "), ("--all", "# "), ("--after=tile", "# ")])
def test_the_first_line_of_show_is_a_comment(option: str, comment: str) -> None:
    assert run("show", LINE, *ONE, option).stdout.startswith(f"{comment}1 thread, --layout=axb")


# -- files
BATCH = f"""\
# as benchdnn has them
--reset --dt=f32,bf16
--dir=FWD_B,FWD_D
{LINE}
--reset
--batch=more.txt
"""


def test_a_batch_file_is_read_as_benchdnn_reads_it(tmp_path: Path) -> None:
    (tmp_path / "batch").write_text(BATCH)
    (tmp_path / "more.txt").write_text("--attr-post-ops=,relu\nmb1ic2iw4oc2kw1\n")
    result = run("verify", str(tmp_path / "batch"), "--threads", "1")
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == "6 of 6 right", result.output
    found = [line.removeprefix("right: ").partition(": ")[0] for line in result.stdout.splitlines()[1:-1]]
    small = "mb1ic2iw4oc2ow4kw1pw0"
    assert found == [
        *(f"{d}{t}{LAST} {LINE}" for d in ("--dir=FWD_B ", "") for t in ("", "--dt=bf16 ")),
        f"{LAST} {small}", f"{LAST} --attr-post-ops=relu {small}",
    ]  # fmt: skip
    # Options of the command hold where the file says nothing.
    result = run("verify", str(tmp_path / "more.txt"), "--dt=bf16", "--threads", "1")
    assert result.stdout.count("right: --dt=bf16 ") == 2
    assert run("verify", "--dt=f32,bf16", LINE, "--threads", "1").stdout.splitlines()[-1] == "2 of 2 right"


def test_errors_in_batch_files_name_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "batch").write_text("--batch=inner\n")
    for text, said in [("\nmb1ic3\n", "inner:2: "), ("--dt=f32\n", "inner:1: no descriptor follows --dt=f32")]:
        (tmp_path / "inner").write_text(text)
        result = run("verify", str(tmp_path / "batch"))
        assert result.exit_code == 2 and said in result.stderr and "batch:1" not in result.stderr
    (tmp_path / "batch").write_text("--batch=nothing\n")
    result = run("verify", str(tmp_path / "batch"))
    assert result.exit_code == 2 and "batch:1: nothing: cannot be read" in result.stderr
    assert "is no regular file" in run("verify", str(tmp_path)).stderr


# -- one problem
@pytest.mark.parametrize("name", ["explain", "show"])
def test_commands_on_one_problem_take_all_that_names_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / "half.txt"
    path.write_text(f"# one\n--dir=FWD_B {LINE}\n")
    result = run(name, str(path), *ONE)
    assert result.exit_code == 0 and "--dir=FWD_B" in result.stdout.splitlines()[name == "explain"]
    assert run(name, "-", *ONE, text=LINE).exit_code == 0
    path.write_text(f"{LINE}\n{LINE}\n")
    for source, count in ((str(path), 2), ("resnet50", 23), (f"--dt=f32,bf16 {LINE}", 2)):
        result = run(name, source)
        assert result.exit_code == 2 and not result.stdout
        assert f"stands for {count} problems; `{name}` takes one, such as 'mb1ic" in result.stderr


@pytest.mark.parametrize("name", ["bench", "explain"])
@pytest.mark.parametrize("words,legal,illegal", [
    (["--matmul", "4x30"], "such as 64x256:256x32", "mb1ic"),
    (["half"], "such as mb1ic64ih56oc64oh56kh3ph1", "x256"),
    (["mb1ic3"], "such as mb1ic64ih56oc64oh56kh3ph1", "x256"),
])  # fmt: skip
def test_what_is_said_to_be_legal_is_so(name: str, words: list[str], legal: str, illegal: str) -> None:
    result = run(name, *words)
    assert result.exit_code == 2 and legal in result.stderr and illegal not in result.stderr
    assert ("resnet50" in result.stderr) == (name == "bench" and "--matmul" not in words)


# -- settings and seeds
@pytest.mark.parametrize("name", list(FAST))
def test_a_setting_that_is_not_legal_is_said_once(name: str) -> None:
    target = "resnet50" if name in ("bench", "verify") else LINE
    cs.settings.reload()
    try:
        result = run(name, target, CONVSMITH_CHECK="maybe")
    finally:
        cs.settings.reload()
    assert result.exit_code == 2 and result.output.count("CONVSMITH_CHECK='maybe' is not legal") == 1
    assert not result.stdout and run(name, "--help", CONVSMITH_CHECK="maybe").exit_code == 0


@pytest.mark.parametrize("seed", ["-1", "x", "1.5"])
def test_a_seed_that_is_not_legal_is_a_usage_error(seed: str) -> None:
    result = run("verify", LINE, "--seed", seed)
    assert result.exit_code == 2 and "--seed" in result.stderr and "fault" not in result.stderr


def test_the_command_that_reproduces_a_fault_has_every_option_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("convsmith.cli.verify.verify_kernel", fail)
    with cs.settings.scope(check="verify", threads=2, target="generic"):
        result = run("verify", LINE, "--seed", "7", "--real", "--layout", "abx", "--dt=bf16")
    said = "CONVSMITH_CHECK=verify convsmith verify --threads 2 --target generic --seed 7 --real --dt=bf16 --stag=abx"
    assert result.exit_code == 1 and f"To reproduce: {said} --dtag=abx {LINE}" in result.stderr


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "line", [LINE, f"--stag=axb {LINE}", f"--stag=abx --dtag=axb {LINE}", "--matmul 3x4:4x5", f"--dir=BWD_D {LINE}"]
)
@pytest.mark.parametrize("name", list(FAST))
def test_a_command_that_reproduces_compiles_the_problem_that_it_is_for(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands take channels last where a line leaves the layout open, Python does not."""
    problem = parse_problem(line)
    words = shlex.split(repro(name, problem, str(cs.compile(problem, threads=1, target="generic").config)))
    built: list[Problem] = []

    def noted(problem: Problem, *arguments: object) -> cs.CompiledKernel:
        built.append(problem)
        return build(problem, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(f"convsmith.cli.{name}.build", noted)
    assert run(*words[1:], *FAST[name]).exit_code == 0
    assert [p.canonical() for p in built] == [problem.canonical()]


def test_a_process_of_its_own_says_a_wrong_setting_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "convsmith.cli.main", "bench", "resnet50"],
        capture_output=True, text=True, check=False, env={"CONVSMITH_CHECK": "maybe", "PATH": "/usr/bin"},
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("CONVSMITH_CHECK") == 1 and not done.stdout


def test_a_list_is_bounded(tmp_path: Path) -> None:
    """Files that include each other, options that multiply, and files that are none."""
    for n in range(13):
        (tmp_path / f"{n}.txt").write_text(f"--batch={n + 1}.txt\n" * 10)
    (tmp_path / "13.txt").write_text("mb1ic8iw8oc8kw1\n")
    many = ",".join(f"{n}" for n in range(1, 61))
    (tmp_path / "many.txt").write_text("".join(f"--{name}={many}\n" for name in ("mb", "stag", "wtag", "dtag")) + "ic8")
    os.mkfifo(tmp_path / "pipe")
    for name, message in {
        "0.txt": "the list includes more than 1000 files", "many.txt": "stands for more than 100000 problems",
        "pipe": "is no regular file",
    }.items():  # fmt: skip
        result = run("verify", str(tmp_path / name))
        assert result.exit_code == 2 and message in result.stderr
    assert "/dev/zero: is no regular file" in run("verify", "/dev/zero").stderr
