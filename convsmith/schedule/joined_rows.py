"""Rows of pixels that a call of a kernel for any sizes runs as one long row, so that fewer register tiles are short.

That is possible where all pixels are equally far apart in memory. It changes the values of the kernel's sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from convsmith.problem.tensor import Tensor
from convsmith.schedule.config import Config
from convsmith.statement.statement import Statement
from convsmith.statement.views import end

LOAD = 1.1
"""Ratio of the busiest thread's work to the mean below which as many rows as possible run as one."""

_OTHER_SIDE = {"o": "i", "i": "o"}
"""The first letters of the dims of a result's pixels, and of those of its source."""


class PixelRows(NamedTuple):
    """The pixels of a result: the ``names`` of the dims that they run along, outermost first, and its ``extents``.

    A dim has several names: that of the result, and that of a source whose pixels are read in place. ``others`` is the
    number of register tiles along the other dims, except those that share a copy of the pixels of a tile.
    """

    names: tuple[tuple[str, ...], ...]
    extents: tuple[int, ...]
    others: int

    @staticmethod
    def of(st: Statement, config: Config, *, images: bool = False, in_place: bool = False) -> PixelRows:
        """Return the pixels of the result of ``st``, a statement with the names of its own problem, with the ``images``
        or without; the source has the same pixels if they are read ``in_place``.
        """
        found = [d for d in st.of("m") if d.axis or (images and d.sort == "images")]
        around = [d for d in st.dims if d.kind != "k"]
        order = [*config.order, *(d.name for d in around if d.name not in config.order)]
        within = {n for _, of in config.staged_at("pack_at") for n in order[order.index(of) :]}
        rest = [d for d in around if d not in found and d.name not in within]
        tiles = (-(-d.size // config.size(d.name)) for d in rest)
        own = [d.name for d in found]
        names = [(name, _OTHER_SIDE.get(name[0], name[0]) + name[1:]) if in_place else (name,) for name in own]
        return PixelRows(tuple(names), tuple(d.size for d in found), math.prod(tiles))

    def are_even(self, arrays: Iterable[Tensor]) -> bool:
        """Return whether all pixels are equally far apart in each of ``arrays`` that has pixels."""
        return all(map(self._is_even, arrays))

    def _is_even(self, t: Tensor) -> bool:
        found = [(at, dim) for dim in range(len(t.dims)) if (at := self._place(t, dim)) is not None]
        dims = [dim for _, dim in sorted(found)]
        blocks = [b for dim in dims for b in t.layout.blocks if b.dim == dim]
        if not dims:
            return True
        if len(blocks) != len(self.names) or [t.shape[dim] for dim in dims] != list(self.extents):
            return False
        return all(a.stride == b.stride * b.size for a, b in pairwise(blocks))

    def _place(self, t: Tensor, dim: int) -> int | None:
        """Return the position of a dim of ``t`` among the dims of pixels; None if it is none of them."""
        return next((at for at, names in enumerate(self.names) if t.dims[dim] in names), None)

    def joined(self, threads: int) -> int:
        """Return how many rows run as one: all of them, or a number that divides the rows of an image and leaves tasks
        for the ``threads``.
        """
        *outer, _ = self.extents
        total, last = math.prod(outer), outer[-1] if outer else 1
        counts = [total, *(x for x in range(last, 0, -1) if not last % x)]

        def load(count: int) -> float:
            tasks = self.others * total // count
            return -(-tasks // threads) * threads / tasks

        return next((x for x in counts if load(x) <= LOAD), min(counts, key=load))

    def count_of_all(self, threads: int) -> int:
        """Return the number of all rows if they run as one, and 0 if tasks for the ``threads`` need several."""
        count = self.joined(threads)
        return count if count == math.prod(self.extents[:-1]) else 0

    def ends(self, count: int) -> tuple[int, ...]:
        """Return the extents of the loops over the pixels if ``count`` rows run as one."""
        *outer, width = self.extents
        if count == math.prod(outer):
            return (*(1 for _ in outer), count * width)
        return (*outer[:-1], outer[-1] // count, count * width)

    def values(self, count: int, arrays: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the values of a kernel's sizes if ``count`` rows run as one."""
        found = {end(name).name: size for (name, *_), size in zip(self.names, self.ends(count))}
        for name, t in arrays.items():
            for at, b in enumerate(t.layout.blocks):
                if len(self.names) > 1 and self._place(t, b.dim) == len(self.names) - 2:
                    found[f"{name}_s{at}"] = b.stride * count
        return found
