"""An interrupt at any moment of a command, also while its modules are imported, ends it with one line."""

from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.parametrize("name", ["convsmith.cli.main", "convsmith.cli.explain", "numpy", "numpy._core.numeric"])
def test_an_interrupt_during_an_import(name: str) -> None:
    assert _ended(_INTERRUPTED.format(name=name)) == (130, "interrupted\n")


def test_an_interrupt_between_imports_unwinds() -> None:
    script = _INTERRUPTED.format(name="") + "os.kill(os.getpid(), signal.SIGINT)\n"
    raised = script.replace("start.main()", "signal.signal(signal.SIGINT, start._interrupt)")
    status, said = _ended(f"{raised}")
    assert status != 130 and said.splitlines()[-1] == "KeyboardInterrupt"
