"""A call of one entry of an artifact: its argument blocks, and the memory of packed operands.

A block belongs to one call at a time; blocks that are free wait in a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.runtime.arrays import ALIGNMENT, Array, address_of, numpy_dtype
from convsmith.runtime.host_block import HostBlock, HostMemory
from convsmith.runtime.loading import LoadedFunction

__all__ = ["EntryCall", "PackedParts"]


class EntryCall:
    """An entry with a pool of argument blocks; `defaults` are the addresses of arguments that a call omits."""

    __slots__ = ("_blocks", "_defaults", "_entry", "_function", "_kept", "_whole", "positions")

    def __init__(self, function: LoadedFunction, entry: Entry, defaults: Mapping[str, Array]) -> None:
        self._function, self._entry = function, entry
        self._whole = function.whole
        self.positions = {a.name: n for n, a in enumerate(entry.arguments)}
        self._kept = {name: array for name, array in defaults.items() if name in self.positions}
        self._defaults = {name: address_of(array) for name, array in self._kept.items()}
        self._blocks: list[HostBlock] = []

    def take(self) -> HostBlock:
        """Return a block of the pool, or a new one."""
        try:
            return self._blocks.pop()
        except IndexError:
            return self.block()

    def block(self, memory: HostMemory | None = None) -> HostBlock:
        """Return a new block, whose own memory is from `memory`, by default new."""
        return HostBlock(self._entry, self._defaults, memory)

    def bound(self, block: HostBlock, keep: object) -> Callable[[], object]:
        """Return a function that runs the entry on a block of its own; `keep` lives as long as the function."""
        run = self._whole or self._function

        def call(
            run: Callable[[int], None] = run, address: int = block.address, keep: object = (self, block, keep)
        ) -> None:
            run(address)

        return call

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory that all threads of the entry need."""
        sizes = (a.size * numpy_dtype(a.dtype).itemsize for a in self._entry.arguments if a.role == "scratch")
        return sum(sizes) * self._entry.launch.threads

    @property
    def required(self) -> list[str]:
        """The arguments that a call must give: those without a default, a value, or memory of a block."""
        return [
            a.name for a in self._entry.arguments
            if a.role not in ("scratch", "table", "zero") and a.value is None and a.name not in self._defaults
        ]  # fmt: skip

    def run(self, block: HostBlock, keep: object) -> None:
        """Run the entry, and return the block to the pool. After an interrupt the block is dropped, because workers may
        use it.
        """
        if block.followers:
            block.follow()
        if self._whole is not None:
            self._whole(block.address)
        else:
            self._function(block.address, (block, keep))
        self._blocks.append(block)

    def run_with(self, addresses: Mapping[str, int], keep: object) -> None:
        """Run the entry on the memory of arguments by name, and restore the block."""
        block = self.take()
        block.give(addresses)
        block.follow()
        self._function(block.address, (block, keep))
        block.give(self._defaults)
        self._blocks.append(block)


class PackedParts:
    """The parts of a packed operand in one piece of memory, as elements of the first part's type."""

    __slots__ = ("arguments", "dtype", "offsets", "size")

    def __init__(self, arguments: tuple[Argument, ...]) -> None:
        self.arguments = arguments
        self.dtype = numpy_dtype(arguments[0].dtype)
        self.offsets: dict[str, int] = {}
        end = 0
        for argument in arguments:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            self.offsets[argument.name] = start
            end = start + argument.size * numpy_dtype(argument.dtype).itemsize
        self.size = -(-end // self.dtype.itemsize)

    @staticmethod
    def of(artifact: Artifact, operand: str) -> PackedParts:
        """Return the parts that the kernel reads, followed by those that are only needed to compute them."""
        entries = [*artifact.steps.values(), *(artifact.entries[name] for name in artifact.packs[operand])]
        parts = {a.name: a for entry in entries for a in entry.arguments if a.of == operand}
        return PackedParts(tuple(parts.values()))

    def elements(self, buffer: Array) -> Array:
        """Return the elements of the operand in a packed buffer: the largest part, beside which others hold sums."""
        part = max(self.arguments, key=lambda argument: argument.size)
        start, dtype = self.offsets[part.name], numpy_dtype(part.dtype)
        return buffer.view(np.uint8)[start : start + part.size * dtype.itemsize].view(dtype)

    def addresses(self, start: int) -> dict[str, int]:
        """Return the addresses of the parts in memory that starts at `start`."""
        return {name: start + offset for name, offset in self.offsets.items()}
