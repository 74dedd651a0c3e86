"""Static libraries: archives of object files with an index of their symbols, as `ar` writes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

__all__ = ["archive"]

_MAGIC = b"!<arch>\n"
_HEADER = 60
"""Bytes of the header of a member."""


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


def _padded(size: int) -> int:
    """Return ``size`` rounded up to an even number."""
    return size + size % 2


def _member(name: str, content: bytes) -> bytes:
    """Return a member with its header: without date and owner, so that equal libraries have equal bytes."""
    fields = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(content):<10}`\n"
    return fields.encode() + content + b"\n" * (len(content) % 2)
