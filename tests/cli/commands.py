"""Running commands in this process, and in terminals of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from click.testing import CliRunner, Result

from convsmith.cli.main import main

__all__ = ["documented_titles", "on_terminal", "run", "visible_lines"]

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(*arguments: str, text: str | None = None, **environment: str | None) -> Result:
    """A command with pipes for its streams."""
    return CliRunner().invoke(main, list(arguments), input=text, env=environment)


def on_terminal(width: int, *arguments: str, **environment: str) -> tuple[int, str]:
    """Exit status and output of a command in a process of its own, on a terminal of `width` characters a line."""
    names = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "TERM")}
    names |= {"TERM": "xterm", **environment}
    command = [sys.executable, "-m", "convsmith.cli.main", *arguments]
    terminal, stream = pty.openpty()
    fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    with subprocess.Popen(command, stdin=stream, stdout=stream, stderr=stream, env=names) as process:
        os.close(stream)
        parts = []
        while part := _read(terminal):
            parts.append(part)
    os.close(terminal)
    return process.returncode, b"".join(parts).decode()


def visible_lines(output: str) -> list[str]:
    """Everything that stood on a line at some time, without escape sequences."""
    return [part for part in re.split(r"[\r\n]+", _ESCAPES.sub("", output)) if part.strip()]


def documented_titles(first: str) -> set[str]:
    """The lines of the documentation that are titles of a table, whose first column is `first`."""
    root = Path(__file__).parents[2]
    pages = (root / "README.md", *(root / "docs").rglob("*.md"))
    lines = (line for page in pages for line in page.read_text(encoding="utf-8").splitlines())
    return {line for line in lines if line.startswith(f"{first}  ") and "time us" in line}


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the process has ended
        return b""
