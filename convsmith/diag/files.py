"""Files that other users may have written or may change: bounded reads, owners and modes; files that are replaced."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from convsmith.diag.errors import UsageError
from convsmith.diag.forking import import_lock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "MAX_TEXT", "directories_above", "open_regular", "read_bytes", "read_text", "replaceable", "whole_file",
    "writable_by_others",
]  # fmt: skip

MAX_TEXT = 1 << 26
"""Bytes of the largest file of text that is read."""


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of the regular file `path`, of at most `most` bytes. Never blocks on a FIFO or device.

    UsageError (code `bad-file`) names the file and the reason.
    """
    try:
        with open_regular(path) as file:
            return read_stream(file, str(path), most)
    except OSError as error:
        raise _unfit(path, f"cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL, or a character that no name of a file has
        raise _unfit(repr(os.fspath(path)), "is no name of a file") from None


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open the regular file `path` to be read. UsageError (code `bad-file`) if it is of another kind: a FIFO or a
    device could block, or have effects.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise _unfit(path, "is no regular file")
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # replaced since the first check
        file.close()
        raise _unfit(path, "is no regular file")
    return file


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file, which takes the place of the regular file `path` at the end of the ``with`` block.

    A failure leaves the old file as it is, and those who have mapped it keep its content. What is no regular file, or
    stands in a directory that takes no new file, is written in place. OSError if it cannot be written.
    """
    place = os.path.realpath(path)
    before = os.stat(place) if os.path.exists(place) else None
    temporary = os.path.join(os.path.dirname(place), f".{os.urandom(12).hex()}.tmp")
    made = None
    if before is None or stat.S_ISREG(before.st_mode):
        with suppress(OSError):
            made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    if made is None:
        with open(path, "wb") as file:
            yield file
        return
    try:
        with open(made, "wb") as file:
            if before is not None:
                os.fchmod(made, stat.S_IMODE(before.st_mode))
            yield file
        os.replace(temporary, place)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise


def read_stream(file: BinaryIO, name: str, most: int) -> bytes:
    """Return the remaining contents of a stream; UsageError if it has more than `most` bytes."""
    content = file.read(most + 1)
    if len(content) > most:
        raise _unfit(name, f"has more than {most} bytes, the size of the largest file that is read")
    return content


def read_text(path: str | os.PathLike[str], most: int = MAX_TEXT) -> str:
    """Return the text of a regular file in UTF-8; UsageError as in `read_bytes`, and for other encodings."""
    return decoded(read_bytes(path, most), str(path))


def decoded(content: bytes, name: str) -> str:
    """Return UTF-8 bytes as text with one-character line ends; UsageError with the file's `name` for other encodings.
    """
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise _unfit(name, f"not a text file: {error}") from None


def _unfit(path: str | os.PathLike[str], why: str) -> UsageError:
    return UsageError(f"{os.fspath(path)}: {why}", code="bad-file")


def directories_above(path: Path) -> list[str]:
    """Return the directories of a path and of its resolved target: a user who may write to one of them can replace a
    link.
    """
    with import_lock:
        from pathlib import Path

    above = (*path.parents, *Path(os.path.realpath(path)).parents)
    return list(dict.fromkeys(map(str, above)))


def replaceable(above: Iterable[str]) -> str:
    """Return the reason why other users can replace entries of a directory in `above`; empty if they cannot."""
    for parent in above:
        try:
            mode = os.stat(parent).st_mode
        except FileNotFoundError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"others can replace it, because {parent} has mode {stat.S_IMODE(mode):04o} without the sticky bit"
    return ""


def writable_by_others(status: os.stat_result) -> str:
    """Return the reason why users other than this one can write to a file or directory; empty if they cannot."""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not {os.geteuid()}"
    return "others can write to it" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""
