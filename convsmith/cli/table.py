"""Tables of which each row is printed as soon as it is known: one line a row, within the columns of the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Column", "Table", "fitted"]

_GAP = 2
_SHORTEST = 32
"""Characters that the first column keeps before columns of rank below `GIVES_WAY` are left out."""

GIVES_WAY = 4
"""Rank from which a column is left out rather than the first one cut."""

_ELLIPSIS = "…"


class Column(NamedTuple):
    """A heading, and the width of the cells. Columns of the highest rank are left out first, those of rank 0 never."""

    title: str
    width: int
    rank: int = 0
    left: bool = False


@dataclass(frozen=True)
class Table:
    """The columns that fit, and the headings of those that are left out; `limit` is the width of a line, if any."""

    columns: tuple[Column, ...]
    left_out: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def head(self) -> str:
        """The line of headings."""
        return self.line({column.title: column.title for column in self.columns})

    def line(self, cells: Mapping[str, str]) -> str:
        """A row; `cells` go by the headings, and those of columns that are left out are ignored."""
        words, over = [], 0
        for n, column in enumerate(self.columns):
            # A cell that is wider than its column takes from the blanks before the next.
            width = max(column.width - over, 1)
            cell = cells.get(column.title, "")
            if self.limit is not None and column.left:
                cell = _cut(cell, width, keep_end=n == 0)
            over = max(len(cell) - width, 0)
            words.append(cell.ljust(width) if column.left else cell.rjust(width))
        line = (" " * _GAP).join(words).rstrip()
        return line if self.limit is None else _cut(line, self.limit)


def fitted(columns: Sequence[Column], limit: int | None) -> Table:
    """The table of columns that fit into `limit` characters; the first column is cut where that is not enough."""
    kept = list(columns)
    natural = columns[0].width
    if limit is not None:
        for column in sorted((c for c in columns if c.rank), key=lambda c: -c.rank):
            first = natural if column.rank >= GIVES_WAY else min(natural, _SHORTEST)
            if first + _rest(kept) <= limit:
                break
            kept.remove(column)
        kept[0] = kept[0]._replace(width=max(min(natural, limit - _rest(kept)), 1))
    left_out = tuple(column.title for column in columns if column.title not in {c.title for c in kept})
    return Table(tuple(kept), left_out, limit)


def _rest(columns: Sequence[Column]) -> int:
    return sum(column.width + _GAP for column in columns[1:])


def _cut(text: str, width: int, keep_end: bool = False) -> str:
    if len(text) <= width:
        return text
    return _ELLIPSIS + text[len(text) - width + 1 :] if keep_end else text[: width - 1] + _ELLIPSIS
