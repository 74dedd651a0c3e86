"""The event sink behind CONVSMITH_VERBOSE: one CSV line an event, headed once by a line that names the columns.

The first column holds the format's version, so that a reader can tell when columns change; the last is the command
that reproduces the line. Fields without a column of their own go into `detail` as `name=value` pairs. Nothing is
formatted unless the event was asked for; code on a hot path asks `enabled` first.
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
COLUMNS = ("version", "event", "status", "isa", "threads", "time_ms", "config", "detail", "repro")


class _Sink:
    """Where lines go. The header is written before the first line."""

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
# Not `sys.stderr.write` itself: the stream may be replaced later.
_sink = _Sink(lambda text: sys.stderr.write(text))


def enabled(event: str) -> bool:
    """True when lines for `event` (`create`, `exec` or `cache`) were asked for."""
    return event in settings.verbose


def emit(event: str, **fields: object) -> None:
    """Write one line, if `event` was asked for.

    `fields` are columns (`COLUMNS`) or anything else, which lands in `detail`. Numbers of milliseconds are written
    with microsecond resolution; None is an empty field.
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
    """The shell line `convsmith verb --name value ... arguments`, quoted.

    An option that is True is a flag; one that is None or False is left out. CONVSMITH_CHECK stands in front where it is
    set, because a failure of a check shows with it only.
    """
    words = ["convsmith", verb]
    for name, value in options.items():
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    check = "" if settings.check == "off" else f"CONVSMITH_CHECK={settings.check} "
    return check + shlex.join([*words, *map(str, arguments)])


@contextmanager
def redirect(write: Callable[[str], object]) -> Iterator[None]:
    """Inside a `with` block, send all threads' lines to `write`: one call a line, newline included, header first."""
    global _sink
    before, _sink = _sink, _Sink(write)
    try:
        yield
    finally:
        _sink = before
