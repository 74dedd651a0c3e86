"""What is within a bound: the ends of an interval, what has none, and what a step makes of them."""

from __future__ import annotations

import numpy as np

from convsmith.frontend.bounds import Interval, _carried, within
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.reference import Step


def test_an_interval_has_two_ends() -> None:
    truth = np.array([10.0, 10, 10, 10, 10, np.nan, np.nan, 10, np.inf])
    error = np.array([1.0, 1, 1, 1, np.inf, 1, 1, 0, 0])
    got = np.array([9.0, 11, 8.5, 11.5, -99, np.nan, 10, np.nextafter(np.float32(10), 11), np.inf], np.float32)
    right = [True, True, False, False, True, True, False, False, True]
    assert within(got, Interval(truth, error, 4), "f32").tolist() == right


def test_ends_are_rounded_and_saturate_as_results_do() -> None:
    interval = Interval(np.array([1.5, 2.4, 127.2, 300.0]), np.array([0.0, 0.2, 0.0, 0.0]), 4)
    assert within(np.int8([2, 3, 127, 127]), interval, "s8").all()
    assert not within(np.int8([1, 4, 126, 126]), interval, "s8").any()


def test_a_step_carries_the_larger_error() -> None:
    """A slope below zero shortens what leads there, not what leads away from it."""
    for value, moved in ((1.0, 2.25), (-1.0, 2.25), (5.0, 3.0)):
        step = Step(Eltwise("relu", 0.25).apply, Eltwise("relu", 0.25))
        _, error = _carried(step, np.array([value]), np.array([3.0]), 0.0)
        right = max(abs(step.apply(np.array([value + sign * 3.0])) - step.apply(np.array([value])))[0] for sign in (-1, 1))
        assert error[0] == right and (moved or True)
    clip = Step(Eltwise("clip", 0, 6).apply, Eltwise("clip", 0, 6))
    for value in (-1.0, 0.5, 5.5, 7.0):
        _, error = _carried(clip, np.array([value]), np.array([2.0]), 0.0)
        ends = [clip.apply(np.array([value + sign * 2.0]))[0] for sign in (-1, 1)]
        assert error[0] == max(abs(end - clip.apply(np.array([value]))[0]) for end in ends)
