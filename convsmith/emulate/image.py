"""`Image`: the emulated machine's memory, as it is when kernels begin to run.

Every piece has pages of its own with the rights that it needs, and no page is mapped next to them: what reads or writes
beyond a piece ends the run. The start-up code of a machine stands at START and reads the page `Image.numbers`: the top
of the stack, how many calls and how many results there are, and the address of a list of them.
"""

from __future__ import annotations

import struct
from typing import Literal

__all__ = ["PAGE", "START", "START_SIZE", "Image", "Rights", "numbers_at"]

Rights = Literal["read", "write", "execute"]
"""Besides reading, which all may."""

PAGE = 4096
"""Bytes of a page of most machines."""
START = 0xF0000
START_SIZE = 0x10000
"""Address and bytes of the code that begins the run."""

_STACK = 1 << 20


def numbers_at(page: int) -> int:
    """Return the address of the page that the start-up code reads; the page before it is the machine's own."""
    return START + START_SIZE + page


class Image:
    """Pieces of memory, the calls that are to be made, and the results that are to be sent.

    A piece has pages of `page` bytes each; START is a multiple of it.
    """

    def __init__(self, page: int = PAGE) -> None:
        self.page, self.numbers = page, numbers_at(page)
        self.pages: dict[int, bytes] = {}
        """Contents by page number; a page without any is of zeros."""
        self.rights: dict[int, Rights] = dict.fromkeys(range(START // page, (START + START_SIZE) // page), "execute")
        """Return the permissions of each page, by page number."""
        self.rights[self.numbers // page] = "read"
        self._calls: list[tuple[int, int, int, int]] = []
        self._results: list[tuple[int, int]] = []
        self.end = self.numbers + page
        """Address behind all memory."""

    def reserve(self, size: int, rights: Rights, alignment: int) -> int:
        """The address of a new piece, which ends at the last multiple of `alignment` of its pages, or there about."""
        page = self.page
        room = -(-size // page) * page
        start = self.end + page
        self.end = start + room
        self.rights |= dict.fromkeys(range(start // page, self.end // page), rights)
        return start + (room - size) // alignment * alignment

    def write(self, address: int, data: bytes) -> None:
        """Fill a piece."""
        size = self.page
        first, last = address // size, -(-(address + len(data)) // size)
        memory = bytes(address % size) + data
        memory += bytes(-len(memory) % size)
        self.pages |= {page: memory[n * size : (n + 1) * size] for n, page in enumerate(range(first, last))}

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of pieces that were filled."""
        first, last = address // self.page, -(-(address + size) // self.page)
        return b"".join(self.pages[page] for page in range(first, last))[address % self.page :][:size]

    def place(self, data: bytes, rights: Rights, alignment: int) -> int:
        """A new piece with its contents."""
        address = self.reserve(len(data), rights, alignment)
        self.write(address, data)
        return address

    def call(self, function: int, block: int, part: int = 0, parts: int = 1) -> None:
        """Have part `part` of `parts` of a function called, after the calls before."""
        self._calls.append((function, block, part, parts))

    def result(self, address: int, size: int) -> None:
        """Have bytes sent when all has run, after those before."""
        self._results.append((address, size))

    @property
    def result_size(self) -> int:
        """Bytes of all results."""
        return sum(size for _, size in self._results)

    def finish(self) -> None:
        """Write what the start-up code reads. No call or result can be added any more."""
        stack = self.reserve(_STACK, "write", self.page) + _STACK
        listed = b"".join(struct.pack(f"<{len(item)}Q", *item) for item in (*self._calls, *self._results))
        numbers = self.place(listed, "read", 8)
        self.write(self.numbers, struct.pack("<4Q", stack, len(self._calls), len(self._results), numbers))
