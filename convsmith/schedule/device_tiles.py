"""The sizes of tiles of kernels of devices: one description, whose tiles the first choice enumerates and through which
the search steps.

A tile along a loop has a number of units: iterations of a thread, rows or columns of a fragment or of an instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from convsmith.schedule.config import Config

__all__ = ["BY_ENGINE", "BY_THREADS", "BY_WARPS", "Copies", "TileSpace", "space_of_tiles"]

Copies = tuple[tuple[str, int], ...]
"""Kinds of copies to shared memory, each with a number of slots."""


class TileSpace(NamedTuple):
    """The tiles of one kind of kernels along a loop: numbers of units that a thread or a warp has of its ``own``, and
    numbers of threads or warps ``across``. The first choice takes the listed numbers; a search twice and half of any,
    and the next listed ones. Images of many networks are multiples of 7 pixels.

    A ``dense`` space has all numbers in between. ``copies`` are in the order in which the first choice tries them. The
    first choice takes the numbers ``untimed`` only where it expects a clear gain: no device has run them.
    """

    own: tuple[int, ...]
    across: tuple[int, ...]
    copies: Copies
    dense: bool = False
    untimed: tuple[int, ...] = ()

    def near(self, count: int) -> Iterator[int]:
        """Yield the numbers of units to which a search steps from ``count``."""
        listed = sorted({*self.own, *self.across})
        found = [count * 2, *([count // 2] if self.dense or not count % 2 else [])]
        found += [count + 1, count - 1] if self.dense else []
        found += [n for n in listed if n > count][:1] + [n for n in listed if n < count][-1:]
        yield from dict.fromkeys(n for n in found if n)


_COPIES = (("async", 3), ("async", 2), ("wait", 2), ("wait", 1), ("async", 4))
BY_THREADS = TileSpace(own=(1, 2, 4, 7, 8), across=(1, 2, 4, 7, 8, 14, 16, 28, 32, 64), copies=(*_COPIES, ("async", 1)))
"""Tiles of threads that multiply numbers one by one."""
BY_WARPS = TileSpace(own=(1, 2, 4, 8), across=(1, 2, 4), copies=(*_COPIES, ("async", 1)))
"""Tiles of warps that multiply fragments."""
BY_ENGINE = TileSpace(
    own=(1, 2, 3, 4), across=(1, 2, 3, 4), copies=tuple(("wait", n) for n in (1, 2, 3, 4, 6, 8)), dense=True,
    untimed=(3,),
)  # fmt: skip
"""Tiles of groups of warps that multiply what a copy engine brings; ``untimed`` are numbers across."""


def space_of_tiles(config: Config) -> TileSpace:
    """Return the space of the tiles of ``config``."""
    return BY_ENGINE if config.realise == "hardware" else BY_WARPS if config.instruction else BY_THREADS
