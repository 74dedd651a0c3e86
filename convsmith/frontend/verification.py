"""Is a kernel right? Run it on data whose result is known, and compare.

Integer-valued data: sums are exact in any order, so every element must be equal. Real-valued data: the error of each
element must stay below eps * (2 + sqrt(K)) * sum |a||b|, K being the number of terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from convsmith.frontend.kernel import Kernel
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.reference import conv_reference

__all__ = ["Verdict", "integer_data", "verify_kernel"]

Array = np.ndarray[Any, Any]

_EXACT = 1 << 24  # whole numbers up to here are exact in f32


@dataclass(frozen=True)
class Verdict:
    """`wrong` of `total` elements are not right; `detail` says it, or by how much a real-valued result was right."""

    wrong: int
    total: int
    detail: str

    @property
    def ok(self) -> bool:
        """Whether all elements are right."""
        return self.wrong == 0


def integer_data(problem: Conv, seed: int = 0) -> tuple[Array, Array, Array | None]:
    """Logical source, weights and bias (where there is one) of small whole numbers, such that all sums are exact."""
    rng = np.random.default_rng(seed)
    terms = problem.ic // problem.g * math.prod(problem.k)
    most = max(1, min(4, math.isqrt(_EXACT // (terms + 1))))

    def integers(shape: tuple[int, ...]) -> Array:
        return rng.integers(-most, most, shape, np.int8, endpoint=True).astype(np.float32)

    src, wei = integers(problem.src_shape), integers(problem.wei_shape)
    return src, wei, integers(problem.bias_shape) if problem.bias else None


def verify_kernel(kernel: Kernel, seed: int = 0, real: bool = False) -> Verdict:
    """Compare the kernel's result on random data with the numpy reference."""
    problem = kernel.problem
    if real:
        rng = np.random.default_rng(seed)
        shapes = [problem.src_shape, problem.wei_shape] + ([problem.bias_shape] if problem.bias else [])
        src, wei, *rest = (rng.standard_normal(shape, np.float32) for shape in shapes)
        bias = rest[0] if rest else None
    else:
        src, wei, bias = integer_data(problem, seed)
    layout = problem.dst_layout
    out = to_layout(np.zeros(problem.dst_shape, np.float32), layout)
    out[...] = np.nan  # what is not written stays, padding lanes included
    kernel(to_layout(src, problem.src_layout), to_layout(wei, problem.wei_layout), bias, out=out)
    result = from_layout(out, layout)
    if real:
        verdict = _within_bound(problem, result, src, wei, bias)
    else:
        # In f32, as the kernel: sums are exact, and post-ops round as they do there.
        verdict = _equal(result, conv_reference(problem, src, wei, bias, np.float32))
    lanes = 0 if layout.is_plain else int(np.count_nonzero(out != to_layout(result, layout)))
    if verdict.ok and lanes:
        return Verdict(lanes, out.size, f"{lanes} padding lanes of {layout} are not zero")
    return verdict


def _equal(result: Array, truth: Array) -> Verdict:
    wrong = result != truth
    count = int(np.count_nonzero(wrong))
    return Verdict(count, truth.size, _first(result, truth, wrong) if count else "exact")


def _within_bound(problem: Conv, result: Array, src: Array, wei: Array, bias: Array | None) -> Verdict:
    truth = conv_reference(problem, src, wei, bias)
    plain = Conv.parse(f"--dir={problem.dir} {problem.descriptor()}")
    size = conv_reference(plain, abs(src), abs(wei), None if bias is None else abs(bias))
    terms = problem.ic // problem.g * math.prod(problem.k)
    steepest = math.prod(
        max(1.0, abs(op.alpha)) for op in problem.post_ops if isinstance(op, Eltwise) and op.alg == "relu"
    )
    bound = np.finfo(np.float32).eps * (2 + math.sqrt(terms)) * size * steepest
    error = abs(result - truth)
    wrong = ~(error <= bound)
    count = int(np.count_nonzero(wrong))
    if count:
        return Verdict(count, truth.size, _first(result, truth, wrong))
    share = float(np.max(error / np.maximum(bound, np.finfo(np.float32).tiny), initial=0.0))
    return Verdict(0, truth.size, f"largest error is {share:.2f} of eps * (2 + sqrt({terms})) * sum |a||b|")


def _first(result: Array, truth: Array, wrong: Array) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{np.count_nonzero(wrong)} of {truth.size} elements differ; the first, at {at}, is {result[at]} where "
        f"{truth[at]} is right"
    )
