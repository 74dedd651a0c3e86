"""Arrays at the border: what an argument asks of a numpy array, and how an array is made to answer it.

A plain layout is strides of an array of logical shape; a blocked one is an array of physical shape (block sizes,
outermost first). Any array of the right type and shape works: one with other strides, misaligned, read-only or of a
subclass is copied into the form that the kernel reads. Types are never cast. Errors are raised before anything is
written.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import ml_dtypes  # noqa: F401  # numpy then knows bfloat16 and other small types by name
import numpy as np
from numpy.typing import NDArray

from convsmith.codegen.artifact import Argument
from convsmith.diag.errors import UsageError
from convsmith.ir.types import dtype as type_row
from convsmith.layout.layout import Layout

__all__ = [
    "ALIGNMENT",
    "Array",
    "ArraySpec",
    "address_of",
    "aligned_copy",
    "aligned_empty",
    "all_finite",
    "numpy_dtype",
    "overlap",
]

Array = NDArray[np.generic]

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector. Memory made here begins at a multiple of it."""

_STRIDE_FORMS = 8


def _attribute_address(array: Array) -> int:
    return array.ctypes.data


def _choose_address_of() -> Callable[[Array], int]:
    """The fastest way to an array's address that is proved to work in this interpreter.

    `ndarray.ctypes.data` builds objects and takes 1 us, the buffer protocol 0.2 us but refuses read-only and transposed
    arrays. The address is the first field after the object header of `PyArrayObject`, a layout that is part of numpy's
    ABI: reading it there takes 0.1 us. It is used in CPython only (elsewhere an id is no address) and only after it
    gave the right answer for several arrays.
    """
    if sys.implementation.name != "cpython":
        return _attribute_address
    offset = object.__basicsize__
    word = ctypes.c_size_t.from_address

    def header_address(array: Array) -> int:
        return word(id(array) + offset).value

    base = np.arange(24.0).reshape(2, 3, 4)
    probes: list[Array] = [base, base.transpose(2, 0, 1), base[1:, ::-1], base[0, 0, 3:], np.empty(0)]
    right = all(header_address(probe) == _attribute_address(probe) for probe in probes)
    return header_address if right else _attribute_address


address_of = _choose_address_of()
"""Address of the first element of a numpy array (exactly `numpy.ndarray` or a subclass)."""


def aligned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Uninitialised bytes that begin at a multiple of `ALIGNMENT`."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -address_of(raw) % ALIGNMENT
    return raw[start : start + nbytes]


def aligned_copy(array: Array) -> Array:
    """A copy with the same strides (none negative) in memory that begins at a multiple of `ALIGNMENT`."""
    span = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides)) + array.itemsize if array.size else 0
    copy: Array = np.ndarray(array.shape, array.dtype, aligned_empty(span), 0, array.strides)
    copy[...] = array
    return copy


def overlap(a: Array, b: Array) -> bool:
    """True when two arrays share an element, or when that is too hard to tell."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=100_000))  # type: ignore[arg-type]  # stubs know two values
    except np.exceptions.TooHardError:
        return True


def all_finite(array: Array) -> bool:
    """True when the array holds neither infinities nor NaN; integers never do."""
    return array.dtype.kind in "iu" or bool(np.isfinite(array).all())


class ArraySpec:
    """What one argument asks of an array: `dtype`, `shape` and `strides` (bytes) of the numpy array."""

    def __init__(self, argument: Argument) -> None:
        layout = Layout.parse(argument.layout, argument.shape)
        self.argument = argument
        self.dtype: np.dtype[np.generic] = numpy_dtype(argument.dtype)
        itemsize = self.dtype.itemsize
        self.plain = layout.is_plain
        self.shape = argument.shape if self.plain else layout.physical_shape
        strides = layout.strides if self.plain else tuple(block.stride for block in layout.blocks)
        self.strides = tuple(stride * itemsize for stride in strides)
        self.empty_tensor = 0 in self.shape
        self.extent = 0 if self.empty_tensor else _extent(self.shape, self.strides) + itemsize
        self.misalignment = itemsize - 1
        self._memory = max(argument.size * itemsize, self.extent)
        self._dims = argument.dims if self.plain and argument.dims else ("",) * len(self.shape)
        self.stride_forms: set[tuple[int, ...]] = {self.strides}
        """Strides met that mean the same: dims of one element may have any."""

    def fits(self, array: Array) -> bool:
        """True when the kernel can work on the array's own memory."""
        return (
            type(array) is np.ndarray
            and array.dtype == self.dtype
            and array.shape == self.shape
            and self._same_strides(array.strides)
            and not address_of(array) & self.misalignment
        )

    def check(self, array: object) -> Array:
        """The array as a base-class array on the same memory. UsageError when it is of another type or shape."""
        name = self.argument.name
        if not isinstance(array, np.ndarray):
            raise UsageError(f"{name}: expected a numpy array, got {type(array).__name__}", code="not-an-array")
        if array.dtype != self.dtype:
            order = " in native byte order" if array.dtype.newbyteorder("=") == self.dtype else ""
            raise UsageError(
                f"{name}: dtype is {array.dtype.str if order else array.dtype}; legal is {self.dtype}{order} "
                "(arrays are never cast)",
                code="dtype",
            )
        if array.ndim != len(self.shape):
            raise UsageError(f"{name}: rank is {array.ndim}, shape {array.shape}; legal is {self.form}", code="rank")
        for dim, (extent, legal) in enumerate(zip(array.shape, self.shape)):
            if extent != legal:
                word = f"dim {dim} ({self._dims[dim]})" if self._dims[dim] else f"dim {dim}"
                raise UsageError(
                    f"{name}: {word} is {extent}, shape {array.shape}; legal is {legal}: {self.form}", code="shape"
                )
        return np.asarray(array)

    def check_output(self, array: object) -> Array:
        """Like `check`, and the array must be one that results can be stored in."""
        checked = self.check(array)
        if not checked.flags.writeable:
            raise UsageError(f"{self.argument.name}: is read-only; legal is a writeable array", code="read-only")
        if _overlaps_itself(checked):
            raise UsageError(
                f"{self.argument.name}: has strides {checked.strides} with shape {checked.shape}: elements share "
                "memory; legal is an array whose elements are all distinct",
                code="overlap",
            )
        return checked

    def prepare(self, array: Array) -> Array:
        """The checked array itself where it fits, else a copy that does."""
        if self.fits(array):
            return array
        copy = self.empty()
        np.copyto(copy, array)
        return copy

    def empty(self) -> Array:
        """A new uninitialised array of this shape and these strides, in aligned memory of the argument's size."""
        return np.ndarray(self.shape, self.dtype, aligned_empty(self._memory), 0, self.strides)

    def filled(self, values: tuple[float, ...]) -> Array:
        """A new array of one value everywhere, or of one for each element."""
        array = self.empty()
        array[...] = values[0] if len(values) == 1 else np.array(values).reshape(self.shape).astype(self.dtype)
        return array

    def _same_strides(self, strides: tuple[int, ...]) -> bool:
        if strides in self.stride_forms:
            return True
        same = all(n <= 1 or a == b for n, a, b in zip(self.shape, strides, self.strides))
        if same and len(self.stride_forms) < _STRIDE_FORMS:
            self.stride_forms.add(strides)
        return same

    @property
    def form(self) -> str:
        """The legal shape, for messages."""
        if not self.plain:
            return f"the physical shape {self.shape} of layout {self.argument.layout}, rank {len(self.shape)}"
        names = f" = ({', '.join(self._dims)})" if all(self._dims) else ""
        return f"rank {len(self.shape)}, shape {self.shape}{names} (shapes are logical; the layout only fixes strides)"


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype of a data type's name ("f32")."""
    return np.dtype(type_row(name).numpy)


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((n - 1) * stride for n, stride in zip(shape, strides))


def _overlaps_itself(array: Array) -> bool:
    reach = 0
    dims = sorted((abs(stride), n) for n, stride in zip(array.shape, array.strides) if n > 1)
    if array.size == 0:
        return False
    for stride, n in dims:
        if stride < reach + array.itemsize:
            break
        reach += (n - 1) * stride
    else:
        return False
    if any(stride == 0 for stride, _ in dims):
        return True
    # Dims that interleave in memory: look at every offset.
    offsets = np.zeros((), np.int64)
    for stride, n in dims:
        offsets = np.add.outer(offsets, np.arange(n, dtype=np.int64) * stride)
    return bool((np.diff(np.sort(offsets, axis=None)) < array.itemsize).any())
