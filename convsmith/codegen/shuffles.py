"""Shuffles of the lanes of vectors as LLVM text."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.codegen.casts import CastEmitter
from convsmith.diag.errors import InternalError
from convsmith.ir.instruction import ByteLookup
from convsmith.ir.types import DType, Half

__all__ = ["ShuffleEmitter"]


class ShuffleEmitter(CastEmitter):
    """Emits shuffles; ``lookup`` is used for shuffles that repeat a lane, on targets that have it."""

    def __init__(self, bits: int, half: Half, lookup: ByteLookup | None = None) -> None:
        super().__init__(bits, half)
        self.lookup = lookup

    def shuffle(self, t: DType, count: int, a: str, b: str, places: Sequence[int]) -> str:
        """Return the lanes at ``places`` of the concatenation of ``a`` and ``b``, of ``count`` lanes each."""
        if self.scalable:
            raise InternalError("lanes of scalable vectors cannot change their places")
        if self.lookup is not None and len(set(places)) < len(places):
            return self._looked_up(self.lookup, t, count, (a, b), places)
        return self._shuffle(self.type(t, count), a, b, places)

    def _shuffle(self, ty: str, a: str, b: str, places: Sequence[int]) -> str:
        picked = ", ".join(f"i32 {i}" for i in places)
        return self.put(f"shufflevector {ty} {a}, {ty} {b}, <{len(places)} x i32> <{picked}>")

    def pick(self, t: DType, x: str, count: int, places: list[int]) -> str:
        """Return the lanes at ``places`` of a vector of ``count`` lanes.

        If the order within each block of 128 bits is the same, blocks are moved first: shuffles within blocks need no
        index register, and several shuffles share the moved blocks.
        """
        size = 128 // t.value_bits
        if size and count == len(places) and not count % size:
            groups = [places[i : i + size] for i in range(0, count, size)]
            blocks = [g[0] // size for g in groups]
            within = [i % size for i in groups[0]]
            whole = all(i // size == b and i % size == w for g, b in zip(groups, blocks) for i, w in zip(g, within))
            if whole and blocks != list(range(len(blocks))):
                key = ("blocks", x, tuple(blocks))
                reordered = self.known.get(key)
                if reordered is None:
                    reordered = self.shuffle(t, count, x, "poison", [b * size + i for b in blocks for i in range(size)])
                    reordered = self.put(f"freeze {self.type(t, count)} {reordered}")
                    self.known.set(key, reordered)
                x, places = reordered, [n * size + w for n in range(len(blocks)) for w in within]
        return self.shuffle(t, count, x, "poison", places)

    def _looked_up(
        self, lookup: ByteLookup, t: DType, count: int, given: tuple[str, str], places: Sequence[int]
    ) -> str:
        """Return the lanes at ``places`` by lookups of their bytes, register by register of the result."""
        self.declared |= dict.fromkeys(lookup.declare)
        most = lookup.bytes // t.bytes
        tables = {
            n * count + start: self._register(lookup, t, count, x, start)
            for n, x in enumerate(given)
            for start in range(0, count, most)
            if any(n * count + start <= place < n * count + min(start + most, count) for place in places)
        }
        parts = []
        for start in range(0, len(places), most):
            wanted = places[start : start + most]
            found = ""
            for first, table in tables.items():
                last = min(first + most, (first // count + 1) * count)
                if any(first <= place < last for place in wanted):
                    bytes_ = [
                        (place - first) * t.bytes + n if first <= place < last else None
                        for place in wanted
                        for n in range(t.bytes)
                    ]
                    one = self._of_one_register(lookup, table, bytes_)
                    found = self.put(f"or {lookup.type} {found}, {one}") if found else one
            parts.append(self.put(f"bitcast {lookup.type} {found} to {self.type(t, most)}"))
        width = most
        parts += ["poison"] * ((1 << (len(parts) - 1).bit_length()) - len(parts))
        while len(parts) > 1:
            ty = self.type(t, width)
            parts = [self._shuffle(ty, x, y, range(2 * width)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
            width *= 2
        if width == len(places):
            return parts[0]
        return self._shuffle(self.type(t, width), parts[0], "poison", range(len(places)))

    def _register(self, lookup: ByteLookup, t: DType, count: int, x: str, start: int) -> str:
        """Return the register that holds the lanes of a vector from ``start`` on; lanes past the end are undefined."""
        most = lookup.bytes // t.bytes
        if count != most:
            places = [min(start + n, count) for n in range(most)]
            x = self._shuffle(self.type(t, count), x, "poison", places)
        return self.put(f"bitcast {self.type(t, most)} {x} to {lookup.type}")

    def _of_one_register(self, lookup: ByteLookup, table: str, places: Sequence[int | None]) -> str:
        """Return the bytes at ``places`` of the register ``table``; zero for a byte without a place."""
        indices = [lookup.absent if place is None else lookup.index(place) for place in places]
        indices += [lookup.absent] * (lookup.bytes - len(indices))
        listed = ", ".join(f"i8 {n}" for n in indices)
        constant = f"bitcast (<{lookup.bytes} x i8> <{listed}> to {lookup.type})"
        done: list[str] = []
        for line in lookup.llvm:
            done.append(self.put(line.format(*done, table=table, indices=constant)))
        return done[-1]
