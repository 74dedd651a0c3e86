"""Quotients by one number in all lanes that are rounded to bytes, computed by products where that is exact.

A division takes as long as a dozen products. With ``r = 1 / s``, a quotient ``q = x * r`` is at most 1.5 units of its
last place away from ``x / s``, and ``q + r * (x - q * s)``, in two fused steps, is ``x / s`` correctly rounded: a test
tries each quotient that is close to the middle between two numbers (`tests/codegen/test_quotients.py`). This needs
numbers and divisors far from the limits of f32. If ``s`` is a power of two, ``q`` is exact already: a branch leaves out
the fused steps, which take more than half of the time of a quotient. A quotient that becomes a byte can be clamped
before, which keeps the numbers there. Where an instruction rounds to words (``rounds_words``), one clamp suffices: a
quotient that overflows on the other side becomes infinite or NaN, hence the least word, which saturates as a number of
that side.

Divisors beyond `MAX_DIVISOR` and negative ones, and added zero points beyond `MAX_ADDED`, for which clamped quotients
are not close enough, take a branch to a division; threads of a device have quotients without branches
(:mod:`convsmith.codegen.scaled_quotients`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from convsmith.ir.buffer import Buffer
from convsmith.ir.types import F32, DType
from convsmith.ir.value import Binary, Cast, Load, Value, dtype_of

if TYPE_CHECKING:
    from convsmith.codegen.values import ValueEmitter

MAX_DIVISOR = 2.0**64
"""Maximum divisor; its reciprocal is the minimum."""
MAX_ADDED = 2.0**18
"""Maximum size of a zero point that is added: a quotient between the clamps then errs by less than half a byte's unit.
"""
PLACES = (1 << 23) - 1
"""The bits of an f32 behind its first place: none is set in a power of two."""


class Quotient(NamedTuple):
    """The parts of ``x / s + added``: lanes, and numbers; and whether its bytes are ``joined`` to those of other
    registers.
    """

    x: Value
    s: Value
    added: Value | None
    joined: bool = False

    @property
    def numbers(self) -> tuple[Value, ...]:
        """The divisor, and what is added if there is anything."""
        return (self.s,) if self.added is None else (self.s, self.added)


def quotient_of(v: Value, written: set[Buffer]) -> Quotient | None:
    """Return the parts of a quotient that is rounded to bytes; None for other values.

    Divisor and what is added, an integer, are in memory that is not ``written``.
    """
    if not isinstance(v, Cast) or v.dtype.kind == "float" or v.dtype.bits != 8:
        return None
    if dtype_of(v.a) is not F32:
        return None
    at, added = v.a, None
    if isinstance(at, Binary) and at.op == "add":
        added = _number(at.b, written) if isinstance(at.b, Cast) and dtype_of(at.b.a).kind != "float" else None
        at = at.a if added is not None else at
    if isinstance(at, Binary) and at.op == "div" and (s := _number(at.b, written)) is not None:
        return Quotient(at.a, s, added)
    return None


def _number(v: Value, written: set[Buffer]) -> Value | None:
    """Return what is the same number in all lanes that are accessed as a number; None for other values. The other
    lanes of a quotient are stored nowhere.
    """
    if isinstance(v, Cast):
        number = _number(v.a, written)
        return None if number is None else Cast(v.dtype, number)
    if not isinstance(v, Load) or v.buffer in written or (v.lanes and v.lanes.stride != 0):
        return None
    return Load(v.buffer, v.index, None)


class _Numbers(NamedTuple):
    """The operands that all quotients by one number share: whether it is a power of two, whether it is near, the
    number, its reciprocal and what is added, in all lanes, and the clamps; for a signed type, also a number whose
    quotient is rounded to zero.
    """

    is_power: str
    is_near: str
    s: str
    reciprocal: str
    added: str
    least: str
    greatest: str
    zero: str


def rounded_quotients(emit: ValueEmitter, quotients: Sequence[Quotient], t: DType, lanes: int) -> list[str]:
    """Return quotients by the same number, and what is added to them, rounded and saturated to the 8-bit type ``t``.

    All of them share the branches: a block of few instructions takes LLVM about as long as one of many.
    """
    ty, word = emit.type(F32, lanes), emit.vector("i32", lanes)
    numerators, n = [emit.value(v.x, lanes) for v in quotients], numbers_of(emit, quotients[0], t, lanes)
    near, power, other, far, join, end = map(emit.label, ("near", "power", "other", "far", "join", "end"))
    words = emit.rounds_words(F32, lanes)
    emit.lines.append(f"  br i1 {n.is_near}, label %{near}, label %{far}, {NEARLY_ALWAYS}")
    emit.start(near)
    inside = [_clamped(emit, x, n, t, lanes, words, v.joined) for x, v in zip(numerators, quotients, strict=True)]
    emit.lines.append(f"  br i1 {n.is_power}, label %{power}, label %{other}")
    emit.start(power)
    exact = [_fused(emit, x, n, lanes) for x in inside]
    emit.lines.append(f"  br label %{join}")
    emit.start(other)
    found = [_plus(emit, exact_quotient(emit, x, n.s, n.reciprocal, lanes), n, ty) for x in inside]
    emit.lines.append(f"  br label %{join}")
    emit.start(join)
    both = [_joined(emit, ty, ((a, power), (b, other))) for a, b in zip(exact, found, strict=True)]
    whole = [_whole(emit, x, lanes) for x in both]
    emit.lines.append(f"  br label %{end}")
    emit.start(far)
    divided = [_plus(emit, emit.put(f"fdiv {ty} {x}, {n.s}"), n, ty) for x in numerators]
    saturated = [_whole(emit, emit.saturated(x, F32, t, lanes), lanes) for x in divided]
    emit.lines.append(f"  br label %{end}")
    emit.start(end)
    bits = [_joined(emit, word, ((a, join), (b, far))) for a, b in zip(whole, saturated, strict=True)]
    if words:
        return [emit.narrowed(x, t, lanes, v.joined) for x, v in zip(bits, quotients, strict=True)]
    return [emit.put(f"trunc {word} {x} to {emit.type(t, lanes)}") for x in bits]


def _clamped(emit: ValueEmitter, x: str, n: _Numbers, t: DType, lanes: int, words: bool, joined: bool) -> str:
    """Return a numerator between those whose quotients are the limits of the type ``t``; if it becomes ``words``, only
    within the limit beyond which the word would be saturated to another number.
    """
    ty = emit.type(F32, lanes)
    if n.zero:  # NaN becomes 0, for unsigned types by the lower clamp
        x = emit.choose(emit.put(f"fcmp ord {ty} {x}, {x}"), F32, lanes, x, n.zero)
    if words and not emit.wraps_words(t, lanes, joined):
        return emit.below(x, n.greatest, lanes)
    clamps = (("ogt", n.least), ("olt", n.greatest))
    for how, limit in clamps[:1] if words else clamps:
        x = emit.choose(emit.put(f"fcmp {how} {ty} {x}, {limit}"), F32, lanes, x, limit)
    return x


def _joined(emit: ValueEmitter, ty: str, arms: Sequence[tuple[str, str]]) -> str:
    """Return the value of the block, by its label, from which control came."""
    return emit.put(f"phi {ty} {', '.join(f'[ {x}, %{label} ]' for x, label in arms)}")


def _whole(emit: ValueEmitter, x: str, lanes: int) -> str:
    """Return floats rounded to words, or to bits whose lower half is the number."""
    return emit.rounded_word(x) if emit.rounds_words(F32, lanes) else emit.bits_of_rounded(x, F32, lanes)


def exact_quotient(emit: ValueEmitter, x: str, s: str, reciprocal: str, lanes: int) -> str:
    """Return ``x / s`` by a product and two fused steps."""
    ty = emit.type(F32, lanes)
    q = emit.put(f"fmul {ty} {x}, {reciprocal}")
    rest = emit.intrinsic("fma", F32, lanes, emit.put(f"fneg {ty} {q}"), s, x)
    return emit.intrinsic("fma", F32, lanes, rest, reciprocal, q)


NEARLY_ALWAYS = '!prof !{!"branch_weights", i32 1000, i32 1}'
"""LLVM's note on a branch to its first label."""


def _fused(emit: ValueEmitter, x: str, n: _Numbers, lanes: int) -> str:
    """Return the quotient by a power of two, and what is added. The product is exact, so it need not be rounded."""
    if n.added:
        return emit.intrinsic("fma", F32, lanes, x, n.reciprocal, n.added)
    return emit.put(f"fmul {emit.type(F32, lanes)} {x}, {n.reciprocal}")


def _plus(emit: ValueEmitter, x: str, n: _Numbers, ty: str) -> str:
    return emit.put(f"fadd {ty} {x}, {n.added}") if n.added else x


def numbers_of(emit: ValueEmitter, v: Quotient, t: DType, lanes: int) -> _Numbers:
    """Return the operands of quotients by one number, which are computed once in a scope."""
    key = ("quotient", v.s, v.added, t, lanes)
    known = [emit.known.get((*key, name)) for name in _Numbers._fields]
    if known[0] is not None:
        return _Numbers(*(x or "" for x in known))
    s, f32 = emit.value(v.s, 0), F32.llvm
    is_near = _within(emit, s, 1 / MAX_DIVISOR, MAX_DIVISOR)
    ends = [emit.const(F32, x, 0) for x in (*t.limits, 0)]
    added = emit.value(v.added, 0) if v.added is not None else ""
    if added:
        is_near = emit.put(f"and i1 {is_near}, {_within(emit, added, -MAX_ADDED, MAX_ADDED)}")
        ends = [emit.put(f"fsub {f32} {x}, {added}") for x in ends]
    least, greatest, zero = (emit.put(f"fmul {f32} {x}, {s}") for x in ends)
    reciprocal = emit.put(f"fdiv {f32} {emit.const(F32, 1, 0)}, {s}")
    places = emit.put(f"and i32 {emit.put(f'bitcast {f32} {s} to i32')}, {PLACES}")
    is_power = emit.put(f"and i1 {is_near}, {emit.put(f'icmp eq i32 {places}, 0')}")
    in_lanes = {
        "s": s, "reciprocal": reciprocal, "added": added, "least": least, "greatest": greatest,
        "zero": zero if t.limits[0] else "",
    }  # fmt: skip
    made = _Numbers(is_power, is_near, **{name: emit.splat(F32, x, lanes) if x else "" for name, x in in_lanes.items()})
    for name, x in zip(_Numbers._fields, made, strict=True):
        emit.known.set((*key, name), x)
    return made


def _within(emit: ValueEmitter, x: str, least: float, greatest: float) -> str:
    """Return whether a number is within limits; a NaN is not."""
    above = emit.put(f"fcmp oge {F32.llvm} {x}, {emit.const(F32, least, 0)}")
    below = emit.put(f"fcmp ole {F32.llvm} {x}, {emit.const(F32, greatest, 0)}")
    return emit.put(f"and i1 {above}, {below}")


class QuotientForm(NamedTuple):
    """A way to compute quotients: the function for their shared numbers, that for quotients by the same number, whether
    it serves scalars, and whether it branches.
    """

    numbers: Callable[[Any, Quotient, DType, int], object]
    rounded: Callable[[Any, Sequence[Quotient], DType, int], list[str]]
    serves_scalars: bool
    is_branched: bool


BRANCHED = QuotientForm(numbers_of, rounded_quotients, serves_scalars=False, is_branched=True)
"""Quotients of vectors, with a branch to a division."""
