"""Winograd's matrices, and straight-line code of constant matrices, in exact rational arithmetic."""

from fractions import Fraction
from math import isclose, sqrt

import pytest
from draws import examples
from hypothesis import given
from hypothesis import strategies as st

from convsmith.arith.linear_map import linear_code
from convsmith.arith.winograd import (
    POINTS,
    error_ratio,
    filtering,
    filtering_at,
    first_input,
    transposed_error_ratio,
    transposed_filtering,
)

SIZES = [(m, r) for m in range(1, 9) for r in range(1, 8) if 1 < m + r - 1 <= 11]
RATIONALS = st.fractions(-9, 9, max_denominator=7)


def times(matrix, x):
    return [sum((c * v for c, v in zip(row, x, strict=True)), Fraction(0)) for row in matrix]


def run(code, x):
    values = list(x)
    for terms in code.steps:
        values.append(sum((c * values[j] for c, j in terms), Fraction(0)))
    return [values[n] for n in code.results]


def correlation(d, g):
    return [sum(d[i + k] * g[k] for k in range(len(g))) for i in range(len(d) - len(g) + 1)]


@examples(40)
@given(st.sampled_from(SIZES), st.data())
def test_correlation_is_exact(size, data):
    m, r = size
    d = data.draw(st.lists(RATIONALS, min_size=m + r - 1, max_size=m + r - 1))
    g = data.draw(st.lists(RATIONALS, min_size=r, max_size=r))
    made = filtering(m, r)
    products = [x * y for x, y in zip(times(made.weights, g), times(made.input, d), strict=True)]
    assert times(made.output, products) == correlation(d, g)


@examples(40)
@given(st.sampled_from(SIZES), st.sampled_from([2, 3, 5]), st.data())
def test_correlation_with_a_stride_is_exact(size, stride, data):
    m, r = size
    count = (m - 1) * stride + r
    d = data.draw(st.lists(RATIONALS, min_size=count, max_size=count))
    g = data.draw(st.lists(RATIONALS, min_size=r, max_size=r))
    made = filtering(m, r, stride)
    products = [x * y for x, y in zip(times(made.weights, g), times(made.input, d), strict=True)]
    assert times(made.output, products) == correlation(d, g)[::stride]
    if m > 1 and r > stride:
        assert len(products) == stride * m + r - stride


@examples(60)
@given(st.sampled_from(SIZES), st.sampled_from([1, 2, 3, 5]), st.integers(0, 7), st.data())
def test_transposed_correlation_is_exact(size, stride, pad, data):
    """With a stride, a residue class of the outputs has some of the taps, or none."""
    m, r = size[0] * stride, size[1]
    made, first = transposed_filtering(m, r, stride, pad), first_input(r, stride, pad)
    count = len(made.input[0])
    d = data.draw(st.lists(RATIONALS, min_size=count, max_size=count))
    g = data.draw(st.lists(RATIONALS, min_size=r, max_size=r))
    products = [x * y for x, y in zip(times(made.weights, g), times(made.input, d), strict=True)]
    truth = [
        sum((d[(i + pad - k) // stride - first] * g[k] for k in range(r) if (i + pad - k) % stride == 0), Fraction(0))
        for i in range(m)
    ]
    assert times(made.output, products) == truth
    if r > stride and size[0] > 1:
        assert len(products) == m + r - stride


def test_error_of_a_transposed_correlation_counts_the_taps_of_each_class():
    """F(2, 2) and F(2, 1) have the errors of sums of 2 and of 1 products, and the former rounds twice as often."""
    assert transposed_error_ratio(2, 3, 2, 1) == 1
    both = (error_ratio(4, 2) * 2) ** 2, error_ratio(4, 1) ** 2
    assert isclose(transposed_error_ratio(8, 3, 2, 1), sqrt(sum(both) / (2**2 + 1**2)))


@examples(40)
@given(st.sampled_from(SIZES), st.data())
def test_any_points_serve(size, data):
    m, r = size
    count = m + r - 2
    points = data.draw(st.lists(RATIONALS, min_size=count, max_size=count, unique=True))
    made = filtering_at(points, m, r)
    d, g = [Fraction(3 * n * n - 7) for n in range(m + r - 1)], [Fraction(5 - n) for n in range(r)]
    products = [x * y for x, y in zip(times(made.weights, g), times(made.input, d), strict=True)]
    assert times(made.output, products) == correlation(d, g)


@examples(40)
@given(st.sampled_from(SIZES), st.data())
def test_straight_lines_are_the_matrices(size, data):
    for matrix in filtering(*size):
        x = data.draw(st.lists(RATIONALS, min_size=len(matrix[0]), max_size=len(matrix[0])))
        assert run(linear_code(matrix), x) == times(matrix, x)


@pytest.mark.parametrize(
    ("m", "r", "operations"),
    [(2, 3, [4, 6, 4]), (4, 3, [12, 15, 14]), (6, 3, [20, 19, 26]), (4, 5, [16, 26, 26]), (2, 7, [12, 32, 26])],
)
def test_number_of_operations(m, r, operations):
    """Row by row, the output of F(6, 3) takes 32 operations, its input 36."""
    assert [linear_code(matrix).operations for matrix in filtering(m, r)] == operations


def test_points_differ():
    assert len(set(POINTS)) == len(POINTS)
    with pytest.raises(ValueError, match="needs 12 points, there are 11"):
        filtering(8, 6)
