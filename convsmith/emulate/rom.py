"""The ROM of an emulated x86 machine: the pages of an image, with the code that copies them into memory.

Addresses are translated to themselves. `startup.s` defines the format of the ROM; equal pages are stored once.
"""

from __future__ import annotations

import struct

from convsmith.diag.errors import UnsupportedError
from convsmith.emulate.image import PAGE, START_SIZE, Image, Rights, numbers_at

__all__ = ["rom_of"]

_MAX_BYTES = (1 << 22) - START_SIZE
"""Maximum bytes of a ROM in Bochs, minus the code."""

_ROOT = numbers_at(PAGE) - PAGE
"""Address of the root of the page tables."""
_PRESENT, _WRITE, _NO_EXECUTE = 1, 2, 1 << 63
_FLAGS: dict[Rights, int] = {
    "read": _PRESENT | _NO_EXECUTE, "write": _PRESENT | _WRITE | _NO_EXECUTE, "execute": _PRESENT,
}  # fmt: skip
_LEVEL = 512
"""Entries of a page table."""


def rom_of(image: Image, code: bytes, pages_at: int) -> bytes:
    """Return the ROM: all memory, followed by `code`, which finds the offset of the list of pages at its offset
    `pages_at`.

    UnsupportedError if the ROM is larger than Bochs permits. The image must not be extended afterwards.
    """
    image.finish()
    image.write(_ROOT, _tables(image))
    contents = {page: n for n, page in enumerate(dict.fromkeys(image.pages.values()))}
    listed = -(-(4 + 8 * len(image.pages)) // PAGE) * PAGE
    size = listed + len(contents) * PAGE
    if size > _MAX_BYTES:
        raise UnsupportedError(
            f"memory of {size >> 10} KiB does not fit into the emulated machine's ROM; legal are problems of up to "
            f"{_MAX_BYTES >> 10} KiB",
            code="memory",
        )
    start = (1 << 32) - len(code) - size
    entries = ((n * PAGE, start + listed + contents[page] * PAGE) for n, page in image.pages.items())
    directory = struct.pack("<I", len(image.pages)) + b"".join(struct.pack("<2I", *entry) for entry in entries)
    told = code[:pages_at] + struct.pack("<I", start) + code[pages_at + 4 :]
    return b"".join((directory.ljust(listed, b"\0"), *contents, told))


def _tables(image: Image) -> bytes:
    """Write the page tables after all other memory, and return the address of their root."""
    level = {page: page * PAGE | _FLAGS[rights] for page, rights in image.rights.items()}
    for _ in range(3):
        tables: dict[int, dict[int, int]] = {}
        for n, entry in level.items():
            tables.setdefault(n // _LEVEL, {})[n % _LEVEL] = entry
        level = {}
        for n, entries in tables.items():
            level[n] = image.end | _PRESENT | _WRITE
            image.write(image.end, _table(entries))
            image.end += PAGE
    return _table(level)


def _table(entries: dict[int, int]) -> bytes:
    return struct.pack(f"<{_LEVEL}Q", *(entries.get(n, 0) for n in range(_LEVEL)))
