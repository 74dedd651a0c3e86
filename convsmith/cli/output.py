"""Messages, progress, and tables printed row by row. NO_COLOR turns colours off.

Everything printed passes through here, where characters that a terminal would obey are escaped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TextIO

import click

from convsmith.cli.table import Column, FittedTable, fitted
from convsmith.diag.errors import ConvsmithError, InternalError, ToolchainError, UsageError
from convsmith.diag.files import whole_file
from convsmith.diag.printable import LINES, printable

__all__ = [
    "PIPED", "STATUS", "Progress", "Rows", "drop", "error_line", "exit_status", "note", "progress", "width_of",
    "write_file",
]  # fmt: skip

STATUS = "convsmith.status"
"""Key of click's `Context.meta`: the exit status of a command for the rows computed so far."""
PIPED = 120
"""Width in characters that chooses the columns of a table in a pipe or a file; its texts are not truncated."""
_BAR = 20
"""Width of the progress bar in characters."""


class Progress(Protocol):
    """Reports how many items are done."""

    def start(self, text: str) -> None:
        """Show `text` as the current item."""

    def advance(self) -> None:
        """Count one more item as done."""

    def aside(self) -> AbstractContextManager[None]:
        """Hide the bar while the block prints."""


def error_line(message: str, kind: str = "") -> None:
    """Print a message to standard error; it is lost if standard error is a closed pipe or has no space left."""
    text = printable(f"{kind}: {message}" if kind else message, LINES)
    try:
        click.secho(text, err=True, fg="red", color=_colour())
    except OSError:
        drop(sys.stderr)


def drop(*streams: TextIO) -> None:
    """Let the outputs of the streams vanish: otherwise Python, at its end, fails to write text that they buffer, and
    ends with a status of its own.
    """
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def exit_status(error: ConvsmithError) -> int:
    """Return 1 for a fault of convsmith or its tools, 2 for an illegal request."""
    return 1 if isinstance(error, (InternalError, ToolchainError)) else 2


def note(message: str, err: bool = False) -> None:
    """Print text to standard output, or to standard error."""
    click.echo(printable(message.rstrip("\n"), LINES), err=err)


def write_file(name: str, text: str, option: str = "") -> None:
    """Write `text` to the file `name`; - is standard output. The UsageError of a failure begins with `option`."""
    if name == "-":
        note(text)
        return
    try:
        with whole_file(name) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        raise UsageError(f"{option}{name}: cannot be written: {error.strerror}", code="bad-file") from None


def width_of(stream: TextIO) -> int | None:
    """Return the characters per line: COLUMNS, else the terminal's width; None if `stream` is not a terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return None


class Rows:
    """A table on standard output, printed row by row; if standard output is not a terminal, rows also go to standard
    error.

    With `data_only`, the table does not go to standard output, which is reserved for data.
    """

    def __init__(self, columns: Sequence[Column], data_only: bool = False, wide: bool = False) -> None:
        self._tables: list[tuple[bool, FittedTable]] = []
        if not data_only:
            self._add(columns, False, wide)
        if data_only or (not sys.stdout.isatty() and not _same_file(sys.stdout, sys.stderr)):
            self._add(columns, True, wide)

    def head(self) -> None:
        """Print the line of column titles."""
        for err, table in self._tables:
            click.secho(printable(table.head), err=err, bold=True, color=_colour())

    def row(self, cells: Mapping[str, str]) -> None:
        """Print a row; `cells` maps column titles to texts."""
        for err, table in self._tables:
            note(table.line({title: printable(text) for title, text in cells.items()}), err)

    def text(self, message: str) -> None:
        """Print a line that belongs to the table."""
        for err, _ in self._tables:
            note(message, err)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Titles of the columns that do not fit."""
        return self._tables[0][1].left_out

    def _add(self, columns: Sequence[Column], err: bool, wide: bool) -> None:
        width = width_of(sys.stderr if err else sys.stdout)
        limit = None if wide else width or PIPED
        self._tables.append((err, fitted(columns, limit, cut=width is not None)))


class _Silent:
    def start(self, text: str) -> None:
        pass

    def advance(self) -> None:
        pass

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Show a progress bar on standard error while the block runs; no bar if there are no steps or standard error is not
    a terminal.
    """
    if not total or not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    width = width_of(sys.stderr) or 80
    room = width - _BAR - 2 * len(str(total)) - 4
    # A redrawing thread would disturb measurements, and a redirection would send standard output to the bar's terminal.
    with Bar(
        BarColumn(_BAR), MofNCompleteColumn(), TextColumn("{task.description}", markup=False),
        console=Console(stderr=True, width=width), transient=True, auto_refresh=False, redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=total)

        class Shown:
            def start(self, text: str) -> None:
                text = printable(text)
                bar.update(task, description=text if len(text) <= room else f"{text[: room - 1]}…", refresh=True)

            def advance(self) -> None:
                bar.update(task, advance=1, refresh=True)

            @contextmanager
            def aside(self) -> Iterator[None]:
                bar.stop()
                try:
                    yield
                finally:
                    bar.start()

        yield Shown()


def _colour() -> bool | None:
    """Return False if NO_COLOR is set; None lets the stream decide."""
    return False if os.environ.get("NO_COLOR") else None


def _same_file(one: TextIO, other: TextIO) -> bool:
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError, AttributeError):
        return False
