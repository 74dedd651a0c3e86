"""Static libraries: archives of object files with an index of their symbols, as `ar` writes them.

Linkers of Apple's systems take the form of BSD, whose index and names of files differ; other linkers take System V's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

__all__ = ["archive", "bsd_archive"]

_MAGIC = b"!<arch>\n"
_HEADER = 60
"""Bytes of the header of a member."""


_ALIGNMENT = 8
"""Alignment in bytes of the members of an archive of BSD, which Apple's linkers map."""
_BSD_INDEX = "__.SYMDEF SORTED"


def archive(members: Sequence[tuple[str, bytes, Sequence[str]]]) -> bytes:
    """Return a static library of ``members``: the name of each file, its bytes, and the symbols that it defines."""
    symbols = [(symbol, n) for n, (_, _, defined) in enumerate(members) for symbol in defined]
    names = b"".join(symbol.encode() + b"\0" for symbol, _ in symbols)
    files = b"".join(f"{name}/\n".encode() for name, _, _ in members)
    starts = [sum(len(f"{name}/\n") for name, _, _ in members[:n]) for n in range(len(members))]
    first = len(_MAGIC) + _padded(4 + 4 * len(symbols) + len(names)) + _padded(len(files)) + 2 * _HEADER
    places = [first + sum(_HEADER + _padded(len(code)) for _, code, _ in members[:n]) for n in range(len(members))]
    index = struct.pack(f">{1 + len(symbols)}I", len(symbols), *(places[n] for _, n in symbols)) + names
    parts = [_MAGIC, _member("/", index), _member("//", files)]
    parts += [_member(f"/{start}", code) for start, (_, code, _) in zip(starts, members)]
    return b"".join(parts)


def bsd_archive(members: Sequence[tuple[str, bytes, Sequence[str]]]) -> bytes:
    """Return a static library of ``members`` for Apple's linkers, of functions of C, whose names have an underscore
    there.
    """
    symbols = sorted((f"_{symbol}", n) for n, (_, _, defined) in enumerate(members) for symbol in defined)
    names = b"".join(symbol.encode() + b"\0" for symbol, _ in symbols)
    names += bytes(-len(names) % _ALIGNMENT)
    files = [_bsd_member(name, code) for name, code, _ in members]
    first = len(_MAGIC) + len(_bsd_member(_BSD_INDEX, bytes(8 + 8 * len(symbols) + len(names))))
    places = [first + sum(map(len, files[:n])) for n in range(len(files))]
    index, at = struct.pack("<I", 8 * len(symbols)), 0
    for symbol, n in symbols:
        index += struct.pack("<II", at, places[n])
        at += len(symbol) + 1
    index += struct.pack("<I", len(names)) + names
    return b"".join((_MAGIC, _bsd_member(_BSD_INDEX, index), *files))


def _bsd_member(name: str, content: bytes) -> bytes:
    """Return a member whose name stands before its content, which begins at a multiple of `_ALIGNMENT`."""
    title = name.encode() + b"\0"
    title += bytes(-(_HEADER + len(title)) % _ALIGNMENT)
    content += b"\n" * (-len(content) % _ALIGNMENT)
    return _head(f"#1/{len(title)}", len(title) + len(content)) + title + content


def _padded(size: int) -> int:
    """Return ``size`` rounded up to an even number."""
    return size + size % 2


def _member(name: str, content: bytes) -> bytes:
    """Return a member with its header: without date and owner, so that equal libraries have equal bytes."""
    return _head(name, len(content)) + content + b"\n" * (len(content) % 2)


def _head(name: str, size: int) -> bytes:
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{size:<10}`\n".encode()
