"""Arrays of other libraries: numpy views of their memory, and results returned to their library.

DLPack is tried first, because it names the device and has bfloat16 and 8-bit floats, which numpy's own `from_dlpack`
refuses; then the array interface. No library is imported here: a result is converted by `from_dlpack` of the argument's
module.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.runtime.dlpack import SMALL, DLTensor, DLVersioned, is_capsule, pointer_of

__all__ = [
    "check_address", "dtype_of", "is_frozen", "is_negated", "like", "module_of", "namespace_of", "speaks", "tensor_of",
    "view", "without_gradient",
]  # fmt: skip

Array: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[np.generic]]

_PROTOCOLS = ("__dlpack__", "__array_interface__", "__cuda_array_interface__")
_VERSION = (1, 0)
_ON_CPU = (1, 3)
"""DLPack's codes of devices whose memory the CPU can read: main memory, and main memory pinned by CUDA."""

_READ_ONLY = 1
_KINDS = {0: "int", 1: "uint", 2: "float", 5: "complex", 6: "bool"}
_SMALL = {code: row for row, code in SMALL.items()}
"""DLPack's codes of numpy's types, whose names end in their bits, and of other types."""
_SMALL_NAMES = frozenset(row.element for row in SMALL)


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
    """Return an array of another library as a numpy array on the same memory; on a read-only copy, if `is_negated`.

    UsageError, about the argument `name`, if it is on another device, requires a gradient, or has a type that numpy
    lacks.
    """
    given = without_gradient(name, given)
    if is_negated(given):
        copy = view(name, given.resolve_neg())
        copy.flags.writeable = False  # no result written to it would reach `given`
        return copy
    if hasattr(given, "__dlpack__"):
        return _from_dlpack(name, given)
    if not hasattr(given, "__array_interface__"):
        raise _elsewhere(name, given)
    try:
        return np.asarray(given)
    except Exception as error:
        raise _unreadable(name, given, error) from None


def is_negated(given: Any) -> bool:
    """Return whether an array's library negates the memory's contents when it reads them, as torch does for some views.
    """
    asked = getattr(given, "is_neg", None)
    return callable(asked) and asked() is True


def check_address(name: str, given: object, address: int, elements: int) -> None:
    """Raise UsageError if an array has elements but no memory, as a tensor of torch whose storage was freed."""
    if elements and not address:
        raise _unreadable(name, given, "its memory was freed, or not yet allocated")


def without_gradient(name: str, given: Any) -> Any:
    """Return an array of another library without its gradient. UsageError if the library records one."""
    if getattr(given, "requires_grad", False) is not True:
        return given
    is_recording = getattr(module_of(given), "is_grad_enabled", None)
    if is_recording is not None and not is_recording():
        return given.detach()
    raise UsageError(
        f"{name}: requires a gradient, which no kernel records; legal is {name}.detach(), a call under no_grad, or a "
        "function of convsmith.torch, which records it",
        code="requires-grad",
    )


def module_of(given: object) -> Any:
    """Return the module of the library of an array; None if it is not loaded."""
    return sys.modules.get(type(given).__module__.partition(".")[0])


def is_frozen(given: object) -> bool:
    """Return whether an array of another library must not be written; numpy's view shows this, DLPack often does not.
    """
    try:
        return speaks(given) and not np.asarray(given).flags.writeable
    except Exception:
        return False


def namespace_of(given: Any) -> Any:
    """Return the module of an array's library that has its functions."""
    if hasattr(given, "__array_namespace__"):
        return given.__array_namespace__()
    return module_of(given)


def like(given: object, array: Array) -> Any:
    """Return `array` in the library of `given`, on the same memory; unchanged if that is numpy or lacks DLPack."""
    if not speaks(given):
        return array
    namespace = namespace_of(given)
    take = getattr(namespace, "from_dlpack", None)
    if take is None:
        return array
    if array.dtype.name in _SMALL_NAMES:  # numpy exports no types but its own
        return take(array.view(f"i{array.itemsize}")).view(getattr(namespace, array.dtype.name))
    return take(array)


def _from_dlpack(name: str, given: Any) -> Array:
    try:
        device, _ = given.__dlpack_device__()
        on_cpu = int(device) in _ON_CPU
    except Exception:  # as under a transform or a trace, where an array has no memory
        raise _elsewhere(name, given, "") from None
    if not on_cpu:
        raise _elsewhere(name, given)
    tensor, read_only, capsule = tensor_of(name, given)
    dtype = dtype_of(name, given, tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = tuple(n * dtype.itemsize for n in tensor.strides[: tensor.ndim]) if tensor.strides else None
    # The capsule is not consumed, so its own destructor frees the tensor.
    check_address(name, given, tensor.data or 0, 1)
    start = tensor.data + tensor.byte_offset
    interface = {"data": (start, read_only), "shape": shape, "strides": strides, "typestr": f"|V{dtype.itemsize}",
                 "version": 3}  # fmt: skip
    array: Array = np.asarray(_BorrowedMemory(interface, capsule)).view(dtype)
    return array


def tensor_of(name: str, given: Any, **options: Any) -> tuple[DLTensor, bool, object]:
    """Return the DLPack description of an array, whether it is read-only, and the capsule that keeps it alive.

    `options` are passed to the library's `__dlpack__`. UsageError if the library gives no capsule.
    """
    try:
        try:
            capsule = given.__dlpack__(max_version=_VERSION, **options)
        except TypeError:  # an exporter from before version 1.0
            capsule = given.__dlpack__(**options)
    except Exception as error:
        raise _unreadable(name, given, error) from None
    if is_capsule(capsule, b"dltensor_versioned"):
        versioned = DLVersioned.from_address(pointer_of(capsule, b"dltensor_versioned"))
        if versioned.major != _VERSION[0]:
            raise _unreadable(name, given, f"version {versioned.major} of DLPack")
        return versioned.tensor, bool(versioned.flags & _READ_ONLY), capsule
    if is_capsule(capsule, b"dltensor"):
        return DLTensor.from_address(pointer_of(capsule, b"dltensor")), False, capsule
    raise _unreadable(name, given, "no capsule of DLPack")


def dtype_of(name: str, given: object, tensor: DLTensor) -> np.dtype[Any]:
    """Return the element type in a DLPack description. UsageError if numpy and ml_dtypes lack it."""
    kind = _KINDS.get(tensor.code, "")
    try:
        small = _SMALL.get(tensor.code)
        found = np.dtype(small.numpy if small else "bool" if kind == "bool" else f"{kind}{tensor.bits}")
        if tensor.lanes == 1 and found.itemsize * 8 == tensor.bits:
            return found
    except TypeError:
        pass
    dtype = getattr(given, "dtype", f"type {tensor.code} of DLPack, of {tensor.bits} bits")
    raise UsageError(f"{name}: dtype is {dtype}, which no kernel takes", code="dtype")


def _elsewhere(name: str, given: object, unnamed: str = "another device than the CPU") -> UsageError:
    """Return the error for an array on the device that it names, or on a device called `unnamed` if it names none."""
    try:
        device = str(getattr(given, "device", unnamed))
    except Exception:  # a tracer's attributes raise errors of its library
        device = unnamed
    if device in ("cpu", ""):
        return _unreadable(name, given, "its library gives no memory of it, as under a transform or a trace")
    return UsageError(f"{name}: is on {device}; legal is memory of the CPU (arrays are never moved)", code="device")


def _unreadable(name: str, given: object, error: object) -> UsageError:
    return UsageError(f"{name}: no array can be read from this {type(given).__name__}: {error}", code="not-an-array")
