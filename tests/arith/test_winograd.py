"""Winograd's matrices, and straight-line code of constant matrices, in exact rational arithmetic."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convsmith.arith.linear_map import linear_code
from convsmith.arith.winograd import POINTS, filtering, filtering_at

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


@settings(max_examples=40)
@given(st.sampled_from(SIZES), st.data())
def test_correlation_is_exact(size, data):
    m, r = size
    d = data.draw(st.lists(RATIONALS, min_size=m + r - 1, max_size=m + r - 1))
    g = data.draw(st.lists(RATIONALS, min_size=r, max_size=r))
    made = filtering(m, r)
    products = [x * y for x, y in zip(times(made.weights, g), times(made.input, d), strict=True)]
    assert times(made.output, products) == correlation(d, g)


@settings(max_examples=40)
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


@settings(max_examples=40)
@given(st.sampled_from(SIZES), st.data())
def test_any_points_serve(size, data):
    m, r = size
    count = m + r - 2
    points = data.draw(st.lists(RATIONALS, min_size=count, max_size=count, unique=True))
    made = filtering_at(points, m, r)
    d, g = [Fraction(3 * n * n - 7) for n in range(m + r - 1)], [Fraction(5 - n) for n in range(r)]
    products = [x * y for x, y in zip(times(made.weights, g), times(made.input, d), strict=True)]
    assert times(made.output, products) == correlation(d, g)


@settings(max_examples=40)
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
