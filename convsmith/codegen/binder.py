"""The binder: from the arguments of an entry, and memory by name, to the words of the entry's argument block.

One binder serves every way of running an entry: in this process, in an emulated machine, in the interpreter, and in
measurements. Each brings an `ArgumentMemory`. A *place* identifies memory there: an address, or an array of the
interpreter.

An entry's words come from two sides. A call gives places of tensors, of packed and shared memory, and values of sizes.
The binder adds what belongs to the entry alone: scratch memory, tables of pointers, and the memory that represents
absent pixels. The contents of the last two depend on the places of the call, so `BoundEntry.follow` writes them again
when these have changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, MutableSequence
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from convsmith.codegen.artifact import Argument, Entry
from convsmith.diag.errors import UsageError
from convsmith.diag.forking import import_lock
from convsmith.ir.types import DTYPES, POINTERS, dtype
from convsmith.layout.layout import Layout

__all__ = ["AddressMemory", "ArgumentMemory", "Binder", "BoundEntry", "absent_pixel", "absent_places", "element_type"]

if TYPE_CHECKING:
    from convsmith.layout.indirection import Table

Array: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[Any]]
Place = TypeVar("Place")
_POINTERS = {t.name: t for t in POINTERS.values()}


def element_type(argument: Argument) -> np.dtype[Any]:
    """Return the numpy type of the elements of an argument in memory."""
    return np.dtype((_POINTERS.get(argument.dtype) or DTYPES[argument.dtype]).numpy)


class ArgumentMemory(ABC, Generic[Place]):
    """Memory in which arguments lie, as the binder uses it."""

    @abstractmethod
    def reserve(self, argument: Argument, elements: int) -> Place:
        """Return the place of new memory for `elements` elements of the argument's type."""

    @abstractmethod
    def read(self, place: Place, nbytes: int) -> bytes:
        """Return the first `nbytes` bytes at a place."""

    @abstractmethod
    def write(self, place: Place, contents: Array) -> None:
        """Store an array at a place that `reserve` returned."""

    @abstractmethod
    def pointers(self, table: Table, base: Place, absent: Place, itemsize: int) -> Array:
        """Return a table's pointers into the memory at `base`, of elements of `itemsize` bytes, or to `absent`."""


class AddressMemory(ArgumentMemory[int]):
    """Memory that is identified by addresses."""

    def pointers(self, table: Table, base: int, absent: int, itemsize: int) -> Array:
        return table.pointers(base, absent, itemsize)


class BoundEntry(Generic[Place]):
    """The words of an entry, with the entry's own memory for scratch, table and zero arguments.

    `words` is the sequence to fill, one word for each argument; `positions` are the positions of the arguments that a
    call gives, by name; `followers` write the contents that depend on their places.
    """

    __slots__ = ("entry", "followers", "positions", "words")

    def __init__(self, entry: Entry, memory: ArgumentMemory[Place], words: MutableSequence[Any]) -> None:
        self.entry, self.words = entry, words
        self.positions: dict[str, int] = {}
        tables: list[int] = []
        places = {a.name: n for n, a in enumerate(entry.arguments)}
        for n, a in enumerate(entry.arguments):
            if a.role in ("scratch", "table", "zero"):
                words[n] = memory.reserve(a, a.size * (entry.launch.threads if a.role == "scratch" else 1))
            else:
                self.positions[a.name] = n
            if a.role == "table":
                tables.append(n)
            if a.value is not None:
                words[n] = a.value
        self.followers: list[_AbsentFollower[Place] | _TableFollower[Place]] = []
        for n, a in enumerate(entry.arguments):
            if a.role == "zero" and a.recipe:
                self.followers.append(_AbsentFollower(memory, a, words[n], entry.arguments[places[a.recipe]], places))
            elif a.role == "zero":
                memory.write(words[n], np.zeros(a.size, element_type(a)))
        for n in tables:
            a = entry.arguments[n]
            zero = next(z for z in entry.arguments if z.role == "zero" and z.of == a.of)
            self.followers.append(_TableFollower(memory, a, words[n], zero, words[places[zero.name]], places[a.of]))

    def give(self, places: Mapping[str, Place | int]) -> None:
        """Bind the arguments that `places` names: memory, and values of sizes."""
        for name, position in self.positions.items():
            if name in places:
                self.words[position] = places[name]

    def follow(self) -> None:
        """Update pointer tables to the bound memory, and zero buffers to the call's zero points."""
        for follower in self.followers:
            follower.follow(self.words)


class _AbsentFollower(Generic[Place]):
    """Writes the zero points of a call to the memory of a "zero" argument, when they have changed."""

    __slots__ = ("_argument", "_memory", "_nbytes", "_place", "_points", "_position", "_seen")

    def __init__(
        self, memory: ArgumentMemory[Place], argument: Argument, place: Place, points: Argument, places: dict[str, int]
    ) -> None:
        self._memory, self._argument, self._place, self._points = memory, argument, place, points
        self._position = places[points.name]
        self._nbytes = points.size * element_type(points).itemsize
        self._seen = b""

    def follow(self, words: MutableSequence[Any]) -> None:
        """Write the zero points if they have changed. UsageError if they exceed the range of the argument's type."""
        seen = self._memory.read(words[self._position], self._nbytes)
        if seen != self._seen:
            points = np.frombuffer(seen, element_type(self._points))
            self._memory.write(self._place, absent_pixel(self._argument, self._points.name, points))
            self._seen = seen


class _TableFollower(Generic[Place]):
    """Writes a table of pointers, when the memory that it points into has moved."""

    __slots__ = ("_absent", "_base", "_itemsize", "_memory", "_place", "_position", "_table", "_type")

    def __init__(
        self, memory: ArgumentMemory[Place], argument: Argument, place: Place, zero: Argument, absent: Place,
        position: int,
    ) -> None:  # fmt: skip
        self._memory, self._place, self._absent, self._position = memory, place, absent, position
        with import_lock:
            from convsmith.layout.indirection import from_recipe

        self._table, self._itemsize = from_recipe(argument.recipe), element_type(zero).itemsize
        self._type = element_type(argument)
        self._base: Place | None = None

    def follow(self, words: MutableSequence[Any]) -> None:
        base = words[self._position]
        if self._base is None or base != self._base:
            self._base = base
            pointers = self._memory.pointers(self._table, base, self._absent, self._itemsize)
            self._memory.write(self._place, pointers.astype(self._type, copy=False))


class Binder(Generic[Place]):
    """Binds the entries of one call, in the order in which they run.

    `places` is the memory of the call by name, and values of sizes. The first entry with a packed or shared argument
    that is not among them adds its memory.
    """

    def __init__(self, memory: ArgumentMemory[Place], places: MutableMapping[str, Place]) -> None:
        self._memory, self.places = memory, places

    def bind(self, entry: Entry, words: MutableSequence[Any] | None = None) -> BoundEntry[Place]:
        """Return the words of an entry. UsageError: the call gives no memory, or no value, for one of them."""
        for a in entry.arguments:
            if a.role in ("packed", "shared") and a.name not in self.places:
                self.places[a.name] = self._memory.reserve(a, a.size)
        bound = BoundEntry(entry, self._memory, [None] * len(entry.arguments) if words is None else words)
        valued = {a.name for a in entry.arguments if a.value is not None}
        missing = [name for name in bound.positions if name not in self.places and name not in valued]
        if missing:
            raise UsageError(
                f"entry {entry.symbol}: nothing is given for {', '.join(missing)}; given are {', '.join(self.places)}",
                code="missing",
            )
        bound.give(self.places)
        bound.follow()
        return bound


def absent_pixel(argument: Argument, name: str, points: Array) -> Array:
    """Return the memory of a "zero" argument that holds the zero points `name`: one for all channels, or one for each.

    UsageError if one of them does not fit the argument's type.
    """
    low, high = dtype(argument.dtype).limits
    for n, point in enumerate(points):
        if not low <= int(point) <= high:
            at = name if len(points) == 1 else f"{name}[{n}]"
            raise UsageError(
                f"{at} is {point}: a kernel that reads {argument.of} through a table of pointers stores it as "
                f"{argument.dtype}, from {low} to {high}; others are legal for kernels of one size with another "
                "realisation, --realise=mask say",
                code="value",
            )
    if len(points) == 1:
        return np.full(argument.size, points[0], element_type(argument))
    memory = np.zeros(argument.size, element_type(argument))
    memory[absent_places(argument, len(points))] = points
    return memory


def absent_places(argument: Argument, count: int) -> Array:
    """Return the positions in the memory of a "zero" argument that hold the zero points of `count` channels."""
    blocks = Layout.parse(argument.layout, argument.shape).blocks
    channels = np.arange(count)
    places, within = np.zeros(count, np.int64), prod(b.size for b in blocks)
    for b in blocks:
        within //= b.size
        places += channels // within % b.size * b.stride
    return places
