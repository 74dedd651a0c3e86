"""Reduction loops that follow the blocks of a source's layout, within which terms lie evenly apart."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.index import Mod, Var
from convsmith.ir.walk import variables_of
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loop
from convsmith.schedule.nest import Nest
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import Statement, view_steps

REALISATIONS = ("peel", "mask", "indirection")
"""Realisations that read the caller's source."""
LEAST = 4
"""Minimum number of iterations within a block for which a loop of their own is worthwhile."""


def follow_blocks(s: Schedule, st: Statement, config: Config, nest: Nest, loops: Sequence[Loop]) -> None:
    """Split those reduction ``loops`` of a ``nest`` that step through blocks of the caller's source: into a loop over
    blocks and a loop within a block, which steps evenly and computes no quotient by the block's length.
    """
    if st.a.name in config.staged("pack") or config.staged_at("pack_at") or config.realise not in REALISATIONS:
        return
    for x in loops:
        length = _block(st, x, [y.tile for y in nest.loops if y.of == x.of and y.tile > x.tile])
        if LEAST <= length < x.extent:
            s.tile(x, length, "bi", (x.level, x.level))


def _block(st: Statement, loop: Loop, around: Sequence[int]) -> int:
    """Return the iterations of ``loop`` within a block of the source; 0 if it steps through no blocks, or if its first
    iteration is not always a block's first. Loops ``around`` it have these tiles.
    """
    if len(loop.dims) > 1:
        return 0
    channel = Var(loop.dims[0])
    within = [x for x in view_steps(st.a) if isinstance(x, Mod) and channel in variables_of(x.num)]
    steps = [(dict(x.num.terms).get(channel, 0), x) for x in within]
    found = [x.den // (n * loop.tile) for n, x in steps if n > 0 and not x.den % (n * loop.tile)]
    begins = (n for x in within for v, n in x.num.terms if v is not channel)
    apart = (*begins, *(x.num.const for x in within), *(n * size for n, _ in steps for size in around))
    whole = len(found) == len(within) == 1 and not any(n % within[0].den for n in apart)
    return found[0] if whole else 0
