"""`ObjectCode`: relocatable object code (ELF, x86-64, AArch64 or Hexagon) as bytes that run at an address of one's
choice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from convsmith.diag.errors import ToolchainError

__all__ = ["ObjectCode"]


class _Forms(NamedTuple):
    """The records of a file of one class: 64 bits, or 32."""

    header: struct.Struct
    section: struct.Struct
    symbol: struct.Struct
    relocation: struct.Struct
    numbers: tuple[int, int, int]
    """Places of name, section and value in the record of a symbol."""
    kind_bits: int
    """Bits of a relocation's information that are its kind; the others are the number of its symbol."""


_FORMS = {
    1: _Forms(struct.Struct("<16sHHIIIIIHHHHHH"), struct.Struct("<10I"), struct.Struct("<IIIBBH"),
              struct.Struct("<IIi"), (0, 5, 1), 8),
    2: _Forms(struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"),
              struct.Struct("<QQq"), (0, 3, 4), 32),
}  # fmt: skip
"""By the byte of the header that names the class."""
_CLASS = 4

_RELOCATABLE = 1
_SYMBOLS, _ADDENDS, _NO_BITS = 2, 4, 8
"""Kinds of sections: the symbol table, relocations with addends, zeros that take no room in the file."""
_LOADED = 2
"""Flag of sections that are there when code runs."""
_Patch = Callable[[int, int, int], int]
"""The new word from the target's address, the place's own, and the old word."""
_PAGE = 0xFFF


def _word(target: int, place: int, old: int) -> int:
    return target


def _distance(target: int, place: int, old: int) -> int:
    return target - place


def _branch(target: int, place: int, old: int) -> int:
    return old & ~0x3FFFFFF | (target - place) >> 2 & 0x3FFFFFF


def _page(target: int, place: int, old: int) -> int:
    pages = (target >> 12) - (place >> 12)
    return old | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _within_page(size: int) -> _Patch:
    """Place in a page, in units of an access of ``size`` bytes."""
    return lambda target, place, old: old | (target & _PAGE) // size << 10


def _scattered(old: int, mask: int, value: int) -> int:
    """The word with the lowest bits of a value where the mask has bits."""
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
    """Add to the address of the packet, whose first word is the extender with the other bits."""
    return _scattered(old, 0x1F80, target - place & 63)


_PATCHES: dict[int, dict[int, tuple[str, _Patch]]] = {
    62: {
        1: ("<Q", _word), 10: ("<I", _word), 11: ("<i", _word), 2: ("<i", _distance), 4: ("<i", _distance),
    },
    183: {
        257: ("<Q", _word), 258: ("<I", _word), 260: ("<q", _distance), 261: ("<i", _distance), 275: ("<I", _page),
        282: ("<I", _branch), 283: ("<I", _branch), 277: ("<I", _within_page(1)), 278: ("<I", _within_page(1)),
        284: ("<I", _within_page(2)), 285: ("<I", _within_page(4)), 286: ("<I", _within_page(8)),
        299: ("<I", _within_page(16)),
    },
    164: {
        1: ("<I", _jump), 36: ("<I", _jump), 6: ("<I", _word), 16: ("<I", _extended),
        31: ("<i", _distance), 65: ("<I", _rest),
    },
}  # fmt: skip
"""By machine, x86-64, AArch64 and Hexagon: kinds of relocations, each with its word's form."""


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
    name: str
    section: int
    value: int


class ObjectCode:
    """The loaded sections of an object, one after the other: `size` bytes; `symbols` are offsets in them by name.

    `outside` are addresses of what the object calls but does not hold. ToolchainError when some are missing, or when
    the bytes are no such object.
    """

    def __init__(self, code: bytes, outside: Mapping[str, int]) -> None:
        self._code, self._outside = code, outside
        try:
            self._read()
        except (struct.error, IndexError, ValueError) as error:
            raise ToolchainError(
                f"{len(code)} bytes are not relocatable object code (ELF, x86-64, AArch64 or Hexagon): {error}",
                code="object",
            ) from None
        called = [self._table[symbol] for _, _, symbol, _ in self._places]
        lacking = sorted({s.name for s in called if s.section not in self._starts and s.name not in outside})
        if lacking:
            raise ToolchainError(
                f"object code calls {', '.join(lacking)}; there is {', '.join(sorted(outside)) or 'nothing'} to call",
                code="symbol",
            )

    def at(self, address: int) -> bytes:
        """The bytes that run at an address."""
        memory = bytearray(self.size)
        for n, start in self._starts.items():
            section = self._sections[n]
            if section.kind != _NO_BITS:
                memory[start : start + section.size] = self._code[section.offset : section.offset + section.size]
        for place, kind, n, addend in self._places:
            symbol = self._table[n]
            if symbol.section in self._starts:
                target = address + self._starts[symbol.section] + symbol.value + addend
            else:
                target = self._outside[symbol.name] + addend
            form, patch = _PATCHES[self.machine][kind]
            (old,) = struct.unpack_from(form, memory, place)
            struct.pack_into(form, memory, place, patch(target, address + place, old))
        return bytes(memory)

    def _read(self) -> None:
        forms = self._forms = _FORMS.get(self._code[_CLASS], _FORMS[2])
        header = forms.header.unpack_from(self._code)
        magic, kind, self.machine = header[:3]
        if magic[:4] + magic[5:6] != b"\x7fELF\x01" or kind != _RELOCATABLE or self.machine not in _PATCHES:
            raise ValueError("the header is another one")
        at, count = header[6], header[12]
        places = range(at, at + count * forms.section.size, forms.section.size)
        self._sections = [_Section(*forms.section.unpack_from(self._code, place)) for place in places]
        self.size = 0
        self._starts: dict[int, int] = {}
        for n, s in enumerate(self._sections):
            if s.kind != _NO_BITS and s.offset + s.size > len(self._code):
                raise ValueError(f"section {n} ends beyond the file")
            if s.flags & _LOADED:
                self._starts[n] = -(-self.size // max(s.alignment, 1)) * max(s.alignment, 1)
                self.size = self._starts[n] + s.size
        self._table: list[_Symbol] = []
        for s in self._sections:
            if s.kind == _SYMBOLS:
                self._table = [self._symbol(s, n) for n in range(s.size // forms.symbol.size)]
        self.symbols = {
            s.name: self._starts[s.section] + s.value for s in self._table if s.name and s.section in self._starts
        }
        self._places = [place for s in self._sections if s.kind == _ADDENDS for place in self._relocations(s)]

    def _symbol(self, table: _Section, n: int) -> _Symbol:
        record = self._forms.symbol.unpack_from(self._code, table.offset + n * self._forms.symbol.size)
        name, section, value = (record[place] for place in self._forms.numbers)
        start = self._sections[table.link].offset + name
        return _Symbol(self._code[start : self._code.index(b"\0", start)].decode(), section, value)

    def _relocations(self, table: _Section) -> list[tuple[int, int, int, int]]:
        """Place in the loaded sections, kind, number of the symbol, and what is added to it."""
        if table.info not in self._starts:
            return []
        found, form = [], self._forms.relocation
        for n in range(table.size // form.size):
            offset, info, addend = form.unpack_from(self._code, table.offset + n * form.size)
            symbol, kind = info >> self._forms.kind_bits, info & (1 << self._forms.kind_bits) - 1
            known = _PATCHES[self.machine]
            if kind not in known:
                raise ValueError(f"relocation {n} is of kind {kind}; known are {[*known]}")
            if symbol >= len(self._table) or offset + 4 > self._sections[table.info].size:
                raise ValueError(f"relocation {n} is of symbol {symbol} at {offset:#x}")
            found.append((self._starts[table.info] + offset, kind, symbol, addend))
        return found
