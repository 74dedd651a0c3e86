"""Messages, progress, and rows that are printed as soon as they are known. NO_COLOR leaves all of it plain."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TextIO

import click

from convsmith.cli.table import Column, Table, fitted
from convsmith.diag.errors import ConvsmithError, InternalError, ToolchainError

__all__ = ["Progress", "Rows", "error_line", "exit_status", "note", "progress", "width_of"]

_BAR = 20
"""Characters of the progress bar."""


class Progress(Protocol):
    """A running count of what is done."""

    def start(self, text: str) -> None:
        """Say what is worked on now."""

    def advance(self) -> None:
        """One more is done."""

    def aside(self) -> AbstractContextManager[None]:
        """Take the bar away while a block prints."""


def error_line(message: str, kind: str = "") -> None:
    """A message to standard error."""
    click.secho(f"{kind}: {message}" if kind else message, err=True, fg="red", color=_colour())


def exit_status(error: ConvsmithError) -> int:
    """2 where the question is at fault, 1 where the answer is."""
    return 1 if isinstance(error, (InternalError, ToolchainError)) else 2


def note(message: str, err: bool = False) -> None:
    """Text to standard output, or to standard error."""
    click.echo(message.rstrip("\n"), err=err)


def width_of(stream: TextIO) -> int | None:
    """Characters of a line: COLUMNS, else the width of the terminal; None where the stream is none."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return None


class Rows:
    """A table on standard output, row by row; where that is no terminal, the rows go to standard error too.

    With `data_only`, standard output is left to data.
    """

    def __init__(self, columns: Sequence[Column], data_only: bool = False, wide: bool = False) -> None:
        self._tables: list[tuple[bool, Table]] = []
        if not data_only:
            self._add(columns, False, wide)
        if data_only or (not sys.stdout.isatty() and not _same_file(sys.stdout, sys.stderr)):
            self._add(columns, True, wide)

    def head(self) -> None:
        """Print the line of headings."""
        for err, table in self._tables:
            click.secho(table.head, err=err, bold=True, color=_colour())

    def row(self, cells: Mapping[str, str]) -> None:
        """Print a row, by headings."""
        for err, table in self._tables:
            note(table.line(cells), err)

    def text(self, message: str) -> None:
        """Print a line that belongs to the table."""
        for err, _ in self._tables:
            note(message, err)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Headings of the columns for which there is no place."""
        return self._tables[0][1].left_out

    def _add(self, columns: Sequence[Column], err: bool, wide: bool) -> None:
        limit = None if wide else width_of(sys.stderr if err else sys.stdout)
        self._tables.append((err, fitted(columns, limit)))


class _Silent:
    def start(self, text: str) -> None:
        pass

    def advance(self) -> None:
        pass

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """A progress bar on standard error while the block runs; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    width = width_of(sys.stderr) or 80
    room = width - _BAR - 2 * len(str(total)) - 4
    # No thread that redraws, for it would disturb what is measured; no redirection, for it would send what belongs on
    # standard output to the bar's terminal.
    with Bar(
        BarColumn(_BAR), MofNCompleteColumn(), TextColumn("{task.description}", markup=False),
        console=Console(stderr=True, width=width), transient=True, auto_refresh=False, redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=total)

        class Shown:
            def start(self, text: str) -> None:
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
    """False where NO_COLOR is set; None leaves it to the stream."""
    return False if os.environ.get("NO_COLOR") else None


def _same_file(one: TextIO, other: TextIO) -> bool:
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError, AttributeError):
        return False
