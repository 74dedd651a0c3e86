"""The order of taps in packed weights and in tables of pointers: row first, or column first."""

from __future__ import annotations

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.layout.indirection import Table
from convsmith.runtime.arrays import Array

__all__ = ["check_order", "packed_order", "taps_first"]


def packed_order(shape: tuple[int, ...], form: str) -> tuple[tuple[int, ...], str]:
    """Return the window's extents and the order of its taps for weights of `shape` and a table of `form`.

    Both are empty for weights of the shape (channels, taps), whose order only the caller knows.
    """
    if len(shape) == 2:
        return (), ""
    return shape[1:], _order(form)


def taps_first(kernel: Array, order: str) -> Array:
    """Return weights (channels, *window) as (channels, taps), with the taps in the given order."""
    if order == "column":
        kernel = np.moveaxis(kernel, -1, 1)
    return np.ascontiguousarray(kernel).reshape(len(kernel), -1)


def check_order(name: str, kernel: tuple[int, ...], order: str, table: Table) -> None:
    """Raise UsageError if weights of this window and order do not match the pointers of a table."""
    extents = tuple(axis.k for axis in table.window.axes)
    wanted = _order(table.form)
    if kernel and kernel != extents:
        raise UsageError(
            f"{name}: weights are packed for a window of {_text(kernel)} taps, the table is for {_text(extents)}",
            code="packed-elsewhere",
        )
    if order == wanted or sum(k > 1 for k in extents) < 2:
        return
    if order:
        text = f"weights are packed {order} first, and the table of form {table.form!r} is {wanted} first"
    else:
        text = f"weights of the shape (channels, taps) have an unknown order, and the table is {wanted} first"
    raise UsageError(
        f"{name}: {text}: pack weights of the shape (channels, {', '.join(map(str, extents))}) with "
        f"form={table.form!r}",
        code="packed-elsewhere",
    )


def _order(form: str) -> str:
    return "row" if form == "row" else "column"


def _text(extents: tuple[int, ...]) -> str:
    return " x ".join(map(str, extents))
