"""`WasmObject`: relocatable object code for WebAssembly, as LLVM writes it.

An object has the sections of a module, whose numbers of memory addresses are not known yet. Two kinds of custom
sections follow them: ``linking`` names functions and data, ``reloc.`` lists the places of addresses and indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from convsmith.diag.errors import ToolchainError

__all__ = [
    "CODE", "CUSTOM", "DATA", "FUNCTION", "IMPORT", "MAGIC", "TYPE", "WasmDataSegment", "WasmImport", "WasmObject",
    "WasmReader", "WasmRelocation", "WasmSymbol", "is_wasm",
]  # fmt: skip

MAGIC = b"\0asm\1\0\0\0"
"""The first bytes of objects and of modules: a mark, and version 1."""
CUSTOM, TYPE, IMPORT, FUNCTION, CODE, DATA = 0, 1, 2, 3, 10, 11
"""Numbers of sections."""
_SEGMENTS, _SYMBOLS = 5, 8
"""Numbers of the parts of the section ``linking``."""
_LOCAL, _HIDDEN, _UNDEFINED, _NAMED = 2, 4, 16, 64
"""Flags of symbols."""
_WITH_ADDEND = frozenset({3, 4, 5, 8, 9, 11, 14, 15, 16, 17, 21, 22, 23, 25})
"""Kinds of relocations that add a constant."""


class WasmReader:
    """Reads numbers and names from bytes, from a position on."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        """Return the next number, without sign."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def signed(self) -> int:
        """Return the next number, with sign."""
        start = self.at
        value = self.number()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> bits - 1 else value

    def name(self) -> str:
        """Return the next name."""
        return self.take(self.number()).decode()


class WasmImport(NamedTuple):
    """An import: its module, name, and kind (0 function, 1 table, 2 memory, 3 global), with its description."""

    module: str
    name: str
    kind: int
    description: bytes


class WasmSymbol(NamedTuple):
    """A symbol of the kind 0 (a function), 1 (data), 2 (a global), 3 (a section) or 5 (a table).

    ``number`` is that of the function or segment, and data begin at ``offset`` there. A symbol that ``is_defined`` is
    part of the object; others see it if it ``is_public``.
    """

    kind: int
    name: str
    number: int
    offset: int
    is_defined: bool
    is_public: bool


class WasmRelocation(NamedTuple):
    """A place in the contents of a section that depends on a symbol, by its number."""

    kind: int
    offset: int
    symbol: int
    addend: int


class WasmDataSegment(NamedTuple):
    """A segment of data: its alignment in bytes, and the place of its contents in the section of data."""

    alignment: int
    start: int
    size: int


class WasmObject:
    """The parts of an object. ToolchainError if bytes are no object for WebAssembly."""

    def __init__(self, data: bytes) -> None:
        if not is_wasm(data):
            raise ToolchainError(f"{len(data)} bytes are not object code for WebAssembly", code="object")
        self.sections: dict[int, bytes] = {}
        """Contents of the sections of a module, by number."""
        self.relocations: dict[int, list[WasmRelocation]] = {}
        """Relocations by the number of their section."""
        self.symbols: list[WasmSymbol] = []
        self._alignments: list[int] = []
        numbers = []
        reader = WasmReader(data, len(MAGIC))
        while reader.at < len(data):
            number = reader.take(1)[0]
            content = reader.take(reader.number())
            numbers.append(number)
            if number != CUSTOM:
                self.sections[number] = content
                continue
            custom = WasmReader(content)
            name = custom.name()
            if name == "linking":
                self._read_linking(custom)
            elif name.startswith("reloc."):
                section = numbers[custom.number()]
                self.relocations[section] = list(_relocations(custom))
        self.imports = list(_imports(WasmReader(self.sections[IMPORT]))) if IMPORT in self.sections else []

    def _read_linking(self, reader: WasmReader) -> None:
        reader.number()  # the version
        while reader.at < len(reader.data):
            part, size = reader.take(1)[0], reader.number()
            inner = WasmReader(reader.take(size))
            if part == _SEGMENTS:
                for _ in range(inner.number()):
                    inner.name()
                    self._alignments.append(1 << inner.number())
                    inner.number()
            elif part == _SYMBOLS:
                self.symbols = [self._symbol(inner) for _ in range(inner.number())]

    @staticmethod
    def _symbol(reader: WasmReader) -> WasmSymbol:
        kind, flags = reader.take(1)[0], reader.number()
        is_defined = not flags & _UNDEFINED
        name, index, offset = "", 0, 0
        if kind == 1:
            name = reader.name()
            if is_defined:
                index, offset = reader.number(), reader.number()
                reader.number()  # the size
        else:
            index = reader.number()
            if kind != 3 and (is_defined or flags & _NAMED):
                name = reader.name()
        return WasmSymbol(kind, name, index, offset, is_defined, is_defined and not flags & (_LOCAL | _HIDDEN))

    @property
    def segments(self) -> list[WasmDataSegment]:
        """The segments of data, in order."""
        if DATA not in self.sections:
            return []
        reader, found = WasmReader(self.sections[DATA]), []
        for n in range(reader.number()):
            reader.number()  # flags
            while reader.take(1)[0] != 0x0B:  # the expression of the address
                reader.signed()
            size = reader.number()
            found.append(WasmDataSegment(self._alignments[n], reader.at, size))
            reader.take(size)
        return found

    @property
    def functions(self) -> dict[str, int]:
        """The visible functions that the object defines, with their indices."""
        return {s.name: s.number for s in self.symbols if s.kind == 0 and s.is_public}

    @property
    def undefined(self) -> tuple[str, ...]:
        """The names of the functions and data that the object uses and does not define, in order."""
        functions = [x.name for x in self.imports if x.kind == 0]
        names = (
            functions[s.number] if s.kind == 0 and not s.name else s.name
            for s in self.symbols if s.kind in (0, 1) and not s.is_defined
        )  # fmt: skip
        return tuple(sorted(names))


def is_wasm(data: bytes) -> bool:
    """Return whether bytes begin as an object or a module for WebAssembly."""
    return data[: len(MAGIC)] == MAGIC


def _relocations(reader: WasmReader) -> Iterator[WasmRelocation]:
    for _ in range(reader.number()):
        kind = reader.take(1)[0]
        offset, symbol = reader.number(), reader.number()
        yield WasmRelocation(kind, offset, symbol, reader.signed() if kind in _WITH_ADDEND else 0)


def _imports(reader: WasmReader) -> Iterator[WasmImport]:
    for _ in range(reader.number()):
        module, name, kind = reader.name(), reader.name(), reader.take(1)[0]
        start = reader.at
        if kind == 0:
            reader.number()
        elif kind == 3:
            reader.take(2)
        else:
            if kind == 1:
                reader.take(1)
            has_most = reader.number() & 1
            reader.number()
            if has_most:
                reader.number()
        yield WasmImport(module, name, kind, reader.data[start : reader.at])
