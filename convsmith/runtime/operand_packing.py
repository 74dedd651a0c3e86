"""`OperandPacking`: how a kernel packs its operands, by the packing entries of its artifact.

It checks no arrays: callers pass arrays that `Border` has checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, isnan

import numpy as np

from convsmith.codegen.artifact import FINITE, Artifact
from convsmith.runtime.arrays import Array, address_of, aligned_empty, magnitude
from convsmith.runtime.border import BY_NAME, Border, Given, Names
from convsmith.runtime.entry_call import EntryCall, PackedParts
from convsmith.runtime.loading import LoadedCode
from convsmith.runtime.packed import Packed, signature_of

__all__ = ["OperandPacking"]


class OperandPacking:
    """The packing entries of `artifact`, loaded in `library`, and the memory that they write.

    `entries` are the calls that pack an operand, by its name; `parts` are the parts of its packed memory. `memory` are
    the parts of the operand that calls by position take as `Packed`: a plain copy if no entry packs it, None if there
    is no such operand.
    """

    def __init__(self, artifact: Artifact, border: Border, library: LoadedCode) -> None:
        self._artifact, self._border = artifact, border
        self.entries = {
            name: [EntryCall(library[e], artifact.entries[e], border.defaults) for e in entries]
            for name, entries in artifact.packs.items()
        }
        self.parts = {name: PackedParts.of(artifact, name) for name in artifact.packs}
        operand = border.operand
        # A kernel without a packing entry reads the operand in its own layout, so packing is a copy.
        plain = PackedParts((border.specs[operand].argument,)) if operand else None
        self.memory = self.parts.get(operand, plain)
        self.name = ""
        """The name of the packing of `border.operand`. A packed operand serves every kernel where it is the same."""
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

        A transform packs other numbers than the operand's, of operands within its limit. If they are finite, 0 stands
        for the magnitude of an operand that comes from a file.
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

    def pack(self, operand: str, addresses: Mapping[str, int], keep: object) -> Array:
        """Return new packed memory of `operand`, written by its packing entries, which read memory at `addresses`."""
        parts = self.parts[operand]
        buffer = aligned_empty(parts.size * parts.dtype.itemsize)
        if not self._border.specs[operand].empty_tensor:
            places = {**addresses, **parts.addresses(address_of(buffer))}
            for call in self.entries[operand]:
                call.run_with(places, (keep, buffer))
        return buffer.view(parts.dtype)

    def pack_alone(self, operand: str, array: Array) -> Array:
        """Return `array` packed, or copied if no entry packs `operand`.

        UsageError if packing reads other arrays of a call too.
        """
        spec = self._border.specs[operand]
        if operand in self.entries:
            self._border.check_packed_alone(self._artifact, operand)
            ready = spec.prepare(array)
            return self.pack(operand, {operand: address_of(ready)}, ready)
        memory = aligned_empty(spec.argument.size * spec.dtype.itemsize)
        memory[:] = 0
        np.copyto(np.ndarray(spec.shape, spec.dtype, memory, 0, spec.strides), array)
        return memory.view(spec.dtype)
