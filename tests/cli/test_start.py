"""An interrupt at any moment of a command, also while its modules are imported, ends it with one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_INTERRUPTED = """
import os, signal, sys
from convsmith.cli import start

class Interrupts:
    def find_spec(self, name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["convsmith", "explain", "mb1ic4ih5oc4kh3", "--target", "generic"]
start.main()
"""


def _ended(script: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["convsmith.cli.main", "convsmith.cli.explain", "numpy", "numpy._core.numeric"])
def test_an_interrupt_during_an_import(name: str) -> None:
    assert _ended(_INTERRUPTED.format(name=name)) == (130, "interrupted\n")


def test_an_interrupt_between_imports_unwinds() -> None:
    script = _INTERRUPTED.format(name="") + "os.kill(os.getpid(), signal.SIGINT)\n"
    raised = script.replace("start.main()", "signal.signal(signal.SIGINT, start._interrupt)")
    status, said = _ended(f"{raised}")
    assert status != 130 and said.splitlines()[-1] == "KeyboardInterrupt"


def test_the_installed_program_is_the_command() -> None:
    """The program is started as a process here, because the tests of the documentation fork its commands."""
    program = [str(Path(sys.executable).with_name("convsmith"))]
    done = subprocess.run([*program, "show", "mb1ic4ih5oc4kh3", "--after", "naive"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "\nkernel conv(" in done.stdout, done.stdout
    done = subprocess.run([*program, "show", "nonsense"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("UsageError: "), done.stderr
