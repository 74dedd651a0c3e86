"""`OperandPacking`: how a kernel packs its operands, by the packing entries of its artifact.

`PlainCalls` are the calls that bring weights of their own, which are packed anew in each of them.

It checks no arrays: callers pass arrays that `Border` has checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite, isnan
from typing import Generic, TypeVar

import numpy as np

from convsmith.codegen.artifact import FINITE, Argument, Artifact
from convsmith.diag.forking import RenewedLock
from convsmith.runtime.arrays import Array, address_of, aligned_empty, magnitude, numpy_dtype
from convsmith.runtime.border import BY_NAME, Border, Given, Names
from convsmith.runtime.loading import LoadedCode
from convsmith.runtime.packed import Packed, signature_of
from convsmith.runtime.prepared_call import LoadedEntry, PreparedCall, places_of

__all__ = ["OperandPacking", "PackedParts", "PlainCalls"]

Kernel = TypeVar("Kernel")
_making = RenewedLock()


def _held_type(part: Argument) -> np.dtype[np.generic]:
    """Return numpy's type of the elements of a part, or of bytes if elements share bytes."""
    return numpy_dtype(part.dtype if part.bytes_of(2) > part.bytes_of(1) else "u8")


class PackedParts:
    """The parts of a packed operand in one block of memory, as elements of the first part's type, or as bytes if
    elements share bytes.
    """

    __slots__ = ("arguments", "dtype", "offsets", "size")

    def __init__(self, arguments: tuple[Argument, ...]) -> None:
        self.arguments = arguments
        self.dtype = _held_type(arguments[0])
        self.offsets, nbytes = places_of(arguments)
        self.size = -(-nbytes // self.dtype.itemsize)

    @staticmethod
    def of(artifact: Artifact, operand: str) -> PackedParts:
        """Return the parts that the entries of calls read."""
        parts = {a.name: a for entry in artifact.steps.values() for a in entry.arguments if a.of == operand}
        return PackedParts(tuple(parts.values()))

    def elements(self, buffer: Array) -> Array:
        """Return the elements of the operand in a packed buffer: the largest part; the other parts hold sums."""
        part = max(self.arguments, key=lambda argument: argument.size)
        start = self.offsets[part.name]
        return buffer.view(np.uint8)[start : start + part.nbytes].view(_held_type(part))

    def new(self) -> Array:
        """Return new memory for all parts, with zeros behind each of them: files hold what is packed."""
        memory = aligned_empty(self.size * self.dtype.itemsize)
        places = sorted((self.offsets[part.name], part.nbytes) for part in self.arguments)
        starts = [*(start for start, _ in places[1:]), memory.size]
        for (start, nbytes), end in zip(places, starts):
            memory[start + nbytes : end] = 0
        return memory.view(self.dtype)


class OperandPacking:
    """The packing entries of `artifact`, loaded in `library`, and the memory that they write.

    `entries` are the calls that pack an operand, by its name; `parts` are the parts of its packed memory. `memory` are
    the parts of the operand that calls by position take as `Packed`: a plain copy if no entry packs it, None if there
    is no such operand.
    """

    def __init__(self, artifact: Artifact, border: Border, library: LoadedCode) -> None:
        self._artifact, self._border = artifact, border
        self.entries = {
            name: [LoadedEntry(library[e], artifact.entries[e], border.defaults) for e in entries]
            for name, entries in artifact.packs.items()
        }
        self.parts = {name: PackedParts.of(artifact, name) for name in artifact.packs}
        self._calls: dict[tuple[str, tuple[str, ...]], PreparedCall] = {}
        operand = border.operand
        # A kernel without a packing entry reads the operand in its own layout, so packing is a copy.
        plain = PackedParts((border.specs[operand].argument,)) if operand else None
        self.memory = self.parts.get(operand, plain)
        self.name = ""
        """The name of the packing of `border.operand`. A packed operand is legal for every kernel with the same
        packing.
        """
        self.signature = ""
        """The signature of packed operands that calls by position accept."""
        if self.memory is not None:
            bias = border.specs["bia"] if border.takes_bias else None
            first = self.memory.arguments[0]
            self.name = self.name_of(operand) if operand in self.entries else f"{first.layout} {first.shape}"
            self.signature = signature_of(
                self.name,
                (self.memory.dtype, self.memory.size),
                (bias.dtype, bias.argument.size) if bias else None,
            )

    def name_of(self, operand: str) -> str:
        """Return the name of the packing of `operand`, which a packing entry packs."""
        return " ".join(self._artifact.entries[entry].packing for entry in self._artifact.packs[operand])

    def parts_of(self, operand: str) -> PackedParts:
        """Return the parts of an operand that a call passes as `Packed`."""
        parts = self.parts[operand] if operand in self._border.packable else self.memory
        assert parts is not None
        return parts

    def examine(self, operand: str, packed: Packed) -> float:
        """Return the largest magnitude of an operand in memory of this packing; infinity if one element is a NaN.

        A transform stores transformed numbers of an operand within its limit. If they are finite, the magnitude of an
        operand from a file is reported as 0.
        """
        if isnan(packed.magnitude):
            elements = self.parts_of(operand).elements(packed.buffer)
            largest = magnitude(elements)
            is_transformed = elements.dtype.kind not in "iu" and self._artifact.limits.get(operand, FINITE) < FINITE
            packed.magnitude = 0.0 if is_transformed and isfinite(largest) else largest
        return packed.magnitude

    def check(self, inputs: Mapping[str, Given], names: Names = BY_NAME) -> None:
        """Raise UsageError if an operand that is passed by name is packed for another kernel."""
        for name in self._border.packable:
            given = inputs.get(name)
            if isinstance(given, Packed) and given.key != self.name_of(name):
                raise self._border.packed_elsewhere(given, self.name_of(name), names, name)

    def pack(self, operand: str, arrays: Mapping[str, Array]) -> Array:
        """Return new packed memory of `operand`, given the `arrays` that its packing entries read."""
        specs, parts = self._border.specs, self.parts[operand]
        buffer, names = parts.new(), tuple(arrays)
        if specs[operand].empty_tensor:
            return buffer
        call = self._calls.get((operand, names))
        if call is None:
            given = [*({name: 0} for name in names), parts.offsets]
            between = self._artifact.passed_on(operand)
            call = PreparedCall(self.entries[operand], given, between, fresh=bool(between))
            self._calls[operand, names] = call
        ready = [specs[name].prepare(array) for name, array in arrays.items()]
        call.run([address_of(array) for array in (*ready, buffer)], (ready, buffer))
        return buffer

    def pack_alone(self, operand: str, array: Array) -> Array:
        """Return `array` packed, or copied if no entry packs `operand`.

        UsageError if packing reads other arrays of a call too.
        """
        spec = self._border.specs[operand]
        if operand in self.entries:
            self._border.check_packed_alone(self._artifact, operand)
            return self.pack(operand, {operand: array})
        memory = aligned_empty(spec.argument.size * spec.dtype.itemsize)
        memory[:] = 0
        np.copyto(np.ndarray(spec.shape, spec.dtype, memory, 0, spec.strides), array)
        return memory.view(spec.dtype)


class PlainCalls(Generic[Kernel]):
    """Counts the calls of a kernel with plain weights. `make` creates the kernel for such calls, or returns None if
    another one would be about as fast.
    """

    __slots__ = ("_count", "_kernel", "_make")

    def __init__(self, make: Callable[[], Kernel | None] | None) -> None:
        self._make, self._count = make, 0
        self._kernel: Kernel | None = None

    def is_examined(self) -> bool:
        """Count a call, and return whether its weights are examined, which takes as long as packing them: those of
        calls 1, 2, 4, 8, ... are.
        """
        self._count += 1
        return not self._count & (self._count - 1)

    @property
    def is_repeated(self) -> bool:
        """Whether there were several calls, so that a kernel for them is worth compiling."""
        return self._count > 1

    def kernel(self, own: Kernel) -> Kernel:
        """Return the kernel for these calls, which is made once: another one than `own` if that is faster."""
        if self._make is not None:
            with _making.lock:
                if self._make is not None:
                    self._kernel, self._make = self._make(), None
        return own if self._kernel is None else self._kernel
