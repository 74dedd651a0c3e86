"""Arrays that share memory, by looking at every byte: outputs against inputs, outputs against themselves."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from convsmith.codegen.artifact import Argument, Role
from convsmith.diag.errors import UsageError
from convsmith.runtime.arrays import ArraySpec, numpy_dtype
from convsmith.runtime.border import Border

SIZE = 4
VIEWS = [slice(start, start + SIZE * step, step) for step in (1, 2, 3) for start in range(17 - SIZE * step)]
VIEWS += [slice(start + 7, start - 1 if start else None, -2) for start in range(8)]
"""Places of arrays of SIZE elements in a row of 16: side by side, with gaps between them, backwards."""


def border(role: Role, shape: tuple[int, ...], layout: str) -> Border:
    """One that takes a source in this role, and gives a result of the same form."""
    return Border([Argument(name, r, "f32", shape, layout, 8) for name, r in (("src", role), ("dst", "out"))], "")


def is_refused(taker: Border, arrays: dict[str, np.ndarray]) -> bool:
    try:
        taker.take(arrays)
    except UsageError as error:
        assert error.code == "overlap"
        return True
    return False


@pytest.mark.parametrize("role", ["in", "out"])
def test_two_arrays_in_every_place(role: Role) -> None:
    """Arrays that touch without sharing an element are legal."""
    taker = border(role, (SIZE,), "a")
    memory, element = np.zeros(16, np.float32), np.arange(16)
    for first, second in product(VIEWS, VIEWS):
        arrays = {"src": memory[first], "dst": memory[second]}
        assert len(arrays["src"]) == len(arrays["dst"]) == SIZE
        shared = bool(set(element[first]) & set(element[second]))
        assert is_refused(taker, arrays) == shared, (first, second)


@pytest.mark.parametrize("extent", [(2, 3), (3, 2)])
def test_two_matrices_in_every_place(extent: tuple[int, int]) -> None:
    """Rows that interleave share no element; rows with gaps end where their last element does."""
    layout = f"a:{extent[0]}:5_b:{extent[1]}:1"
    taker = border("in", extent, layout)
    memory, element = np.zeros(40, np.float32), np.arange(40)

    def view(x: np.ndarray, start: int, row: int) -> np.ndarray:
        return np.lib.stride_tricks.as_strided(x[start:], extent, (row * x.itemsize, x.itemsize))

    for first, second, row in product(range(0, 12, 4), range(20), (3, 5, 7)):
        arrays = {"src": view(memory, first, 5), "dst": view(memory, second, row)}
        shared = bool(np.isin(view(element, first, 5), view(element, second, row)).any())
        assert is_refused(taker, arrays) == shared, (first, second, row)


def shares_a_byte(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    offsets = [sum(i * s for i, s in zip(at, strides)) for at in product(*map(range, shape))]
    touched = [offset + n for offset in offsets for n in range(itemsize)]
    return len(set(touched)) < len(touched)


@pytest.mark.parametrize("dtype", ["u8", "f16", "f32"])
def test_an_output_whose_elements_share_bytes(dtype: str) -> None:
    """Strides of any number of bytes, also below an element's, and dims that interleave."""
    numpy = numpy_dtype(dtype)
    memory, legal = np.zeros(100, np.uint8), set()
    for shape in ((3,), (1,), (2, 3), (3, 1), (2, 2, 2)):
        spec = ArraySpec(Argument("dst", "out", dtype, shape, "abc"[: len(shape)], 8))
        for strides in product((0, 1, 2, 3, 4, 5, 8, 9, 12, -2, -4), repeat=len(shape)):
            start = sum(-(n - 1) * s for n, s in zip(shape, strides) if s < 0)
            out: np.ndarray = np.ndarray(shape, numpy, memory, start, strides)
            try:
                spec.check_output(out)
                legal.add(True)
                assert not shares_a_byte(shape, strides, numpy.itemsize), (shape, strides)
            except UsageError as error:
                legal.add(False)
                assert error.code == "overlap" and shares_a_byte(shape, strides, numpy.itemsize), (shape, strides)
    assert legal == {True, False}
