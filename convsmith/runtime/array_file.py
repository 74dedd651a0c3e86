"""Arrays in numpy files, which may be damaged: `numpy.load` parses their headers as Python, and may raise any
exception.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from tokenize import TokenError

import numpy as np

from convsmith.diag.files import open_regular
from convsmith.runtime.arrays import Array

__all__ = ["UNREADABLE", "read_array"]

UNREADABLE = (
    ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, RuntimeError, OverflowError, MemoryError,
    zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, TokenError,
)  # fmt: skip
"""Exceptions of `zipfile` and numpy for damaged files; NotImplementedError is a RuntimeError."""


def read_array(path: str | os.PathLike[str]) -> Array:
    """Return the array in a file of `numpy.save`. ValueError with the reason if there is none; UsageError if `path` is
    no regular file.
    """
    try:
        with open_regular(path) as file:
            found = np.load(file, allow_pickle=False)
    except UNREADABLE as error:
        raise ValueError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, np.ndarray):
        raise ValueError("holds several arrays")
    return found
