"""A static executable (ELF, AArch64, Linux) of an image: each run of pages with equal rights is a segment."""

from __future__ import annotations

import struct
from itertools import groupby

from emulator.image import PAGE, Image

__all__ = ["executable"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_MAGIC = b"\x7fELF\x02\x01\x01"
_EXECUTABLE, _AARCH64, _LOADED = 2, 183, 1
_FLAGS = {"read": 4, "write": 6, "execute": 5}


def executable(image: Image, begin: int) -> bytes:
    """The file of a process that begins at the address `begin`. Nothing can be added to the image any more."""
    numbered = enumerate(sorted(image.rights.items()))
    runs = [
        [page for _, (page, _) in run] for _, run in groupby(numbered, lambda item: (item[1][0] - item[0], item[1][1]))
    ]
    offset = -(-(_HEADER.size + _SEGMENT.size * len(runs)) // PAGE) * PAGE
    segments, contents = [], []
    for pages in runs:
        data = b"".join(image.pages.get(page, bytes(PAGE)) for page in pages)
        address, flags = pages[0] * PAGE, _FLAGS[image.rights[pages[0]]]
        segments.append(_SEGMENT.pack(_LOADED, flags, offset, address, address, len(data), len(data), PAGE))
        contents.append(data)
        offset += len(data)
    head = _HEADER.pack(
        _MAGIC, _EXECUTABLE, _AARCH64, 1, begin, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, len(runs), 0, 0, 0
    )
    head += b"".join(segments)
    return b"".join((head.ljust(-(-len(head) // PAGE) * PAGE, b"\0"), *contents))
