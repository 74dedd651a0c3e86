"""`PreparedCall`: entries of a kernel, bound to memory, for calls that pass only addresses.

Every way to call a kernel ends here: with checked arrays, with tensors whose shapes a library knows, with arrays that
are bound once, with memory that a network lays out once. A call writes one word for each address into the argument
blocks of a frame, and runs the entries. A frame belongs to one call at a time; free ones wait in a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from convsmith.codegen.artifact import Argument, Entry
from convsmith.diag.errors import InternalError
from convsmith.runtime.arrays import ALIGNMENT, Array, address_of, aligned_empty
from convsmith.runtime.device_library import DeviceFunction
from convsmith.runtime.host_block import HostBlock, HostMemory, LentScratch, memory_at
from convsmith.runtime.loading import DeviceMemory, LoadedFunction

__all__ = ["Frame", "LoadedEntry", "PreparedCall", "Word", "Writer", "places_of", "writers"]


def places_of(arguments: Iterable[Argument], start: int = 0) -> tuple[dict[str, int], int]:
    """Return the offset in bytes of each argument in shared memory, starting at `start`, and the end of the last."""
    offsets: dict[str, int] = {}
    for argument in arguments:
        offsets[argument.name] = start = -(-start // ALIGNMENT) * ALIGNMENT
        start += argument.nbytes
    return offsets, start


class LoadedEntry:
    """An entry with its native function; `defaults` are the arrays of arguments that a call omits."""

    __slots__ = ("_defaults", "_kept", "_on_device", "entry", "function")

    def __init__(self, function: LoadedFunction, entry: Entry, defaults: Mapping[str, Array]) -> None:
        self.function, self.entry = function, entry
        names = {argument.name for argument in entry.arguments}
        self._kept = {name: array for name, array in defaults.items() if name in names}
        self._defaults = {name: address_of(array) for name, array in self._kept.items()}
        self._on_device: dict[str, tuple[int, object]] = {}

    def block(self, memory: HostMemory) -> HostBlock:
        """Return a new argument block, with its own memory from `memory`."""
        return HostBlock(self.entry, self._defaults, memory)

    def run(self, block: HostBlock, kept: object) -> Callable[[], object]:
        """Return the function that runs the entry on its block; `kept` stays alive while workers may use the memory."""
        function, address = self.function, block.address
        if function.whole is not None:
            return partial(function.whole, address)
        if isinstance(function, DeviceFunction):
            return function.bound(address, kept)
        return partial(function, address, kept)

    def defaults_on(self, device: DeviceMemory) -> dict[str, int]:
        """Return the addresses of the default arrays in device memory, to which they are copied once."""
        for argument in self.entry.arguments:
            name = argument.name
            if name in self._kept and name not in self._on_device:
                address, owner = device.reserve(argument.nbytes)
                device.write(address, memory_at(self._defaults[name], argument.nbytes))
                self._on_device[name] = address, owner
        return {name: address for name, (address, _) in self._on_device.items()}

    @property
    def is_plain(self) -> bool:
        """Whether a call only needs to write words: a native function runs all of the entry on the calling thread, and
        none of its memory depends on the addresses.
        """
        follows = any(argument.role in ("table", "zero") for argument in self.entry.arguments)
        return self.function.whole is not None and not follows

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory that all threads of the entry need."""
        sizes = (a.nbytes for a in self.entry.arguments if a.role == "scratch")
        return sum(sizes) * self.entry.launch.threads

    @property
    def required(self) -> list[str]:
        """The arguments that a call must give: arguments without a default, a fixed value, or memory in the block."""
        return [
            a.name for a in self.entry.arguments
            if a.role not in ("scratch", "table", "zero") and a.value is None and a.name not in self._defaults
        ]  # fmt: skip


class Word(NamedTuple):
    """A word that a call writes: the block and the position in it, the number of an address, and an offset in bytes."""

    block: HostBlock
    position: int
    number: int
    offset: int


Writer: TypeAlias = tuple[Any, int | slice, Callable[[Sequence[int]], Any]]
"""A sequence of words, a position or a range in it, and the function from the addresses of a call to the contents."""


def writers(words: Iterable[Word]) -> tuple[Writer, ...]:
    """Return the writers of `words`, `block[position] = take(addresses)`; adjacent words that hold addresses share a
    writer.
    """
    made: list[Writer] = []
    for _, group in groupby(sorted(words, key=_place), key=lambda word: (id(word.block), word.offset != 0)):
        several = [*group]
        block, first, _, offset = several[0]
        is_run = not offset and [word.position for word in several] == [*range(first, first + len(several))]
        if is_run and len(several) > 1:
            made.append((block.words, slice(first, first + len(several)), itemgetter(*(w.number for w in several))))
        else:
            made += [(w.block.words, w.position, _content(w)) for w in several]
    return tuple(made)


def _place(word: Word) -> tuple[int, bool, int]:
    return id(word.block), word.offset != 0, word.position


def _content(word: Word) -> Callable[[Sequence[int]], int]:
    number, offset = word.number, word.offset
    return (lambda addresses: addresses[number] + offset) if offset else itemgetter(number)


class Frame(NamedTuple):
    """Argument blocks for one call at a time."""

    runs: tuple[Callable[[], object], ...]
    """For each entry, in order, a function that runs it."""
    followers: tuple[HostBlock, ...]
    """Blocks with memory that depends on the addresses: `follow` updates it."""
    words: tuple[Word, ...]
    """The words that a call writes."""
    kept: list[object]
    """The blocks, and the memory that they point to."""


_Pooled: TypeAlias = tuple[tuple[Callable[[], object], ...], tuple[Writer, ...], Frame]
"""A frame of the pool, with its functions and its writers."""


class PreparedCall:
    """The `entries` of a kernel in order, run with addresses: `given` are the arguments at each address, with their
    offsets.

    `own` are the arguments of entries that a call does not give: each frame keeps memory for them, on `device` if there
    is one; if `fresh`, each call allocates new memory. Several threads may run the call at once.
    """

    __slots__ = (
        "__weakref__", "_device", "_entries", "_frames", "_fresh", "_interrupted", "_is_plain", "_links", "_own",
    )  # fmt: skip

    def __init__(
        self, entries: Sequence[LoadedEntry], given: Sequence[Mapping[str, int]], own: Iterable[Argument] = (),
        device: DeviceMemory | None = None, *, fresh: bool = False,
    ) -> None:  # fmt: skip
        self._entries = tuple(entries)
        self._own = {argument.name: argument for argument in own}
        self._device = device
        offsets, nbytes = places_of(self._own.values())
        self._fresh = nbytes if fresh else 0
        at = [*given, offsets] if self._fresh else given
        places = {name: (n, offset) for n, of_address in enumerate(at) for name, offset in of_address.items()}
        self._links = tuple(
            (n, a.name, *places[a.name])
            for n, entry in enumerate(self._entries)
            for a in entry.entry.arguments
            if a.name in places
        )
        self._frames: list[_Pooled] = []
        self._interrupted: list[Frame] = []
        self._is_plain = not self._fresh and all(entry.is_plain for entry in self._entries)
        missing = {name for entry in self._entries for name in entry.required} - places.keys() - self._own.keys()
        if missing:
            raise InternalError(f"a call by address gives nothing for {', '.join(sorted(missing))}")

    def run(self, addresses: Sequence[int], keep: object) -> None:
        """Run the entries on memory at `addresses`. `keep` holds that memory alive.

        `object(...)` would cost 0.2 us more than a method.
        """
        try:
            pooled = self._frames.pop()
        except IndexError:
            frame = self.frame()
            pooled = frame.runs, writers(frame.words), frame
        runs, written, frame = pooled
        if not self._is_plain:
            return self._run_on(pooled, addresses, keep)
        for words, place, content in written:
            words[place] = content(addresses)
        for entry in runs:
            entry()
        self._frames.append(pooled)  # after an interrupt the frame is dropped

    def _run_on(self, pooled: _Pooled, addresses: Sequence[int], keep: object) -> None:
        """Run entries that need new memory or tables that depend on the addresses, or whose workers may outlive an
        interrupted call.
        """
        runs, written, frame = pooled
        if self._fresh:
            memory = aligned_empty(self._fresh)
            addresses, keep = (*addresses, address_of(memory)), (keep, memory)
        for words, place, content in written:
            words[place] = content(addresses)
        for block in frame.followers:
            block.follow()
        frame.kept.append(keep)
        try:
            for entry in runs:
                entry()
        except BaseException:
            if self._device is not None:
                self._interrupted.append(frame)  # the device may still use its memory
            raise
        frame.kept.pop()
        self._frames.append(pooled)

    def bind(self, addresses: Sequence[int], keep: object) -> Callable[[], object]:
        """Return a function that runs the entries on memory at `addresses`, which `keep` holds alive as long as the
        function lives. Only one thread at a time may call the function.
        """
        frame = self.frame(known=addresses, keep=keep)

        def call(run: Callable[[], object] = frame.runs[0], kept: object = frame.kept) -> None:
            run()

        def call_each() -> None:
            for block in frame.followers:
                block.follow()
            for run in frame.runs:
                run()

        return call if len(frame.runs) == 1 and not frame.followers else call_each

    def frame(self, scratch: int | None = None, known: Sequence[int] = (), keep: object = None) -> Frame:
        """Return new blocks that hold the `known` addresses; `words` are the words for further addresses.

        The memory of the blocks is new, or starts at the address `scratch`.
        """
        lent = HostMemory()
        nbytes = max(entry.scratch_bytes for entry in self._entries)
        memory = LentScratch(lent.reserve_bytes(nbytes) if scratch is None else scratch)
        kept: list[object] = [self._entries, lent, memory, keep]
        blocks = [entry.block(memory) for entry in self._entries]
        kept += blocks
        if self._device is not None:
            for entry, block in zip(self._entries, blocks):
                block.give(entry.defaults_on(self._device))
        if not self._fresh:
            places = self._own_places(memory, scratch, kept)
            for block in blocks:
                block.give(places)
        words = []
        for n, name, number, offset in self._links:
            position = blocks[n].positions[name]
            if number < len(known):
                blocks[n].words[position] = known[number] + offset
            else:
                words.append(Word(blocks[n], position, number - len(known), offset))
        runs = tuple(entry.run(block, kept) for entry, block in zip(self._entries, blocks))
        return Frame(runs, tuple(block for block in blocks if block.followers), tuple(words), kept)

    def _own_places(self, memory: HostMemory, scratch: int | None, kept: list[object]) -> dict[str, int]:
        """Return the addresses of the arguments that a call does not give."""
        if scratch is not None:
            first = max(entry.scratch_bytes for entry in self._entries)
            return {name: scratch + offset for name, offset in places_of(self._own.values(), first)[0].items()}
        offsets, nbytes = places_of(self._own.values())
        if not offsets:
            return {}
        if self._device is None:
            start = memory.reserve_bytes(nbytes)
        else:
            start, owner = self._device.reserve(nbytes)
            kept.append(owner)
        return {name: start + offset for name, offset in offsets.items()}
