"""Quotients that are rounded to bytes, on threads of a device: by products and fused steps, without a branch.

A thread computes few lanes at once. A branch around each quotient would keep the steps of one from overlapping those of
another, and a division takes about twenty instructions. So numerator and divisor are multiplied by one power of two,
with the divisor's sign, that brings the divisor between ``1 / MAX_DIVISOR`` and `MAX_DIVISOR`, where a product and two
fused steps divide exactly (:mod:`convsmith.codegen.quotients`). The power is 1 for divisors that are there already. For
others, a numerator becomes infinite or loses places only if the quotient is far beyond the limits of a byte, or far
below 1.

The reciprocal of the divisor is an approximation, improved by two fused steps, by which ptxas computes ``rcp.rn`` as
well. It is correctly rounded (`test_a_reciprocal_is_rounded_once`). A division would call a function for divisors close
to the limits of f32, and ptxas runs the products of warp groups one after the other in a kernel with a call.

A numerator is clamped before the steps, so that all numbers are finite. If a zero point is added, the clamps are beyond
the sum of any such integer and a byte, and the sum is clamped again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from convsmith.codegen.quotients import MAX_DIVISOR, Quotient, QuotientForm, exact_quotient
from convsmith.ir.types import F32, DType

if TYPE_CHECKING:
    from convsmith.codegen.device_text import ThreadEmitter

_FAR = 2.0**40
"""Maximum size of a quotient to which an integer is added: beyond it, no sum with 32 bits is within a byte's limits."""


class _ScaledNumbers(NamedTuple):
    """The operands that all quotients by one number share, in all lanes: what a numerator is multiplied by, the divisor
    of the product, its reciprocal, what is added, and the least and the greatest product.
    """

    factor: str
    s: str
    reciprocal: str
    added: str
    least: str
    greatest: str


def rounded_quotients(emit: ThreadEmitter, quotients: Sequence[Quotient], t: DType, lanes: int) -> list[str]:
    """Return quotients by the same number, and what is added to them, rounded and saturated to the 8-bit type ``t``."""
    n = numbers_of(emit, quotients[0], t, lanes)
    return [_rounded(emit, emit.value(v.x, lanes), n, t, lanes) for v in quotients]


def _rounded(emit: ThreadEmitter, x: str, n: _ScaledNumbers, t: DType, lanes: int) -> str:
    ty, is_signed = emit.type(F32, lanes), t.limits[0] < 0
    x = emit.put(f"fmul {ty} {x}, {n.factor}")
    # NaN becomes 0: for unsigned types by the lower clamp, for others in a conversion without bounds, or here.
    is_converted = is_signed and (n.added != "" or (F32.name, t.name) in emit.packs)
    inside = x
    for how, limit in zip(("maximum", "minimum") if is_converted else ("maxnum", "minnum"), (n.least, n.greatest)):
        inside = emit.intrinsic(how, F32, lanes, inside, limit)
    found = exact_quotient(emit, inside, n.s, n.reciprocal, lanes)
    if n.added:
        found = emit.put(f"fadd {ty} {found}, {n.added}")
    elif is_signed and not is_converted:
        found = emit.choose(emit.put(f"fcmp ord {ty} {x}, {x}"), F32, lanes, found, emit.const(F32, 0, lanes))
    return emit.cast(found, F32, t, lanes, None if n.added else t.limits)


def numbers_of(emit: ThreadEmitter, v: Quotient, t: DType, lanes: int) -> _ScaledNumbers:
    """Return the operands of quotients by one number, which are computed once in a scope."""
    key = ("quotient", v.s, v.added, t, lanes)
    known = [emit.known.get((*key, name)) for name in _ScaledNumbers._fields]
    if known[0] is not None:
        return _ScaledNumbers(*(x or "" for x in known))
    factor, s, reciprocal = _scaled(emit, emit.value(v.s, 0))
    ends = (-_FAR, _FAR) if v.added is not None else t.limits
    least, greatest = (emit.put(f"fmul {F32.llvm} {emit.const(F32, x, 0)}, {s}") for x in ends)
    added = emit.value(v.added, 0) if v.added is not None else ""
    made = _ScaledNumbers(*(emit.splat(F32, x, lanes) if x and lanes else x
                      for x in (factor, s, reciprocal, added, least, greatest)))  # fmt: skip
    for name, x in zip(_ScaledNumbers._fields, made, strict=True):
        emit.known.set((*key, name), x)
    return made


def _scaled(emit: ThreadEmitter, s: str) -> tuple[str, str, str]:
    """Return the factor of numerators, and the divisor by which their products are divided, with its reciprocal.

    A quotient by 0, infinity or NaN is the product by the reciprocal: the factor is that, and the divisor 1.
    """
    f32, one = F32.llvm, emit.const(F32, 1, 0)
    size = emit.intrinsic("fabs", F32, 0, s)
    power = one
    for how, limit, scale in (("olt", 1 / MAX_DIVISOR, 2.0**96), ("ogt", MAX_DIVISOR, 2.0**-64)):
        outside = emit.put(f"fcmp {how} {f32} {size}, {emit.const(F32, limit, 0)}")
        power = emit.choose(outside, F32, 0, emit.const(F32, scale, 0), power)
    tests = (emit.put(f"fcmp {how} {f32} {size}, {emit.const(F32, x, 0)}") for how, x in (("ogt", 0), ("olt", inf)))
    is_number = emit.put(f"and i1 {', '.join(tests)}")
    factor = emit.intrinsic("copysign", F32, 0, power, s)
    divisor = emit.choose(is_number, F32, 0, emit.put(f"fmul {f32} {s}, {factor}"), s)
    near, reciprocal = rounded_reciprocal(emit, divisor)
    return (
        emit.choose(is_number, F32, 0, factor, near), emit.choose(is_number, F32, 0, divisor, one),
        emit.choose(is_number, F32, 0, reciprocal, one),
    )  # fmt: skip


def rounded_reciprocal(emit: ThreadEmitter, x: str) -> tuple[str, str]:
    """Return approximations of ``1 / x``: that of the device, and one that is correctly rounded where ``x`` is far from
    the limits of f32.
    """
    assert emit.dialect.reciprocal is not None
    near = emit.spell(emit.dialect.reciprocal, x=x)
    error = emit.intrinsic("fma", F32, 0, emit.put(f"fneg {F32.llvm} {x}"), near, emit.const(F32, 1, 0))
    return near, emit.intrinsic("fma", F32, 0, near, error, near)


SCALED = QuotientForm(numbers_of, rounded_quotients, serves_scalars=True, is_branched=False)
"""Quotients of scalars and vectors, without a branch."""
