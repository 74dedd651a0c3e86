"""Values as expressions of WGSL, lane by lane.

WGSL permits an implementation to assume that no number is NaN or infinite, and to flush denormal numbers; operations
round as those of the IR otherwise. Floats of 16 bits are held as their bits, and functions of integers convert them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from math import copysign

from convsmith.arith.ranges import Range, try_interval
from convsmith.codegen.structured_text import COMPARED, SIGNS, StructuredText, bare
from convsmith.codegen.wgsl_words import WORD_FUNCTIONS
from convsmith.diag.errors import InternalError, UnsupportedError
from convsmith.ir.index import And, Cond, FloorDiv, Index, Mod, Var
from convsmith.ir.types import BF16, F16, F32, DType
from convsmith.ir.value import (
    Binary,
    Bits,
    Cast,
    Const,
    Fma,
    Load,
    Lookup,
    Repeat,
    Select,
    Sum,
    Sums,
    Unary,
    Value,
    Where,
    dtype_of,
    lanes_of,
)

__all__ = ["FUNCTIONS", "RESERVED", "WgslValues", "type_name"]

_UNARY = {"round": "round", "floor": "floor", "sqrt": "sqrt", "abs": "abs"}

FUNCTIONS = {
    "quotient": """\
fn quotient(a: i32, b: i32) -> i32 {
  return a / b - select(0, 1, a % b < 0);
}
""",
    "modulo": """\
fn modulo(a: i32, b: i32) -> i32 {
  return a % b + select(0, b, a % b < 0);
}
""",
    "least": """\
fn least(a: i32, b: i32) -> i32 {
  return min(a, b);
}
""",
    "largest": """\
fn largest(a: i32, b: i32) -> i32 {
  return max(a, b);
}
""",
    "greater_f32": """\
fn greater_f32(a: f32, b: f32) -> f32 {
  return select(a, b, b > a || b != b);
}
""",
    "smaller_f32": """\
fn smaller_f32(a: f32, b: f32) -> f32 {
  return select(a, b, b < a || b != b);
}
""",
    "whole": """\
// The nearest integer, ties to even, within limits.
fn whole(x: f32, low: i32, high: i32) -> i32 {
  if (x != x) {
    return 0;
  }
  // The float nearest to a large limit may lie beyond it.
  if (x >= f32(high)) {
    return high;
  }
  return max(i32(round(max(x, f32(low)))), low);
}
""",
    "high_product": """\
// The product divided by 2^31, to nearest, ties up, with saturation.
fn high_product(a: i32, b: i32) -> i32 {
  if (a == b && u32(a) == 0x80000000u) {
    return 2147483647;
  }
  let first = u32(a) & 65535u;
  let second = u32(b) & 65535u;
  let least = first * second;
  let left = (a >> 16u) * i32(second) + i32(least >> 16u);
  let right = i32(first) * (b >> 16u) + (left & 65535);
  let high = (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
  let low = (u32(right) << 16u) | (least & 65535u);
  let rounded = low + 0x40000000u;
  return ((high + select(0, 1, rounded < low)) << 1u) | i32(rounded >> 31u);
}
""",
    "f32_of_f16": """\
fn f32_of_f16(x: u32) -> f32 {
  let exponent = (x >> 10u) & 31u;
  let fraction = x & 1023u;
  let small = bitcast<u32>(f32(fraction) * 0x1p-24f);
  let normal = ((exponent + select(112u, 224u, exponent == 31u)) << 23u) | (fraction << 13u);
  return bitcast<f32>(((x & 0x8000u) << 16u) | select(normal, small, exponent == 0u));
}
""",
    "f16_of_f32": """\
// The nearest f16, ties to even.
fn f16_of_f32(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  let sign = (bits >> 16u) & 0x8000u;
  if (size > 0x7f800000u) {
    return sign | 0x7e00u;
  }
  if (size >= 0x47800000u) {
    return sign | 0x7c00u;
  }
  if (size < 0x38800000u) {
    return sign | u32(round(bitcast<f32>(size) * 0x1p24f));
  }
  return sign | ((size - 0x38000000u + 4095u + ((size >> 13u) & 1u)) >> 13u);
}
""",
    "f32_of_bf16": """\
fn f32_of_bf16(x: u32) -> f32 {
  return bitcast<f32>(x << 16u);
}
""",
    "bf16_of_f32": """\
// The nearest bf16, ties to even.
fn bf16_of_f32(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return (bits >> 16u) | 64u;
  }
  return (bits + 32767u + ((bits >> 16u) & 1u)) >> 16u;
}
""",
    **WORD_FUNCTIONS,
}
"""Functions that expressions call."""

_WORDS = """
    NULL Self abstract active alias alignas alignof as asm asm_fragment async attribute auto await become bool break
    case cast catch class co_await co_return co_yield coherent column_major common compile compile_fragment concept
    const const_assert const_cast consteval constexpr constinit continue continuing crate debugger decltype default
    delete demote demote_to_helper diagnostic discard do dynamic_cast else enable enum explicit export extends extern
    external f16 f32 fallthrough false filter final finally fn for friend from fxgroup get goto groupshared highp i32 if
    impl implements import inline instanceof interface layout let loop lowp macro macro_rules match mediump meta mod
    module move mut mutable namespace new nil noexcept noinline nointerpolation non_coherent noncoherent noperspective
    null nullptr of operator override package packoffset parameter partition pass patch pixelfragment precise precision
    premerge priv protected pub public readonly ref regardless register reinterpret_cast require requires resource
    restrict return self set shared sizeof smooth snorm static static_assert static_cast std struct subroutine super
    switch target template this thread_local throw trait true try type typedef typeid typename typeof u32 union unless
    unorm unsafe unsized use using var varying virtual volatile wgsl where while with writeonly yield
    abs atomicAnd atomicLoad atomicOr atomicStore bitcast ceil clamp exp extractBits floor fma insertBits log max min
    round select sqrt
"""
RESERVED = frozenset(_WORDS.split())
"""Keywords and reserved words of WGSL, and the built-in functions that expressions call."""


HALVES = (F16, BF16)
"""The floats of 16 bits."""


def type_name(t: DType) -> str:
    """Return WGSL's type of a value. Integers of fewer bits are held in 32 bits, and floats of 16 bits as their bits;
    InternalError for other types.
    """
    if t in HALVES:
        return "u32"
    if t.bits > 32 or (t.kind == "float" and t is not F32):
        raise InternalError(f"WGSL has no values of {t}")
    return "f32" if t.kind == "float" else "u32" if t.limits[1] >= 1 << 31 else "i32"


class WgslValues(StructuredText):
    """Base class of writers of WGSL: its indices and values; `calls` are the functions that they call."""

    tab = "  "
    true, false = "true", "false"

    def __init__(self) -> None:
        self.calls: dict[str, None] = {}
        self.ranges: dict[Var, Range] = {}
        """The ranges of variables, where they are known."""
        self._named: dict[tuple[Value, int], str] = {}

    @abstractmethod
    def place(self, v: Load, lane: int) -> str:
        """Return the element of a lane of a load."""

    def call(self, function: str, *arguments: str) -> str:
        self.calls[function] = None
        return f"{function}({', '.join(map(bare, arguments))})"

    def index(self, e: Index) -> str:
        """Return an index as an operand: the operators of WGSL round towards zero, so they divide numbers that are not
        negative, and shifts and masks serve powers of two.
        """
        if not isinstance(e, (FloorDiv, Mod)) or not isinstance(e.den, int):
            return super().index(e)
        is_quotient, x, d = isinstance(e, FloorDiv), self.index(e.num), e.den
        if d & (d - 1) == 0:
            return f"({x} >> {d.bit_length() - 1}u)" if is_quotient else f"({x} & {d - 1})"
        known = try_interval(e.num, self.ranges)
        if known is not None and known[0] >= 0:
            return f"({x} {'/' if is_quotient else '%'} {d})"
        return super().index(e)

    def condition(self, c: Cond) -> str:
        """Return a condition. Parts of a conjunction are all evaluated, because each of the branches that `&&` makes
        costs more, and a long chain of them occupies some compilers for minutes.
        """
        if isinstance(c, And) and len(c.parts) > 1:
            return " & ".join(f"({self.condition(x)})" for x in c.parts)
        return super().condition(c)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Forget, after the `with` block, the names that it gives to values."""
        before = dict(self._named)
        try:
            yield
        finally:
            self._named = before

    def name_value(self, v: Value, lane: int, name: str) -> None:
        """Call a lane of a value by ``name`` from now on."""
        self._named[v, lane] = name

    def value(self, v: Value, lane: int) -> str:
        """Return a lane of a value as an operand; a scalar is the same in all lanes."""
        lane = lane if lanes_of(v) else 0
        if (v, lane) in self._named:
            return self._named[v, lane]
        if isinstance(v, Const):
            return _constant(v)
        if isinstance(v, Load):
            is_read = v.lanes is None or v.lanes.first <= lane < v.lanes.active
            return self.place(v, lane) if is_read else f"{type_name(dtype_of(v))}(0)"
        if isinstance(v, Select):
            return f"select({self._arms(v, lane)}, {self.condition(v.cond)})"
        if isinstance(v, Where):
            compared = f"{self.value(v.a, lane)} {COMPARED[v.op]} {self.value(v.b, lane)}"
            return f"select({self._arms(v, lane)}, {compared})"
        if isinstance(v, Fma):
            _check_arithmetic(dtype_of(v))
            return f"fma({', '.join(bare(self.value(x, lane)) for x in (v.a, v.b, v.c))})"
        if isinstance(v, Lookup):
            raise UnsupportedError("WGSL has no text for tables of bytes", code="lookup")
        if isinstance(v, Repeat):
            return self.value(v.a, lane % max(lanes_of(v.a), 1))
        if isinstance(v, Sum):
            return self._sum([self.value(v.a, lane * v.group + n) for n in range(v.group)])
        if isinstance(v, Sums):
            return self._sum([self.value(v.args[lane], n) for n in range(max(lanes_of(v.args[lane]), 1))])
        if isinstance(v, Cast):
            return self._cast(v, lane)
        if isinstance(v, Bits):
            if v.dtype.bits != dtype_of(v.a).bits or v.dtype.bits < 32:
                raise InternalError(f"WGSL has no text for the bits of {dtype_of(v.a)} as {v.dtype}")
            return f"bitcast<{type_name(v.dtype)}>({bare(self.value(v.a, lane))})"
        if isinstance(v, Unary):
            _check_arithmetic(dtype_of(v))
            text = self.value(v.a, lane)
            return f"(-{text})" if v.op == "neg" else f"{_UNARY[v.op]}({bare(text)})"
        assert isinstance(v, Binary)
        return self._binary(v, lane)

    def _arms(self, v: Select | Where, lane: int) -> str:
        return ", ".join(bare(self.value(x, lane)) for x in (v.no, v.yes))

    def _sum(self, texts: list[str]) -> str:
        """Return the sum of the texts, pairwise by halves."""
        while len(texts) > 1:
            half = len(texts) // 2
            texts = [f"({a} + {b})" for a, b in zip(texts[:half], texts[half:])]
        return texts[0]

    def _cast(self, v: Cast, lane: int) -> str:
        text, wanted, given = self.value(v.a, lane), v.dtype, dtype_of(v.a)
        if wanted == given:
            return text
        if given in HALVES:
            text, given = self.call(f"f32_of_{given}", text), F32
        if wanted.kind == "float":
            type_name(wanted)
            text = text if given is F32 else f"f32({bare(text)})"
            return self.call(f"{wanted}_of_f32", text) if wanted in HALVES else text
        low, high = wanted.limits
        if high >= 1 << 31:
            raise InternalError(f"WGSL has no text for a conversion of {given} to {wanted}")
        if given.kind == "float":
            return self.call("whole", text, str(low), str(high))
        if given.limits[0] >= low and given.limits[1] <= high:
            return text
        return f"clamp({bare(text)}, {low}, {high})"

    def _binary(self, v: Binary, lane: int) -> str:
        t, a, b = dtype_of(v), self.value(v.a, lane), self.value(v.b, lane)
        _check_arithmetic(t)
        if v.op in ("max", "min"):
            if t.kind == "float":
                return self.call("greater_f32" if v.op == "max" else "smaller_f32", a, b)
            return f"{v.op}({bare(a)}, {bare(b)})"
        if v.op in ("shl", "shr"):
            return f"({a} {SIGNS[v.op]} u32({bare(b)}))"
        if v.op == "mulh":
            return self.call("high_product", a, b)
        return f"({a} {SIGNS[v.op]} {b})"


def _check_arithmetic(t: DType) -> None:
    if t in HALVES:
        raise InternalError(f"WGSL has no text for arithmetic on {t}, whose bits a value holds")


def _constant(v: Const) -> str:
    x = v.value
    if v.dtype in HALVES:
        return f"{int.from_bytes(v.bits, 'little')}u"
    if v.dtype.kind != "float":
        return f"({x})" if x < 0 else f"{x}u" if type_name(v.dtype) == "u32" else str(x)
    type_name(v.dtype)
    if x != x or abs(x) == float("inf"):
        return f"bitcast<f32>({int.from_bytes(v.bits, 'little'):#x}u)"
    text = f"{x:.1f}" if x == int(x) and abs(x) < 1e6 else float(x).hex()
    return f"({text}f)" if copysign(1, x) < 0 else f"{text}f"
