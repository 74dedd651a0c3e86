"""Arrays of callers whose type kernels do not have: whole numbers of 64 bits, and truth values."""

from __future__ import annotations

from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.network.image import NetworkValue
from convsmith.runtime.arrays import Array, as_array, numpy_dtype

__all__ = ["returned", "taken"]


def taken(value: NetworkValue, given: Any) -> Any:
    """Return the array `given` for the input `value` in the type of kernels.

    UsageError for a number that does not fit into 32 bits. An array of a third type is returned as it is.
    """
    array = as_array(value.name, given)
    if array.dtype != value.dtype:
        return given
    if value.dtype == np.bool_:
        return array.view(np.uint8)
    made = array.astype(numpy_dtype(value.type))
    if not np.array_equal(made, array):
        wrong = array[made != array].reshape(-1)[0]
        raise UsageError(f"{value.name}: has the number {wrong}; legal are numbers of 32 bits", code="value")
    return made


def returned(value: NetworkValue, result: Array, given: Any) -> Array:
    """Return the result of kernels for the output `value` in its type for callers; it is copied to the array `given`,
    if there is one. UsageError if that has another type or shape.
    """
    made: Array = result.view(np.bool_) if value.dtype == np.bool_ else result.astype(value.dtype)
    if given is None:
        return made
    own = as_array(value.name, given)
    if own.dtype != value.dtype or own.shape != value.shape or not own.flags.writeable:
        form = f"{value.dtype} of shape {value.shape}"
        raise UsageError(
            f"{value.name}: is {own.dtype} of shape {own.shape}; legal is a writeable array, {form}", code="dtype"
        )
    np.copyto(own, made)
    return made
