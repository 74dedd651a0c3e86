"""Bounds on the distance of a correct result from the reference: the error of the sums, carried through later steps.

A sum of K floating-point products has an error of at most eps * (2 + sqrt(K)) * sum |a||b|, plus K times half the
smallest subnormal of its type; sums of integers, and of integer-valued numbers that stay exact, have no error. A step
maps the ends of that interval to the ends of the next, and adds its own rounding error.

The bound follows from rounding each of K multiply-adds, whose error is at most eps / 2 of a partial sum, hence of sum
|a||b|: in the worst case eps / 2 * K * sum |a||b|. Factors and errors have random signs, so the total rarely exceeds 2
* sqrt(K) of such errors, in any order. For 2304 terms the bound is 6e-6 of sum |a||b| in f32, and 5 % in f16, whose eps
is 2**-10.

A transform computes a tile of outputs from the sums of all its products. Its bound is that of the sums times its
expected error relative to theirs (`statement/winograd.py`), with the greatest sum |a||b| of any output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.data import terms
from convsmith.problem.eltwise import ALGORITHMS
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Eltwise, Integer, SumPostOp
from convsmith.problem.problem import Problem
from convsmith.problem.reference import ReferenceStep, reference, steps_type, sums_and_steps
from convsmith.problem.types import TYPES, convert

__all__ = ["Interval", "intervals", "within"]

Array = np.ndarray[Any, Any]

_ELTWISE = 8
"""Roundings of an element-wise algorithm: the least accurate one has an error of six units in the last place."""


class Interval(NamedTuple):
    """The true values of an output before conversion to its type, and the permitted error of each.

    `terms` is the number of products in a rounded sum; 0 if sums are exact.
    """

    truth: Array
    error: Array
    terms: int


def intervals(
    problem: Problem, arrays: Mapping[str, Array], acc: str, exact_sums: bool, transform: float = 0.0
) -> dict[str, Interval]:
    """Return the interval of every output, by name.

    `acc` is the type of the sums; the bias gradient uses the problem's own. `exact_sums` states that no sum is rounded.
    `transform` is the expected error of a transform relative to that of the sums, 0 if the kernel uses no transform;
    for a chain, the largest error of its stages.
    """
    sums, steps = sums_and_steps(problem, arrays, np.float64)
    eps = float(np.finfo(steps_type(problem)).eps)
    exact = exact_sums or acc == "s32"
    sizes = {} if exact else reference(_plain(problem), _magnitudes(problem, arrays), raw=True)
    intervals_by_name = {}
    for name, value in sums.items():
        of_bias = problem.tensor(name).holds == "bia"
        count = arrays["diff_dst"].size // max(problem.bias_shape[0], 1) if of_bias else terms(problem)
        error = np.zeros(value.shape)
        if not exact:
            row = np.finfo(TYPES[problem.acc if of_bias else acc].numpy)
            size = _of_transform(sizes[name], transform)
            error = float(row.eps) * (2 + math.sqrt(count)) * size + count / 2 * float(row.smallest_subnormal)
        with np.errstate(all="ignore"):
            for step in steps:
                value, error = _carried(step, value, error, eps, transform)
        intervals_by_name[name] = Interval(value, error, 0 if exact else count)
    return intervals_by_name


def within(result: Array, interval: Interval, dtype: str) -> Array:
    """Return, for each element of `result`, whether it is the conversion of a number in its interval to the type
    `dtype`.
    """
    truth, error, _ = interval
    with np.errstate(all="ignore"):
        low, high, middle = (convert(x, dtype).astype(np.float64) for x in (truth - error, truth + error, truth))
    got = result.astype(np.float64)
    same = (got == middle) | (np.isnan(got) & np.isnan(middle))
    inside: Array = same | ((low <= got) & (got <= high)) | np.isinf(error)
    return inside


def _of_transform(sizes: Array, transform: float) -> Array:
    """Return the sums |a||b| of outputs, or the sums that bound the error of a transform."""
    return np.full(sizes.shape, max(transform, 1.0) * sizes.max(initial=0)) if transform else sizes


def _carried(
    step: ReferenceStep, value: Array, error: Array, eps: float, transform: float = 0.0
) -> tuple[Array, Array]:  # fmt: skip
    """Return the values after `step`, and their error."""
    after = step.apply(value)
    if step.spread is not None:
        sums = _of_transform(step.spread(np.abs(value).astype(np.float64)), transform)
        return after, np.asarray(step.spread(error.astype(np.float64)) + eps * (2 + math.sqrt(step.terms)) * sums)
    carried_error = np.zeros(after.shape)
    if error.any():
        ends = [step.apply(value + sign * error).astype(np.float64) for sign in (-1, 1)]
        middle = after.astype(np.float64)  # no type is common to small floats and numpy's own, before numpy 2
        carried_error = np.maximum(*(np.where(_same(x, middle), 0.0, np.abs(x - middle)) for x in ends))
        carried_error = np.where(np.isnan(carried_error), np.inf, carried_error)
    if _rounds(step, value):
        rounding = eps * _size(step, value, after)
        carried_error = carried_error + np.where(np.isfinite(rounding), rounding, 0)
    return after, carried_error


def _same(a: Array, b: Array) -> Array:
    same: Array = (a == b) | (np.isnan(a) & np.isnan(b))
    return same


def _rounds(step: ReferenceStep, value: Array) -> bool:
    """Return whether the step rounds; clipping and similar steps only select a value."""
    if isinstance(step.op, Eltwise):
        return ALGORITHMS[step.op.alg].transcendental or step.op.alg not in ("abs", "clip", "clip_v2", "round")
    if isinstance(step.op, Integer):
        return False
    return not np.issubdtype(value.dtype, np.integer) or bool(np.abs(value).max(initial=0) >= 1 << 24)


def _size(step: ReferenceStep, value: Array, after: Array) -> Array:
    """Return the magnitudes that the step rounds."""
    size: Array = np.abs(after)
    if isinstance(step.op, SumPostOp):
        return size + np.abs(value)
    if isinstance(step.op, Eltwise):
        op = step.op
        inner = np.abs(value) * max(1.0, abs(op.alpha)) + abs(op.beta)
        size = _ELTWISE * (size + abs(op.scale) * inner)
    return size


def _plain(problem: Problem) -> Problem:
    """Return the problem with the same sums in f32, and no later steps; of a chain, its first stage."""
    if isinstance(problem, Chain):
        return _plain(problem.stages[0])
    plain: dict[str, Any] = {
        "dt": ("f32",) * 3, "bia_dt": "", "scales": (), "zero_points": (), "post_ops": (),
        "stag": "any", "wtag": "any", "dtag": "any", "acc_mode": "strict",
    }  # fmt: skip
    if isinstance(problem, Matmul):
        return replace(problem, **plain, bia_mask=None, bits=(8, 8), rounding="nearest")
    assert isinstance(problem, Conv)
    return replace(problem, **plain, dir="FWD_D" if problem.forward else problem.dir)


def _magnitudes(problem: Problem, arrays: Mapping[str, Array]) -> dict[str, Array]:
    given = problem.arrays_of(0, arrays) if isinstance(problem, Chain) else arrays
    return {tensor.name: np.abs(given[tensor.name].astype(np.float64)) for tensor in _plain(problem).inputs}
