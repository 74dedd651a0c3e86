"""`wasm_module`: a module of WebAssembly from one object, without a linker.

The module exports functions of the object by name, its stack pointer, and the table of functions that are called by
address, if there are any. Its memory is its own, which it exports, or comes from whoever instantiates it; so do
functions that the object does not define (from ``env``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from convsmith.codegen.wasm_object import CODE, DATA, FUNCTION, IMPORT, MAGIC, TYPE, WasmImport, WasmObject, WasmReader
from convsmith.diag.errors import ToolchainError
from convsmith.diag.record import record

__all__ = ["FUNCTION_TABLE", "PAGE_BYTES", "STACK_POINTER", "ModuleMemory", "wasm_module"]

PAGE_BYTES = 1 << 16
"""Bytes of a page, the unit of the size of a memory."""
STACK_POINTER = "__stack_pointer"
"""The global variable that holds the address of the end of free memory on the stack."""
FUNCTION_TABLE = "__indirect_function_table"
"""The table of the functions whose addresses code takes: an address is a place in it."""
_TABLE, _MEMORY, _GLOBAL, _EXPORT, _ELEMENTS, _COUNT = 4, 5, 6, 7, 9, 12
_ORDER = (TYPE, IMPORT, FUNCTION, _TABLE, _MEMORY, _GLOBAL, _EXPORT, _ELEMENTS, _COUNT, CODE, DATA)
_FUNCTIONS, _TABLES, _MEMORIES, _GLOBALS = 0, 1, 2, 3
"""Kinds of imports and exports."""
_FUNCTION_REFERENCE, _I32, _MUTABLE, _CONST, _END = 0x70, 0x7F, 1, b"\x41", b"\x0b"
_UNBOUNDED, _SHARED = 0, 3
"""Kinds of the size of a memory: a minimum; a minimum and a maximum of a memory that threads share."""
_LEB, _SIGNED_LEB, _WORD = {3}, {4}, {5}
"""Kinds of relocations that hold an address: as a number without sign, with sign, and as four bytes."""
_INDICES = {0, 1, 2, 6, 7, 20}
"""Kinds that hold an index of a function, a type, a global or a table, or a place in the table of functions. All of
these stay as they are.
"""


@record(frozen=True)
class ModuleMemory:
    """The memory of a module: data lie from ``data`` on, and the stack ends at ``stack``.

    A memory of the module's own has ``pages`` of 64 KiB; without them, the module imports ``env.memory``. So does a
    module whose memory ``is_shared``: threads instantiate it on one memory of exactly so many ``pages``. Data that the
    object does not define have an address in ``outside``. ``contents`` are further bytes with their addresses.
    """

    data: int
    stack: int
    pages: int = 0
    outside: Mapping[str, int] | None = None
    contents: Sequence[tuple[int, bytes]] = ()
    is_shared: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the module defines the memory."""
        return bool(self.pages) and not self.is_shared


def wasm_module(code: bytes, exports: Iterable[str], memory: ModuleMemory) -> bytes:
    """Return the module of object ``code`` that exports the functions ``exports``.

    ToolchainError if the object does not define such a function, or needs what the module cannot have.
    """
    own = WasmObject(code)
    addresses = _addresses(own, memory)
    if unsupported := {x.kind for xs in own.relocations.values() for x in xs} - (
        _LEB | _SIGNED_LEB | _WORD | _INDICES
    ):
        raise ToolchainError(
            f"object code for WebAssembly has relocations of the kinds {sorted(unsupported)}; modules have those of "
            "addresses and of calls",
            code="relocation",
        )
    sections = {number: own.sections[number] for number in (TYPE, FUNCTION, CODE) if number in own.sections}
    sections[IMPORT] = _imports(own, memory)
    if memory.is_own:
        sections[_MEMORY] = b"\x01\x00" + number(memory.pages)
    if _ELEMENTS in own.sections:
        sections[_ELEMENTS] = own.sections[_ELEMENTS]
        sections[_TABLE] = b"\x01" + bytes((_FUNCTION_REFERENCE, 0)) + number(1 + _places(own.sections[_ELEMENTS]))
    sections[_GLOBAL] = b"\x01" + bytes((_I32, _MUTABLE)) + _CONST + signed(memory.stack) + _END
    sections[_EXPORT] = _exports(own, exports, memory)
    sections[CODE] = _relocated(own, CODE, addresses)
    segments = [
        (address, _relocated(own, DATA, addresses)[x.start : x.start + x.size])
        for address, x in zip(_starts(own, memory), own.segments)
    ]  # fmt: skip
    if parts := [*segments, *memory.contents]:
        held = [b"\x00" + _CONST + signed(at) + _END + number(len(content)) + content for at, content in parts]
        sections[DATA] = b"".join((number(len(held)), *held))
    present = [(x, sections[x]) for x in _ORDER if sections.get(x)]
    return b"".join((MAGIC, *(bytes((x,)) + number(len(content)) + content for x, content in present)))


def number(value: int, size: int = 1) -> bytes:
    """Return a number without sign, in at least ``size`` bytes."""
    found = bytearray()
    while value > 127 or len(found) + 1 < size:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def signed(value: int, size: int = 1) -> bytes:
    """Return a number of 32 bits with its sign, in at least ``size`` bytes."""
    value = (value + (1 << 31)) % (1 << 32) - (1 << 31)
    found = bytearray()
    while not -64 <= value < 64 or len(found) + 1 < size:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value & 127))


def _named(text: str) -> bytes:
    return number(len(text.encode())) + text.encode()


def _starts(own: WasmObject, memory: ModuleMemory) -> list[int]:
    """Return the address of each segment of data."""
    found, at = [], memory.data
    for segment in own.segments:
        at += -at % segment.alignment
        found.append(at)
        at += segment.size
    return found


def _addresses(own: WasmObject, memory: ModuleMemory) -> dict[int, int]:
    """Return the address of each symbol of data, by the number of the symbol."""
    starts, outside = _starts(own, memory), memory.outside or {}
    found = {}
    for n, symbol in enumerate(own.symbols):
        if symbol.kind != 1:
            continue
        if symbol.is_defined:
            found[n] = starts[symbol.number] + symbol.offset
        elif symbol.name in outside:
            found[n] = outside[symbol.name]
        else:
            raise ToolchainError(
                f"object code for WebAssembly uses data of another object: {symbol.name}", code="symbol"
            )
    return found


def _relocated(own: WasmObject, section: int, addresses: Mapping[int, int]) -> bytes:
    """Return the contents of a section with the addresses of data."""
    made = bytearray(own.sections.get(section, b""))
    for kind, offset, symbol, addend in own.relocations.get(section, ()):
        if kind in _INDICES:
            continue
        value = addresses[symbol] + addend
        if kind in _WORD:
            word = value.to_bytes(4, "little")
        else:
            word = number(value, 5) if kind in _LEB else signed(value, 5)
        made[offset : offset + len(word)] = word
    return bytes(made)


def _places(elements: bytes) -> int:
    """Return the number of functions in the table, whose first place is empty."""
    reader = WasmReader(elements)
    reader.take(len(b"\x01\x00\x41\x01\x0b"))  # one segment, which begins at place 1
    return reader.number()


def _imports(own: WasmObject, memory: ModuleMemory) -> bytes:
    """Return the section of imports: functions, and the memory unless the module has its own."""
    kept = [x for x in own.imports if x.kind == _FUNCTIONS]
    if others := [x.name for x in own.imports if x.kind == _GLOBALS and x.name != STACK_POINTER]:
        raise ToolchainError(f"object code for WebAssembly uses global variables: {', '.join(others)}", code="symbol")
    if memory.is_shared:
        size = bytes((_SHARED,)) + 2 * number(memory.pages)
        kept.append(WasmImport("env", "memory", _MEMORIES, size))
    elif not memory.pages:
        kept.append(WasmImport("env", "memory", _MEMORIES, bytes((_UNBOUNDED, 0))))
    texts = [_named(x.module) + _named(x.name) + bytes((x.kind,)) + x.description for x in kept]
    return b"".join((number(len(texts)), *texts)) if texts else b""


def _exports(own: WasmObject, exports: Iterable[str], memory: ModuleMemory) -> bytes:
    """Return the section of exports: functions, the stack pointer, and the memory and the table of functions if the
    module has them.
    """
    functions = own.functions
    if missing := [name for name in exports if name not in functions]:
        raise ToolchainError(f"object code for WebAssembly has no {', '.join(missing)}", code="symbol")
    texts = [_named(name) + bytes((_FUNCTIONS,)) + number(functions[name]) for name in exports]
    texts.append(_named(STACK_POINTER) + bytes((_GLOBALS,)) + b"\x00")
    if _ELEMENTS in own.sections:
        texts.append(_named(FUNCTION_TABLE) + bytes((_TABLES,)) + b"\x00")
    if memory.is_own:
        texts.append(_named("memory") + bytes((_MEMORIES,)) + b"\x00")
    return b"".join((number(len(texts)), *texts))
