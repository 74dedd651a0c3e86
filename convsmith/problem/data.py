"""Random arrays for a problem, chosen so that results are exact: small integers, and powers of two as scales."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.integer_steps import INTEGER_STEPS
from convsmith.problem.low_precision import FULL, check_seed
from convsmith.problem.post_ops import BinaryPostOp, Integer
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.problem.types import TYPES, convert, is_integer

__all__ = ["is_limited", "keep_within", "random_arrays", "terms", "unwritten"]

Array = np.ndarray[Any, Any]

_EXACT = {False: 1 << 24, True: 1 << 11}
"""Largest integer up to which all integers are exact, for sums in f32 (False) and in f16 (True)."""


def random_arrays(problem: Problem, seed: int = 0, limits: Mapping[str, float] | None = None) -> dict[str, Array]:
    """Return a logical array for every input, by name; scales and zero points that the line gives keep their values.

    Sums of products are exact in the accumulator's type, and mostly within the range of an 8-bit destination. Factors
    of integer types use the full range of their types as far as the sums stay exact, or up to the magnitude that
    `limits` gives for their name.
    """
    rng = np.random.default_rng(check_seed(seed))
    if isinstance(problem, Chain):
        found = _chained(problem, rng)
    else:
        found = {tensor.name: _array(problem, tensor, rng) for tensor in problem.inputs}
    keep_within(limits or {}, found)
    return found


def keep_within(limits: Mapping[str, float], arrays: Mapping[str, Array]) -> None:
    """Clip the integer arrays that `limits` name to these magnitudes, in place."""
    for name in limits.keys() & arrays.keys():
        x = arrays[name]
        if is_limited(x.dtype, limits[name]):
            np.clip(x, max(-int(limits[name]), np.iinfo(x.dtype).min), int(limits[name]), out=x)


def is_limited(dtype: np.dtype[Any], limit: float) -> bool:
    """Return whether `dtype` is an integer type with numbers beyond the magnitude `limit`."""
    return dtype.kind in "iu" and bool(np.iinfo(dtype).max > limit)


def terms(problem: Problem) -> int:
    """Return the maximum number of products in one sum of `problem`; of a chain, in its first stage."""
    if isinstance(problem, Chain):
        return terms(problem.stages[0])
    if not isinstance(problem, Conv):
        return problem.dims["k"]
    if problem.dir.startswith("BWD_W"):
        return problem.mb * math.prod(problem.coarse)
    channels = problem.oc if problem.dir == "BWD_D" else problem.ic
    return channels // problem.g * math.prod(problem.k)


def unwritten(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array that shows which elements a kernel has not written: NaN, or the byte 0xA5 for integer types."""
    if dtype.kind in "iu":
        return np.full((math.prod(shape) * dtype.itemsize,), 0xA5, np.uint8).view(dtype).reshape(shape)
    return np.full(shape, np.nan).astype(dtype)


def _array(problem: Problem, tensor: Tensor, rng: np.random.Generator) -> Array:
    if tensor.default is not None:
        return convert(np.broadcast_to(np.asarray(tensor.default, np.float64), tensor.shape), tensor.dtype)
    if tensor.holds == "scales":
        return convert(2.0 ** rng.integers(-2, 1, tensor.shape, endpoint=True), tensor.dtype)
    if tensor.post_op is not None:
        op = problem.post_ops[tensor.post_op]
        if isinstance(op, Integer) and op.dtype == "f32":
            return convert(rng.uniform(0.5, 1, tensor.shape) * 2.0 ** rng.integers(-9, 1, tensor.shape), "f32")
        if isinstance(op, Integer):
            low, high = map(int, INTEGER_STEPS[op.alg].limits[0])
            return rng.integers(low, high, tensor.shape, np.int32, endpoint=True)
        if isinstance(op, BinaryPostOp) and op.alg == "div":
            return convert(2 ** rng.integers(0, 2, tensor.shape, endpoint=True), tensor.dtype)
    if tensor.holds == "rounding":
        return rng.integers(0, FULL, tensor.shape, np.int64).astype(np.uint8)
    if tensor.holds in ("src", "wei") or (tensor.holds == "dst" and not problem.forward):
        return _factor(problem, tensor, rng)
    most = 128 if tensor.holds == "dst" and TYPES[tensor.dtype].bits == 8 else 4
    return _whole(rng, tensor, most)


def _chained(chain: Chain, rng: np.random.Generator) -> dict[str, Array]:
    """Return the arrays of `chain`; floating-point weights are sparse, so that sums of sums stay exact."""
    found: dict[str, Array] = {}
    for n, stage in enumerate(chain.stages):
        names = chain.names(n)
        for tensor in stage.inputs:
            if names[tensor.name] in found or (n and tensor.name == "src"):
                continue
            values = _array(stage, tensor, rng)
            if tensor.holds == "wei" and stage.acc != "s32":
                values = _sparse(values, terms(stage), rng)
            found[names[tensor.name]] = values
    return found


def _sparse(values: Array, count: int, rng: np.random.Generator) -> Array:
    """Return about two of every `count` values, clipped to 1, and zeros; every filter has at least one non-zero value.
    """
    kept: Array = np.less(rng.random(values.shape) * count, 2)
    kept.reshape(-1)[:: max(count, 1)] = True
    signs = np.where(values < 0, -1, 1)
    return np.where(kept, signs, 0).astype(values.dtype)


def _factor(problem: Problem, tensor: Tensor, rng: np.random.Generator) -> Array:
    count = terms(problem)
    most = max(1, math.isqrt(_EXACT[problem.half_sums] // (count + 1)))
    if problem.acc != "s32":
        return _whole(rng, tensor, min(most, 4))
    values = _whole(rng, tensor, min(most, 255))
    out = problem.outputs[0].dtype
    if tensor.holds == "wei" and is_integer(out) and TYPES[out].bits == 8:
        # Sparse weights keep most sums from saturating; every filter has at least one non-zero weight.
        wide = values.astype(np.int16)
        wide = np.where(rng.random(tensor.shape) * count < 2, np.clip(wide, -1, 1), 0)
        wide.reshape(-1)[:: max(count, 1)] |= 1
        values = wide.astype(values.dtype)
    return values


def _whole(rng: np.random.Generator, tensor: Tensor, most: int) -> Array:
    low = 0 if tensor.dtype in ("u8", "u4") else -most
    return convert(rng.integers(low, most, tensor.shape, np.int64, endpoint=True), tensor.dtype)
