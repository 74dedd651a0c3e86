"""Post-ops: steps after accumulation, in the order in which they apply, as benchdnn's `--attr-post-ops` writes them.

    relu:0.1 + sum:0.5:2:u8 + add:f32:per_oc + prelu:per_oc + dw:k3s2p1:s8
    s32_add:per_oc + s32_mulh:common:1518500250 + s32_rshift:common:7

Five kinds on floating-point numbers: an element-wise algorithm with up to two numbers and a scale; `sum` with what the
destination holds; a binary operator with a second array; `prelu` with an array of slopes; a depthwise convolution of
the result so far. One more on s32 sums, which then have no others: a step in s32 arithmetic.
Algorithms, operators and steps are rows of tables; parser, printer, legality and numpy meaning follow from them.

A mask says along which axes of the result an operand varies: bit i for axis i; along the others it has extent 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.descriptor import split_items
from convsmith.problem.eltwise import ALGORITHMS
from convsmith.problem.integer_steps import INTEGER_STEPS
from convsmith.problem.types import array_type, print_f32

__all__ = [
    "OPERATORS",
    "PER_TENSOR",
    "Binary",
    "Depthwise",
    "Eltwise",
    "Integer",
    "PostOp",
    "Prelu",
    "Sum",
    "parse_post_ops",
    "print_post_ops",
]

Array = np.ndarray[tuple[int, ...], Any]

PER_TENSOR = -1
"""The mask of an operand that varies along all axes, whatever the rank."""

OPERATORS: dict[str, Callable[[Array, Array], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "eq": np.equal,
    "ne": np.not_equal,
}
"""Comparisons give 1 or 0."""

_MASKS = {"common": 0, "per_dim_0": 1, "per_dim_1": 2, "per_dim_01": 3, "per_tensor": PER_TENSOR}
_POLICIES = {mask: policy for policy, mask in _MASKS.items()}
# Legal in benchdnn, without a row here.
_OTHERS = frozenset(
    {"select"} | {f"{alg}_dst" for alg in ("relu", "tanh", "elu", "sqrt", "logistic", "exp", "clip_v2")}
)


class PostOp:
    """One step."""

    def canonical(self, rank: int) -> PostOp:
        """The same step on a result of that rank, equal for equal steps."""
        return self

    def check_operand(self, rank: int) -> None:
        """UsageError where the step's operand does not suit a result of that rank."""


@dataclass(frozen=True)
class Eltwise(PostOp):
    """`scale * alg(x)`: `alg` is a key of `ALGORITHMS`; numbers that the algorithm does not read are 0.

    Numbers are single precision in the kernel; they are rounded to it here, so that the reference uses the same.
    """

    alg: str
    alpha: float = 0.0
    beta: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.alg not in ALGORITHMS:
            raise _unknown(self.alg)
        _round(self, "alpha", "beta", "scale")
        row = ALGORITHMS[self.alg]
        numbers = (self.alpha, self.beta)
        if any(map(math.isnan, (*numbers, self.scale))) or any(numbers[len(row.parameters) :]):
            raise _bad(f"post-op {self.alg}: numbers {numbers} are not legal; expected {_form(self.alg)}")
        if row.ordered and self.alpha > self.beta:
            low, high = row.parameters
            raise _bad(
                f"post-op {self.alg}: {low} {self.alpha:g} is above {high} {self.beta:g}; legal is {low} <= {high}"
            )
        if row.divides and self.alpha == 0:
            raise _bad(f"post-op {self.alg}: alpha is 0, and it divides; legal is another, such as {self.alg}:1")

    def apply(self, x: Array) -> Array:
        """The step on an array of floating-point numbers; NaN stays NaN."""
        with np.errstate(all="ignore"):
            result = ALGORITHMS[self.alg].apply(x, self.alpha, self.beta)
            return result if self.scale == 1 else result * self.scale

    def __str__(self) -> str:
        return _words(self.alg, self.alpha, self.beta, self.scale, defaults=(0, 0, 1))


@dataclass(frozen=True)
class Sum(PostOp):
    """`x + scale * (old - zero_point)`, old being what the destination holds, read as `dtype` where that is given."""

    scale: float = 1.0
    zero_point: int = 0
    dtype: str | None = None

    def __post_init__(self) -> None:
        _round(self, "scale")
        if not math.isfinite(self.scale):
            raise _bad(f"post-op sum: the scale {self.scale} is not legal; expected {_form('sum')}")
        if not -(1 << 31) <= self.zero_point < 1 << 31:
            raise _bad(
                f"post-op sum: the zero point {self.zero_point} is not legal; expected a whole number from -2147483648 "
                "to 2147483647"
            )
        if self.dtype is not None:
            array_type(self.dtype, "attr-post-ops")

    def apply(self, x: Array, old: Array) -> Array:
        """The step on floating-point numbers."""
        with np.errstate(all="ignore"):
            shifted = old.astype(x.dtype) - self.zero_point
            return x + (shifted if self.scale == 1 else shifted * self.scale)

    def __str__(self) -> str:
        if self.dtype is None and not self.zero_point:
            return _words("sum", self.scale, defaults=(1,))
        return f"sum:{print_f32(self.scale)}:{self.zero_point}" + (f":{self.dtype}" if self.dtype is not None else "")


class _WithOperand(PostOp):
    """A step with a second array, which varies along the axes in its mask."""

    mask: int

    def canonical(self, rank: int) -> PostOp:
        """The same step on a result of that rank, equal for equal steps."""
        assert isinstance(self, Binary | Prelu | Integer)
        return replace(self, mask=PER_TENSOR) if self.mask == (1 << rank) - 1 else self

    def check_operand(self, rank: int) -> None:
        """UsageError where the mask names axes that a result of that rank lacks."""
        if self.mask != PER_TENSOR and not 0 <= self.mask < 1 << rank:
            raise _bad(
                f"post-op {self}: mask {self.mask} names axes that a result of {rank} axes lacks; legal is 0 to "
                f"{(1 << rank) - 1}"
            )


@dataclass(frozen=True)
class Binary(_WithOperand):
    """`x alg operand`: `alg` is a key of `OPERATORS`; the operand has a type, a mask and a layout of its own."""

    alg: str
    dtype: str = "f32"
    mask: int = 0
    tag: str = "any"

    def __post_init__(self) -> None:
        if self.alg not in OPERATORS:
            raise _unknown(self.alg)
        array_type(self.dtype, "attr-post-ops")

    def apply(self, x: Array, operand: Array) -> Array:
        """The step on floating-point numbers; the operand is converted to their type."""
        with np.errstate(all="ignore"):
            result: Array = OPERATORS[self.alg](x, operand.astype(x.dtype)).astype(x.dtype)
            return result

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag != "any" else ""
        return f"{self.alg}:{self.dtype}" + (f":{_policy(self.mask)}{tag}" if self.mask or tag else "")


@dataclass(frozen=True)
class Prelu(_WithOperand):
    """`x` where it is above 0, else `x * operand`; the operand is f32."""

    mask: int = 0

    def apply(self, x: Array, operand: Array) -> Array:
        """The step on floating-point numbers."""
        with np.errstate(all="ignore"):
            return np.where(x > 0, x, x * operand.astype(x.dtype))

    def __str__(self) -> str:
        return "prelu" + (f":{_policy(self.mask)}" if self.mask else "")


@dataclass(frozen=True)
class Integer(_WithOperand):
    """A step in s32 arithmetic: `alg` is a key of `INTEGER_STEPS`. Its numbers, or an s32 operand where it has none."""

    alg: str
    numbers: tuple[int, ...] = ()
    mask: int = 0

    def __post_init__(self) -> None:
        if self.alg not in INTEGER_STEPS:
            raise _unknown(self.alg)
        row = INTEGER_STEPS[self.alg]
        one = len(row.parameters) == 1
        legal = (0, 1) if one else (len(row.parameters),)
        if len(self.numbers) not in legal or (self.mask and (self.numbers or not one)):
            raise _bad(f"post-op {self.alg}: numbers {self.numbers} are not legal; expected {_form(self.alg)}")
        for name, number, (low, high) in zip(row.parameters, self.numbers, row.limits):
            if not low <= number <= high:
                raise _bad(f"post-op {self.alg}: {name} {number} is not legal; expected {low} to {high}")

    @property
    def takes_operand(self) -> bool:
        """Whether an array has the number."""
        return not self.numbers

    def apply(self, x: Array, operand: Array | None = None) -> Array:
        """The step on whole numbers of 32 bits, held in int64."""
        numbers = self.numbers if operand is None else (operand.astype(np.int64),)
        return INTEGER_STEPS[self.alg].apply(x, *numbers)

    def __str__(self) -> str:
        words = [str(number) for number in self.numbers]
        if len(words) == 1 or self.mask:
            words = [_policy(self.mask), *words]
        return ":".join([self.alg, *words])


@dataclass(frozen=True)
class Depthwise(PostOp):
    """A depthwise convolution (kernel k, stride s, front pad p, along each axis) of the result so far.

    Its outputs are as many as strides begin within its input; `dtype` is the type of its result.
    """

    k: int
    s: int
    p: int
    dtype: str = "f32"

    def __post_init__(self) -> None:
        array_type(self.dtype, "attr-post-ops")
        if self.k < 1 or self.s < 1 or self.p < 0:
            raise _bad(f"post-op dw: k={self.k}, s={self.s}, p={self.p} is not legal; expected k >= 1, s >= 1, p >= 0")

    def __str__(self) -> str:
        return f"dw:k{self.k}s{self.s}p{self.p}" + (f":{self.dtype}" if self.dtype != "f32" else "")


def parse_post_ops(text: str, channels: int = 1) -> tuple[PostOp, ...]:
    """The steps of `relu:0.1+add:f32:per_oc`; `channels` is the axis that `per_oc` means.

    UnsupportedError: legal in benchdnn, not here.
    """
    return tuple(_parse_one(item, channels) for item in split_items(text))


def print_post_ops(post_ops: tuple[PostOp, ...]) -> str:
    """The inverse of `parse_post_ops`."""
    return "+".join(map(str, post_ops))


def _parse_one(item: str, channels: int) -> PostOp:
    alg, *words = item.split(":")
    alg = alg.lower().removeprefix("eltwise_").removeprefix("binary_")
    try:
        if alg == "sum":
            scale, zero_point, *rest = [*words, *("1", "0")[len(words) :]]
            return Sum(float(scale), int(zero_point), *(word.lower() for word in rest))
        if alg == "prelu":
            return Prelu(*(_mask(word, channels) for word in words))
        if alg == "dw":
            shape, *rest = words
            sizes = re.fullmatch("k([0-9]+)s([0-9]+)p([0-9]+)", shape.lower())
            assert sizes is not None
            return Depthwise(*map(int, sizes.groups()), *(word.lower() for word in rest))  # type: ignore[arg-type]
        if alg in INTEGER_STEPS:
            policy = words.pop(0) if len(INTEGER_STEPS[alg].parameters) == 1 and words else "common"
            return Integer(alg, tuple(map(int, words)), _mask(policy, channels))
        if alg in OPERATORS:
            dtype, *rest = words
            mask, tag = [*rest, *("common", "any")[len(rest) :]]
            return Binary(alg, dtype.lower(), _mask(mask, channels), tag)
        return _parse_eltwise(alg, words)
    except (ValueError, TypeError, AssertionError):
        raise _bad(f"post-op {item!r} is malformed; expected {_form(alg)}") from None


def _parse_eltwise(alg: str, words: list[str]) -> Eltwise:
    if alg not in (*ALGORITHMS, "bounded_relu", "logsigmoid"):
        raise _unknown(alg)
    numbers = [float(word) for word in words]
    alpha, beta, scale = numbers + [0.0, 0.0, 1.0][len(numbers) :]
    if alg == "bounded_relu":
        alg, alpha, beta = "clip", 0.0, alpha
    elif alg == "logsigmoid":
        alg, alpha, beta = "soft_relu", -1.0, 0.0
    if len(numbers) == 3:
        # Numbers that are not read hold the place before the scale.
        read = len(ALGORITHMS[alg].parameters)
        alpha, beta = alpha if read > 0 else 0.0, beta if read > 1 else 0.0
    return Eltwise(alg, alpha, beta, scale)


def _mask(word: str, channels: int) -> int:
    if word == "per_oc":
        return 1 << channels
    return _MASKS[word] if word in _MASKS else int(word) if word.isdecimal() else _no_mask(word)


def _no_mask(word: str) -> int:
    raise _bad(f"{word!r} is not a mask; legal are {', '.join(_MASKS)}, per_oc, or a number (bit i for axis i)")


def _policy(mask: int) -> str:
    return _POLICIES.get(mask, str(mask))


def _round(post_op: PostOp, *fields: str) -> None:
    for field in fields:
        with np.errstate(over="ignore"):
            object.__setattr__(post_op, field, float(np.float32(getattr(post_op, field))) + 0.0)


def _words(alg: str, *numbers: float, defaults: tuple[float, ...]) -> str:
    """`alg` and the numbers up to the last that is not its default."""
    last = max((n for n, number in enumerate(numbers) if number != defaults[n]), default=-1)
    return ":".join([alg, *(print_f32(number) for number in numbers[: last + 1])])


def _bad(message: str) -> UsageError:
    return UsageError(message, code="bad-post-op")


def _unknown(alg: str) -> UsageError | UnsupportedError:
    kind = UnsupportedError if alg in _OTHERS else UsageError
    nearest = f", the nearest is {alg.removesuffix('_dst')}" if alg.endswith("_dst") else ""
    return kind(f"post-op {alg!r} is not available{nearest}; available are {_usage()}", code="bad-post-op")


def _form(alg: str) -> str:
    forms = {"sum": "sum[:scale[:zero_point[:dt]]]", "prelu": "prelu[:policy]", "dw": "dw:k3s1p1[:dt]"}
    if alg in forms:
        return forms[alg]
    if alg in OPERATORS:
        return f"{alg}:dt[:policy[:tag]]"
    if alg in INTEGER_STEPS:
        names = INTEGER_STEPS[alg].parameters
        return f"{alg}[:policy[:{names[0]}]]" if len(names) == 1 else ":".join((alg, *names))
    return alg + "".join(f"[:{name}]" for name in ALGORITHMS[alg].parameters) if alg in ALGORITHMS else _usage()


def _usage() -> str:
    forms = map(_form, (*ALGORITHMS, "sum", "prelu", "dw", *INTEGER_STEPS))
    return ", ".join([*forms, *(f"{o}:dt" for o in OPERATORS)])
