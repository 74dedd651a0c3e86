"""Verification: run a kernel on data with a known result, and compare.

On integer-valued data, sums are exact in any order and every step rounds identically, so each element must be equal. On
real-valued data, and with transcendental post-ops, each element must be the conversion of a number within the bound of
`convsmith.measure.bounds`; an integer result may therefore differ by one only next to a tie. So must the results of a
transform whose matrices have thirds, on any data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.diag.record import record
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.machine.base import Machine
from convsmith.measure.bounds import Interval, intervals, within
from convsmith.problem.data import is_limited, random_arrays, unwritten
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.problem.reference import is_exact, reference, steps_type
from convsmith.problem.types import TYPES, convert, is_integer
from convsmith.statement.views import sums_type
from convsmith.statement.winograd import Winograd

__all__ = [
    "Verdict", "VerifiableKernel", "computed", "error_of_transforms", "has_real_data",
    "limits_of_libraries", "narrow_limits", "real_arrays",
    "verify_kernel",
]  # fmt: skip

Array = np.ndarray[Any, Any]


class VerifiableKernel(Protocol):
    """A kernel with the problem that it computes."""

    @property
    def problem(self) -> Problem: ...

    @property
    def target(self) -> Machine: ...

    @property
    def artifact(self) -> Artifact | None: ...

    @property
    def transforms(self) -> tuple[Winograd, ...]:
        """The transforms that the kernel uses."""
        ...

    def run(self, **arrays: Any) -> dict[str, Array]:
        """Compute on physical arrays by name, and return the outputs by name."""
        ...


@record(frozen=True)
class Verdict:
    """`wrong` of `total` elements are wrong; `detail` describes the first of them, or the largest error."""

    wrong: int
    total: int
    detail: str

    @property
    def ok(self) -> bool:
        """Whether all elements are correct."""
        return self.wrong == 0


def has_real_data(problem: Problem) -> bool:
    """Return whether a call must pass an array of a floating-point type."""
    return any(tensor.default is None and not is_integer(tensor.dtype) for tensor in problem.inputs)


def real_arrays(problem: Problem, seed: int = 0, limits: Mapping[str, float] | None = None) -> dict[str, Array]:
    """Return `random_arrays` with real values for floating-point inputs: normally distributed, and scales around 1."""
    arrays = random_arrays(problem, seed, limits)
    rng = np.random.default_rng(seed)
    for tensor in problem.inputs:
        if tensor.default is None and not is_integer(tensor.dtype):
            scales = tensor.holds == "scales"
            x = 2 ** rng.uniform(-1, 1, tensor.shape) if scales else rng.standard_normal(tensor.shape, np.float32)
            arrays[tensor.name] = convert(x, tensor.dtype)
    return arrays


def verify_kernel(kernel: VerifiableKernel, seed: int = 0, real: bool = False) -> Verdict:
    """Return the verdict of comparing the kernel's results on random data with the numpy reference.

    If the kernel is limited to small integers, both data within the limits and data of the whole range, which another
    kernel computes, are tried.
    """
    draw = real_arrays if real else random_arrays
    verdict = _compared(kernel, draw(kernel.problem, seed), real)
    if verdict.ok and (limits := narrow_limits(kernel)):
        verdict = _compared(kernel, draw(kernel.problem, seed, limits), real)
    return verdict


def error_of_transforms(kernel: VerifiableKernel) -> float:
    """Return the largest expected error of the kernel's transforms, relative to that of sums; 0 without transforms."""
    return max((x.error for x in kernel.transforms), default=0.0)


def narrow_limits(kernel: VerifiableKernel) -> dict[str, float]:
    """Return the limits of the kernel's integer inputs that are narrower than the range of their types."""
    limits = {} if kernel.artifact is None else kernel.artifact.limits
    types = {t.name: TYPES[t.dtype].numpy for t in kernel.problem.inputs}
    return {name: x for name, x in limits.items() if name in types and is_limited(np.dtype(types[name]), x)}


def limits_of_libraries(kernel: VerifiableKernel) -> dict[str, float]:
    """Return the limits of integer inputs within which the kernel and libraries are compared: those of the kernel, and
    the limit of the instruction that multiplies most bytes of the machine, which libraries use for weights beyond it.
    """
    problem, limits = kernel.problem, narrow_limits(kernel)
    row = None if stages_of(problem) is not None else kernel.target.nearest(*problem.types)
    if row is None or not row.limit:
        return limits
    weights = [t.name for t in problem.inputs if t.holds == "wei" and is_limited(TYPES[t.dtype].numpy, row.limit)]
    return dict.fromkeys(weights, float(row.limit)) | limits


def _compared(kernel: VerifiableKernel, arrays: Mapping[str, Array], real: bool) -> Verdict:
    """Return the verdict of comparing the kernel's results on `arrays` with the numpy reference."""
    problem = kernel.problem
    physical, lanes = _physical(problem, arrays)
    results = kernel.run(**physical)
    logical = {tensor.name: from_layout(results[tensor.name], tensor.layout) for tensor in problem.outputs}
    transforms = kernel.transforms
    exact_sums = not real and all(x.is_exact for x in transforms)
    if not (real and has_real_data(problem)) and is_exact(problem) and (exact_sums or not transforms):
        truths = reference(problem, arrays, steps_type(problem))
        verdicts = {name: _equal(logical[name], truth) for name, truth in truths.items()}
    else:
        error = error_of_transforms(kernel)
        bounds = intervals(problem, arrays, sums_type(problem, kernel.target), exact_sums, error)
        verdicts = {t.name: _inside(logical[t.name], bounds[t.name], t.dtype) for t in problem.outputs}
    verdict = _all(verdicts)
    if not verdict.ok:
        return verdict
    for tensor in problem.outputs:
        count = int(np.count_nonzero(results[tensor.name][lanes[tensor.name]]))
        if count:
            text = f"{count} padding lanes of {tensor.layout} are not zero"
            return Verdict(count, results[tensor.name].size, text)
    return verdict


def computed(kernel: VerifiableKernel, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the kernel's outputs by name as logical arrays, computed from logical arrays."""
    physical, _ = _physical(kernel.problem, arrays)
    results = kernel.run(**physical)
    return {tensor.name: from_layout(results[tensor.name], tensor.layout) for tensor in kernel.problem.outputs}


def _physical(problem: Problem, arrays: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return inputs and outputs in their layouts, and masks of the outputs' padding elements.

    Outputs, padding included, are filled with NaN or a byte pattern, so that unwritten elements show.
    """
    physical = {t.name: to_layout(arrays[t.name], t.layout) for t in problem.inputs if t.role == "in"}
    lanes = {}
    for tensor in problem.outputs:
        poison = unwritten(tensor.shape, TYPES[tensor.dtype].numpy)
        array = to_layout(arrays.get(tensor.name, poison), tensor.layout)
        lanes[tensor.name] = to_layout(np.ones(tensor.shape, np.int8), tensor.layout) == 0
        array[lanes[tensor.name]] = unwritten((), array.dtype)
        physical[tensor.name] = array
    return physical, lanes


def _all(verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return one verdict on all outputs; `detail` names them if there are several."""
    chosen = {name: v for name, v in verdicts.items() if not v.ok} or verdicts
    texts = [v.detail if len(verdicts) == 1 else f"{name}: {v.detail}" for name, v in chosen.items()]
    if all(v.detail == "exact" for v in chosen.values()):
        texts = ["exact"]
    return Verdict(sum(v.wrong for v in verdicts.values()), sum(v.total for v in verdicts.values()), ", ".join(texts))


def _equal(result: Array, truth: Array) -> Verdict:
    wrong = (result != truth) & ~((result != result) & (truth != truth))
    count = int(np.count_nonzero(wrong))
    return Verdict(count, truth.size, _first(result, truth, wrong) if count else "exact")


def _inside(result: Array, interval: Interval, dtype: str) -> Verdict:
    wrong = ~within(result, interval, dtype)
    count, total = int(np.count_nonzero(wrong)), result.size
    if count:
        return Verdict(count, total, _first(result, interval.truth, wrong))
    bound = "the rounding of the steps after the sums"
    if interval.terms:
        bound = f"eps * (2 + sqrt({interval.terms})) * sum |a||b|"
    if dtype not in ("f32", "f64"):
        with np.errstate(all="ignore"):
            differ = int(np.count_nonzero(result != convert(interval.truth, dtype)))
        return Verdict(0, total, f"{differ} of {total} differ from the nearest {dtype}, all within {bound}")
    with np.errstate(all="ignore"):
        error = np.abs(result - interval.truth)
        share = error / (interval.error + np.finfo(result.dtype).eps / 2 * np.abs(interval.truth))
    largest = float(np.max(share, initial=0.0, where=np.isfinite(share)))
    return Verdict(0, total, f"largest error is {largest:.2f} of {bound}")


def _first(result: Array, truth: Array, wrong: Array) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{np.count_nonzero(wrong)} of {truth.size} elements differ; the first, at {at}, is {result[at]}, expected "
        f"{truth[at]}"
    )
