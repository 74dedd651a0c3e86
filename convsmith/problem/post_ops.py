"""Post-ops: element-wise steps after accumulation, in the order in which they apply.

Written as in benchdnn's `--attr-post-ops`: `relu:0.1+clip:0:6`, each an algorithm with up to two numbers (alpha, beta)
that default to 0. An algorithm is one row of `ALGORITHMS`; parser, printer, legality and numpy meaning follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError

__all__ = ["ALGORITHMS", "Algorithm", "PostOp", "parse_post_ops", "print_post_ops"]

Array = np.ndarray[tuple[int, ...], Any]


@dataclass(frozen=True)
class Algorithm:
    """`parameters` name the numbers that the algorithm reads; `apply(x, alpha, beta)` is its meaning, NaN stays NaN."""

    parameters: tuple[str, ...]
    apply: Callable[[Array, float, float], Array]
    ordered: bool = False
    """Whether alpha must not exceed beta."""


def _relu(x: Array, alpha: float, beta: float) -> Array:
    return np.maximum(x, 0) if alpha == 0 else np.where(x > 0, x, x * alpha)


def _clip(x: Array, alpha: float, beta: float) -> Array:
    return np.minimum(np.maximum(x, alpha), beta)


# clip_v2 differs from clip in its gradient at the bounds only.
ALGORITHMS: dict[str, Algorithm] = {
    "relu": Algorithm(("slope",), _relu),
    "clip": Algorithm(("low", "high"), _clip, ordered=True),
    "clip_v2": Algorithm(("low", "high"), _clip, ordered=True),
}

# Legal in benchdnn, without a row here.
_OTHERS = frozenset(
    "abs bounded_relu elu exp gelu_erf gelu_tanh hardsigmoid hardswish linear log logistic logsigmoid mish pow round "
    "soft_relu sqrt square swish tanh tanh_dst relu_dst elu_dst exp_dst sqrt_dst logistic_dst clip_v2_dst "
    "sum dw prelu add sub mul div max min eq ne ge gt le lt select".split()
)


@dataclass(frozen=True)
class PostOp:
    """One step: `alg` is a key of `ALGORITHMS`; numbers that the algorithm does not read are 0.

    Numbers are single precision in the kernel; they are rounded to it here, so that the reference uses the same.
    """

    alg: str
    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        if self.alg not in ALGORITHMS:
            kind: type[UsageError | UnsupportedError] = UnsupportedError if self.alg in _OTHERS else UsageError
            raise kind(f"post-op {self.alg!r} is not available; available are {_usage()}", code="bad-post-op")
        for name in ("alpha", "beta"):
            with np.errstate(over="ignore"):
                object.__setattr__(self, name, float(np.float32(getattr(self, name))) + 0.0)
        row = ALGORITHMS[self.alg]
        numbers = (self.alpha, self.beta)
        if any(map(math.isnan, numbers)) or any(numbers[len(row.parameters) :]):
            raise UsageError(
                f"post-op {self.alg}: numbers {numbers} are not legal; expected {_form(self.alg)}", code="bad-post-op"
            )
        if row.ordered and self.alpha > self.beta:
            low, high = row.parameters
            raise UsageError(
                f"post-op {self.alg}: {low} {self.alpha:g} is above {high} {self.beta:g}; legal is {low} <= {high}",
                code="bad-post-op",
            )

    def apply(self, x: Array) -> Array:
        """The step on an array of floating-point numbers; NaN stays NaN."""
        return ALGORITHMS[self.alg].apply(x, self.alpha, self.beta)

    def __str__(self) -> str:
        numbers = [self.alpha, self.beta]
        while numbers and numbers[-1] == 0:
            numbers.pop()
        return ":".join([self.alg, *(_number(number) for number in numbers)])


def parse_post_ops(text: str) -> tuple[PostOp, ...]:
    """The steps of `relu:0.1+clip:0:6`; none for the empty text. UnsupportedError: legal in benchdnn, not here."""
    return tuple(_parse_one(item) for item in _split(text)) if text else ()


def print_post_ops(post_ops: tuple[PostOp, ...]) -> str:
    """The inverse of `parse_post_ops`."""
    return "+".join(map(str, post_ops))


def _split(text: str) -> list[str]:
    """`text` cut at each +, but not at that of an exponent (`1e+10`)."""
    items: list[str] = []
    for piece in text.split("+"):
        if items and items[-1][-1:] in ("e", "E") and items[-1][-2:-1].isdigit():
            items[-1] += "+" + piece
        else:
            items.append(piece)
    return items


def _parse_one(item: str) -> PostOp:
    alg, *numbers = item.split(":")
    alg = alg.lower().removeprefix("eltwise_")
    if alg not in ALGORITHMS:
        return PostOp(alg)
    expected = f"post-op {item!r} is malformed; expected {_form(alg)}"
    try:
        alpha, beta, scale, *rest = [float(number) for number in numbers] + [0.0, 0.0, 1.0][len(numbers) :]
    except ValueError:
        raise UsageError(expected, code="bad-post-op") from None
    if rest:
        raise UsageError(expected, code="bad-post-op")
    if scale != 1:
        raise UnsupportedError(
            f"post-op {item!r}: the scale {scale:g} is not available; expected {_form(alg)}", code="bad-post-op"
        )
    return PostOp(alg, alpha, beta)


def _number(value: float) -> str:
    """The shortest text that reads back as this single-precision number."""
    text = str(np.float32(value))
    return text.removesuffix(".0")


def _form(alg: str) -> str:
    return alg + "".join(f"[:{name}]" for name in ALGORITHMS[alg].parameters)


def _usage() -> str:
    return ", ".join(map(_form, ALGORITHMS))
