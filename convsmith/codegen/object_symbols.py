"""The symbols that object code uses and does not define, and the size of its instructions, in the object formats of
systems: ELF, COFF, Mach-O and WebAssembly's.

A name is the one that a program in C gives; Mach-O puts an underscore before it, which is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import llvmlite.binding as llvm

from convsmith.codegen.artifact import ObjectFormat, object_format
from convsmith.codegen.wasm_object import WasmObject
from convsmith.diag.errors import ToolchainError

__all__ = ["code_bytes", "undefined_symbols"]

_COFF_HEADER, _COFF_SYMBOL, _COFF_EXTERNAL = struct.Struct("<HHIIIHH"), struct.Struct("<8sIhHBB"), 2
_MACH_HEADER, _MACH_COMMAND, _MACH_SYMBOL = struct.Struct("<8I"), struct.Struct("<II"), struct.Struct("<IBBHQ")
_MACH_TABLE, _MACH_KIND, _MACH_EXTERNAL = 2, 0x0E, 1
"""The command that locates the symbols, the bits of a symbol's kind (0: it is not defined), and the bit of symbols that
other code sees.
"""


def undefined_symbols(code: bytes) -> tuple[str, ...]:
    """Return the names of the symbols that object ``code`` uses and does not define, sorted. ToolchainError for bytes
    of another format.
    """
    form = object_format(code)
    if not form:
        raise ToolchainError(f"{len(code)} bytes are no object code of ELF, COFF, Mach-O or WebAssembly", code="object")
    return tuple(sorted(_READERS[form](code)))


def code_bytes(code: bytes) -> int:
    """Return the bytes of instructions in object ``code``, of any format."""
    return sum(s.size() for s in llvm.ObjectFileRef.from_data(code).sections() if s.is_text())


def _of_elf(code: bytes) -> Iterator[str]:
    sections = {s.name(): s.data() for s in llvm.ObjectFileRef.from_data(code).sections()}
    names, table = sections[b".strtab"], sections[b".symtab"]
    is_wide = code[4] == 2
    form = struct.Struct("<IBBHQQ" if is_wide else "<IIIBBH")
    for record in form.iter_unpack(table):
        section = record[3] if is_wide else record[5]
        start = record[0]
        if section == 0 and start:
            yield _text(names, start)


def _of_coff(code: bytes) -> Iterator[str]:
    start, count = _COFF_HEADER.unpack_from(code)[3:5]
    names = start + count * _COFF_SYMBOL.size
    auxiliary = 0
    for n in range(count):
        name, value, section, _, storage, more = _COFF_SYMBOL.unpack_from(code, start + n * _COFF_SYMBOL.size)
        if auxiliary:
            auxiliary -= 1
            continue
        auxiliary = more
        if section == 0 and value == 0 and storage == _COFF_EXTERNAL:
            far = int.from_bytes(name[4:], "little")
            yield _text(code, names + far) if name[:4] == bytes(4) else name.rstrip(b"\0").decode()


def _of_mach_o(code: bytes) -> Iterator[str]:
    at = _MACH_HEADER.size
    for _ in range(_MACH_HEADER.unpack_from(code)[4]):
        kind, size = _MACH_COMMAND.unpack_from(code, at)
        if kind == _MACH_TABLE:
            start, count, names = struct.unpack_from("<III", code, at + _MACH_COMMAND.size)
            for name, flags, *_ in _MACH_SYMBOL.iter_unpack(code[start : start + count * _MACH_SYMBOL.size]):
                if flags & _MACH_EXTERNAL and not flags & _MACH_KIND:
                    yield _text(code, names + name + 1)
        at += size


def _of_wasm(code: bytes) -> Iterator[str]:
    yield from WasmObject(code).undefined


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


_READERS: dict[ObjectFormat, Callable[[bytes], Iterator[str]]] = {
    "elf": _of_elf, "coff": _of_coff, "mach-o": _of_mach_o, "wasm": _of_wasm,
}  # fmt: skip
"""By the format of object code: the function that reads its undefined symbols."""
