"""A static executable (ELF, Linux) of an image: each run of pages with equal rights is a segment."""

from __future__ import annotations

import struct
from itertools import groupby
from typing import NamedTuple

from convsmith.emulate.image import Image

__all__ = ["FileHeader", "executable"]


class FileHeader(NamedTuple):
    """The header fields that depend on the platform: bits of an address, number of the machine, and flags."""

    bits: int
    machine: int
    flags: int = 0


_HEADERS = {32: struct.Struct("<16sHHIIIIIHHHHHH"), 64: struct.Struct("<16sHHIQQQIHHHHHH")}
_SEGMENTS = {32: struct.Struct("<IIIIIIII"), 64: struct.Struct("<IIQQQQQQ")}
_CLASSES = {32: b"\x01", 64: b"\x02"}
_EXECUTABLE, _LOADED = 2, 1
_FLAGS = {"read": 4, "write": 6, "execute": 5}


def executable(image: Image, begin: int, header: FileHeader) -> bytes:
    """Return the file of a process that begins at the address `begin`. The image must not be extended afterwards."""
    numbered = enumerate(sorted(image.rights.items()))
    runs = [
        [page for _, (page, _) in run] for _, run in groupby(numbered, lambda item: (item[1][0] - item[0], item[1][1]))
    ]
    first, segment, page_size = _HEADERS[header.bits], _SEGMENTS[header.bits], image.page
    offset = -(-(first.size + segment.size * len(runs)) // page_size) * page_size
    segments, contents = [], []
    for pages in runs:
        data = b"".join(image.pages.get(page, bytes(page_size)) for page in pages)
        address, flags = pages[0] * page_size, _FLAGS[image.rights[pages[0]]]
        places, sizes = (offset, address, address), (len(data), len(data))
        rest = (*places, *sizes, flags) if header.bits == 32 else (flags, *places, *sizes)
        segments.append(segment.pack(_LOADED, *rest, page_size))
        contents.append(data)
        offset += len(data)
    magic = b"\x7fELF" + _CLASSES[header.bits] + b"\x01\x01"
    head = first.pack(
        magic, _EXECUTABLE, header.machine, 1, begin, first.size, 0, header.flags, first.size, segment.size,
        len(runs), 0, 0, 0,
    )  # fmt: skip
    head += b"".join(segments)
    return b"".join((head.ljust(-(-len(head) // page_size) * page_size, b"\0"), *contents))
