"""Tables of pointers whose tensor moves from call to call, and the memory that stands for what is absent."""

from __future__ import annotations

import ctypes
from math import prod

import numpy as np

from convsmith.codegen.artifact import Argument
from convsmith.diag.errors import UsageError
from convsmith.ir.types import dtype
from convsmith.layout.indirection import Table
from convsmith.layout.layout import Layout
from convsmith.runtime.arrays import Array, address_of, aligned_empty, numpy_dtype

__all__ = ["AbsentPixel", "MovingTable", "absent_pixel"]


class MovingTable:
    """The addresses of a table's entries, made once, and made anew when the tensor that they point into has moved.

    Absent ones point to `zero`, which has elements of the same type.
    """

    __slots__ = ("_addresses", "_base", "_table", "_zero", "address")

    def __init__(self, table: Table, zero: Array) -> None:
        self._table, self._zero, self._base = table, zero, -1
        self._addresses = np.empty(table.entries.shape, np.uint64)
        self.address = address_of(self._addresses)

    def follow(self, base: int) -> None:
        """Point into the tensor whose first element is there."""
        if base != self._base:
            self._base = base
            self._addresses[...] = self._table.pointers(base, address_of(self._zero), self._zero.itemsize)


class AbsentPixel:
    """The memory of a "zero" argument: zeros, or the zero points that a call gives, so that less them it is zero."""

    __slots__ = ("_argument", "_points", "_seen", "memory")

    def __init__(self, argument: Argument, points: Argument | None) -> None:
        self._argument, self._points, self._seen = argument, points, b""
        element = numpy_dtype(argument.dtype)
        self.memory: Array = aligned_empty(argument.size * element.itemsize).view(element)
        self.memory[...] = 0

    def hold(self, address: int) -> None:
        """Hold the zero points that lie at the address. UsageError where the type has no room for them."""
        assert self._points is not None
        element = numpy_dtype(self._points.dtype)
        seen = ctypes.string_at(address, self._points.size * element.itemsize)
        if seen != self._seen:
            self.memory[...] = absent_pixel(self._argument, self._points.name, np.frombuffer(seen, element))
            self._seen = seen


def absent_pixel(argument: Argument, name: str, points: Array) -> Array:
    """The memory of a "zero" argument that holds the zero points `name`: one for all channels, or one for each."""
    low, high = dtype(argument.dtype).limits
    for n, point in enumerate(points):
        if not low <= int(point) <= high:
            at = name if len(points) == 1 else f"{name}[{n}]"
            raise UsageError(
                f"{at} is {point}: a kernel that reads {argument.of} through a table of pointers stores it as "
                f"{argument.dtype}, from {low} to {high}; others are legal for kernels of one size with another "
                "realisation, --realise=mask say",
                code="value",
            )
    if len(points) == 1:
        return np.full(argument.size, points[0], numpy_dtype(argument.dtype))
    memory = np.zeros(argument.size, numpy_dtype(argument.dtype))
    blocks = Layout.parse(argument.layout, argument.shape).blocks
    channels = np.arange(len(points))
    places, within = np.zeros(len(points), np.int64), prod(b.size for b in blocks)
    for b in blocks:
        within //= b.size
        places += channels // within % b.size * b.stride
    memory[places] = points
    return memory
