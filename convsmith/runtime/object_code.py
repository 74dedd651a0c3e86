"""`ObjectCode`: relocatable object code as bytes that run at any address.

It is ELF of x86-64, AArch64, Arm, Hexagon or RISC-V.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from convsmith.diag.errors import ToolchainError
from convsmith.diag.forking import cached_property

__all__ = ["ObjectCode", "is_linked_here"]


class _Forms(NamedTuple):
    """The records of a file of one class: 64 bits, or 32."""

    header: struct.Struct
    section: struct.Struct
    symbol: struct.Struct
    relocation: struct.Struct
    place: struct.Struct
    """A relocation without an addend, which the place holds."""
    fields: itemgetter[tuple[int, ...]]
    """Returns name, section, value and information from the record of a symbol."""
    kind_bits: int
    """Bits of a relocation's information that hold its kind; the remaining bits hold the number of its symbol."""


_FORMS = {
    1: _Forms(struct.Struct("<16sHHIIIIIHHHHHH"), struct.Struct("<10I"), struct.Struct("<IIIBBH"),
              struct.Struct("<IIi"), struct.Struct("<II"), itemgetter(0, 5, 1, 3), 8),
    2: _Forms(struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"),
              struct.Struct("<QQq"), struct.Struct("<QQ"), itemgetter(0, 3, 4, 1), 32),
}  # fmt: skip
"""Record formats by the byte of the header that names the class."""
_ELF, _CLASS, _MACHINE = b"\x7fELF", 4, 18
"""The first bytes of the header, and the offsets of the bytes for the class and for the machine."""

_RELOCATABLE, _X86, _ARM, _RISCV = 1, 62, 40, 243
_SYMBOLS, _ADDENDS, _NO_BITS, _PLACES = 2, 4, 8, 9
"""Kinds of sections: the symbol table, relocations with addends, zeros that take no space in the file, and relocations
whose addends are in their places.
"""
_LOADED = 2
"""Flag of sections that are loaded into memory."""
_GLOBAL = 1
"""Binding of symbols that are visible to other code."""
_Patch = Callable[[int, int, int], int]
"""A function that returns the new word, given the target's address, the address of the place, and the old word."""
_PAGE = 0xFFF


def _word(target: int, place: int, old: int) -> int:
    return target


def _distance(target: int, place: int, old: int) -> int:
    return target - place


def _wrapped(target: int, place: int, old: int) -> int:
    return target - place & 0xFFFFFFFF


def _branch(target: int, place: int, old: int) -> int:
    return old & ~0x3FFFFFF | (target - place) >> 2 & 0x3FFFFFF


def _page(target: int, place: int, old: int) -> int:
    pages = (target >> 12) - (place >> 12)
    return old | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _within_page(size: int) -> _Patch:
    """Return the patch that inserts an offset in a page, in units of an access of ``size`` bytes."""
    return lambda target, place, old: old | (target & _PAGE) // size << 10


def _scattered(old: int, mask: int, value: int) -> int:
    """Return the word with the low bits of a value scattered to the bits that are set in the mask."""
    for bit in range(32):
        if mask >> bit & 1:
            old = old & ~(1 << bit) | (value & 1) << bit
            value >>= 1
    return old


def _jump(target: int, place: int, old: int) -> int:
    return _scattered(old, 0x01FF3FFE, target - place >> 2)


def _extended(target: int, place: int, old: int) -> int:
    return _scattered(old, 0x0FFF3FFF, target - place >> 6)


def _rest(target: int, place: int, old: int) -> int:
    """Return the word with the low bits of the distance; the first word of the packet, the extender, holds the others.
    """
    return _scattered(old, 0x1F80, target - place & 63)


def _upper(target: int, place: int, old: int) -> int:
    """Return the word with the upper 20 bits of the distance, so that the lower 12 bits, with a sign, make it whole."""
    return old & _PAGE | (target - place + 0x800) & 0xFFFFF000


def _lower(target: int, place: int, old: int) -> int:
    """Return the word of a load or of arithmetic with the lower 12 bits of the distance."""
    return _scattered(old, 0xFFF00000, target - place)


def _lower_of_store(target: int, place: int, old: int) -> int:
    return _scattered(old, 0xFE000F80, target - place)


def _call(target: int, place: int, old: int) -> int:
    """Return the two words of a call: upper bits of the distance, and a jump by the lower bits."""
    return _upper(target, place, old & 0xFFFFFFFF) | _lower(target, place, old >> 32) << 32


def _sign(value: int, bits: int) -> int:
    """Return the number whose lowest ``bits`` are two's complement."""
    return (value & (1 << bits) - 1) - ((value & 1 << bits - 1) << 1)


def _thumb_branch(target: int, place: int, old: int) -> int:
    """Return the two halfwords of a branch of Thumb code, the first of which is the lower half of the word."""
    distance = target - place
    sign, high, low = distance >> 24 & 1, distance >> 12 & 0x3FF, distance >> 1 & 0x7FF
    j1, j2 = (1 ^ distance >> bit & 1 ^ sign for bit in (23, 22))
    return old & 0xD000F800 | sign << 10 | high | j1 << 29 | j2 << 27 | low << 16


def _branch_addend(old: int) -> int:
    """Return the distance that a branch of Thumb code holds."""
    sign = old >> 10 & 1
    i1, i2 = (1 ^ old >> bit & 1 ^ sign for bit in (29, 27))
    return _sign(sign << 24 | i1 << 23 | i2 << 22 | (old & 0x3FF) << 12 | (old >> 16 & 0x7FF) << 1, 25)


def _half(target: int, place: int, old: int) -> int:
    """Return the move of Thumb code with the lower 16 bits of an address."""
    field = target & 0xFFFF
    return old & 0x8F00FBF0 | field >> 12 | (field >> 11 & 1) << 10 | (field >> 8 & 7) << 28 | (field & 0xFF) << 16


def _upper_half(target: int, place: int, old: int) -> int:
    return _half(target >> 16, place, old)


def _half_addend(old: int) -> int:
    """Return the 16 bits with a sign that a move of Thumb code holds."""
    return _sign((old & 0xF) << 12 | (old >> 10 & 1) << 11 | (old >> 28 & 7) << 8 | old >> 16 & 0xFF, 16)


def _unwinding(target: int, place: int, old: int) -> int:
    """Return the word of a table of unwinding, with the distance in 31 bits."""
    return old & 1 << 31 | target - place & 0x7FFFFFFF


_Q, _I, _q, _i = (struct.Struct(form) for form in ("<Q", "<I", "<q", "<i"))
_PATCHES: dict[int, dict[int, tuple[struct.Struct, _Patch]]] = {
    _X86: {
        1: (_Q, _word), 10: (_I, _word), 11: (_i, _word), 2: (_i, _distance), 4: (_i, _distance),
        9: (_i, _distance), 41: (_i, _distance), 42: (_i, _distance),
    },
    183: {
        257: (_Q, _word), 258: (_I, _word), 260: (_q, _distance), 261: (_i, _distance), 275: (_I, _page),
        282: (_I, _branch), 283: (_I, _branch), 277: (_I, _within_page(1)), 278: (_I, _within_page(1)),
        284: (_I, _within_page(2)), 285: (_I, _within_page(4)), 286: (_I, _within_page(8)),
        299: (_I, _within_page(16)),
    },
    164: {
        1: (_I, _jump), 36: (_I, _jump), 6: (_I, _word), 16: (_I, _extended),
        31: (_i, _distance), 65: (_I, _rest),
    },
    _ARM: {
        2: (_I, _word), 3: (_I, _wrapped), 10: (_I, _thumb_branch), 30: (_I, _thumb_branch), 42: (_I, _unwinding),
        47: (_I, _half), 48: (_I, _upper_half),
    },
    _RISCV: {
        2: (_Q, _word), 1: (_I, _word), 57: (_i, _distance), 18: (_Q, _call), 19: (_Q, _call), 23: (_I, _upper),
        24: (_I, _lower), 25: (_I, _lower_of_store),
    },
}  # fmt: skip
"""By machine (x86-64, AArch64, Hexagon, Arm, RISC-V): kinds of relocations, with the function that patches a word."""
_HELD: dict[int, Callable[[int], int]] = {
    2: lambda old: old, 3: lambda old: old, 10: _branch_addend, 30: _branch_addend,
    42: lambda old: _sign(old, 31), 47: _half_addend, 48: _half_addend,
}
"""Functions that return the addend which a place of Arm holds, by the kind of its relocation."""
_UPPER, _LOWER = 23, {24, 25}
"""Kinds of relocations of RISC-V: the upper bits of a distance, and lower bits, whose symbol is the place with the
upper bits of the same distance.
"""
_NEAR_CALLS, _ADDRESSES = {2, 4}, {9, 41, 42}
"""Kinds of relocations of x86-64: the distance to called code, and a place that holds the symbol's address."""
_STUB = struct.Struct("<6sQ")
"""A jump to the address that follows it, because a called function may be out of the reach of a near call."""
_JUMP = b"\xff\x25" + bytes(4)


_NOTHING: Mapping[str, int] = {}


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class _Symbol(NamedTuple):
    name: int
    """Offset of its name in the table of names."""
    section: int
    value: int
    information: int
    """Its binding, above four bits for its type."""


def is_linked_here(code: bytes) -> bool:
    """Return whether bytes are object code that `ObjectCode` links for this process: ELF of x86-64.

    Other processors require a flush of the instruction cache.
    """
    return code[:4] == _ELF and code[_MACHINE : _MACHINE + 2] == _X86.to_bytes(2, "little")


class ObjectCode:
    """The loaded sections of an object, concatenated: `size` bytes.

    `calls` are the names of functions that the object calls but does not define. ToolchainError if the bytes are not
    relocatable object code.
    """

    def __init__(self, code: bytes) -> None:
        self._code = code
        try:
            self._read()
            self._find_outside()
        except (struct.error, IndexError, ValueError) as error:
            raise ToolchainError(
                f"{len(code)} bytes are not relocatable object code (ELF, x86-64, AArch64, Arm, Hexagon or RISC-V): "
                f"{error}",
                code="object",
            ) from None

    @cached_property
    def symbols(self) -> dict[str, int]:
        """The offsets of all symbols in the sections, by name."""
        return self._offsets(self._table)

    @cached_property
    def functions(self) -> dict[str, int]:
        """The offsets of the symbols that are visible to other code."""
        return self._offsets([symbol for symbol in self._table if symbol.information >> 4 == _GLOBAL])

    def _offsets(self, symbols: Sequence[_Symbol]) -> dict[str, int]:
        starts = self._starts
        return {self._name(s): starts[s.section] + s.value for s in symbols if s.name and s.section in starts}

    def require(self, outside: Collection[str]) -> None:
        """Raise ToolchainError unless every function that the object calls is one of the names `outside`."""
        lacking = [name for name in self.calls if name not in outside]
        if lacking:
            raise ToolchainError(
                f"object code calls {', '.join(lacking)}; there is {', '.join(sorted(outside)) or 'nothing'} to call",
                code="symbol",
            )

    def at(self, address: int, outside: Mapping[str, int] = _NOTHING) -> bytes:
        """Return the bytes that run at an address; called functions have the addresses `outside`."""
        memory = bytearray(self.size)
        starts, table, stubs = self._starts, self._table, self._stubs
        for n, start in starts.items():
            section = self._sections[n]
            if section.kind != _NO_BITS:
                memory[start : start + section.size] = self._contents(section)
        targets = {n: outside[name] for n, name in self._outside.items()}
        for n in {symbol for _, _, symbol, _ in self._places} - targets.keys():
            targets[n] = address + starts[table[n].section] + table[n].value
        for n, stub in stubs.items():
            _STUB.pack_into(memory, stub, _JUMP, targets[n])
        patches = _PATCHES[self.machine]
        is_halved = self.machine == _RISCV
        far = {address + place: targets[n] + addend for place, kind, n, addend in self._places if kind == _UPPER}
        for place, kind, n, addend in self._places:
            if is_halved and kind in _LOWER:
                form, patch = patches[kind]
                (old,) = form.unpack_from(memory, place)
                form.pack_into(memory, place, patch(far[targets[n]], targets[n], old))
                continue
            target = targets[n]
            if n in stubs and kind in _ADDRESSES:
                target = address + stubs[n] + len(_JUMP)
            elif n in stubs and n in self._outside and kind in _NEAR_CALLS:
                target = address + stubs[n]
            form, patch = patches[kind]
            (old,) = form.unpack_from(memory, place)
            form.pack_into(memory, place, patch(target + addend, address + place, old))
        return bytes(memory)

    def _find_outside(self) -> None:
        """Find the symbols that the object lacks, and append stubs of x86-64 to the sections."""
        self._stubs: dict[int, int] = {}
        self._outside: dict[int, str] = {}
        for _, kind, n, _ in self._places:
            absent = self._table[n].section not in self._starts
            if absent and n not in self._outside:
                self._outside[n] = self._name(self._table[n])
            if self.machine == _X86 and n not in self._stubs and (absent or kind in _ADDRESSES):
                self._stubs[n] = self.size
                self.size += _STUB.size
        self.calls = tuple(sorted(self._outside.values()))

    def _read(self) -> None:
        forms = self._forms = _FORMS.get(self._code[_CLASS], _FORMS[2])
        header = forms.header.unpack_from(self._code)
        magic, kind, self.machine = header[:3]
        if magic[:4] + magic[5:6] != _ELF + b"\x01" or kind != _RELOCATABLE or self.machine not in _PATCHES:
            raise ValueError("the header is another one")
        at, count = header[6], header[12]
        records = forms.section.iter_unpack(self._code[at : at + count * forms.section.size])
        self._sections = [*map(_Section._make, records)]
        if len(self._sections) != count:
            raise ValueError(f"{count} sections are announced, and {len(self._sections)} in the file")
        self.size = 0
        self._starts: dict[int, int] = {}
        for n, s in enumerate(self._sections):
            if s.kind != _NO_BITS and s.offset + s.size > len(self._code):
                raise ValueError(f"section {n} ends beyond the file")
            if s.flags & _LOADED:
                self._starts[n] = -(-self.size // max(s.alignment, 1)) * max(s.alignment, 1)
                self.size = self._starts[n] + s.size
        self._table: list[_Symbol] = []
        self._names = 0
        for s in self._sections:
            if s.kind == _SYMBOLS:
                found = forms.symbol.iter_unpack(self._contents(s))
                self._table = [*map(_Symbol._make, map(forms.fields, found))]
                self._names = self._sections[s.link].offset
        tables = (s for s in self._sections if s.kind in (_ADDENDS, _PLACES))
        self._places = [place for s in tables for place in self._relocations(s)]

    def _contents(self, section: _Section) -> bytes:
        return self._code[section.offset : section.offset + section.size]

    def _name(self, symbol: _Symbol) -> str:
        start = self._names + symbol.name
        return self._code[start : self._code.index(b"\0", start)].decode()  # UnicodeDecodeError is a ValueError

    def _relocations(self, table: _Section) -> list[tuple[int, int, int, int]]:
        """Return the offset in the loaded sections, the kind, the symbol's number, and the addend of each relocation.
        """
        if table.info not in self._starts:
            return []
        found: list[tuple[int, int, int, int]] = []
        bits, known = self._forms.kind_bits, _PATCHES[self.machine]
        start, size = self._starts[table.info], self._sections[table.info].size
        mask = (1 << bits) - 1
        form = self._forms.relocation if table.kind == _ADDENDS else self._forms.place
        for offset, info, *given in form.iter_unpack(self._contents(table)):
            symbol, kind = info >> bits, info & mask
            if not kind:  # the place needs no change
                continue
            if kind not in known:
                raise ValueError(f"relocation {len(found)} is of kind {kind}; known are {[*known]}")
            if symbol >= len(self._table) or offset + known[kind][0].size > size:
                raise ValueError(f"relocation {len(found)} is of symbol {symbol} at {offset:#x}")
            if not given:
                if self.machine != _ARM:
                    raise ValueError(f"relocation {len(found)} has no addend")
                (old,) = known[kind][0].unpack_from(self._code, self._sections[table.info].offset + offset)
                given = [_HELD[kind](old)]
            found.append((start + offset, kind, symbol, *given))
        return found
