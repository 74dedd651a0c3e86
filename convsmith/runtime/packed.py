"""`Packed`: weights, and the bias if there is one, in the order in which kernels with one packing read them.

A problem whose inputs include no weights may pack another operand, which then replaces the weights.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.files import open_regular, whole_file
from convsmith.diag.forking import import_lock
from convsmith.ir.types import DTYPES
from convsmith.runtime.arrays import Array, address_of, aligned_empty, numpy_dtype

if TYPE_CHECKING:
    from convsmith.runtime.loading import DeviceMemory

__all__ = ["Packed", "signature_of"]

_FILE_FORMAT = 2
_TYPES = {row.element: row.name for row in DTYPES.values()}


_Part = tuple[np.dtype[np.generic], int]


@cache  # numpy derives the name at each access
def _type_name(dtype: np.dtype[np.generic]) -> str:
    return dtype.name


def signature_of(key: str, weights: _Part, bias: _Part | None) -> str:
    """Return the signature that a kernel compares before it reads packed weights: packing, and type and size of each
    part.
    """
    parts = f"packing {key}, {weights[1]} {_type_name(weights[0])}, "
    return sys.intern(parts + (f"bias of {bias[1]} {_type_name(bias[0])}" if bias else "no bias"))


class Packed:
    """Weights (and bias) for every kernel with this packing. Created by `HostKernel.pack`; immutable.

    `key` names the packing; `buffer` is one-dimensional, in packed order. `magnitude` is the largest magnitude of the
    weights: infinite if one of them is a NaN, and NaN if they have not been examined, as after `load`.
    """

    __slots__ = ("_bias", "_buffer", "_copies", "addresses", "key", "magnitude", "signature")

    def __init__(self, key: str, buffer: Array, bias: Array | None, magnitude: float = nan) -> None:
        self.key = key
        self._buffer, self._bias, self.magnitude = buffer, bias, magnitude
        self._copies: dict[int, tuple[tuple[int, int], object]] = {}
        buffer.flags.writeable = False
        if bias is not None:
            bias.flags.writeable = False
        self.addresses = (address_of(buffer), 0 if bias is None else address_of(bias))
        self.signature = signature_of(
            key, (buffer.dtype, buffer.size), None if bias is None else (bias.dtype, bias.size)
        )

    @property
    def buffer(self) -> Array:
        """The packed weights, one-dimensional and read-only."""
        return self._buffer

    @property
    def bias(self) -> Array | None:
        """The bias, or None."""
        return self._bias

    def addresses_on(self, memory: DeviceMemory) -> tuple[int, int]:
        """Return the addresses of the packed weights and of the bias (0 if there is none) in device memory, to which
        they are copied once.
        """
        try:
            return self._copies[memory.number][0]
        except KeyError:
            pass
        addresses, owners = [], []
        for part in (x for x in (self._buffer, self._bias) if x is not None):
            address, owner = memory.reserve(part.nbytes)
            memory.write(address, part.view(np.uint8))
            addresses.append(address)
            owners.append(owner)
        weights, *bias = addresses
        self._copies[memory.number] = (weights, bias[0] if bias else 0), owners
        return self._copies[memory.number][0]

    def __repr__(self) -> str:
        return f"Packed({self.signature})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Addresses are valid only in this process and for this memory.
        parts = (_raw(self._buffer), None if self._bias is None else _raw(self._bias))
        return _restored, (self.key, *parts, self.magnitude)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a numpy `.npz` file at exactly `path`, for `load`. UsageError (code `bad-path`) if it is not a file
        name, OSError if it cannot be written.
        """
        # Raw bytes beside the type's name, because numpy's file format knows only numpy's own types.
        parts = {"buffer": self._buffer} if self._bias is None else {"buffer": self._buffer, "bias": self._bias}
        arrays: dict[str, Any] = {name: array.view(np.uint8) for name, array in parts.items()}
        arrays |= {f"{name}_dtype": array.dtype.name for name, array in parts.items()}
        with whole_file(_path(path)) as file:
            np.savez(file, allow_pickle=False, format=_FILE_FORMAT, key=self.key, **arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Packed:
        """Return the packed weights in a file that `save` wrote.

        UsageError (code `bad-packed`) if the file has other contents; OSError if there is no file.
        """
        with import_lock:
            from convsmith.runtime.array_file import UNREADABLE  # loads `zipfile` and three modules of compression

        name = _path(path)
        try:
            with open_regular(name) as file, np.load(file, allow_pickle=False) as parts:
                if parts["format"] != _FILE_FORMAT:
                    raise ValueError(f"format {parts['format']}, not {_FILE_FORMAT}")
                bias = _typed(parts, "bias") if "bias" in parts else None
                return Packed(str(parts["key"]), _typed(parts, "buffer"), bias)
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            raise UsageError(f"{name} is not a file of packed weights: {error}", code="bad-packed") from None


def _is_encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _path(path: str | os.PathLike[str]) -> str:
    if isinstance(path, (str, os.PathLike)):
        name = os.fspath(path)
        if isinstance(name, str) and name and "\0" not in name and _is_encodable(name):
            return name
    raise UsageError(f"path={shown(path)} is not legal: expected the name of a file", code="bad-path")


def _typed(parts: Mapping[str, Array], name: str) -> Array:
    """Return a part of the file as elements of its data type in aligned memory."""
    return _aligned(parts[name], str(parts[f"{name}_dtype"]))


def _aligned(raw: Array | bytes, dtype: str) -> Array:
    """Return bytes as elements of the data type `dtype` in aligned memory."""
    if dtype not in _TYPES:
        raise ValueError(f"data type {dtype!r} is not one of {', '.join(_TYPES)}")
    given = np.frombuffer(raw, np.uint8)
    copy = aligned_empty(given.size)
    copy[:] = given
    return copy.view(numpy_dtype(_TYPES[dtype]))


def _raw(array: Array) -> tuple[bytes, str]:
    return array.tobytes(), array.dtype.name


def _restored(key: str, buffer: tuple[bytes, str], bias: tuple[bytes, str] | None, magnitude: float) -> Packed:
    """Return packed weights from the content of a pickle."""
    return Packed(key, _aligned(*buffer), None if bias is None else _aligned(*bias), magnitude)
