"""`Image`: the emulated machine's memory, as it is when kernels begin to run.

Addresses are the same before and after translation. Every piece has pages of its own with the rights that it needs, and
no page is mapped next to them: what reads or writes beyond a piece ends the run. The form of the first two pages is
that of startup.s. Memory comes as part of the machine's ROM, where equal pages stand once.
"""

from __future__ import annotations

import struct
from typing import Literal

from convsmith.diag.errors import UnsupportedError

__all__ = ["PAGE", "ROM", "ROM_SIZE", "Image", "Rights"]

Rights = Literal["read", "write", "execute"]
"""Besides reading, which all may."""

PAGE = 4096
ROM = 0xF0000
ROM_SIZE = 0x10000
"""Where the code is that begins the run."""

_IMAGE = 0x100000
_NUMBERS = _IMAGE + PAGE
_STACK = 1 << 20
_MOST = (1 << 22) - ROM_SIZE
"""Bytes that Bochs lets a ROM have, less the code."""

_PRESENT, _WRITE, _NO_EXECUTE = 1, 2, 1 << 63
_FLAGS = {"read": _PRESENT | _NO_EXECUTE, "write": _PRESENT | _WRITE | _NO_EXECUTE, "execute": _PRESENT}
_LEVEL = 512
"""Entries of a page table."""


class Image:
    """Pieces of memory, the calls that are to be made, and the results that are to be sent."""

    def __init__(self) -> None:
        self._pages: dict[int, bytes] = {}
        """Contents by page number."""
        self._rights = dict.fromkeys(range(ROM // PAGE, (ROM + ROM_SIZE) // PAGE), _FLAGS["execute"])
        self._rights[_NUMBERS // PAGE] = _FLAGS["read"]
        self._calls: list[tuple[int, int]] = []
        self._results: list[tuple[int, int]] = []
        self.end = _NUMBERS + PAGE
        """Address behind all memory."""

    def reserve(self, size: int, rights: Rights, alignment: int) -> int:
        """The address of a new piece, which ends at the last multiple of `alignment` of its pages, or there about."""
        room = -(-size // PAGE) * PAGE
        start = self.end + PAGE
        self.end = start + room
        self._rights |= dict.fromkeys(range(start // PAGE, self.end // PAGE), _FLAGS[rights])
        return start + (room - size) // alignment * alignment

    def write(self, address: int, data: bytes) -> None:
        """Fill a piece."""
        first, last = address // PAGE, -(-(address + len(data)) // PAGE)
        memory = bytes(address % PAGE) + data
        memory += bytes(-len(memory) % PAGE)
        self._pages |= {page: memory[n * PAGE : (n + 1) * PAGE] for n, page in enumerate(range(first, last))}

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of pieces that were filled."""
        first, last = address // PAGE, -(-(address + size) // PAGE)
        return b"".join(self._pages[page] for page in range(first, last))[address % PAGE :][:size]

    def place(self, data: bytes, rights: Rights, alignment: int) -> int:
        """A new piece with its contents."""
        address = self.reserve(len(data), rights, alignment)
        self.write(address, data)
        return address

    def call(self, function: int, block: int) -> None:
        """Have a function called, after those before."""
        self._calls.append((function, block))

    def result(self, address: int, size: int) -> None:
        """Have bytes sent when all has run, after those before."""
        self._results.append((address, size))

    @property
    def result_size(self) -> int:
        """Bytes of all results."""
        return sum(size for _, size in self._results)

    def rom(self, code: bytes, pages_at: int) -> bytes:
        """The machine's ROM: all memory, then `code`, which is told at offset `pages_at` where the list of pages is.

        UnsupportedError when it becomes larger than Bochs allows. Nothing can be added to the image any more.
        """
        stack = self.reserve(_STACK, "write", PAGE) + _STACK
        pairs = b"".join(struct.pack("<2Q", *pair) for pair in (*self._calls, *self._results))
        numbers = self.place(pairs, "read", 8)
        self.write(_NUMBERS, struct.pack("<4Q", stack, len(self._calls), len(self._results), numbers))
        self.write(_IMAGE, self._tables())
        contents = {page: n for n, page in enumerate(dict.fromkeys(self._pages.values()))}
        listed = -(-(4 + 8 * len(self._pages)) // PAGE) * PAGE
        size = listed + len(contents) * PAGE
        if size > _MOST:
            raise UnsupportedError(
                f"memory of {size >> 10} KiB does not fit into the emulated machine's ROM; legal are problems of up to "
                f"{_MOST >> 10} KiB",
                code="memory",
            )
        start = (1 << 32) - len(code) - size
        entries = ((n * PAGE, start + listed + contents[page] * PAGE) for n, page in self._pages.items())
        directory = struct.pack("<I", len(self._pages)) + b"".join(struct.pack("<2I", *entry) for entry in entries)
        told = code[:pages_at] + struct.pack("<I", start) + code[pages_at + 4 :]
        return b"".join((directory.ljust(listed, b"\0"), *contents, told))

    def _tables(self) -> bytes:
        """Write the page tables behind all else, and give their root."""
        level = {page: page * PAGE | flags for page, flags in self._rights.items()}
        for _ in range(3):
            tables: dict[int, dict[int, int]] = {}
            for n, entry in level.items():
                tables.setdefault(n // _LEVEL, {})[n % _LEVEL] = entry
            level = {}
            for n, entries in tables.items():
                level[n] = self.end | _PRESENT | _WRITE
                self.write(self.end, _table(entries))
                self.end += PAGE
        return _table(level)


def _table(entries: dict[int, int]) -> bytes:
    return struct.pack(f"<{_LEVEL}Q", *(entries.get(n, 0) for n in range(_LEVEL)))
