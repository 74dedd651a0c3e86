"""The elements that a copy through a tensor map brings, in the order in which the copy writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from convsmith.ir.tensor_map import TensorMap

__all__ = ["copied_rows"]


def copied_rows(of: TensorMap, at: Sequence[int], offsets: Sequence[int]) -> list[int | None]:
    """Return the offset in the tensor of each row of the copy ``at`` coordinates, without its innermost coordinate, or
    None for a row outside of the tensor. ``offsets`` move the pixels of an im2col map.
    """
    found: list[int | None] = []
    for row in _pixels(of, at[1:], offsets) if of.pixels else _box(of, at[1:]):
        inside = all(0 <= x < size for x, size in zip(row, of.dims[1:]))
        found.append(sum(x * stride for x, stride in zip(row, of.strides[1:])) if inside else None)
    return found


def _box(of: TensorMap, at: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of each row of a box."""
    for row in product(*(range(first, first + size) for first, size in zip(reversed(at), reversed(of.box[1:])))):
        yield row[::-1]


def _pixels(of: TensorMap, at: Sequence[int], offsets: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of each pixel."""
    last = [size - 1 + up for size, up in zip(of.dims[1:], of.upper)]
    place = list(at)
    for _ in range(of.pixels):
        yield (*(x + o for x, o in zip(place, offsets)), place[-1])
        for axis, step in enumerate(of.steps):
            place[axis] += step
            if place[axis] <= last[axis]:
                break
            place[axis] = of.lower[axis]
        else:
            place[-1] += 1
