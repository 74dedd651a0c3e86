"""Arrays at the border: the requirements of an argument, and the conversion of an array to meet them.

The array of a plain layout has the logical shape and the layout's strides; the array of a blocked layout has the
physical shape (block sizes, outermost first). An array of the right type and shape is legal in any memory: one with
other strides, misaligned, read-only or of a subclass is copied to the required form; one of another library is viewed
as a numpy array. Types are never converted. Errors are raised before anything is written.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from itertools import zip_longest
from math import inf, isnan
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from convsmith.codegen.artifact import ALIGNMENT, FINITE, Argument
from convsmith.diag.errors import UsageError
from convsmith.ir.types import dtype as type_row
from convsmith.layout.layout import Layout
from convsmith.runtime.foreign import is_frozen, is_negated, like, speaks, view

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ALIGNMENT",
    "Array",
    "ArraySpec",
    "address_of",
    "aligned_copy",
    "aligned_empty",
    "as_array",
    "beyond_text",
    "is_within",
    "magnitude",
    "numpy_dtype",
    "overlap",
    "takes_arrays",
    "within_text",
    "without_mask",
]

Array: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[np.generic]]

_STRIDE_FORMS = 8

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PLAIN = frozenset({np.ndarray, type(None), int, float, bool, str, list, tuple})
"""Argument types that belong to no other library; a set, because every call tests it."""


def as_array(name: str, given: object) -> Array:
    """Return the argument `name` as a numpy array on its own memory.

    UsageError if it is not an array on the CPU, or has masked elements.
    """
    if isinstance(given, np.ndarray):
        return given if type(given) is np.ndarray else np.asarray(without_mask(name, given))
    if speaks(given):
        return view(name, given)
    raise UsageError(
        f"{name}: expected an array, got {type(given).__name__}; legal is one of numpy, or of a library with DLPack",
        code="not-an-array",
    )


def without_mask(name: str, array: Array) -> Array:
    """Return an array without a mask. UsageError if elements are masked, because their values are meaningless."""
    if isinstance(array, np.ma.MaskedArray) and array.dtype.names is None and np.ma.is_masked(array):
        count = int(np.count_nonzero(np.ma.getmaskarray(array)))
        raise UsageError(
            f"{name}: {count} of {array.size} elements are masked; legal is an array without masked elements, such as "
            f"{name}.filled(0)",
            code="masked",
        )
    return array


def takes_arrays(function: _Function) -> _Function:
    """Return `function`, made to accept arrays of any library; its result belongs to the library of the first array
    argument.
    """
    names = tuple(signature(function).parameters)

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if all(type(x) in _PLAIN for x in args) and all(type(x) in _PLAIN for x in options.values()):
            return function(*args, **options)
        result = function(
            *(_read(name, x) for name, x in zip_longest(names[: len(args)], args)),
            **{name: _read(name, x) for name, x in options.items()},
        )
        if not isinstance(result, np.ndarray):
            return result
        given = {**dict(zip(names, args)), **options}
        if given.get("out") is not None:
            return given["out"]
        arrays = (given[name] for name in names if name in given)
        return like(next((x for x in arrays if speaks(x) or isinstance(x, np.ndarray)), None), result)

    return cast(_Function, call)


def _read(name: str, given: object) -> object:
    """Return an array as a numpy array, and any other value unchanged."""
    return as_array(name, given) if isinstance(given, np.ndarray) or speaks(given) else given


def _attribute_address(array: Array) -> int:
    return array.ctypes.data


def _choose_address_of() -> Callable[[Array], int]:
    """Return the fastest function for an array's address that is verified to work in this interpreter.

    `ndarray.ctypes.data` builds objects and takes 1 us; the buffer protocol takes 0.2 us but refuses read-only and
    transposed arrays. `PyArrayObject` stores the address behind the object header, a layout that is part of numpy's
    ABI; reading it there takes 0.1 us. That is used in CPython only (elsewhere an id is not an address), and only after
    it has returned the correct address of several arrays.
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
    """Return `nbytes` uninitialised bytes, aligned to `ALIGNMENT`."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -address_of(raw) % ALIGNMENT
    return raw[start : start + nbytes]


def aligned_copy(array: Array) -> Array:
    """Return a copy of `array` with the same (non-negative) strides, aligned to `ALIGNMENT`."""
    span = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides)) + array.itemsize if array.size else 0
    copy: Array = np.ndarray(array.shape, array.dtype, aligned_empty(span), 0, array.strides)
    copy[...] = array
    return copy


def overlap(a: Array, b: Array) -> bool:
    """Return whether two arrays share an element, or may share one."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=100_000))  # type: ignore[arg-type]  # stubs know two values
    except np.exceptions.TooHardError:
        return True


def magnitude(array: Array) -> float:
    """Return the largest magnitude of the elements, 0 for no elements and infinity if one of them is a NaN."""
    if not array.size:
        return 0.0
    if array.dtype.kind not in "iu" and array.dtype.itemsize == 2:  # numpy converts 16-bit floats one by one
        # Without its sign, the bits of a 16-bit float are in the order of its magnitude.
        bits = array.view(np.uint16)
        largest = max(int(array.view(np.int16).max()), int(bits.max()) - (1 << 15))
        found = float(np.array(max(largest, 0), np.uint16).view(array.dtype))
    else:
        found = max(float(array.max()), -float(array.min()))
    return inf if isnan(found) else found


def is_within(array: Array, limit: float) -> bool:
    """Return whether the elements are numbers of at most the magnitude `limit`, of a kernel's `Artifact.limits`."""
    if array.dtype.kind in "iu" and limit >= FINITE:
        return True
    return magnitude(array) <= limit


def beyond_text(limit: float) -> str:
    """Return the part of a message that describes elements beyond `limit`."""
    return "infinities or NaN" if limit >= FINITE else f"elements beyond {limit:g}"


def within_text(limit: float) -> str:
    """Return the part of a message that describes elements within `limit`."""
    return "finite numbers" if limit >= FINITE else f"numbers from {-limit:g} to {limit:g}"


class ArraySpec:
    """The numpy array that one argument requires: its `dtype`, which numpy calls `type_name`, its `shape`, and its
    `strides` in bytes, which are `steps` in elements.
    """

    def __init__(self, argument: Argument) -> None:
        layout = Layout.of_tag(argument.layout, argument.shape)
        self.argument = argument
        self.dtype: np.dtype[np.generic] = numpy_dtype(argument.dtype)
        itemsize = self.dtype.itemsize
        self.plain = layout.is_plain
        self.shape = argument.shape if self.plain else layout.physical_shape
        strides = layout.strides if self.plain else [block.stride for block in layout.blocks]
        self.steps, self.type_name = tuple(strides), self.dtype.name
        self.strides = tuple([stride * itemsize for stride in strides])
        self.empty_tensor = 0 in self.shape
        self.extent = layout.size * itemsize
        self.misalignment = itemsize - 1
        self._memory = max(argument.size * itemsize, self.extent)
        self._dims = argument.dims if self.plain and argument.dims else ("",) * len(self.shape)
        self.without_groups: tuple[int, ...] = ()
        """The shape (OC, IC/G, *kernel), which grouped weights may have as well; () for other tensors."""
        if self._dims[:2] == ("g", "oc") and argument.role == "in":
            self.without_groups = (self.shape[0] * self.shape[1], *self.shape[2:])
        self.stride_forms: set[tuple[int, ...]] = {self.strides}
        """Strides of earlier arrays that are equivalent: the strides of dims with one element are arbitrary."""

    def fits(self, array: Array) -> bool:
        """Return whether the kernel can use the array's own memory."""
        return (
            type(array) is np.ndarray
            and array.dtype == self.dtype
            and array.shape == self.shape
            and self._same_strides(array.strides)
            and not address_of(array) & self.misalignment
        )

    def check(self, given: object, name: str = "") -> Array:
        """Return the array as a numpy array on the same memory, in the shape of this argument.

        UsageError if it has another type or shape; `name` is its name in messages, by default the argument's.
        """
        name = name or self.argument.name
        array = as_array(name, given)
        if array.dtype != self.dtype:
            order = " in native byte order" if array.dtype.newbyteorder("=") == self.dtype else ""
            raise UsageError(
                f"{name}: dtype is {array.dtype.str if order else array.dtype}; legal is {self.dtype}{order} "
                "(arrays are never cast)",
                code="dtype",
            )
        merged = 0 < len(self.without_groups) == array.ndim
        shape, dims = (self.without_groups, self._dims[1:]) if merged else (self.shape, self._dims)
        if array.ndim != len(shape):
            raise UsageError(f"{name}: rank is {array.ndim}, shape {array.shape}; legal is {self.form}", code="rank")
        for dim, (extent, legal) in enumerate(zip(array.shape, shape)):
            if extent != legal:
                word = f"dim {dim} ({dims[dim]})" if dims[dim] else f"dim {dim}"
                raise UsageError(
                    f"{name}: {word} is {extent}, shape {array.shape}; legal is {legal}: {self.form}", code="shape"
                )
        # Splitting an axis moves no element, whatever the strides.
        return np.asarray(array).reshape(self.shape) if merged else np.asarray(array)

    def check_output(self, given: object, name: str = "") -> Array:
        """Return the array like `check`, and require that it is writeable and that its elements are distinct."""
        name = name or self.argument.name
        checked = self.check(given, name)
        if not checked.flags.writeable or is_frozen(given):
            how = "negated when it is read" if is_negated(given) else "read-only"
            raise UsageError(f"{name}: is {how}; legal is a writeable array", code="read-only")
        if _overlaps_itself(checked):
            raise UsageError(
                f"{name}: has strides {checked.strides} with shape {checked.shape}: elements share "
                "memory; legal is an array whose elements are all distinct",
                code="overlap",
            )
        return checked

    def prepare(self, array: Array) -> Array:
        """Return the checked array itself if it fits, otherwise a copy that fits."""
        if self.fits(array):
            return array
        copy = self.empty()
        np.copyto(copy, array)
        return copy

    def empty(self) -> Array:
        """Return a new uninitialised array of this shape and these strides, in aligned memory."""
        return np.ndarray(self.shape, self.dtype, aligned_empty(self._memory), 0, self.strides)

    def filled(self, values: tuple[float, ...]) -> Array:
        """Return a new array filled with one value, or with one value per element."""
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
        if self.without_groups:
            names += f", or without g rank {len(self.without_groups)}, shape {self.without_groups}"
        return f"rank {len(self.shape)}, shape {self.shape}{names} (shapes are logical; the layout only fixes strides)"


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Return the numpy dtype of the data type `name` ("f32")."""
    return np.dtype(type_row(name).numpy)


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
    # The dims interleave in memory, so every offset is computed.
    offsets = np.zeros((), np.int64)
    for stride, n in dims:
        offsets = np.add.outer(offsets, np.arange(n, dtype=np.int64) * stride)
    return bool((np.diff(np.sort(offsets, axis=None)) < array.itemsize).any())
