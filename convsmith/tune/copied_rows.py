"""Blocks of rows of a padded copy that the second-level cache keeps until fragments have read them.

A padded copy of a whole image passes through the last cache twice if it exceeds the second-level one: once when it is
written, and once when the tiles of fragments read it. All taps and tiles of a block of rows read the copy of that block
before the next block is copied; the rows that two blocks share are copied for each of them.
"""

from __future__ import annotations

from convsmith.ir.types import dtype
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.tune.costs.copies import window_rows
from convsmith.tune.costs.shared_facts import SharedFacts

__all__ = ["in_blocks_of_copied_rows", "most_rows"]

PART = 2
"""Ratio of the second-level cache to the part of it that holds the copied rows of a block, and to that for weights."""


def most_rows(facts: SharedFacts, rows: str, row: int, part: int) -> int:
    """Return the largest number of iterations of the loop ``rows`` whose copied rows, of ``row`` bytes each, take up to
    a ``part`` of the second-level cache; 1 if those of two iterations take more.
    """
    step, more = window_rows(facts, rows)
    return next((n for n in (16, 8, 4, 2) if part * (n * step + more) * row <= facts.target.l2.bytes), 1)


def in_blocks_of_copied_rows(facts: SharedFacts, loops: Loops, config: Config) -> Config:
    """Return ``config``, if it copies an image for fragments on one thread, with a cache tile of rows of which the
    second-level cache keeps copy and weights.

    Several blocks read the weights again, so that the cache has to keep all of them.
    """
    plain = config.realise == "pad_copy" and facts.unit.rows > 1 and config.threads == 1 and not loops.residues
    rows = [d for d in facts.st.of("m") if d.axis][-2:-1]
    if not plain or config.tiles_at("cache") or not rows or rows[0].name not in config.order:
        return config
    name, size = rows[0].name, dtype(facts.st.a.dtype).bytes
    weights = facts.terms * facts.sizes[facts.n] * size
    row = facts.st.a.layout.shape[-1] * facts.sizes[facts.k] * size
    step, more = window_rows(facts, name)
    kept = facts.target.l2.bytes // PART
    if weights > kept or (facts.sizes[name] * step + more) * row <= kept:
        return config
    most = most_rows(facts, name, row, PART)
    return config.changed(cache=((name, most),)) if 1 < most < facts.sizes[name] else config
