"""Lanes: the strides and rows that offsets form, of all short lists of offsets."""

from __future__ import annotations

from itertools import product

import pytest

from convsmith.ir.value import Lanes, rows_of_lanes, strided


@pytest.mark.parametrize("count", range(1, 7))
def test_strides_and_rows_are_those_that_make_the_offsets(count: int) -> None:
    """A row has two lanes or more, and there are two rows or more; a single one is a stride of 1."""
    steps = range(-1, 5)
    strides = {strided(count, step).offsets: step for step in ((1,) if count == 1 else steps)}
    rows: dict[tuple[int, ...], tuple[int, int, int]] = {}
    for length in (n for n in range(2, count) if count % n == 0):
        for distance in (n for n in range(-3, 4 * count) if n != length):
            rows[rows_of_lanes(count // length, length, distance).offsets] = (count // length, length, distance)
    found = [(0, *rest) for rest in product(range(-1, 5), repeat=count - 1)]
    for offsets in {*found, *rows, *strides}:
        lanes = Lanes(offsets, count)
        assert (lanes.stride, lanes.rows) == (strides.get(offsets), rows.get(offsets)), offsets


def test_lanes_that_are_accessed() -> None:
    lanes = Lanes((0, 2, 4, 6), 3, 1)
    assert lanes.count == 4 and lanes.touched == (2, 4) and not lanes.is_whole
    assert strided(3, 2).is_whole and not strided(3, 2, 2).is_whole and not Lanes((0, 1), 2, 1).is_whole
    assert rows_of_lanes(3, 2, 8, 2) == Lanes((0, 1, 8, 9, 16, 17), 4)
