"""Post-ops: steps after accumulation, in order of application, in the notation of benchdnn's `--attr-post-ops`.

    relu:0.1 + sum:0.5:2:u8 + add:f32:per_oc + prelu:per_oc + dw:k3s2p1:s8
    s32_add:per_oc + s32_mulh:common:1518500250 + s32_rshift:common:7

Five kinds work on floating-point numbers: an element-wise algorithm with up to two parameters and a scale; `sum`, which
adds the destination's old value; a binary operator with a second array; `prelu` with an array of slopes; a depthwise
convolution of the result so far. The sixth kind, a step in s32 arithmetic, works on s32 sums and excludes the others.
Algorithms, operators and steps are rows of tables, from which parser, printer, checks and numpy meaning are derived.

Bit i of a mask makes an operand vary along axis i of the result; along the other axes its extent is 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np

from convsmith.diag.choices import suggestion
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import shown
from convsmith.diag.record import record
from convsmith.problem.descriptor import split_items
from convsmith.problem.eltwise import ALGORITHMS
from convsmith.problem.integer_steps import INTEGER_STEPS
from convsmith.problem.types import array_type, print_f32

__all__ = [
    "OPERATORS",
    "PER_TENSOR",
    "BinaryPostOp",
    "Depthwise",
    "Eltwise",
    "Integer",
    "PostOp",
    "Prelu",
    "SumPostOp",
    "parse_post_ops",
    "print_post_ops",
]

Array = np.ndarray[tuple[int, ...], Any]

SOURCE = "src"
"""The array that a `sum` of a chain may add in place of the destination's old content."""

PER_TENSOR = -1
"""Mask of an operand that varies along all axes, whatever the rank of the result."""

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
"""Binary operators by name; a comparison gives 1 or 0."""

_MASKS = {"common": 0, "per_dim_0": 1, "per_dim_1": 2, "per_dim_01": 3, "per_tensor": PER_TENSOR}
_POLICIES = {mask: policy for policy, mask in _MASKS.items()}
_OF_RESULTS = {f"{alg}_dst": alg for alg in ("relu", "tanh", "elu", "sqrt", "logistic", "exp", "clip_v2")}
"""The algorithm that computes the same values, by the name of one whose gradient oneDNN computes from the result."""
_OTHERS = frozenset(("select", *_OF_RESULTS))
"""Post-ops that benchdnn knows and convsmith does not."""


class PostOp:
    """Base class of the post-ops."""

    def canonical(self, rank: int) -> PostOp:
        """Return the same step on a result of rank `rank`; two steps with equal effect have equal canonical forms."""
        return self

    def check_operand(self, rank: int) -> None:
        """Raise UsageError if the step's operand does not suit a result of rank `rank`."""


@record(frozen=True)
class Eltwise(PostOp):
    """`scale * alg(x)`, where `alg` is a key of `ALGORITHMS`; a parameter that the algorithm does not read is 0.

    Numbers are rounded to single precision, because the kernel holds them in it and the reference must use the same.
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
        """Return the step applied to the floating-point array `x`; NaN stays NaN."""
        with np.errstate(all="ignore"):
            result = ALGORITHMS[self.alg].apply(x, self.alpha, self.beta)
            return result if self.scale == 1 else result * self.scale

    def __str__(self) -> str:
        return _words(self.alg, self.alpha, self.beta, self.scale, defaults=(0, 0, 1))


@record(frozen=True)
class SumPostOp(PostOp):
    """`x + scale * (old - zero_point)`; `old` is the destination's previous content, read as `dtype` if that is given.

    If `array` is "src", `old` is the source of the chain whose last stage has the step. A stage alone has an operand of
    the destination's shape in its place.
    """

    scale: float = 1.0
    zero_point: int = 0
    dtype: str | None = None
    array: str = ""

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
        if self.array not in ("", SOURCE):
            raise _bad(f"post-op sum: the array {self.array!r} is unknown; legal is {SOURCE}, or none")

    def apply(self, x: Array, old: Array) -> Array:
        """Return the step applied to the floating-point array `x` and the destination's content `old`."""
        with np.errstate(all="ignore"):
            shifted = old.astype(x.dtype) - self.zero_point
            return x + (shifted if self.scale == 1 else shifted * self.scale)

    def __str__(self) -> str:
        array = f":{self.array}" if self.array else ""
        if self.dtype is None and not self.zero_point:
            return _words("sum", self.scale, defaults=(1,)) + array
        dtype = f":{self.dtype}" if self.dtype is not None else ""
        return f"sum:{print_f32(self.scale)}:{self.zero_point}{dtype}{array}"


class _WithOperand(PostOp):
    """A step with a second array, which varies along the axes in `mask`."""

    mask: int

    def canonical(self, rank: int) -> PostOp:
        """Return the same step with `PER_TENSOR` for a mask that names all `rank` axes."""
        assert is_dataclass(self)
        return replace(self, mask=PER_TENSOR) if self.mask == (1 << rank) - 1 else self

    def check_operand(self, rank: int) -> None:
        """Raise UsageError if the mask names an axis that a result of rank `rank` lacks."""
        if self.mask != PER_TENSOR and not 0 <= self.mask < 1 << rank:
            raise _bad(
                f"post-op {self}: mask {self.mask} names axes that a result of {rank} axes lacks; legal is 0 to "
                f"{(1 << rank) - 1}"
            )


@record(frozen=True)
class BinaryPostOp(_WithOperand):
    """`alg(x, operand)`, where `alg` is a key of `OPERATORS`; the operand has its own type, mask and layout."""

    alg: str
    dtype: str = "f32"
    mask: int = 0
    tag: str = "any"

    def __post_init__(self) -> None:
        if self.alg not in OPERATORS:
            raise _unknown(self.alg)
        array_type(self.dtype, "attr-post-ops")

    def apply(self, x: Array, operand: Array) -> Array:
        """Return the step applied to the floating-point array `x`; the operand is converted to its type."""
        with np.errstate(all="ignore"):
            result: Array = OPERATORS[self.alg](x, operand.astype(x.dtype)).astype(x.dtype)
            return result

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag != "any" else ""
        return f"{self.alg}:{self.dtype}" + (f":{_policy(self.mask)}{tag}" if self.mask or tag else "")


@record(frozen=True)
class Prelu(_WithOperand):
    """`x` where x > 0, otherwise `x * operand`; the operand is f32."""

    mask: int = 0

    def apply(self, x: Array, operand: Array) -> Array:
        """Return the step applied to the floating-point array `x` with the slopes `operand`."""
        with np.errstate(all="ignore"):
            return np.where(x > 0, x, x * operand.astype(x.dtype))

    def __str__(self) -> str:
        return "prelu" + (f":{_policy(self.mask)}" if self.mask else "")


@record(frozen=True)
class Integer(_WithOperand):
    """A step in s32 arithmetic: `alg` is a key of `INTEGER_STEPS`. Without `numbers` it reads an operand of their type.
    """

    alg: str
    numbers: tuple[float, ...] = ()
    mask: int = 0

    def __post_init__(self) -> None:
        if self.alg not in INTEGER_STEPS:
            raise _unknown(self.alg)
        row = INTEGER_STEPS[self.alg]
        one = len(row.parameters) == 1
        legal = (0, 1) if one else (len(row.parameters),)
        if len(self.numbers) not in legal or (self.mask and (self.numbers or not one)):
            raise _bad(f"post-op {self.alg}: numbers {self.numbers} are not legal; expected {_form(self.alg)}")
        if row.dtype == "f32":
            with np.errstate(over="ignore"):
                object.__setattr__(self, "numbers", tuple(float(np.float32(n)) for n in self.numbers))
        for name, number, (low, high) in zip(row.parameters, self.numbers, row.limits):
            if not low <= number <= high:
                raise _bad(f"post-op {self.alg}: {name} {number} is not legal; expected {low} to {high}")

    @property
    def takes_operand(self) -> bool:
        """Whether the step reads its number from an array."""
        return not self.numbers

    def apply(self, x: Array, operand: Array | None = None) -> Array:
        """Return the step applied to 32-bit integers, held in the int64 array `x`."""
        row = INTEGER_STEPS[self.alg]
        return row.apply(x, *self.numbers) if operand is None else row.apply(x, row.operand(operand))

    @property
    def dtype(self) -> str:
        """Type of the numbers."""
        return INTEGER_STEPS[self.alg].dtype

    def __str__(self) -> str:
        words = [print_f32(n) if self.dtype == "f32" else str(n) for n in self.numbers]
        if len(words) == 1 or self.mask:
            words = [_policy(self.mask), *words]
        return ":".join([self.alg, *words])


@record(frozen=True)
class Depthwise(PostOp):
    """A depthwise convolution (kernel k, stride s, front pad p, along each axis) of the result so far.

    Its output extent is ceil(input extent / s); `dtype` is the type of its result.
    """

    k: int
    s: int
    p: int
    dtype: str = "f32"

    def __post_init__(self) -> None:
        array_type(self.dtype, "attr-post-ops")
        if self.k < 1 or self.s < 1 or self.p < 0:
            raise _bad(f"post-op dw: k={self.k}, s={self.s}, p={self.p} is not legal; expected k >= 1, s >= 1, p >= 0")

    def check_extents(self, extents: tuple[int, ...]) -> None:
        """Raise UsageError if the front pad is so large that an input extent implies no legal back pad."""
        for size in extents:
            back = (-(-size // self.s) - 1) * self.s - size + self.k - self.p
            if back <= -self.s:
                raise _bad(
                    f"post-op {self}: {size} inputs and {-(-size // self.s)} outputs imply a back pad of {back}, which "
                    f"is not above {-self.s}; legal is p up to {self.p + back + self.s - 1}"
                )

    def __str__(self) -> str:
        return f"dw:k{self.k}s{self.s}p{self.p}" + (f":{self.dtype}" if self.dtype != "f32" else "")


def parse_post_ops(text: str, channels: int = 1) -> tuple[PostOp, ...]:
    """Return the steps of a text such as `relu:0.1+add:f32:per_oc`; `channels` is the axis that `per_oc` means.

    UnsupportedError for a step that benchdnn knows and convsmith does not.
    """
    return tuple(_parse_one(item, channels) for item in split_items(text))


def print_post_ops(post_ops: tuple[PostOp, ...]) -> str:
    """Return the text that `parse_post_ops` reads back as `post_ops`."""
    return "+".join(map(str, post_ops))


def _parse_one(item: str, channels: int) -> PostOp:
    alg, *words = item.split(":")
    alg = alg.lower().removeprefix("eltwise_").removeprefix("binary_")
    try:
        if alg == "sum":
            array = words.pop().lower() if words and words[-1].lower() == SOURCE else ""
            scale, zero_point, dtype = [*words, *("1", "0", "")[len(words) :]]
            return SumPostOp(float(scale), int(zero_point), dtype.lower() or None, array)
        if alg == "prelu":
            return Prelu(*(_mask(word, channels) for word in words))
        if alg == "dw":
            shape, *rest = words
            sizes = re.fullmatch("k([0-9]+)s([0-9]+)p([0-9]+)", shape.lower())
            assert sizes is not None
            return Depthwise(*map(int, sizes.groups()), *(word.lower() for word in rest))  # type: ignore[arg-type]
        if alg in INTEGER_STEPS:
            row = INTEGER_STEPS[alg]
            policy = words.pop(0) if len(row.parameters) == 1 and words else "common"
            read = float if row.dtype == "f32" else int
            return Integer(alg, tuple(map(read, words)), _mask(policy, channels))
        if alg in OPERATORS:
            dtype, *rest = words
            mask, tag = [*rest, *("common", "any")[len(rest) :]]
            return BinaryPostOp(alg, dtype.lower(), _mask(mask, channels), tag)
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
        # Parameters that the algorithm does not read are placeholders before the scale.
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
        value = getattr(post_op, field)
        try:
            with np.errstate(over="ignore"):
                object.__setattr__(post_op, field, float(np.float32(value)) + 0.0)
        except (OverflowError, TypeError, ValueError):
            raise _bad(f"post-op: {field}={shown(value)} is not legal: expected a number") from None


def _words(alg: str, *numbers: float, defaults: tuple[float, ...]) -> str:
    """Return `alg` and `numbers` joined by colons, without trailing numbers that equal their defaults."""
    last = max((n for n, number in enumerate(numbers) if number != defaults[n]), default=-1)
    return ":".join([alg, *(print_f32(number) for number in numbers[: last + 1])])


def _bad(message: str) -> UsageError:
    return UsageError(message, code="bad-post-op")


def _unknown(alg: str) -> UsageError | UnsupportedError:
    kind = UnsupportedError if alg in _OTHERS else UsageError
    nearest = f", the nearest is {_OF_RESULTS[alg]}" if alg in _OF_RESULTS else ""
    meant = "" if nearest else suggestion(alg, (*ALGORITHMS, "sum", "prelu", "dw", *INTEGER_STEPS, *OPERATORS))
    return kind(f"post-op {alg!r} is not available{nearest}; available are {_usage()}{meant}", code="bad-post-op")


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
