"""Checks of rows of measurements that come from a file or from another process: types, ranges, problem and config.

The config in a row of another compiler version may have unknown words, so only its type is checked; a search plans such
a config before it measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from convsmith.diag.errors import ConvsmithError
from convsmith.diag.expect import (
    MAX_FIGURE,
    MIN_FIGURE,
    has_long_number,
    is_day,
    is_encodable,
    is_positive,
    shown,
)
from convsmith.diag.settings import MAX_THREADS
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.records.measured import Measured, Status
from convsmith.tune.records.origin import compiler_key

__all__ = ["COLUMNS", "checked", "config_flaw", "is_line"]

COLUMNS = tuple(f.name for f in fields(Measured))
MAX_ROUNDS = 10**9


class _Legal(NamedTuple):
    """The legal values of a column: a predicate, and their description for a message."""

    holds: Callable[[Any], bool]
    words: str


def is_line(value: object) -> bool:
    """Return whether a value is one line of text that can be printed and encoded."""
    return type(value) is str and value.isprintable()


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and (value == 0 or is_positive(value))


_LINE = _Legal(lambda x: is_line(x) and x != "", "a line of text")
_NUMBER = _Legal(_is_number, f"0, or a number from {MIN_FIGURE:g} to {MAX_FIGURE:g}")
_COUNT = _Legal(lambda x: type(x) is int and 0 <= x <= MAX_ROUNDS, f"a whole number from 0 to {MAX_ROUNDS}")
_LEGAL = {
    "problem": _Legal(lambda x: is_line(x) and x != "" and not has_long_number(x), "the line of a problem"),
    "config": _LINE, "machine": _LINE, "compiler": _LINE, "target": _LINE,
    "threads": _Legal(lambda x: type(x) is int and 1 <= x <= MAX_THREADS, f"a whole number from 1 to {MAX_THREADS}"),
    "status": _Legal(lambda x: x in get_args(Status), " or ".join(get_args(Status))),
    "ratio": _NUMBER, "seconds": _NUMBER, "spread": _NUMBER, "predicted": _NUMBER, "rounds": _COUNT,
    "note": _Legal(is_encodable, "a text"),
    "date": _Legal(lambda x: x == "" or is_day(x), "a day such as 2026-01-31, or nothing"),
}  # fmt: skip
_POSITIVE = ("ratio", "seconds", "rounds")
"""Columns that must be positive in a row whose status is ok."""


def checked(values: Sequence[Any]) -> Measured:
    """Return the row of these values, in the order of `COLUMNS`; ValueError names the illegal value and the legal
    values.
    """
    row = dict(zip(COLUMNS, values, strict=True))
    for name, legal in _LEGAL.items():
        if not legal.holds(row[name]):
            raise ValueError(f"{name}={shown(row[name])}: expected {legal.words}")
    for name in _POSITIVE if row["status"] == "ok" else ():
        if row[name] == 0:
            raise ValueError(f"{name}=0 in a row that is ok")
    if row["compiler"] == compiler_key():
        flaw = _problem_flaw(row["problem"]) or config_flaw(row["config"], row["target"], row["threads"])
        if flaw:
            raise ValueError(flaw)
    return Measured(**row)


@lru_cache(1024)
def _problem_flaw(line: str) -> str:
    """Return the reason why `line` is not the line of a problem; empty if it is."""
    try:
        parse_problem(line)
    except ConvsmithError as error:
        return f"problem={shown(line)}: {error}"
    return ""


def config_flaw(text: str, target: str, threads: int) -> str:
    """Return the reason why ``text`` is not the canonical text of a config for ``target`` on ``threads``; empty if it
    is.
    """
    try:
        config = _config(text)
    except ConvsmithError as error:
        return f"config={shown(text)}: {error}"
    for name, own, wanted in (("target", config.target, target), ("threads", config.threads, threads)):
        if own != wanted:
            return f"{name}={shown(wanted)}: the config has --{name}={own}"
    return "" if str(config) == text else f"config={shown(text)}: it prints as {config}"


_config = lru_cache(1024)(Config.parse)
