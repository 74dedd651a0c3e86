"""Each element-wise function against double precision, and machine code against the interpreter bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from natives import assert_same_bits, run_native

from convsmith.diag.errors import UnsupportedError
from convsmith.interp import run
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import For, Kernel, Store
from convsmith.ir.types import DTYPES, F32, F64, DType
from convsmith.ir.value import Load, strided
from convsmith.ir.verify import verify
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.statement.elementwise import ELEMENTWISE, elementwise
from convsmith.statement.maths import exp2_of_negative

TARGETS = host_targets()
Truth = Callable[[np.ndarray, float, float], np.ndarray]


def logistic(y: np.ndarray) -> np.ndarray:
    return np.where(y > 0, 1 / (1 + np.exp(-y)), np.exp(y) / (1 + np.exp(np.minimum(y, 0))))


def half_tail(x: np.ndarray) -> np.ndarray:
    """The normal distribution up to x."""
    return np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2


def log_one_plus_exp(y: np.ndarray) -> np.ndarray:
    return np.maximum(y, 0) + np.log1p(np.exp(-np.abs(y)))


FACTOR = 2 * math.sqrt(2 / math.pi)

TRUTH: dict[str, Truth] = {
    "relu": lambda x, a, b: np.where(x > 0, x, x * a if a else np.where(np.isnan(x), x, 0)),
    "clip": lambda x, a, b: np.minimum(np.maximum(x, a), b),
    "clip_v2": lambda x, a, b: np.minimum(np.maximum(x, a), b),
    "linear": lambda x, a, b: a * x + b,
    "hardsigmoid": lambda x, a, b: np.minimum(np.maximum(a * x + b, 0), 1),
    "hardswish": lambda x, a, b: x * np.minimum(np.maximum(a * x + b, 0), 1),
    "abs": lambda x, a, b: np.abs(x),
    "sqrt": lambda x, a, b: np.sqrt(x),
    "round": lambda x, a, b: np.rint(x),
    "floor": lambda x, a, b: np.floor(x),
    "sin": lambda x, a, b: np.where(np.abs(x) < 2.0**30, np.sin(x), np.nan),
    "cos": lambda x, a, b: np.where(np.abs(x) < 2.0**30, np.cos(x), np.nan),
    "square": lambda x, a, b: x * x,
    "pow": lambda x, a, b: a * np.power(x, np.full(len(x), b)),  # a root is no power where x is -0.0
    "tanh": lambda x, a, b: np.tanh(x),
    "logistic": lambda x, a, b: logistic(x),
    "erf": lambda x, a, b: np.vectorize(math.erf)(x),
    "gelu_erf": lambda x, a, b: np.where(np.isinf(x), np.maximum(x, 0), x * half_tail(x)),
    "gelu_tanh": lambda x, a, b: x * logistic(FACTOR * (x + 0.044715 * x**3)),
    "swish": lambda x, a, b: x * logistic(a * x),
    "elu": lambda x, a, b: np.where(x > 0, x, a * np.expm1(x)),
    "exp": lambda x, a, b: np.exp(x),
    "atan": lambda x, a, b: np.arctan(x),
    "log": lambda x, a, b: np.log(x),
    "mish": lambda x, a, b: x * np.tanh(log_one_plus_exp(x)),
    "soft_relu": lambda x, a, b: log_one_plus_exp(a * x) / a,
}


class Case(NamedTuple):
    """Within ``ulp`` units in the last place, and ``slope`` more for each unit of the exponential's argument."""

    alg: str
    alpha: float = 0.0
    beta: float = 0.0
    ulp: float = 0.51
    slope: float = 0.0

    def __str__(self) -> str:
        return f"{self.alg}:{self.alpha}:{self.beta}"


CASES = (
    Case("relu"), Case("relu", 0.25), Case("relu", -2.0), Case("clip", -1.5, 2.5), Case("clip_v2", 0.0, 6.0),
    Case("linear", 2.5, -0.5), Case("hardsigmoid", 0.125, 0.5),
    Case("hardswish", 0.125, 0.5, 1.5), Case("abs"), Case("sqrt"), Case("round"), Case("square"),
    Case("pow", 3.0, 0.0), Case("pow", 2.0, 1.0), Case("pow", 1.0, 2.0), Case("pow", -1.5, 3.0, 4),
    Case("pow", 1.0, 6.0, 4),
    Case("pow", 1.0, 0.5), Case("pow", 2.0, -0.5, 2), Case("pow", 1.0, -1.0, 4), Case("pow", 1.0, -2.0, 4),
    Case("pow", 1.0, 2.75, 2), Case("pow", 0.5, -1.25, 2), Case("pow", 1.0, 9.0, 2), Case("pow", 1.0, -11.0, 2),
    Case("pow", 1.0, 10.0, 2), Case("tanh", ulp=3), Case("logistic", ulp=3), Case("gelu_erf", ulp=6),
    Case("erf", ulp=6),
    Case("gelu_tanh", ulp=4, slope=2.5), Case("swish", 1.0, ulp=4), Case("swish", 1.703125, ulp=4, slope=1),
    Case("elu", 1.0, ulp=2), Case("elu", 0.375, ulp=3), Case("exp", ulp=1.5), Case("log", ulp=1.5), Case("mish", ulp=5),
    Case("soft_relu", 1.0, ulp=3), Case("soft_relu", -1.0, ulp=3), Case("soft_relu", 2.5, ulp=4, slope=1),
    Case("floor"), Case("sin", ulp=2), Case("cos", ulp=2), Case("atan", ulp=3),
)  # fmt: skip


def kernel_of(case: Case, size: int, lanes: int, t: DType = F32) -> Kernel:
    a, out = make_buffer("a", t, (size,)), make_buffer("out", t, (size,))
    place = (Var("i") * max(lanes, 1),)
    span = strided(lanes, 1) if lanes else None
    body = Store(out, place, elementwise(case.alg, Load(a, place, span), case.alpha, case.beta), span)
    return Kernel("k", (a, out), For(Var("i"), as_index(0), as_index(size // max(lanes, 1)), body))


def samples(size: int) -> np.ndarray:
    """All exponents, what is dense around zero, and what is special."""
    rng = np.random.default_rng(5)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        88.72283,
        88.72284,
        -87.33655,
        -103.97,
        -104.5,
        1e-45,
        2.0**-126,
    ]
    third = size // 3
    bits = (np.arange(third) * (2**32 // third) + rng.integers(0, 2**32 // third, third)).astype(np.uint32)
    dense = np.concatenate([rng.normal(0, 2, third), rng.uniform(-20, 20, size - 2 * third - len(special))])
    return np.concatenate([np.float32(special), bits.view(np.float32), np.float32(dense)])


def test_every_algorithm_is_tested() -> None:
    assert {case.alg for case in CASES} == set(ELEMENTWISE) == set(TRUTH)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_double_precision(case: Case) -> None:
    x = samples(3 * 2**16)
    out = np.zeros_like(x)
    run_native(kernel_of(case, len(x), 16), {"a": x, "out": out}, TARGETS[0])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        truth = np.asarray(TRUTH[case.alg](wide, case.alpha, case.beta), np.float64)
        if case.alg == "pow" and case.beta:
            # The power itself must be a number in single precision.
            truth = np.where(np.isinf((truth / case.alpha).astype(np.float32)), np.inf * truth, truth)
        single = truth.astype(np.float32)
        unit = np.spacing(np.abs(single).astype(np.float32)).astype(np.float64)
        y = wide * (case.alpha if case.alg != "gelu_tanh" else FACTOR * (1 + 0.044715 * wide * wide))
        allowed = (case.ulp + (case.slope * np.abs(y) if case.slope else 0)) * unit
        wrong = np.abs(out - truth) > allowed + 2.0**-126 * np.maximum(1, np.abs(wide))
    finite = np.isfinite(single)
    wrong = np.where(finite, wrong | ~np.isfinite(out), ~((out == single) | np.isnan(out) & np.isnan(single)))
    # Next to the greatest float, infinity is as near as the bound allows.
    wrong &= ~(np.isinf(out) & (np.abs(truth) > 3.4028233e38))
    assert not wrong.any(), [(x[i], out[i], single[i]) for i in np.flatnonzero(wrong)[:5]]
    assert (finite.sum() > len(x) // 8 and len(np.unique(out)) > 1) or case.beta == 0


@cache
def interpreted(case: Case) -> np.ndarray:
    """The interpreter's results for 768 samples."""
    x = samples(768)
    out = np.zeros_like(x)
    kernel = kernel_of(case, len(x), len(x))
    verify(kernel)
    run(kernel, {"a": x, "out": out})
    return out


@pytest.mark.sampled(12, "target")
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_machine_code_is_the_interpreter(case: Case, target: Machine) -> None:
    x = samples(768)
    expected = interpreted(case)
    for lanes in (0, 16):
        out = np.zeros_like(x)
        run_native(kernel_of(case, len(x), lanes), {"a": x, "out": out}, target)
        assert_same_bits(out, expected)


@pytest.mark.parametrize("alg", ELEMENTWISE)
def test_prints_and_parses(alg: str) -> None:
    text = str(kernel_of(Case(alg, 0.5, 2.5), 16, 4))
    assert str(parse_kernel(text)) == text


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("beta", [0.5, -0.5, 2.5, -2.5, 3.0, -3.0, 4.0, 9.0, -9.0, 10.0, -10.0])
def test_powers_of_what_is_special(beta: float, sign: int) -> None:
    """As in C: signs of zeros and infinities, and NaN for roots of what is negative."""
    x = np.array([0.0, np.inf, np.nan, 2.0] * 4, np.float32) * np.float32(sign)
    out = np.zeros_like(x)
    run(kernel_of(Case("pow", 1.0, beta), 16, 16), {"a": x, "out": out})
    with np.errstate(all="ignore"):
        truth = np.power(x.astype(np.float64), np.full(16, beta))
    np.testing.assert_allclose(out, truth, rtol=3e-7)
    number = ~np.isnan(truth)
    np.testing.assert_array_equal(np.signbit(out[number]), np.signbit(truth[number]))


def test_doubles() -> None:
    x = np.linspace(-3, 3, 64)
    for case in (Case("relu", 0.1), Case("clip", -1, 1), Case("pow", 1.5, 3.0), Case("hardswish", 0.2, 0.5)):
        out = np.zeros_like(x)
        run_native(kernel_of(case, 64, 8, F64), {"a": x, "out": out}, TARGETS[0])
        np.testing.assert_allclose(out, TRUTH[case.alg](x, case.alpha, case.beta), rtol=1e-14)
    for name in ("exp", "tanh", "gelu_erf"):
        with pytest.raises(UnsupportedError, match=f"{name} on f64 is not available; the nearest is {name} on f32"):
            kernel_of(Case(name), 64, 8, DTYPES["f64"])
    with pytest.raises(UnsupportedError, match="pow on f64 is not available"):
        kernel_of(Case("pow", 1.0, 2.75), 64, 8, F64)


def test_powers_of_two_that_are_not_above_one() -> None:
    whole = np.arange(-126, 1)
    x: np.ndarray = -np.abs(samples(3 * 2**12))
    x = np.concatenate([np.float32(whole), x[np.isfinite(x)], np.float32([-np.inf])])
    a, out = (make_buffer(name, F32, (len(x),)) for name in ("a", "out"))
    at = (Var("i"),)
    body = Store(out, at, exp2_of_negative(Load(a, at, None)))
    found = np.zeros_like(x)
    run(Kernel("k", (a, out), For(at[0], as_index(0), as_index(len(x)), body)), {"a": x, "out": found})
    np.testing.assert_array_equal(found[: len(whole)], 2.0**whole)
    np.testing.assert_allclose(found, np.exp2(x.astype(np.float64)), 1.5 * 2.0**-23, 2.0**-126)
    assert found[-1] == 0
