"""gemmlowp's output stages as rows of one table: the parameters that each reads, and the integer steps it expands to.

A stage is a tuple of its name and its parameters, such as `("fixed_point", 1518500250, 7, 128)`. A parameter may be an
array that is broadcast against the result: one value per row with shape (M, 1), one per column with (N,) or (1, N).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.problem.integer_steps import INTEGER_STEPS, LIMITS, array_of

__all__ = ["STAGES", "AppliedStep", "OutputStage", "Stage", "check_stages", "result_type", "stage_steps", "staged"]

Array = np.ndarray[Any, Any]
Stage: TypeAlias = Sequence[Any]


class AppliedStep(NamedTuple):
    """A key of `INTEGER_STEPS` and its numbers: arrays of one element, of one per row, per column, or per element."""

    alg: str
    numbers: tuple[Array, ...]


class OutputStage(NamedTuple):
    """A stage. `parameters` names its numbers, the last of which have `defaults`; `steps(*numbers)` gives (step,
    *numbers). A stage with a `result`, the name of a type, is a cast to it.
    """

    parameters: tuple[str, ...]
    steps: Callable[..., tuple[tuple[Any, ...], ...]]
    defaults: tuple[int, ...] = ()
    result: str = ""


STAGES: dict[str, OutputStage] = {
    "scale": OutputStage(
        ("offset", "mult", "shift"), lambda o, m, s: (("s32_add", o), ("s32_mul", m), ("s32_rshift", s))
    ),
    "fixed_point": OutputStage(
        ("mult", "shift", "offset"), lambda m, s, o: (("s32_mulh", m), ("s32_rshift", s), ("s32_add", o)), (0,)
    ),
    "fixed_point_exponent": OutputStage(
        ("mult", "exponent", "offset"),
        lambda m, e, o: (
            ("s32_shl", np.maximum(e, 0)), ("s32_mulh", m), ("s32_rshift", np.maximum(-e, 0)), ("s32_add", o),
        ),
        (0,),
    ),
    "bias": OutputStage(("values",), lambda b: (("s32_add", b),)),
    "clamp": OutputStage(("low", "high"), lambda low, high: (("s32_max", low), ("s32_min", high))),
    "tanh": OutputStage(("zero", "amplitude"), lambda z, a: (("s32_tanh", z.reshape(()), a.reshape(())),)),
    "saturate_u8": OutputStage((), lambda: (), result="u8"),
    "saturate_s8": OutputStage((), lambda: (), result="s8"),
    "saturate_s16": OutputStage((), lambda: (), result="s16"),
    "truncate_u8": OutputStage((), lambda: (("s32_and", np.int64(255)),), result="u8"),
}  # fmt: skip
"""`scale` is (x + offset) * mult / 2**shift. `fixed_point` is x * mult / 2**31 / 2**shift + offset. A cast must be
last.
"""

_NEUTRAL = {"s32_add": 0, "s32_mul": 1, "s32_shl": 0, "s32_rshift": 0}
"""Operand for which a step changes nothing and is dropped."""


def result_type(stages: Sequence[Stage]) -> str:
    """Return the type of the result of `stages`: that of the final cast, otherwise s32."""
    cast = STAGES[_name(stages[-1])].result if stages else ""
    return cast or "s32"


def stage_steps(stages: Sequence[Stage], shape: tuple[int, int]) -> tuple[AppliedStep, ...]:
    """Return the integer steps of `stages` on a result of `shape`. UsageError if a stage is not legal."""
    check_stages(stages)
    return tuple(step for n, stage in enumerate(stages) for step in _steps_of(stage, n == len(stages) - 1, shape))


def check_stages(stages: Any) -> None:
    """Raise UsageError unless `stages` is a list or tuple."""
    if not isinstance(stages, (list, tuple)):
        example = '[("bias", 3), ("saturate_u8",)]'
        raise _bad(f"output_stages={shown(stages)} is not legal: expected a list of stages, such as {example}")


def staged(acc: Array, stages: Sequence[Stage]) -> Array:
    """Return the s32 sums `acc` after `stages`, as an array of their `result_type`."""
    values = acc.astype(np.int64)
    for step in stage_steps(stages, values.shape):
        values = INTEGER_STEPS[step.alg].apply(values, *step.numbers)
    name = {"u8": "uint8", "s8": "int8", "s16": "int16", "s32": "int32"}[result_type(stages)]
    limits = np.iinfo(name)
    return np.clip(values, limits.min, limits.max).astype(name)


def _steps_of(stage: Stage, last: bool, shape: tuple[int, int]) -> Iterator[AppliedStep]:
    name = _name(stage)
    row = STAGES[name]
    if row.result and not last:
        raise _bad(f"output stage {name}: legal is a cast at the end of the stages only")
    given: tuple[Any, ...] = tuple(stage[1:])
    missing = len(row.parameters) - len(given)
    if not 0 <= missing <= len(row.defaults):
        raise _bad(f"output stage {name} has {len(given)} numbers; expected {_form(name)}")
    given += row.defaults[len(row.defaults) - missing :]
    numbers = {p: _number(f"output stage {name}: {p}", x, shape) for p, x in zip(row.parameters, given, strict=True)}
    for parameter, values in numbers.items():
        _check(f"output stage {name}: {parameter}", values, *_limits(name, parameter))
    if name == "clamp" and (numbers["low"] > numbers["high"]).any():
        raise _bad(f"output stage clamp: low {given[0]} is above high {given[1]}; legal is low <= high")
    if name == "tanh":
        _check_tanh(*(int(x.item()) if x.size == 1 else None for x in numbers.values()))
    for alg, *operands in row.steps(*numbers.values()):
        if not (alg in _NEUTRAL and (operands[0] == _NEUTRAL[alg]).all()):
            yield AppliedStep(alg, tuple(np.asarray(x, np.int64) for x in operands))


def _check_tanh(zero: int | None, amplitude: int | None) -> None:
    if zero is None or amplitude is None:
        raise _bad("output stage tanh: legal are single numbers for zero and amplitude")
    if not LIMITS[0] <= zero - 8 * amplitude <= zero + 8 * amplitude <= LIMITS[1]:
        raise _bad(
            f"output stage tanh: zero {zero} and amplitude {amplitude}: 8 amplitudes from zero lie beyond 32 bits; "
            f"legal is an amplitude up to {(LIMITS[1] - abs(zero)) // 8}"
        )


def _limits(name: str, parameter: str) -> tuple[int, int]:
    return {"shift": (0, 31), "exponent": (-31, 31), "amplitude": (1, 2**27)}.get(parameter, LIMITS)


def _number(what: str, value: Any, shape: tuple[int, int]) -> Array:
    array = array_of(value)
    if array.dtype.kind not in "iu" or array.ndim > 2:
        raise _bad(f"{what} is {value!r}; expected a whole number, or an array of them")
    if any(n not in (1, most) for n, most in zip(array.shape[::-1], shape[::-1], strict=False)):
        m, n = shape
        raise _bad(f"{what} has shape {array.shape}; legal are one number, ({m}, 1) for rows and ({n},) for columns")
    return array.astype(np.int64) if array.dtype != np.uint64 else np.minimum(array, 2**62).astype(np.int64)


def _check(what: str, values: Array, low: int, high: int) -> None:
    outside = values[(values < low) | (values > high)]
    if outside.size:
        raise _bad(f"{what} is {outside.flat[0]}; legal is {low} to {high}")


def _name(stage: Stage) -> str:
    name = stage[0] if isinstance(stage, tuple | list) and stage else stage
    if not isinstance(name, str) or name not in STAGES:
        raise _bad(f"output stage {stage!r} is unknown; legal are {choices(name, STAGES, map(_form, STAGES))}")
    return name


def _form(name: str) -> str:
    row = STAGES[name]
    fixed = len(row.parameters) - len(row.defaults)
    words = [repr(name), *row.parameters[:fixed], *(f"[{p}]" for p in row.parameters[fixed:])]
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


def _bad(message: str) -> UsageError:
    return UsageError(message, code="bad-output-stage")
