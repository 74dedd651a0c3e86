"""`PlacedCall`: the call of a kernel on memory whose addresses its owner sets, without checks.

A sequence of kernels lays out its arrays once, and runs the calls one after the other; only the addresses of arrays
that come from outside change from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convsmith.runtime.entry_call import EntryCall
from convsmith.runtime.host_block import LentScratch

__all__ = ["PlacedCall"]


class PlacedCall:
    """Argument blocks of all `entries` of a kernel, and `calls`, which run them in order on the thread that calls.

    `addresses` are those of arrays by name that every run reads; they lie in `keep`. Scratch memory is at `scratch`.
    """

    def __init__(self, entries: Sequence[EntryCall], addresses: Mapping[str, int], scratch: int, keep: object) -> None:
        memory = LentScratch(scratch)
        self._blocks = [entry.block(memory) for entry in entries]
        self.follows = any(block.followers for block in self._blocks)
        """Whether a change of an address needs `follow`."""
        for block in self._blocks:
            block.give(addresses)
        self.calls: list[Callable[[], object]] = [
            entry.bound(block, keep) for entry, block in zip(entries, self._blocks)
        ]

    def place(self, addresses: Mapping[str, int]) -> None:
        """Set the addresses of arrays, by name, for the next runs."""
        for block in self._blocks:
            block.give(addresses)

    def words(self, name: str) -> list[tuple[Any, int]]:
        """Return where the address of an array is held: sequences of words, and places in them."""
        return [(block.words, block.positions[name]) for block in self._blocks if name in block.positions]

    def follow(self) -> None:
        """Update what depends on the addresses of arrays, when all are set."""
        for block in self._blocks:
            block.follow()
