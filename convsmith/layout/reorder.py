"""Conversion of numpy arrays between layouts.

The array of a plain layout has the logical shape and the layout's strides. The array of a blocked layout has the
physical shape, one axis per block, outermost first; its padding elements are zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.layout.layout import Layout
from convsmith.layout.tags import ANY, infer_ndims, parse_sized, parse_tag

__all__ = ["from_layout", "reorder", "strided", "to_layout"]

Array = np.ndarray[tuple[int, ...], Any]


def to_layout(x: Array, layout: Layout) -> Array:
    """Return a new array in `layout` with the elements of the logical array `x` (shape: `layout.shape`)."""
    _check_shape(x, layout.shape, layout)
    padded = np.zeros(layout.padded_shape, x.dtype)
    padded[tuple(slice(extent) for extent in x.shape)] = x
    memory = np.zeros(layout.size, x.dtype)
    blocks = strided(memory, layout.physical_shape, [b.stride for b in layout.blocks])
    axes = _axes_by_dim(layout)
    digits = padded.reshape([layout.blocks[axis].size for axis in axes])
    blocks[...] = digits.transpose(np.argsort(axes))
    return strided(memory, layout.shape, layout.strides) if layout.is_plain else blocks


def from_layout(x: Array, layout: Layout) -> Array:
    """Return the logical array (shape: `layout.shape`) of `x`, which is in `layout`; it may share memory with `x`."""
    if layout.is_plain:
        _check_shape(x, layout.shape, layout)
        return x
    _check_shape(x, layout.physical_shape, layout)
    padded = x.transpose(_axes_by_dim(layout)).reshape(layout.padded_shape)
    return padded[tuple(slice(extent) for extent in layout.shape)]


def reorder(x: Array, from_tag: str, to_tag: str, shape: Sequence[int] | None = None) -> Array:
    """Return a new array in `to_tag` with the elements of `x`, which is in `from_tag`.

    `shape` is the logical shape; by default a blocked `x` has no padding (64 channels for nChw16c with 4 blocks).
    UsageError if a tag is malformed or does not suit the shape of `x`.
    """
    logical_shape = tuple(shape) if shape is not None else _logical_shape(x, from_tag)
    logical = from_layout(x, Layout.from_tag(from_tag, logical_shape))
    return to_layout(logical, Layout.from_tag(to_tag, logical_shape))


def _logical_shape(x: Array, tag: str) -> tuple[int, ...]:
    """Return the largest logical shape whose array in `tag` has the shape of `x`."""
    ndims = infer_ndims(tag, x.ndim)
    if tag == ANY or ndims == x.ndim:
        return x.shape
    sized = parse_sized(tag, ndims)
    if sized is not None:
        dims = [block.dim for block in sized]
    else:
        form = parse_tag(tag, ndims)
        dims = [*form.order, *(dim for dim, _ in form.inner)]
    if len(dims) != x.ndim:
        raise UsageError(f"an array of {x.ndim} axes is not in layout {tag!r}, which has {len(dims)}", code="bad-shape")
    return tuple(math.prod(x.shape[axis] for axis, d in enumerate(dims) if d == dim) for dim in range(ndims))


def _axes_by_dim(layout: Layout) -> list[int]:
    """Return the axes of the physical array ordered by dim, and within a dim from the slowest digit to the fastest."""
    return sorted(range(len(layout.blocks)), key=lambda axis: layout.blocks[axis].dim)


def strided(memory: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """Return the array of a ``shape`` in contiguous ``memory``, whose neighbours lie ``strides`` elements apart.

    It takes every type of elements; numpy's `as_strided` refuses 8-bit floats of ml_dtypes from numpy 2.5 on.
    """
    steps = [stride * memory.itemsize for stride in strides]
    if memory.dtype.hasobject:
        return np.lib.stride_tricks.as_strided(memory, tuple(shape), steps)
    return np.ndarray(tuple(shape), memory.dtype, memory.view(np.uint8), strides=steps)


def _check_shape(x: Array, shape: tuple[int, ...], layout: Layout) -> None:
    if x.shape != shape:
        raise UsageError(
            f"an array of shape {x.shape} is not a tensor {layout.shape} in layout {layout}: expected shape {shape}",
            code="bad-shape",
        )
