"""Tables, messages and progress: rich on a terminal, plain aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import click

from convsmith.diag.errors import ConvsmithError, InternalError, ToolchainError

__all__ = ["Progress", "error_line", "exit_status", "note", "print_table", "progress"]


class Progress(Protocol):
    """A running count of what is done."""

    def start(self, text: str) -> None:
        """Say what is worked on now."""

    def advance(self) -> None:
        """One more is done."""

    def say(self, text: str, err: bool = False) -> None:
        """Print a line beside the bar."""


def error_line(message: str, kind: str = "") -> None:
    """A message to standard error."""
    click.secho(f"{kind}: {message}" if kind else message, err=True, fg="red")


def exit_status(error: ConvsmithError) -> int:
    """2 where the question is at fault, 1 where the answer is."""
    return 1 if isinstance(error, (InternalError, ToolchainError)) else 2


def note(message: str) -> None:
    """Text to standard output."""
    click.echo(message.rstrip("\n"))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """A table to standard output; the first `left` columns are text, aligned left, the others numbers."""
    if not rows:
        return
    if sys.stdout.isatty():
        _rich_table(columns, rows, left)
        return
    widths = [max(len(row[n]) for row in (columns, *rows)) for n in range(len(columns))]
    for row in (columns, *rows):
        cells = [cell.ljust(w) if n < left else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths))]
        click.echo("  ".join(cells).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for n, name in enumerate(columns):
        table.add_column(name, justify="left" if n < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


class _Silent:
    def start(self, text: str) -> None:
        pass

    def advance(self) -> None:
        pass

    def say(self, text: str, err: bool = False) -> None:
        (error_line if err else note)(text)


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """A progress bar on standard error while the block runs; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    # No thread that redraws, for it would disturb what is measured; no redirection, for it would send what belongs on
    # standard output to the bar's terminal.
    with Bar(
        BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False),
        console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=total)

        class Shown:
            def start(self, text: str) -> None:
                bar.update(task, description=text, refresh=True)

            def advance(self) -> None:
                bar.update(task, advance=1, refresh=True)

            def say(self, text: str, err: bool = False) -> None:
                bar.stop()
                (error_line if err else note)(text)
                bar.start()

        yield Shown()
