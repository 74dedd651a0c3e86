"""Divisions of f32 without a call of a function, for kernels in which groups of warps multiply.

ptxas calls a function for operands close to the limits of f32. In a kernel with a call, it runs the products of groups
of warps one after the other. Here, usual operands are divided by a product and fused steps
(:mod:`convsmith.codegen.scaled_quotients`), and all others in f64, on a branch. A quotient of two f32 is never so close
to the middle between two f32 that rounding it to f64 before changes the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from convsmith.codegen.byte_packs import elements, joined
from convsmith.codegen.quotients import NEARLY_ALWAYS, exact_quotient
from convsmith.codegen.scaled_quotients import rounded_reciprocal
from convsmith.ir.types import F32, F64, DType

if TYPE_CHECKING:
    from convsmith.codegen.device_text import ThreadEmitter

_DIVIDENDS = 2.0**-40, 2.0**60
_DIVISORS = 2.0**-64, 2.0**64
"""Limits of the sizes of usual operands: their quotients, and the remainders of these, are far from those of f32."""


def divided(emit: ThreadEmitter, operands: Sequence[str], lanes: int) -> str:
    """Return the quotients of two f32, correctly rounded."""
    pairs = list(zip(*(elements(emit, x, F32, lanes) for x in operands)))
    tests = [_is_within(emit, x, F32, *limits) for pair in pairs for x, limits in zip(pair, (_DIVIDENDS, _DIVISORS))]
    is_usual = _all(emit, tests)
    usual, other, end = (emit.label(hint) for hint in ("usual", "other", "end"))
    emit.lines.append(f"  br i1 {is_usual}, label %{usual}, label %{other}, {NEARLY_ALWAYS}")
    emit.start(usual)
    quick = [exact_quotient(emit, x, y, rounded_reciprocal(emit, y)[1], 0) for x, y in pairs]
    emit.lines.append(f"  br label %{end}")
    emit.start(other)
    wide = [_divided_in_double(emit, x, y) for x, y in pairs]
    emit.lines.append(f"  br label %{end}")
    emit.start(end)
    found = [emit.put(f"phi {F32.llvm} [ {x}, %{usual} ], [ {y}, %{other} ]") for x, y in zip(quick, wide)]
    return joined(emit, F32.llvm, found) if lanes else found[0]


def _divided_in_double(emit: ThreadEmitter, a: str, b: str) -> str:
    """Return the quotient of any two f32: two fused steps improve the reciprocal, one the quotient; the product by the
    reciprocal is the quotient where an operand is 0, infinite or NaN.
    """
    x, y = (emit.convert("fpext", v, F32, F64, 0) for v in (a, b))
    ty, negative = F64.llvm, emit.put(f"fneg {F64.llvm} {y}")
    assert emit.dialect.wide_reciprocal is not None
    near = reciprocal = emit.spell(emit.dialect.wide_reciprocal, x=y)
    for _ in range(2):
        error = emit.intrinsic("fma", F64, 0, negative, reciprocal, emit.const(F64, 1, 0))
        reciprocal = emit.intrinsic("fma", F64, 0, reciprocal, error, reciprocal)
    product = emit.put(f"fmul {ty} {x}, {reciprocal}")
    rest = emit.intrinsic("fma", F64, 0, negative, product, x)
    exact = emit.intrinsic("fma", F64, 0, rest, reciprocal, product)
    are_numbers = _all(emit, [_is_within(emit, v, F64, 2.0**-149, 2.0**128) for v in (x, y)])
    found = emit.choose(are_numbers, F64, 0, exact, emit.put(f"fmul {ty} {x}, {near}"))
    return emit.convert("fptrunc", found, F64, F32, 0)


def _is_within(emit: ThreadEmitter, x: str, t: DType, least: float, greatest: float) -> str:
    """Return whether the size of a number is within limits; that of a NaN is not."""
    size = emit.intrinsic("fabs", t, 0, x)
    tests = (emit.put(f"fcmp {how} {t.llvm} {size}, {emit.const(t, limit, 0)}")
             for how, limit in (("oge", least), ("ole", greatest)))  # fmt: skip
    return _all(emit, list(tests))


def _all(emit: ThreadEmitter, tests: list[str]) -> str:
    found = tests[0]
    for test in tests[1:]:
        found = emit.put(f"and i1 {found}, {test}")
    return found
