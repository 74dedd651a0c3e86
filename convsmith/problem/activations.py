"""Activations under the names that frameworks use, converted to post-ops.

    "relu"   "gelu"   "leaky_relu:0.2"   ("clip", 0, 6)   "add:f32:per_oc+silu"

A name in `ACTIVATIONS` has the frameworks' meaning and default parameters; every other name is looked up among the
post-ops. A bare "swish" therefore is x * sigmoid(x) here. In `--attr-post-ops` an omitted parameter is 0, so "swish" is
x / 2.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from convsmith.diag.choices import nearest, suggestion
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.problem.descriptor import split_items
from convsmith.problem.eltwise import ALGORITHMS
from convsmith.problem.post_ops import Eltwise, PostOp, parse_post_ops

__all__ = ["ACTIVATIONS", "Activation", "activation_post_ops"]

Activation: TypeAlias = str | tuple[str | float, ...] | None


class _Row(NamedTuple):
    """A post-op algorithm and its parameters; a call may override the first `free` of them."""

    alg: str
    numbers: tuple[float, ...] = ()
    free: int = 0
    scale: float = 1.0


ACTIVATIONS: dict[str, _Row | None] = {
    "identity": None,
    "relu6": _Row("clip", (0, 6)),
    "leaky_relu": _Row("relu", (0.01,), 1),
    "elu": _Row("elu", (1,), 1),
    "selu": _Row("elu", (1.6732632423543772,), 0, 1.0507009873554805),
    "gelu": _Row("gelu_erf"),
    "silu": _Row("swish", (1,)),
    "swish": _Row("swish", (1,), 1),
    "quick_gelu": _Row("swish", (1.702,)),
    "sigmoid": _Row("logistic"),
    "hardsigmoid": _Row("hardsigmoid", (1 / 6, 0.5), 2),
    "hardswish": _Row("hardswish", (1 / 6, 0.5), 2),
    "hardtanh": _Row("clip", (-1, 1), 2),
    "softplus": _Row("soft_relu", (1,), 1),
}
"""Activation name -> post-op; None maps to no post-op."""


def activation_post_ops(activation: Activation) -> tuple[PostOp, ...]:
    """Return the post-ops for the `activation` argument of a call. UsageError if a name or a parameter is not legal."""
    if activation is None:
        return ()
    if isinstance(activation, str):
        return tuple(step for item in split_items(activation) for step in _of_text(item))
    if isinstance(activation, (tuple, list)) and activation and isinstance(activation[0], str):
        name, numbers = activation[0], activation[1:]
        try:
            values = tuple(map(float, numbers))
        except (OverflowError, TypeError, ValueError):
            raise _malformed(activation) from None
        if len(values) <= 3:
            return _of_row(name, values) if name in ACTIVATIONS else (Eltwise(name, *values),)
    raise _malformed(activation)


def _of_text(item: str) -> tuple[PostOp, ...]:
    name, *words = item.split(":")
    if name not in ACTIVATIONS:
        try:
            return parse_post_ops(item)
        except UsageError as error:
            own = ", ".join(ACTIVATIONS)
            meant = "" if nearest(name, ALGORITHMS) else suggestion(name, ACTIVATIONS)
            raise UsageError(f"{error}; activations have {own} too{meant}", code=error.code) from None
    try:
        return _of_row(name, tuple(map(float, words)))
    except ValueError:
        raise _malformed(item) from None


def _of_row(name: str, numbers: tuple[float, ...]) -> tuple[PostOp, ...]:
    row = ACTIVATIONS[name]
    free = 0 if row is None else row.free
    if len(numbers) > free:
        legal = f"up to {free}" if free else "none"
        raise UsageError(f"activation {name} has {len(numbers)} numbers; legal are {legal}", code="bad-post-op")
    if row is None:
        return ()
    alpha, beta = (*numbers, *row.numbers[len(numbers) :], 0.0, 0.0)[:2]
    return (Eltwise(row.alg, alpha, beta, row.scale),)


def _malformed(activation: object) -> UsageError:
    return UsageError(
        f'activation={shown(activation)} is not legal: expected a name such as "relu", or a tuple like ("clip", 0, 6)',
        code="bad-post-op",
    )
