"""Scales and zero points of source, weights and destination: one value per tensor or one per channel.

benchdnn writes them as `src:common:0.25+wei:per_oc` after `--attr-scales=` and `dst:common:2+wei:common:1:s8` after
`--attr-zero-points=`. An element x of a quantised array stands for the real number (x - zero point) * scale. If the
line gives no value, every call passes the values as an array; a line may also list one value per channel
(`wei:per_oc:1:2:4`).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np

from convsmith.diag.choices import suggestion
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.record import record
from convsmith.problem.descriptor import split_items
from convsmith.problem.types import array_type, is_integer, print_f32

__all__ = ["ARGUMENTS", "SCALES", "ZERO_POINTS", "Kind", "Quantity", "parse_quantities", "print_quantities"]


class Kind(NamedTuple):
    """Scales or zero points. `name` is the prefix of tensor names, `option` the option of a line, `dtype` the default
    type, `code` the end of codes of errors.
    """

    name: str
    option: str
    dtype: str
    code: str


SCALES = Kind("scales", "attr-scales", "f32", "scale")
ZERO_POINTS = Kind("zero_points", "attr-zero-points", "s32", "zero-point")

ARGUMENTS = ("src", "wei", "dst", "attr_post_op_dw_wei", "attr_post_op_dw_dst")
"""Quantised arguments, in the order in which a kernel takes the arrays of their scales and zero points."""

_POLICIES = ("common", "per_oc", "per_dim_0", "per_dim_1", "per_dim_01", "per_dim_2", "per_dim_3", "per_tensor")
_ALIASES = {"src0": "src"}
"""benchdnn's alternative names of arguments."""
_OTHER_ARGUMENTS = ("bia", "src1", "attr_post_op_dw_bia", "attr_post_op_dw_src")


@record(frozen=True)
class Quantity:
    """The scale or zero point of `argument`. `values` holds one number for all channels, one per channel, or is empty.
    """

    argument: str
    policy: str = "common"
    values: tuple[float, ...] = ()
    dtype: str = "f32"

    @property
    def axis(self) -> int | None:
        """The axis n of the policy `per_dim_n`; None for every other policy."""
        digits = self.policy.removeprefix("per_dim_")
        return int(digits) if digits.isdecimal() and len(digits) == 1 else None

    def __str__(self) -> str:
        kind = ZERO_POINTS if is_integer(self.dtype) else SCALES
        words = [self.argument, self.policy, *(_number(value, self.dtype) for value in self.values)]
        return ":".join(words + ([self.dtype] if self.dtype != kind.dtype else []))


def parse_quantities(kind: Kind, text: str) -> tuple[Quantity, ...]:
    """Return the entries of a text such as `src:common:0.25+wei:per_oc`, sorted like `ARGUMENTS`."""
    entries = [_parse_one(kind, item) for item in split_items(text)]
    for quantity in entries:
        if [other.argument for other in entries].count(quantity.argument) > 1:
            raise _bad(kind, text, f"{quantity.argument} is given twice")
    return tuple(sorted(entries, key=lambda quantity: ARGUMENTS.index(quantity.argument)))


def print_quantities(quantities: tuple[Quantity, ...]) -> str:
    """Return the text that `parse_quantities` reads back as `quantities`."""
    return "+".join(map(str, quantities))


def check_quantity(kind: Kind, quantity: Quantity) -> Quantity:
    """Return `quantity` with its values rounded to its type. UsageError if a field of it is not legal."""
    if quantity.argument not in ARGUMENTS or quantity.policy not in _POLICIES:
        raise _bad(kind, str(quantity), f"expected one of {', '.join(ARGUMENTS)} and one of {', '.join(_POLICIES)}")
    if kind is SCALES and quantity.dtype != "f32":
        raise UnsupportedError(
            f"--{kind.option}={quantity}: scales of type {quantity.dtype} are not available; the nearest is f32",
            code="unsupported-option",
        )
    if quantity.policy == "common" and len(quantity.values) != 1:
        raise _bad(kind, str(quantity), "the policy common needs one value, such as common:2")
    return Quantity(
        quantity.argument, quantity.policy, tuple(_value(kind, quantity, v) for v in quantity.values), quantity.dtype
    )


def _value(kind: Kind, quantity: Quantity, value: float) -> float:
    if kind is ZERO_POINTS:
        limits = np.iinfo(array_type(quantity.dtype, kind.option).numpy)
        if value != value or not limits.min <= value <= limits.max or value != int(value):
            raise _bad(kind, str(quantity), f"expected a whole number from {limits.min} to {limits.max}")
        return float(value)
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.float32(value))
    if rounded == 0 or not math.isfinite(rounded):
        raise _bad(kind, str(quantity), f"the scale {value:g} is not legal; expected a finite number other than 0")
    return rounded


def _parse_one(kind: Kind, item: str) -> Quantity:
    argument, *words = item.split(":")
    argument = _ALIASES.get(argument, argument)
    if argument in _OTHER_ARGUMENTS:
        raise UnsupportedError(
            f"--{kind.option}={item}: {argument} has none here; available: {', '.join(ARGUMENTS)}",
            code="unsupported-option",
        )
    policy, *numbers = words or ["common"]
    dtype = numbers.pop() if numbers and re.fullmatch("[a-z][a-z0-9_]*", numbers[-1]) else kind.dtype
    if argument not in ARGUMENTS or policy not in _POLICIES:
        wrong, legal = (argument, ARGUMENTS) if argument not in ARGUMENTS else (policy, _POLICIES)
        raise _bad(
            kind, item, f"expected argument:policy[:value[:type]], the argument one of {', '.join(ARGUMENTS)}, the "
            f"policy one of {', '.join(_POLICIES)}{suggestion(wrong, legal)}",
        )  # fmt: skip
    if dtype in ("nan", "inf"):
        numbers, dtype = [*numbers, dtype], kind.dtype
    if is_integer(array_type(dtype, kind.option).name) != (kind is ZERO_POINTS):
        wanted = "whole numbers" if kind is ZERO_POINTS else "floating-point numbers"
        raise _bad(kind, item, f"type {dtype}: expected one of {wanted}, such as {kind.dtype}")
    try:
        # Old benchdnn lines mark a value that is passed at the call with an asterisk; here all values may be.
        values = tuple(float(number.removesuffix("*")) for number in numbers)
    except ValueError:
        raise _bad(kind, item, f"{':'.join(numbers)!r} is not a number") from None
    return Quantity(argument, policy, values, dtype)


def _number(value: float, dtype: str) -> str:
    return str(int(value)) if is_integer(dtype) and value % 1 == 0 else print_f32(value)


def _bad(kind: Kind, text: str, why: str) -> UsageError:
    return UsageError(f"--{kind.option}={text}: {why}", code=f"bad-{kind.code}")
