"""Views by strides: the elements that they read are those of numpy's moves."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from convsmith.network.operators.expand import Expand
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.rewrites.repeated_views import RepeatedView
from convsmith.network.rewrites.strided_views import ArrayBox, StridedView


def _elements(view: StridedView, count: int) -> Any:
    """The numbers of the elements that a view reads of an array of `count` elements."""
    memory = np.arange(count)
    return np.lib.stride_tricks.as_strided(memory[view.offset :], view.shape, [8 * x for x in view.strides])


def _of_box(box: ArrayBox, sizes: tuple[int, ...], count: int) -> Any:
    """The same numbers, as a box of a row-major array."""
    whole = np.arange(count).reshape([box.wholes[n] for n in box.order]).transpose(np.argsort(box.order))
    return whole[tuple(slice(n, n + size) for n, size in zip(box.starts, sizes))]


def _divided(r: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of as many elements: two dims joined, or one divided."""
    n = r.randrange(len(shape))
    if n + 1 < len(shape) and r.random() < 0.5:
        return (*shape[:n], shape[n] * shape[n + 1], *shape[n + 2 :])
    factor = r.choice([x for x in range(1, shape[n] + 1) if shape[n] % x == 0])
    return (*shape[:n], factor, shape[n] // factor, *shape[n + 1 :])


@pytest.mark.parametrize("seed", range(60))
def test_views_read_the_elements_that_moves_read(seed: int) -> None:
    r = Random(seed)
    shape = (2, 6, 12)
    count = int(np.prod(shape))
    view, expected = StridedView.dense(shape), np.arange(count).reshape(shape)
    for _ in range(6):
        kind = r.choice(("reshape", "reshape", "transpose", "slice"))
        if kind == "transpose":
            axes = r.sample(range(len(view.shape)), len(view.shape))
            view, expected = view.transposed(axes), expected.transpose(axes)
        elif kind == "slice":
            starts = [r.randrange(size) for size in view.shape]
            sizes = [r.randint(1, size - start) for size, start in zip(view.shape, starts)]
            view = view.sliced(starts, [1] * len(starts), sizes)
            expected = expected[tuple(slice(a, a + n) for a, n in zip(starts, sizes))]
        else:
            made = view.reshaped(new := _divided(r, view.shape))
            moved = np.lib.stride_tricks.as_strided(expected, expected.shape, expected.strides)
            try:
                moved.shape = new
            except AttributeError:
                assert made is None
                continue
            assert made is not None
            view, expected = made, moved
        np.testing.assert_array_equal(_elements(view, count), expected)
        if (box := view.boxed(count)) is not None:
            np.testing.assert_array_equal(_of_box(box, view.shape, count), expected)


def test_a_third_of_the_columns_is_a_box() -> None:
    heads = StridedView.dense((2, 5, 24)).sliced((0, 0, 8), (1, 1, 1), (2, 5, 8)).reshaped((2, 5, 4, 2))
    assert heads is not None
    assert heads.transposed((0, 2, 1, 3)).boxed(240) == ArrayBox((0, 2, 1, 3), (2, 12, 5, 2), (0, 4, 0, 0))


def test_elements_apart_are_no_box() -> None:
    whole = StridedView.dense((2, 12))
    assert whole.sliced((0, 1), (1, 3), (2, 4)).boxed(24) is None
    assert whole.transposed((1, 0)).reshaped((24,)) is None
    assert whole.reshaped((2, 6)) is None


@pytest.mark.parametrize("seed", range(40))
def test_views_of_repeated_elements_read_what_moves_read(seed: int) -> None:
    r = Random(seed)
    axis = r.randrange(3)
    shape = tuple(1 if n == axis else size for n, size in enumerate((2, 6, 4)))
    array, expected = RepeatedView(StridedView.dense(shape)), np.arange(int(np.prod(shape))).reshape(shape)
    sizes = tuple(3 if n == axis else size for n, size in enumerate(shape))
    steps: list[Any] = [Expand("f32", shape, sizes), *r.choices(("reshape", "transpose"), k=4)]
    count = 3 * expected.size
    for step in steps:
        work: Any
        if step == "reshape":
            new = _divided(r, expected.shape)
            work, moved = Reshape("f32", count), expected.reshape(new)
        elif step == "transpose":
            axes = tuple(r.sample(range(expected.ndim), expected.ndim))
            work, moved = Transpose("f32", expected.shape, axes), expected.transpose(axes)
        else:
            work, moved = step, np.broadcast_to(expected, sizes)
        made = array.after(work, moved.shape)
        if made is None:
            assert step == "reshape"
            return
        array, expected = made, moved
        once = _elements(array.view, count // 3)
        np.testing.assert_array_equal(np.repeat(once, array.times, array.axis), expected)
