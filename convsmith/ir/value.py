"""Values: typed expressions over loads and constants, either scalar or with several lanes.

A load with ``lanes`` gives a vector: lane ``l`` is the element at the index plus ``lanes.offsets[l]``; scalar operands
are broadcast.  Every operation rounds to its type; ``fma`` rounds once.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import NamedTuple

from convsmith.diag.forking import import_lock
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index
from convsmith.ir.intern import Node
from convsmith.ir.types import BF16, F8_E4M3, F8_E5M2, DType

BITWISE = ("and", "or", "xor", "shl", "shr")
BINARY = ("add", "sub", "mul", "mulh", "div", "max", "min", *BITWISE)
UNARY = ("round", "floor", "sqrt", "abs", "neg")
COMBINATIONS = {"add": 0.0, "max": -math.inf, "min": math.inf, "mul": 1.0}
"""Operations of reductions, with the value that changes nothing."""
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")

MAX_SPREAD = 4
"""Maximum distance of lanes in elements at which masked stores write them, as that many vectors."""


@lru_cache(1 << 12)
def _stride(offsets: tuple[int, ...]) -> int | None:
    step = offsets[1] - offsets[0] if len(offsets) > 1 else 1
    return step if all(o == step * i for i, o in enumerate(offsets)) else None


@lru_cache(1 << 12)
def _rows(offsets: tuple[int, ...]) -> tuple[int, int, int] | None:
    length = next((i for i, o in enumerate(offsets) if o != i), 0)
    if length < 2 or len(offsets) % length:
        return None
    distance = offsets[length]
    even = all(o == i // length * distance + i % length for i, o in enumerate(offsets))
    return (len(offsets) // length, length, distance) if even else None


class Lanes(NamedTuple):
    """Offsets of the lanes from the index, in elements; only the lanes from ``first`` to before ``active`` are
    accessed.
    """

    offsets: tuple[int, ...]
    active: int
    first: int = 0

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.offsets)

    @property
    def touched(self) -> tuple[int, ...]:
        """The offsets of the lanes that are accessed."""
        return self.offsets[self.first : self.active]

    @property
    def is_whole(self) -> bool:
        """Whether all lanes are accessed."""
        return not self.first and self.active == len(self.offsets)

    @property
    def rows(self) -> tuple[int, int, int] | None:
        """(rows, lanes per row, distance of rows) if the lanes form rows of adjacent elements, otherwise None."""
        return _rows(self.offsets)

    @property
    def stride(self) -> int | None:
        """The common distance of adjacent lanes (0: broadcast, 1: contiguous), or None."""
        return _stride(self.offsets)

    @property
    def reach(self) -> int | None:
        """The distance from a vector to the next one if all lanes of both are evenly apart, otherwise None."""
        return None if self.stride is None else self.stride * self.count


def unit_distance(lanes: Lanes) -> int:
    """Return the distance in elements between the lanes of consecutive units of a vector: these are evenly apart, or
    each row of a fragment is followed by that of the next unit; 0 if lanes lie otherwise.
    """
    if lanes.reach is not None:
        return lanes.reach
    return lanes.rows[1] if lanes.rows is not None else 0


def strided(count: int, stride: int, active: int | None = None) -> Lanes:
    """Return ``count`` lanes, ``stride`` elements apart."""
    return Lanes(tuple(stride * i for i in range(count)), count if active is None else active)


def rows_of_lanes(rows: int, length: int, distance: int, active: int | None = None) -> Lanes:
    """Return ``rows`` rows of ``length`` adjacent lanes, ``distance`` elements apart; ``active`` rows are accessed."""
    offsets = tuple(r * distance + i for r in range(rows) for i in range(length))
    return Lanes(offsets, length * (rows if active is None else active))


class Value(Node):
    """Base class of values."""

    __slots__ = ("_lanes",)

    def __str__(self) -> str:
        with import_lock:
            from convsmith.ir.text import value_text

        return value_text(self)

    __repr__ = __str__


class Const(Value):
    """A constant; interned by its bits, so that 0.0 and -0.0 differ and a NaN equals itself."""

    dtype: DType
    bits: bytes

    @property
    def value(self) -> float | int:
        if self.dtype.kind != "float":
            return int.from_bytes(self.bits, "little", signed=self.dtype.kind == "int")
        if self.dtype is F8_E4M3:
            return math.copysign(_of_e4m3(self.bits[0] & 0x7F), 0.5 - (self.bits[0] >> 7))
        bits = bytes(_CUT.get(self.dtype, 0)) + self.bits
        return struct.unpack(_PACKED[len(bits)], bits)[0]  # type: ignore[no-any-return]


_PACKED = {2: "<e", 4: "<f", 8: "<d"}
_CUT = {BF16: 2, F8_E5M2: 1}
"""Bytes that a small float lacks at the end of the float of twice its size."""


def const(dtype: DType, value: float | int) -> Const:
    """Return ``value`` rounded to ``dtype``; an integer must be within the type's limits."""
    if dtype.kind != "float":
        return Const(dtype, int(value).to_bytes(dtype.bytes_of(1), "little", signed=dtype.kind == "int"))
    if dtype in _PRECISION:
        value = _rounded(value, dtype)
    if dtype is F8_E4M3:
        sign = 0x80 * (math.copysign(1, value) < 0)
        return Const(dtype, bytes([_E4M3.get(abs(value), 0x7F) | sign]))
    cut = _CUT.get(dtype, 0)
    return Const(dtype, _float_bits(_PACKED[dtype.bytes + cut], value)[cut:])


def _of_e4m3(word: int) -> float:
    """Return the number whose seven bits without the sign are ``word``."""
    exponent, fraction = word >> 3, word & 7
    if word == 0x7F:
        return math.nan
    return math.ldexp(fraction + (8 if exponent else 0), max(exponent, 1) - 10)


_E4M3 = {_of_e4m3(word): word for word in range(0x7F)}


def _float_bits(code: str, value: float) -> bytes:
    try:
        return struct.pack(code, value)
    except OverflowError:
        return struct.pack(code, math.copysign(math.inf, value))


_PRECISION = {BF16: (8, -133), F8_E4M3: (4, -9), F8_E5M2: (3, -16)}
"""Significant bits of small floats, and the exponent of the unit of their denormal numbers."""


def _rounded(value: float, dtype: DType) -> float:
    """Return the number in the precision of ``dtype`` that is nearest to ``value``."""
    if not abs(value) < 2.0**128:
        return value
    bits, least = _PRECISION[dtype]
    exponent = max(math.frexp(value)[1] - bits, least)
    return math.copysign(math.ldexp(round(math.ldexp(value, -exponent)), exponent), value)


class Load(Value):
    """The element (or one element per lane) of ``buffer`` at ``index``."""

    buffer: Buffer
    index: tuple[Index, ...]
    lanes: Lanes | None


class Binary(Value):
    """A binary operation, one of BINARY.  ``max`` and ``min`` give NaN if an operand is NaN, and ``a`` if both are
    equal.

    ``mulh``, for s32, is ``a * b / 2**31`` rounded to nearest, ties up, saturated (``(-2**31)**2`` gives ``2**31 -
    1``). BITWISE operations are for integers.  The shift amount is below the width; ``shr`` of a signed type keeps the
    sign.
    """

    op: str
    a: Value
    b: Value


class Unary(Value):
    """A unary operation of IEEE 754 on a float, one of UNARY; ``round`` rounds to the nearest integer, ties to even."""

    op: str
    a: Value


class Fma(Value):
    """``a * b + c``, rounded once."""

    a: Value
    b: Value
    c: Value


class Cast(Value):
    """``a`` converted to ``dtype``.

    A conversion to a float rounds to nearest, ties to even.  A conversion of a float to an integer rounds likewise,
    turns NaN to 0 and saturates; so does a conversion between integers.
    """

    dtype: DType
    a: Value


class Bits(Value):
    """The bits of ``a`` reinterpreted as ``dtype``; a scalar if they form one element, otherwise lanes."""

    dtype: DType
    a: Value


class Select(Value):
    """``yes`` if the condition holds, otherwise ``no``; the other operand is not evaluated.

    A condition with ``LANE`` selects for each lane; its lanes are a run, and ``yes`` reads no others from memory.
    """

    cond: Cond
    yes: Value
    no: Value


class Where(Value):
    """``yes`` in lanes where ``a op b`` holds, otherwise ``no``; all four operands are evaluated.

    ``op`` is one of COMPARISONS; if an operand is NaN, only ``ne`` holds.  ``a`` and ``b`` may differ in type from
    ``yes`` and ``no``.
    """

    op: str
    a: Value
    b: Value
    yes: Value
    no: Value


class Lookup(Value):
    """The element of memory ``a`` elements after that of the scalar load ``first``; ``a`` is of type u8."""

    first: Load
    a: Value


class Repeat(Value):
    """``times`` copies of the lanes of ``a``, concatenated."""

    a: Value
    times: int


class Sum(Value):
    """Horizontal sums over each ``group`` of adjacent lanes of ``a``, added pairwise by halves; one group gives a
    scalar.
    """

    a: Value
    group: int


class Sums(Value):
    """A vector whose lane ``n`` is the horizontal sum of ``args[n]``, added as in :class:`Sum`."""

    args: tuple[Value, ...]


def lanes_of(v: Value) -> int:
    """Return the number of lanes of ``v``; 0 for a scalar."""
    try:
        return v._lanes  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        count = _lanes_of(v)
        Value._lanes.__set__(v, count)  # type: ignore[attr-defined]
        return count


def _lanes_of(v: Value) -> int:
    if isinstance(v, Load):
        return v.lanes.count if v.lanes else 0
    if isinstance(v, (Binary, Where)):
        arms = max(lanes_of(v.yes), lanes_of(v.no)) if isinstance(v, Where) else 0
        return max(lanes_of(v.a), lanes_of(v.b), arms)
    if isinstance(v, Fma):
        return max(lanes_of(v.a), lanes_of(v.b), lanes_of(v.c))
    if isinstance(v, Select):
        return max(lanes_of(v.yes), lanes_of(v.no))
    if isinstance(v, (Cast, Unary, Lookup)):
        return lanes_of(v.a)
    if isinstance(v, Bits):
        lanes, bits = lanes_of(v.a), dtype_of(v.a).bits
        count = max(lanes, 1) * bits // v.dtype.bits
        return lanes if bits == v.dtype.bits else count if count > 1 else 0
    if isinstance(v, Repeat):
        return max(lanes_of(v.a), 1) * v.times
    if isinstance(v, Sum):
        groups = lanes_of(v.a) // v.group if v.group else 0
        return groups if groups > 1 else 0
    return len(v.args) if isinstance(v, Sums) else 0


def is_lost_part(v: Fma) -> bool:
    """Return whether a multiply-add subtracts: it computes what a product loses when it is rounded."""
    return isinstance(v.c, Unary) and v.c.op == "neg"


def dtype_of(v: Value) -> DType:
    """Return the data type of ``v``."""
    while not isinstance(v, (Const, Cast, Bits)):
        if isinstance(v, Load):
            return v.buffer.dtype
        if isinstance(v, (Select, Where)):
            v = v.yes
        elif isinstance(v, Lookup):
            v = v.first
        elif isinstance(v, (Binary, Unary, Fma, Repeat, Sum)):
            v = v.a
        elif isinstance(v, Sums):
            v = v.args[0]
        else:
            raise TypeError(f"not a value: {v!r}")
    return v.dtype
