"""The passes of a kernel in order: the time of each pass, and the lines of IR that it changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from convsmith.compiler.instruments import PassRecord

__all__ = ["ListedLine", "PassView", "timeline"]

SHOWN = 400
"""Maximum number of lines that a page shows of the IR after a pass."""
MAX_COMPARED = 4000
"""Maximum number of lines of two texts that are compared line by line; of longer texts, all lines count as changed."""


class ListedLine(NamedTuple):
    """A line of IR after a pass; `mark` is "+" for a new line, "-" for one that is gone, otherwise a blank."""

    mark: str
    text: str


class PassView(NamedTuple):
    """A pass with its arguments; `share` is its part of the time of the slowest pass, from 0 to 1."""

    number: int
    step: str
    milliseconds: float
    share: float
    changed: bool
    added: int
    removed: int
    lines: list[ListedLine]
    hidden: int


def timeline(records: Sequence[PassRecord]) -> list[PassView]:
    """Return the passes with the IR after each, beside the IR before it."""
    slowest = max((r.seconds for r in records), default=0.0) or 1.0
    found: list[PassView] = []
    before: list[str] = []
    for r in records:
        after = str(r.kernel).splitlines() if r.changed else before
        lines = list(_compared(before, after)) if r.changed and found else [ListedLine(" ", x) for x in after]
        added, removed = (sum(line.mark == mark for line in lines) for mark in "+-")
        shown, hidden = (lines[:SHOWN], len(lines[SHOWN:])) if r.changed else ([], 0)
        time = r.seconds * 1e3, r.seconds / slowest
        found.append(PassView(r.number, r.step, *time, r.changed, added, removed, shown, hidden))
        before = after
    return found


def _compared(before: Sequence[str], after: Sequence[str]) -> Iterator[ListedLine]:
    """Yield the lines of both texts in order, each with its mark."""
    if len(before) + len(after) > MAX_COMPARED:
        yield from (ListedLine("+", x) for x in after)
        return
    matcher = SequenceMatcher(None, [x.strip() for x in before], [x.strip() for x in after], autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            yield from (ListedLine(" ", x) for x in after[c:d])
            continue
        yield from (ListedLine("-", x) for x in before[a:b])
        yield from (ListedLine("+", x) for x in after[c:d])
