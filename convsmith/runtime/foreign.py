"""Arrays of other libraries: numpy views of their memory, and results returned to their library.

DLPack is tried first, because it names the device and has bfloat16, which numpy's own `from_dlpack` refuses; then the
array interface. No library is imported here: a result is converted by `from_dlpack` of the argument's module.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from convsmith.diag.errors import UsageError

__all__ = ["is_frozen", "like", "speaks", "view"]

Array = NDArray[np.generic]

_PROTOCOLS = ("__dlpack__", "__array_interface__", "__cuda_array_interface__")
_VERSION = (1, 0)
_ON_CPU = (1, 3)
"""DLPack's codes of devices whose memory the CPU can read: main memory, and main memory pinned by CUDA."""

_READ_ONLY = 1
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
"""DLPack's codes of the types that numpy and ml_dtypes have."""


class _Tensor(ctypes.Structure):
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


class _Versioned(ctypes.Structure):
    """DLPack's `DLManagedTensorVersioned`; before version 1.0 a capsule holds a `DLTensor` alone."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.restype, _is_capsule.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _BorrowedMemory:
    """Memory for numpy, which keeps this object, and through it the owner, alive while an array refers to the memory.
    """

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self._owner = owner


def speaks(given: object) -> bool:
    """Return whether an object is an array of another library."""
    return not isinstance(given, (np.ndarray, np.generic, type)) and any(hasattr(given, name) for name in _PROTOCOLS)


def view(name: str, given: Any) -> Array:
    """Return an array of another library as a numpy array on the same memory.

    UsageError, about the argument `name`, if it is on another device, requires a gradient, or has a type that numpy
    lacks.
    """
    if getattr(given, "requires_grad", False) is True:
        raise UsageError(
            f"{name}: requires a gradient, which no kernel records; legal is {name}.detach()", code="requires-grad"
        )
    if hasattr(given, "__dlpack__"):
        return _from_dlpack(name, given)
    if not hasattr(given, "__array_interface__"):
        raise _elsewhere(name, given)
    try:
        return np.asarray(given)
    except Exception as error:
        raise _unreadable(name, given, error) from None


def is_frozen(given: object) -> bool:
    """Return whether an array of another library must not be written; numpy's view shows this, DLPack often does not.
    """
    try:
        return speaks(given) and not np.asarray(given).flags.writeable
    except Exception:
        return False


def like(given: object, array: Array) -> Any:
    """Return `array` in the library of `given`, on the same memory; unchanged if that is numpy or lacks DLPack."""
    if not speaks(given):
        return array
    namespace: Any = sys.modules.get(type(given).__module__.partition(".")[0])
    if hasattr(given, "__array_namespace__"):
        namespace = given.__array_namespace__()
    take = getattr(namespace, "from_dlpack", None)
    if take is None:
        return array
    if array.dtype == ml_dtypes.bfloat16:  # numpy exports no types but its own
        return take(array.view(np.int16)).view(namespace.bfloat16)
    return take(array)


def _from_dlpack(name: str, given: Any) -> Array:
    try:
        device, _ = given.__dlpack_device__()
        on_cpu = int(device) in _ON_CPU
    except Exception:
        on_cpu = False
    if not on_cpu:
        raise _elsewhere(name, given)
    try:
        try:
            capsule = given.__dlpack__(max_version=_VERSION)
        except TypeError:  # an exporter from before version 1.0
            capsule = given.__dlpack__()
    except Exception as error:
        raise _unreadable(name, given, error) from None
    read_only = False
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _VERSION[0]:
            raise _unreadable(name, given, f"version {versioned.major} of DLPack")
        tensor, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    elif _is_capsule(capsule, b"dltensor"):
        tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    else:
        raise _unreadable(name, given, "no capsule of DLPack")
    dtype = _dtype(name, given, tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = tuple(n * dtype.itemsize for n in tensor.strides[: tensor.ndim]) if tensor.strides else None
    # The capsule is not consumed, so its own destructor frees the tensor.
    start = tensor.data + tensor.byte_offset
    interface = {"data": (start, read_only), "shape": shape, "strides": strides, "typestr": f"|V{dtype.itemsize}",
                 "version": 3}  # fmt: skip
    array: Array = np.asarray(_BorrowedMemory(interface, capsule)).view(dtype)
    return array


def _dtype(name: str, given: object, tensor: _Tensor) -> np.dtype[Any]:
    kind = _KINDS.get(tensor.code, "")
    text = "bool" if kind == "bool" else f"{kind}{tensor.bits}"
    try:
        if kind and tensor.lanes == 1:
            return np.dtype(text)
    except TypeError:
        pass
    dtype = getattr(given, "dtype", f"type {tensor.code} of DLPack, of {tensor.bits} bits")
    raise UsageError(f"{name}: dtype is {dtype}, which no kernel takes", code="dtype")


def _elsewhere(name: str, given: object) -> UsageError:
    device = getattr(given, "device", "another device than the CPU")
    return UsageError(f"{name}: is on {device}; legal is memory of the CPU (arrays are never moved)", code="device")


def _unreadable(name: str, given: object, error: object) -> UsageError:
    return UsageError(f"{name}: no array can be read from this {type(given).__name__}: {error}", code="not-an-array")
