"""Formats tables that are printed row by row, one line per row, within the width of the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from convsmith.diag.record import record

__all__ = ["Column", "FittedTable", "fitted"]

_GAP = 2
_SHORTEST = 32
"""Minimum width of the first column, in characters, while columns of rank below `GIVES_WAY` can still be dropped."""

GIVES_WAY = 4
"""Rank from which a column is dropped before the first column is truncated."""

_ELLIPSIS = "…"


class Column(NamedTuple):
    """Title and cell width of a column. Columns of the highest rank are dropped first; rank 0 is never dropped."""

    title: str
    width: int
    rank: int = 0
    left: bool = False


@record(frozen=True)
class FittedTable:
    """The columns that fit, and the titles of dropped columns; `limit` is the width of a line, or None."""

    columns: tuple[Column, ...]
    left_out: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def head(self) -> str:
        """The line of column titles."""
        return self.line({column.title: column.title for column in self.columns})

    def line(self, cells: Mapping[str, str]) -> str:
        """Return a row; `cells` maps titles to texts, and cells of dropped columns are ignored."""
        words, over = [], 0
        for n, column in enumerate(self.columns):
            # A cell wider than its column uses up blanks before the next column.
            width = max(column.width - over, 1)
            cell = cells.get(column.title, "")
            if self.limit is not None and column.left:
                cell = _cut(cell, width, keep_end=n == 0)
            over = max(len(cell) - width, 0)
            words.append(cell.ljust(width) if column.left else cell.rjust(width))
        line = (" " * _GAP).join(words).rstrip()
        return line if self.limit is None else _cut(line, self.limit)


def fitted(columns: Sequence[Column], limit: int | None, cut: bool = True) -> FittedTable:
    """Return the table of the columns that fit into `limit` characters; texts that are too long are truncated, unless
    `cut` is false: then no column is dropped for a long text of the first one.
    """
    kept = list(columns)
    natural = columns[0].width
    if limit is not None:
        for column in sorted((c for c in columns if c.rank), key=lambda c: -c.rank):
            first = natural if cut and column.rank >= GIVES_WAY else min(natural, _SHORTEST)
            if first + _rest(kept) <= limit:
                break
            kept.remove(column)
        if cut:
            kept[0] = kept[0]._replace(width=max(min(natural, limit - _rest(kept)), 1))
    left_out = tuple(column.title for column in columns if column.title not in {c.title for c in kept})
    return FittedTable(tuple(kept), left_out, limit if cut else None)


def _rest(columns: Sequence[Column]) -> int:
    return sum(column.width + _GAP for column in columns[1:])


def _cut(text: str, width: int, keep_end: bool = False) -> str:
    if len(text) <= width:
        return text
    return _ELLIPSIS + text[len(text) - width + 1 :] if keep_end else text[: width - 1] + _ELLIPSIS
