"""The event log that CONVSMITH_VERBOSE turns on: one CSV line per event, after one header line with the column names.

The first column is the version of the format; it changes when the columns change. The last column is the command that
reproduces the event. A field without a column of its own is written as `name=value` in the column `detail`. An event
that is not enabled is not formatted; code on a hot path calls `enabled` before it collects fields.
"""

from __future__ import annotations

import csv
import io
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from convsmith.diag.errors import InternalError
from convsmith.diag.forking import RenewedLock
from convsmith.diag.settings import EVENTS, settings

__all__ = ["COLUMNS", "VERSION", "command", "emit", "enabled", "redirect"]

VERSION = "convsmith-1"
COLUMNS = ("version", "event", "status", "target", "threads", "time_ms", "config", "detail", "repro")


class _LineSink:
    """Writes CSV lines with `write`, the header line before the first one."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._headed = False

    def line(self, row: list[str]) -> None:
        with _writing.lock:
            if not self._headed:
                self._headed = True
                self._write(_csv(list(COLUMNS)))
            self._write(_csv(row))


def _csv(row: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(row)
    return out.getvalue()


_writing = RenewedLock()
# A lambda, because `sys.stderr` may be replaced after this module is imported.
_sink = _LineSink(lambda text: sys.stderr.write(text))


def enabled(event: str) -> bool:
    """Return whether CONVSMITH_VERBOSE enables `event` (`create`, `exec` or `cache`)."""
    return event in settings.verbose


def emit(event: str, **fields: object) -> None:
    """Write one line for `event` if it is enabled.

    `fields` are columns (`COLUMNS`); every other field is appended to `detail`. A float is a time in milliseconds and
    is written with microsecond resolution; None leaves the field empty.
    """
    if event not in EVENTS:
        raise InternalError(f"unknown trace event {event!r}: legal are {', '.join(EVENTS)}")
    if not enabled(event):
        return
    values = {"version": VERSION, "event": event}
    extra = []
    for name, value in fields.items():
        text = "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
        if name in COLUMNS:
            values[name] = text
        else:
            extra.append(f"{name}={text}")
    if extra:
        values["detail"] = " ".join(filter(None, [values.get("detail", ""), *extra]))
    _sink.line([values.get(column, "") for column in COLUMNS])


def command(verb: str, *arguments: object, **options: object) -> str:
    """Return the quoted shell command `convsmith verb --name value ... arguments`.

    An option with the value True becomes a flag; an option with the value None or False is omitted. If CONVSMITH_CHECK
    is set, the command sets it too, because a failed check is reproduced only with it.
    """
    words = ["convsmith", verb]
    for name, value in options.items():
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    check = "" if settings.check == "off" else f"CONVSMITH_CHECK={settings.check} "
    return check + shlex.join([*words, *map(str, arguments)])


@contextmanager
def redirect(write: Callable[[str], object]) -> Iterator[None]:
    """Inside a `with` block, send the lines of all threads to `write`: one call per line (with newline), the header
    first.
    """
    global _sink
    before, _sink = _sink, _LineSink(write)
    try:
        yield
    finally:
        _sink = before
