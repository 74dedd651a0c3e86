"""Calls of a kernel for a GPU on arrays in the GPU's memory, without copies; results stay there.

The host never reads such an array. CUDA's array interface or DLPack gives its address, type, shape, strides, and the
stream on which its library works; the kernel is launched on the stream of the first array. Host arrays in the same call
are copied as in other calls.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.runtime.array_readers import reader_of
from convsmith.runtime.arrays import Array, ArraySpec, address_of
from convsmith.runtime.border import Border, Given, Names
from convsmith.runtime.dlpack import CUDA, ExportedMemory
from convsmith.runtime.foreign import (
    check_address,
    dtype_of,
    is_negated,
    module_of,
    namespace_of,
    tensor_of,
    without_gradient,
)  # fmt: skip
from convsmith.runtime.loading import DeviceMemory
from convsmith.runtime.packed import Packed

__all__ = ["FiniteArrays", "GpuArguments", "is_on_gpu", "stream_of"]

_LEGACY_STREAM = 1
"""CUDA's number of the default stream, which waits for all other streams."""


class _Located(NamedTuple):
    """An array in the memory of a GPU; strides are in bytes."""

    address: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    read_only: bool
    owner: object


def is_on_gpu(given: object) -> bool:
    """Return whether an array of another library is in the memory of a CUDA GPU."""
    if isinstance(given, (np.ndarray, np.generic, Packed, int, float)):
        return False
    if hasattr(given, "__cuda_array_interface__"):
        return True
    try:
        return int(given.__dlpack_device__()[0]) == CUDA  # type: ignore[attr-defined]
    except Exception:
        return False


def stream_of(given: Any) -> int:
    """Return the stream on which the array's library works: a pointer, or CUDA's number of a default stream."""
    interface = getattr(given, "__cuda_array_interface__", {})
    stream = interface.get("stream")
    if stream is not None:
        return int(stream)
    current = getattr(getattr(module_of(given), "cuda", None), "current_stream", None)
    return int(current().cuda_stream) or _LEGACY_STREAM if current is not None else _LEGACY_STREAM


class GpuArguments:
    """The arrays of one call of a kernel whose tensors `border` holds: addresses by name, and the results.

    UsageError names an array that does not fit, before anything is written: an array of a GPU has the type, the shape
    and the strides of its argument, because the host copies none.
    """

    def __init__(self, border: Border, memory: DeviceMemory, arrays: Mapping[str, Given], names: Names) -> None:
        first = next(given for given in arrays.values() if is_on_gpu(given))
        self._memory = memory
        self.stream = stream_of(first)
        self.addresses: dict[str, int] = {}
        self.packed: list[str] = []
        self.results: dict[str, Any] = {}
        self.resident = True
        """Whether all arrays are in memory of the GPU."""
        self._ends: dict[str, int] = {}
        self._keep: list[object] = []
        border.check_names(arrays)
        for packed in arrays.values():
            if isinstance(packed, Packed) and packed.bias is not None:
                start = self.addresses["bia"] = packed.addresses_on(memory)[1]
                self._ends["bia"] = start + packed.bias.nbytes
        for name, spec in border.specs.items():
            given = arrays.get(name)
            if given is not None:
                self._take(name, spec, given, names[name])
            elif spec.argument.role == "out":
                self._reserve(name, spec, first)
            elif name not in border.defaults and name not in self.addresses:
                raise UsageError(f"{names[name]}: missing; legal is an array of {spec.form}", code="missing")
        self._check_overlaps(border, names)

    @property
    def keep(self) -> object:
        """The owners of the memory."""
        return self._keep

    def _take(self, name: str, spec: ArraySpec, given: Any, called: str) -> None:
        is_result = spec.argument.role != "in"
        if isinstance(given, Packed):
            self.packed.append(name)
            address, size, owner = given.addresses_on(self._memory)[0], given.buffer.nbytes, cast(object, given)
        elif is_on_gpu(given):
            _check_device(called, given, self._memory.number)
            located = _located(called, given, self.stream)
            shape, strides = self._checked(spec, located, called)
            if is_result and located.read_only:
                raise UsageError(f"{called}: is read-only; legal is a writeable array", code="read-only")
            address, owner = located.address, located
            size = sum((n - 1) * stride for n, stride in zip(shape, strides)) + spec.dtype.itemsize
        else:
            array: Array = spec.check_output(given, called) if is_result else spec.prepare(spec.check(given, called))
            if not spec.fits(array):
                raise UsageError(
                    f"{called}: has strides of {array.strides} bytes; beside arrays of a GPU legal are {spec.strides}",
                    code="strides",
                )
            address, size, owner, self.resident = address_of(array), spec.extent, array, False
        self.addresses[name], self._ends[name] = address, address + size
        self._keep.append(owner)
        if is_result:
            self.results[name] = given

    def _checked(self, spec: ArraySpec, located: _Located, called: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return shape and strides of an argument on a GPU. UsageError if they do not fit."""
        if located.dtype != spec.dtype:
            message = f"{called}: dtype is {located.dtype}; legal is {spec.dtype} (arrays are never cast)"
            raise UsageError(message, code="dtype")
        shape, strides = spec.shape, spec.strides
        if located.shape == spec.without_groups:
            shape, strides = spec.without_groups, strides[1:]
        if located.shape != shape:
            raise UsageError(f"{called}: shape is {located.shape}; legal is {spec.form}", code="shape")
        if any(n > 1 and a != b for n, a, b in zip(shape, located.strides, strides)):
            raise UsageError(
                f"{called}: has strides of {located.strides} bytes; legal are {strides}, as {spec.argument.layout} has "
                "them (arrays of a GPU are not copied)",
                code="strides",
            )
        return shape, strides

    def _reserve(self, name: str, spec: ArraySpec, like: Any) -> None:
        """Add a new array of the library of `like` for a result."""
        reader = reader_of(like)
        if reader is not None:  # the library's own allocator does not wait for the GPU
            owner: object = reader.new_for(like, spec)
            address, self.results[name] = reader.address(owner), owner
        else:
            address, owner = self._memory.reserve(max(spec.extent, 1))
            exported = ExportedMemory(address, spec.shape, spec.strides, spec.dtype, owner, (CUDA, self._memory.number))
            take = getattr(namespace_of(like), "from_dlpack", None)
            self.results[name] = exported if take is None else take(exported)
        self.addresses[name], self._ends[name] = address, address + spec.extent
        self._keep.append(owner)

    def _check_overlaps(self, border: Border, names: Names) -> None:
        for name in self.results:
            for other, start in self.addresses.items():
                if other != name and self.addresses[name] < self._ends[other] and start < self._ends[name]:
                    raise UsageError(
                        f"{names[name]}: shares memory with {names[other]}; legal is memory of its own", code="overlap"
                    )


def _check_device(name: str, given: Any, number: int) -> None:
    """Raise UsageError if an array is on another GPU than number `device`."""
    if hasattr(given, "__dlpack_device__") and int(given.__dlpack_device__()[1]) != number:
        device = getattr(given, "device", f"GPU {given.__dlpack_device__()[1]}")
        raise UsageError(f"{name}: is on {device}; legal is GPU {number} (arrays are never moved)", code="device")


def _located(name: str, given: Any, stream: int) -> _Located:
    """Return the location of a GPU array, after work on it that was put on streams other than `stream` has ended."""
    given = without_gradient(name, given)
    if is_negated(given):  # no result written to a copy would reach it
        return _located(name, given.resolve_neg(), stream)._replace(read_only=True)
    if hasattr(given, "__dlpack__"):
        tensor, read_only, capsule = tensor_of(name, given, stream=stream)
        dtype = dtype_of(name, given, tensor)
        shape = tuple(tensor.shape[: tensor.ndim])
        steps = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else _dense(shape)
        strides = tuple(step * dtype.itemsize for step in steps)
        check_address(name, given, tensor.data or 0, math.prod(shape))
        return _Located((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, read_only, (given, capsule))
    interface = given.__cuda_array_interface__
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides") or tuple(step * dtype.itemsize for step in _dense(shape))
    address, read_only = interface["data"]
    check_address(name, given, address, math.prod(shape))
    return _Located(address, dtype, shape, tuple(strides), read_only, given)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a row-major array, in elements."""
    steps, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        steps[dim], step = step, step * shape[dim]
    return tuple(steps)


class FiniteArrays:
    """Tells whether arrays of a GPU hold neither infinities nor NaN; their library computes it, which waits for the
    GPU.

    The answer is cached for an array whose library counts the writes to it, as PyTorch does in `_version`, until the
    count or the array's address changes. Several threads may ask at once.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], tuple[int, int], bool]] = {}

    def all_finite(self, name: str, given: Any, stream: int) -> bool:
        """Return whether an array is finite; `stream` is the stream on which it is read."""
        count = _count_of_writes(given)
        if count is None:
            return _all_finite(name, given)
        state = (count, _located(name, given, stream).address)
        kept = self._known.get(id(given))
        if kept is not None and kept[0]() is given and kept[1] == state:
            return kept[2]
        answer = _all_finite(name, given)
        number = id(given)
        self._known[number] = (weakref.ref(given, lambda _: self._known.pop(number, None)), state, answer)
        return answer


def _count_of_writes(given: Any) -> int | None:
    """Return the number of writes to an array so far; None if its library does not count writes."""
    try:
        weakref.ref(given)
        count = given._version
    except Exception:  # an inference tensor of PyTorch raises its own error
        return None
    return count if type(count) is int else None


def _all_finite(name: str, given: Any) -> bool:
    is_finite = getattr(namespace_of(given), "isfinite", None)
    if is_finite is None:
        raise UnsupportedError(
            f"{name}: the kernel multiplies it by stored zeros, so it must be finite, which {type(given).__name__} "
            "cannot say; available are arrays of a library with isfinite",
            code="non-finite",
        )
    return bool(is_finite(without_gradient(name, given)).all())
