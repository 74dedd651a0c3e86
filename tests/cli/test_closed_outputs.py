"""A reader that closes the output of a command ends the command, without a message; the status is that of its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module

import pytest
from click.testing import CliRunner

from convsmith.cli.main import main

LINE = "mb1ic4ih5oc4kh3"
HERE = ("--threads", "1", "--target", "generic")
COMMANDS = {
    "help": ("--help",),
    "help of a command": ("bench", "--help"),
    "text": ("explain", LINE, *HERE),
    "JSON": ("bench", LINE, *HERE, "--rounds", "1", "--json", "-"),
    "rows": ("bench", LINE, *HERE, "--rounds", "1"),
}


def ended(*words: str, errors_too: bool) -> tuple[int, str]:
    """Exit status and standard error of a command whose reader of standard output, or of both, has left."""
    reader, writer = os.pipe()
    os.close(reader)
    errors = writer if errors_too else subprocess.PIPE
    command = [sys.executable, "-m", "convsmith.cli.main", *words]
    with subprocess.Popen(command, stdout=writer, stderr=errors, text=True) as process:
        os.close(writer)
        _, said = process.communicate(timeout=60)
    return process.returncode, said or ""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_reader_that_has_left(kind: str) -> None:
    status, said = ended(*COMMANDS[kind], errors_too=kind == "rows")
    assert status == 0, said
    assert "Error" not in said and "Exception" not in said and "Broken" not in said


def test_an_error_keeps_its_status_where_nobody_reads_it() -> None:
    assert ended("explain", "nonsense", errors_too=True)[0] == 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_has_closed(closed: str) -> None:
    """Outputs are dropped, and a list of problems from standard input is empty."""
    words = "bench - --rounds 1" if closed == "<&-" else f"bench {LINE} --rounds 1"
    command = f"{sys.executable} -m convsmith.cli.main {words} {' '.join(HERE)} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert "fault" not in done.stderr and "Error: Attr" not in done.stderr
    assert done.returncode == (2 if closed == "<&-" else 0), done.stderr
    assert (f"{LINE[:9]}" in done.stdout) is (closed == "2>&-")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("command", "heading"), [("bench", 2), ("verify", 1)])
def test_a_failure_before_the_reader_left_keeps_its_status(command: str, heading: int) -> None:
    words = [sys.executable, "-m", "convsmith.cli.main", command, LINE, "--config=--target=generic --lane=nothing"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert all(process.stdout.readline() for _ in range(heading))
        process.stdout.close()
        assert process.wait(timeout=60) == 2


def test_a_reader_that_leaves_after_a_line() -> None:
    """A command ends at the next line that it prints: the last problem is not measured any more."""
    lines = "\n".join(f"mb1ic4ih{n}oc4kh3" for n in range(5, 12))
    command = f"set -o pipefail; {sys.executable} -m convsmith.cli.main bench - --rounds 3 {' '.join(HERE)} | head -n 1"
    done = subprocess.run(["bash", "-c", command], input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done.stderr
    assert "Error" not in done.stderr and "ih11" not in done.stderr


def test_a_broken_pipe_to_another_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(import_module("convsmith.cli.explain"), "one_problem", fail)
    result = CliRunner().invoke(main, ["explain", LINE])
    assert result.exit_code == 2 and "Broken pipe" in result.output


@pytest.mark.sampled(3)
@pytest.mark.parametrize("words", [("--help",), ("explain", LINE, *HERE), ("bench", LINE, *HERE, "--rounds", "1")])
def test_an_output_without_space(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "convsmith.cli.main", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.stderr.splitlines()[-1] == "the output cannot be written: No space left on device"
        assert done.returncode == 2 and "Traceback" not in done.stderr and "OSError" not in done.stderr
        assert subprocess.run([*command[:3], "explain", "nonsense"], stderr=full, timeout=60).returncode == 2
