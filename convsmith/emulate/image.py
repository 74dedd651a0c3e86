"""`Image`: the memory of the emulated machine at the moment when kernels begin to run.

Every piece has its own pages with the rights that it needs, and no page is mapped next to them: an access beyond a
piece ends the run. The start-up code of a machine is at START, or where the machine has memory, and reads the page
`Image.numbers`: the top of the stack, the numbers of calls and of results, and the address of the list of both.
"""

from __future__ import annotations

import struct
from typing import Literal

__all__ = ["PAGE", "START", "START_SIZE", "Image", "Rights", "numbers_at"]

Rights = Literal["read", "write", "execute"]
"""Rights in addition to reading, which every page permits."""

PAGE = 4096
"""Bytes of a page on most machines."""
START = 0xF0000
START_SIZE = 0x10000
"""Address and size in bytes of the code that begins the run."""

_STACK = 1 << 20


def numbers_at(page: int, start: int = START) -> int:
    """Return the address of the page that the start-up code reads; the page before it is reserved for the machine."""
    return start + START_SIZE + page


class Image:
    """Pieces of memory, the calls to be made, and the results to be sent.

    A piece has pages of `page` bytes each, of which the address `start` of the start-up code is a multiple.
    """

    def __init__(self, page: int = PAGE, start: int = START) -> None:
        self.page, self.start, self.numbers = page, start, numbers_at(page, start)
        self.pages: dict[int, bytes] = {}
        """Contents by page number; a page without contents is zero."""
        self.rights: dict[int, Rights] = dict.fromkeys(range(start // page, (start + START_SIZE) // page), "execute")
        """Rights of each page, by page number."""
        self.rights[self.numbers // page] = "read"
        self._calls: list[tuple[int, int, int, int]] = []
        self._results: list[tuple[int, int]] = []
        self.code = b""
        """Code that is not in memory."""
        self.end = self.numbers + page
        """The address after all memory."""

    def reserve(self, size: int, rights: Rights, alignment: int) -> int:
        """Return the address of a new piece, which ends at the last multiple of `alignment` within its pages."""
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
        """Return the address of a new piece with the given contents."""
        address = self.reserve(len(data), rights, alignment)
        self.write(address, data)
        return address

    def call(self, function: int, block: int, part: int = 0, parts: int = 1) -> None:
        """Add a call of part `part` of `parts` of a function after the calls added before."""
        self._calls.append((function, block, part, parts))

    def result(self, address: int, size: int) -> None:
        """Add bytes to send, after the results added before, when all calls have run."""
        self._results.append((address, size))

    @property
    def results(self) -> tuple[tuple[int, int], ...]:
        """The address and the size of each result, in order."""
        return tuple(self._results)

    @property
    def result_size(self) -> int:
        """Bytes of all results."""
        return sum(size for _, size in self._results)

    def finish(self) -> None:
        """Write the page that the start-up code reads. No call or result can be added afterwards."""
        stack = self.reserve(_STACK, "write", self.page) + _STACK
        listed = b"".join(struct.pack(f"<{len(item)}Q", *item) for item in (*self._calls, *self._results))
        numbers = self.place(listed, "read", 8)
        self.write(self.numbers, struct.pack("<4Q", stack, len(self._calls), len(self._results), numbers))
