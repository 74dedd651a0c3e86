"""A table of pointers whose tensor moves from call to call."""

from __future__ import annotations

import numpy as np

from convsmith.layout.indirection import Table
from convsmith.runtime.arrays import Array, address_of

__all__ = ["MovingTable"]


class MovingTable:
    """The addresses of a table's entries, made once, and made anew when the tensor that they point into has moved.

    Elements have `item` bytes; absent ones point to `zero`.
    """

    __slots__ = ("_addresses", "_base", "_item", "_table", "_zero", "address")

    def __init__(self, table: Table, zero: Array, item: int) -> None:
        self._table, self._zero, self._item, self._base = table, zero, item, -1
        self._addresses = np.empty(table.entries.shape, np.uint64)
        self.address = address_of(self._addresses)

    def follow(self, base: int) -> None:
        """Point into the tensor whose first element is there."""
        if base != self._base:
            self._base = base
            self._addresses[...] = self._table.pointers(base, address_of(self._zero), self._item)
