"""The elements that a copy through a tensor map brings, in the order in which the copy writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from convsmith.ir.index import Index, floordiv, mod
from convsmith.ir.tensor_map import TensorMap

__all__ = ["copied_rows", "part_axis", "walked_from"]


def copied_rows(of: TensorMap, at: Sequence[int], offsets: Sequence[int]) -> list[int | None]:
    """Return the offset in the tensor of each row of the copy ``at`` coordinates, without its innermost coordinate, or
    None for a row outside of the tensor. ``offsets`` move the pixels of an im2col map.
    """
    found: list[int | None] = []
    for row in _pixels(of, at[1:], offsets) if of.pixels else _box(of, at[1:]):
        inside = all(0 <= x < size for x, size in zip(row, of.dims[1:]))
        found.append(sum(x * stride for x, stride in zip(row, of.strides[1:])) if inside else None)
    return found


def part_axis(of: TensorMap, groups: int, together: int) -> int | None:
    """Return the axis of the box of a map along which ``groups`` bring a part each, contiguous in the copy and of a
    multiple of ``together`` rows; 0 if these are pixels of an im2col map, None if there is none.
    """
    axis = 0 if of.pixels else max((n for n, size in enumerate(of.box) if n and size > 1), default=0)
    count = of.pixels if of.pixels else of.box[axis] if axis else 0
    return axis if count and not count % groups and not of.rows // groups % together else None


def walked_from(of: TensorMap, at: Sequence[Index], pixels: Index) -> tuple[Index, ...]:
    """Return the coordinates, without the innermost one, of the pixel of an im2col map that is ``pixels`` behind
    ``at``.
    """
    sizes = [
        (dim - 1 + up - lo) // step + 1 for dim, up, lo, step in zip(of.dims[1:], of.upper, of.lower, of.steps)
    ]
    place, reach = pixels, 1
    for x, lo, step, size in zip(at[1:], of.lower, of.steps, sizes):
        place = place + floordiv(x - lo, step) * reach
        reach *= size
    place = place + at[-1] * reach
    found: list[Index] = []
    for lo, step, size in zip(of.lower, of.steps, sizes):
        found.append(mod(place, size) * step + lo)
        place = floordiv(place, size)
    return (*found, place)


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
