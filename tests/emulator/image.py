"""`Image`: the emulated machine's memory, as it is when kernels begin to run.

Every piece has pages of its own with the rights that it needs, and no page is mapped next to them: what reads or writes
beyond a piece ends the run. The start-up code of a machine stands at START and reads the page NUMBERS: the top of the
stack, how many calls and how many results there are, and the address of a list of them.
"""

from __future__ import annotations

import struct
from typing import Literal

__all__ = ["NUMBERS", "PAGE", "START", "START_SIZE", "Image", "Rights"]

Rights = Literal["read", "write", "execute"]
"""Besides reading, which all may."""

PAGE = 4096
START = 0xF0000
START_SIZE = 0x10000
"""Address and bytes of the code that begins the run."""

NUMBERS = START + START_SIZE + PAGE
"""Address of the page that the start-up code reads; the page before it is the machine's own."""
_STACK = 1 << 20


class Image:
    """Pieces of memory, the calls that are to be made, and the results that are to be sent."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        """Contents by page number; a page without any is of zeros."""
        self.rights: dict[int, Rights] = dict.fromkeys(range(START // PAGE, (START + START_SIZE) // PAGE), "execute")
        """Return the permissions of each page, by page number."""
        self.rights[NUMBERS // PAGE] = "read"
        self._calls: list[tuple[int, int]] = []
        self._results: list[tuple[int, int]] = []
        self.end = NUMBERS + PAGE
        """Address behind all memory."""

    def reserve(self, size: int, rights: Rights, alignment: int) -> int:
        """The address of a new piece, which ends at the last multiple of `alignment` of its pages, or there about."""
        room = -(-size // PAGE) * PAGE
        start = self.end + PAGE
        self.end = start + room
        self.rights |= dict.fromkeys(range(start // PAGE, self.end // PAGE), rights)
        return start + (room - size) // alignment * alignment

    def write(self, address: int, data: bytes) -> None:
        """Fill a piece."""
        first, last = address // PAGE, -(-(address + len(data)) // PAGE)
        memory = bytes(address % PAGE) + data
        memory += bytes(-len(memory) % PAGE)
        self.pages |= {page: memory[n * PAGE : (n + 1) * PAGE] for n, page in enumerate(range(first, last))}

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of pieces that were filled."""
        first, last = address // PAGE, -(-(address + size) // PAGE)
        return b"".join(self.pages[page] for page in range(first, last))[address % PAGE :][:size]

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

    def finish(self) -> None:
        """Write what the start-up code reads. No call or result can be added any more."""
        stack = self.reserve(_STACK, "write", PAGE) + _STACK
        pairs = b"".join(struct.pack("<2Q", *pair) for pair in (*self._calls, *self._results))
        numbers = self.place(pairs, "read", 8)
        self.write(NUMBERS, struct.pack("<4Q", stack, len(self._calls), len(self._results), numbers))
