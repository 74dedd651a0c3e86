"""The entry of the command `convsmith`: an interrupt, also one during an import, ends it with one line."""

from __future__ import annotations

import os
import signal
from types import FrameType

from convsmith.diag.forking import import_lock

__all__ = ["main"]

_IMPORT = "<frozen importlib._bootstrap>"
"""Name of the file of the frames that import modules."""


def main() -> None:
    """Run the command `convsmith` with the arguments of the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, _interrupt)
    with import_lock:
        from convsmith.cli.main import main as run

    run()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt. Within an import, end the process at once, because libraries such as numpy print the
    exception there and raise another one.
    """
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            os.write(2, b"interrupted\n")
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt
