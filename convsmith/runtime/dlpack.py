"""DLPack: the structures of its capsules, and `ExportedMemory`, memory that other libraries take over as an array."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np

from convsmith.ir.types import DTYPES

__all__ = ["CPU", "CUDA", "SMALL", "DLTensor", "DLVersioned", "ExportedMemory", "is_capsule", "pointer_of"]

CPU, CUDA = 1, 2
"""DLPack's codes of devices."""

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
SMALL = {DTYPES[name]: code for name, code in (("bf16", 4), ("f8_e4m3", 10), ("f8_e5m2", 12))}
"""DLPack's codes of types that numpy does not export."""
_BY_NAME = {row.element: code for row, code in SMALL.items()}


class DLTensor(ctypes.Structure):
    """DLPack's `DLTensor`; strides are in elements, and may be absent."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLVersioned(ctypes.Structure):
    """DLPack's `DLManagedTensorVersioned`; before version 1.0 a capsule holds a `_DLManaged`."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


class _DLManaged(ctypes.Structure):
    """DLPack's `DLManagedTensor`."""

    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


is_capsule = ctypes.pythonapi.PyCapsule_IsValid
is_capsule.restype, is_capsule.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# A dying capsule is an address: an object of Python would be counted anew.
_IS_DYING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_POINTER_OF_DYING = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_NAME = b"dltensor"
_exports: dict[int, tuple[_DLManaged, object]] = {}
"""By key, the structure that a consumer holds, and the owner of its memory."""
_keys = itertools.count(1)


def _forget(pointer: int) -> None:
    """Forget an export, because its consumer no longer needs the memory."""
    _exports.pop(_DLManaged.from_address(pointer).context, None)


def _forget_untaken(capsule: int) -> None:
    """Forget the export of a capsule that no consumer has taken."""
    if _IS_DYING(capsule, _NAME):
        _forget(_POINTER_OF_DYING(capsule, _NAME))


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget)
_drop = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_forget_untaken)


class ExportedMemory:
    """Memory at `address` as an array, which `owner` keeps, for `from_dlpack` of any library. Strides are in bytes.

    Work on the memory has ended, so a consumer need not wait for a stream.
    """

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], owner: object,
        device: tuple[int, int] = (CPU, 0),
    ) -> None:  # fmt: skip
        self.shape, self.dtype = shape, dtype
        self._address, self._strides, self._owner, self._device = address, strides, owner, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_: object) -> object:
        rank, key = len(self.shape), next(_keys)
        sizes = (ctypes.c_int64 * rank)(*self.shape)
        steps = (ctypes.c_int64 * rank)(*(stride // self.dtype.itemsize for stride in self._strides))
        code = _BY_NAME.get(self.dtype.name) or _CODES[self.dtype.kind]
        tensor = DLTensor(self._address, *self._device, rank, code, self.dtype.itemsize * 8, 1, sizes, steps, 0)
        managed = _DLManaged(tensor, key, ctypes.cast(_delete, ctypes.c_void_p))
        _exports[key] = managed, (self._owner, sizes, steps)
        capsule: object = _new(ctypes.addressof(managed), _NAME, ctypes.cast(_drop, ctypes.c_void_p))
        return capsule
