"""The grid of a kernel: the order in which groups take tiles, and the dims that a launch has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loop, Loops
from convsmith.schedule.schedule import Schedule


def launched_sizes(grid: Sequence[int], most: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of groups along the dims of a launch, outermost first, of loops that run as often as ``grid``
    says: loops become one innermost dim if they are more than the dims of ``most``, or if one has more groups than its
    dim may have by ``most``, innermost first.

    >>> launched_sizes((32, 70000, 4), ((1 << 31) - 1, 65535, 65535))
    (32, 280000)
    """
    kept = min(len(grid), len(most)) - 1
    while kept > 0 and any(n > limit for n, limit in zip(reversed(grid[:kept]), most[1:])):
        kept -= 1
    return (*grid[:kept], prod(grid[kept:])) if grid else ()


def fuse_grid(s: Schedule, loops: Sequence[Loop], most: Sequence[int]) -> list[Loop]:
    """Fuse the innermost ``loops`` over groups that are one dim of a launch, and return the loops of its dims."""
    dims = len(launched_sizes([x.extent for x in loops], most))
    if dims < len(loops):
        return [*loops[: dims - 1], s.fuse(loops[dims - 1 :], "x")]
    return [*loops]


def l2_flaw(loops: Loops, config: Config) -> ConfigError | None:
    """Return the error if a loop of ``--l2=`` is none over groups, otherwise None."""
    legal = loops.of("batch", "n", "m")
    found = next((n for n, _ in config.tiles_at("l2") if n not in legal), None)
    if found is None:
        return None
    return ConfigError("unknown-loop", f"--l2={found}: loops over groups are {', '.join(legal)}")


def in_blocks(s: Schedule, config: Config, loops: Iterable[Loop]) -> tuple[Loop, ...]:
    """Return the ``loops`` of a nest with those over the blocks of ``--l2=`` before them: groups take all tiles of a
    block before those of the next one.
    """
    blocks, found = [], []
    for x in loops:
        size = config.size(x.of, "l2") // x.tile
        if x.level == "grid" and x.role != "k" and 1 < size < x.extent:
            block, x = s.tile(x, size, ("l2", ""), ("grid", "grid"))
            blocks.append(block)
        found.append(x)
    return (*blocks, *found)
