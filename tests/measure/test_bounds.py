"""Values within a bound: the ends of an interval, intervals without one, and the effect of a step on them."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.measure.bounds import Interval, _carried, intervals, within
from convsmith.measure.verification import Verdict
from convsmith.problem.lines import parse_problem
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.reference import ReferenceStep


def test_an_interval_has_two_ends() -> None:
    truth = np.array([10.0, 10, 10, 10, 10, np.nan, np.nan, 10, np.inf, np.inf])
    error = np.array([1.0, 1, 1, 1, np.inf, 1, 1, 0, 0, np.inf])
    above = np.nextafter(np.float32(10), np.float32(11))
    got = np.array([9.0, 11, 8.5, 11.5, -99, np.nan, 10, above, np.inf, 3], np.float32)
    right = [True, True, False, False, True, True, False, False, True, True]
    assert within(got, Interval(truth, error, 4), "f32").tolist() == right


def test_ends_are_rounded_and_saturate_as_results_do() -> None:
    interval = Interval(np.array([1.5, 2.4, 127.2, 300.0]), np.array([0.0, 0.2, 0.0, 0.0]), 4)
    assert within(np.int8([2, 3, 127, 127]), interval, "s8").all()
    assert not within(np.int8([1, 4, 126, 126]), interval, "s8").any()


@pytest.mark.parametrize("op", [Eltwise("relu", 0.25), Eltwise("clip", 0, 6), Eltwise("abs"), Eltwise("linear", -2, 1)])
def test_a_step_carries_the_larger_error(op: Eltwise) -> None:
    """A slope that ends within the interval shortens one of its sides."""
    for value in (-5.0, -1.0, 0.5, 1.0, 5.5, 7.0):
        truth, error = _carried(ReferenceStep(op.apply, op), np.array([value]), np.array([3.0]), 0.0)
        ends = op.apply(np.array([value - 3.0, value + 3.0]))
        assert truth[0] == op.apply(np.array([value]))[0] and error[0] == np.abs(ends - truth).max()


@pytest.mark.parametrize("terms", [1, 4, 100])
def test_the_error_of_sums_grows_with_their_terms(terms: int) -> None:
    problem = parse_problem(f"--matmul 2x{terms}:{terms}x3")
    arrays = {"src": np.full((2, terms), -2, np.float32), "wei": np.full((terms, 3), 3, np.float32)}
    found = intervals(problem, arrays, "f32", exact_sums=False)["dst"]
    bound = 2.0**-23 * (2 + terms**0.5) * 6 * terms
    assert found.terms == terms and (found.truth == -6 * terms).all()
    # The step after the sums rounds once more.
    assert (bound <= found.error).all() and (found.error <= bound + 1.01 * 2.0**-23 * 6 * terms).all()
    exact = intervals(problem, arrays, "f32", exact_sums=True)["dst"]
    assert exact.terms == 0 and (exact.error < bound / 2).all()


def test_one_wrong_element_is_wrong() -> None:
    assert Verdict(0, 3, "exact").ok and not Verdict(1, 3, "").ok
