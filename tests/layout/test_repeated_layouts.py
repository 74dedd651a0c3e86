"""Layouts of several tensors and of spread lines, and the sizes that a call may have."""

from __future__ import annotations

from itertools import product

import pytest

from convsmith.diag.errors import UsageError
from convsmith.layout.layout import Layout
from convsmith.layout.requirements import FIXED, Requirements


@pytest.mark.parametrize("tag", ["abc", "acb", "cba", "aBc4b", "ABc2a4b"])
def test_several_tensors_lie_one_after_the_other(tag: str) -> None:
    one = Layout.from_tag(tag, (3, 6, 5))
    for count in (1, 2, 4):
        several = one.repeated(count)
        size = len(list(product(*map(range, one.padded_shape))))
        assert several.shape == (count, 3, 6, 5)
        for n, place in product(range(count), product(range(3), range(6), range(5))):
            assert several.offset((n, *place)) == n * size + one.offset(place)


def test_a_tensor_of_most_dims_cannot_be_repeated() -> None:
    with pytest.raises(UsageError, match="cannot get another dim"):
        Layout.from_tag("abcdef", (1, 2, 1, 2, 1, 2)).repeated(2)


@pytest.mark.parametrize("line", [1, 4, 16])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 8, 4), (4, 1, 16), (2, 4, 8)])
def test_spread_tensors_are_an_odd_number_of_lines_apart(shape: tuple[int, int, int], line: int) -> None:
    dense = Layout.from_tag("abc", shape)
    spread = dense.spread(line)
    apart = spread.offset((1, 0, 0))
    lines = -(-shape[1] * shape[2] // line)
    assert apart == line * (lines if lines % 2 else lines + 1)
    for a, b, c in product(*map(range, shape)):
        assert spread.offset((a, b, c)) == a * apart + dense.offset((0, b, c))


def test_requirements() -> None:
    some = Requirements((("ic", 8), ("ih", None), ("iw", 0), ("mb", None)))
    assert some.fixed == {"ic": 8, "iw": 0} and some.free == ("ih", "mb")
    assert some and not FIXED and str(some) == "ic == 8, ih >= 0, iw == 0, mb >= 0"
