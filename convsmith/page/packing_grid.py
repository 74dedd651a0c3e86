"""A packed operand drawn as a grid: the place in memory of each element of the plain one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from convsmith.compiler.rewritten import Lowered
from convsmith.interp import run
from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Kernel
from convsmith.problem.problem import Problem

__all__ = ["PackedCell", "PackedGrid", "packed_grids"]

LARGEST = 1024
"""Maximum number of elements of a packed operand that is drawn."""
WIDTH = 16
"""Cells of a row of the grid, unless the innermost block of the memory implies another number."""
_DIGIT = 8
"""Base of the digits in which larger numbers are packed: numbers below it are exact in every type."""


class PackedCell(NamedTuple):
    """An element in the order of the memory: its coordinates in the plain operand, empty for padding; `hue`, in
    degrees, encodes its first coordinate.
    """

    text: str
    hue: int


class PackedGrid(NamedTuple):
    """The cells of a packed operand in rows; `dims` names the coordinates."""

    name: str
    dims: str
    rows: list[list[PackedCell]]


def packed_grids(problem: Problem, low: Lowered) -> list[PackedGrid]:
    """Return the grids of the packed operands with at most `LARGEST` elements."""
    found = []
    for pack in low.packs:
        plain, packed = pack.params[0], pack.params[-1]
        tensor = next((t for t in problem.tensors if t.name == plain.name), None)
        if tensor is None or packed.size > LARGEST or packed.dtype.kind != plain.dtype.kind:
            continue
        places = _places(pack, plain, packed)
        shape = tensor.layout.physical_shape
        rows = [
            [_cell(int(n), shape) for n in places[first : first + WIDTH]] for first in range(0, len(places), WIDTH)
        ]
        found.append(PackedGrid(packed.name, " x ".join(map(str, shape)), rows))
    return found


def _cell(place: int, shape: Sequence[int]) -> PackedCell:
    if place < 0:
        return PackedCell("", 0)
    at = np.unravel_index(place, shape)
    return PackedCell(",".join(map(str, at)), int(at[0]) * 137 % 360)


def _places(pack: Kernel, plain: Buffer, packed: Buffer) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the number of the plain element at each place of the packed operand; -1 for padding.

    The interpreter packs one digit of the numbers at a time, and a mask of the elements that exist.
    """
    numbers = np.arange(plain.size)
    places = np.zeros(packed.size, np.int64)
    step = 1
    while step < plain.size:
        places += step * _packed(pack, plain, packed, numbers // step % _DIGIT)
        step *= _DIGIT
    places[_packed(pack, plain, packed, np.ones(plain.size, np.int64)) == 0] = -1
    return places


def _packed(
    pack: Kernel, plain: Buffer, packed: Buffer, values: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    arrays = {b.name: np.zeros(b.size, b.dtype.numpy) for b in pack.params}
    arrays[plain.name][:] = values
    run(pack, arrays)
    return arrays[packed.name].astype(np.int64)
