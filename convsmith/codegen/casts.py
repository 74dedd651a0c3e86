"""Conversions between data types as LLVM text.

LLVM's own conversions are used if they compile to instructions. Other conversions are spelled out, because LLVM splits
vector conversions to integers with saturation into scalars, and turns conversions to bf16, and to f16 without hardware,
into library calls.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from convsmith.codegen.bounds import Bounds
from convsmith.codegen.scalars import ScalarEmitter
from convsmith.diag.errors import InternalError
from convsmith.ir.instruction import Narrowing, WordConversion
from convsmith.ir.types import BF16, F8_E4M3, F8_E5M2, F16, F32, F64, S32, DType, Half
from convsmith.ir.value import const


class _SmallFloat(NamedTuple):
    """The form of a small float: bits of its fraction, the bias of its exponent, and the words of the positive infinity
    (or of NaN in its place) and of NaN. ``limit`` is the number that the word of infinity would otherwise be.
    """

    fraction: int
    bias: int
    infinity: int
    nan: int
    limit: float


_FORMS = {
    F16: _SmallFloat(10, 15, 0x7C00, 0x7E00, 65536.0),
    F8_E5M2: _SmallFloat(2, 15, 0x7C, 0x7E, 65536.0),
    F8_E4M3: _SmallFloat(3, 7, 0x7F, 0x7F, 480.0),
}


_ROUNDED_ZERO = 0x4B400000
"""The bits of the f32 1.5 * 2**23, whose last place has the value 1."""


def is_word(t: DType) -> bool:
    """Return whether a floating-point type is stored as an integer of its bits."""
    return t.kind == "float" and t.bits < 32


def literal(t: DType, value: float | int) -> str:
    """Return a constant in LLVM's syntax; f32 as the bits of the equal double."""
    if t.kind != "float":
        return str(value)
    bits = int.from_bytes(const(t if is_word(t) else F64, value).bits, "little")
    return str(bits) if is_word(t) else f"0x{bits:016X}"


class CastEmitter(ScalarEmitter):
    """Emits typed operands and conversions; ``half`` names the target's f16 instructions."""

    def __init__(self, bits: int, half: Half) -> None:
        super().__init__(bits)
        self.half = half
        self.word_rounding: WordConversion | None = None
        self.word_conversions: tuple[WordConversion, ...] = ()
        self.narrowing: Narrowing | None = None
        self.narrowed_words: dict[str, str] = {}
        """The register of s32 that each vector of bytes was narrowed from."""
        self.intrinsics: dict[tuple[str, DType, int, bool], str] = {}
        self.scalable = False
        """Whether vectors are scalable: ``vscale`` units of lanes, which the machine defines; lane counts are per unit.
        """

    def vector(self, element: str, lanes: int) -> str:
        """Return LLVM's name of a vector type, or of its element for no lanes."""
        return f"<{'vscale x ' if self.scalable else ''}{lanes} x {element}>" if lanes else element

    def type(self, t: DType, lanes: int) -> str:
        return self.vector(t.llvm, lanes)

    def type_i1(self, lanes: int) -> str:
        return self.vector("i1", lanes)

    def letters(self, lanes: int) -> str:
        """Return the part of an intrinsic's name that encodes the lanes of its type."""
        return f"{'nx' if self.scalable else ''}v{lanes}" if lanes else ""

    def suffix(self, t: DType, lanes: int) -> str:
        """Return the suffix of an intrinsic's name."""
        letter = "f" if t.kind == "float" and not is_word(t) else "i"
        return f"{self.letters(lanes)}{letter}{t.value_bits}"

    def number(self, x: str, t: DType, lanes: int) -> str:
        """Return the operand ``x`` in the type on which LLVM's arithmetic works."""
        if not is_word(t):
            return x
        if t is not F16 or self.half != "computes":
            raise InternalError(f"the target has no arithmetic on {t}")
        return self.put(f"bitcast {self.type(t, lanes)} {x} to {self.number_type(t, lanes)}")

    def kept(self, x: str, t: DType, lanes: int) -> str:
        """Return the operand ``x`` in the type in which values are kept; the inverse of `number`."""
        return self.put(f"bitcast {self.number_type(t, lanes)} {x} to {self.type(t, lanes)}") if is_word(t) else x

    def number_type(self, t: DType, lanes: int) -> str:
        """Return the type of the result of `number`."""
        return self._half_type(lanes) if is_word(t) else self.type(t, lanes)

    def const(self, t: DType, value: float | int, lanes: int) -> str:
        """Return a constant in every lane."""
        text = literal(t, value)
        return f"splat ({t.llvm} {text})" if lanes else text

    def intrinsic(self, name: str, t: DType, lanes: int, *operands: str) -> str:
        """Emit a call of an LLVM intrinsic on operands of one type."""
        ty = self.number_type(t, lanes)
        key = (name, t, lanes, self.scalable)
        full = self.intrinsics.get(key)
        if full is None:
            full = f"@llvm.{name}.{self.letters(lanes)}{'f' if t.kind == 'float' else 'i'}{t.value_bits}"
            self.intrinsics[key] = full
            self.declared[f"declare {ty} {full}({', '.join([ty] * len(operands))})"] = None
        numbers = ", ".join([f"{ty} {self.number(x, t, lanes)}" for x in operands])
        return self.kept(self.put(f"call {ty} {full}({numbers})"), t, lanes)

    def operation(self, op: str, t: DType, lanes: int, *operands: str) -> str:
        """Emit an LLVM instruction whose operands and result have one type."""
        numbers = ", ".join([self.number(x, t, lanes) for x in operands])
        return self.kept(self.put(f"{op} {self.number_type(t, lanes)} {numbers}"), t, lanes)

    def compare(self, how: str, t: DType, lanes: int, a: str, b: str) -> str:
        """Emit a comparison; the result has one bit per lane."""
        numbers = [self.number(x, t, lanes) for x in (a, b)]
        return self.put(f"{how} {self.number_type(t, lanes)} {', '.join(numbers)}")

    def convert(self, op: str, x: str, a: DType, b: DType, lanes: int) -> str:
        """Emit one of LLVM's conversion instructions."""
        return self.put(f"{op} {self.type(a, lanes)} {x} to {self.type(b, lanes)}")

    def choose(self, c: str, t: DType, lanes: int, yes: str, no: str) -> str:
        ty = self.type(t, lanes)
        return self.put(f"select {self.type_i1(lanes)} {c}, {ty} {yes}, {ty} {no}")

    def cast(self, x: str, a: DType, b: DType, lanes: int, bounds: Bounds | None = None) -> str:
        """Return the operand ``x`` of type ``a`` converted to ``b``; ``bounds`` are the bounds of ``x``, if known."""
        if a is b:
            return x
        if a.kind == "float" and b.kind != "float":
            return self._float_to_int(x, a, b, lanes, bounds)
        if a.kind == "float":
            return self._float_to_float(x, a, b, lanes)
        return self._int_to_float(x, a, b, lanes) if b.kind == "float" else self._int_to_int(x, a, b, lanes)

    # -- integers
    def _int_to_int(self, x: str, a: DType, b: DType, lanes: int) -> str:
        if a is S32 and (bytes_ := self._narrowed_bytes(x, b, lanes)):
            return bytes_
        (lo, hi), (low, high) = a.limits, b.limits
        sign = "s" if a.kind == "int" else "u"
        if lo < low:
            x = self.intrinsic(f"{sign}max", a, lanes, x, self.const(a, low, lanes))
        if hi > high:
            x = self.intrinsic(f"{sign}min", a, lanes, x, self.const(a, high, lanes))
        if a.llvm == b.llvm:
            return x
        return self.convert("trunc" if a.bits > b.bits else "sext" if sign == "s" else "zext", x, a, b, lanes)

    def _int_to_float(self, x: str, a: DType, b: DType, lanes: int) -> str:
        wide = self._int_to_int(x, a, S32, lanes) if a.bits < 32 else x
        if not is_word(b):
            return self.convert("sitofp", wide, S32, b, lanes)
        exact = F32 if a.bits <= 16 else F64
        return self.cast(self.convert("sitofp", wide, S32, exact, lanes), exact, b, lanes)

    def _float_to_int(self, x: str, a: DType, b: DType, lanes: int, bounds: Bounds | None) -> str:
        """Return a float as an integer, rounded and saturated; NaN becomes 0."""
        if is_word(a):
            x, a = self.cast(x, a, F32, lanes), F32
        if a is F32 and (b is S32 or b.bits < 32) and (word := self._whole_word(x, lanes)):
            return word if b is S32 else self._clamped_word(word, b, lanes)
        if a is F32 and b is S32:
            # 2**31 - 1 is not an f32, so values from 2**31 on are selected separately.
            low, high = b.limits
            x = self._numbers(x, a, lanes) if bounds is None else x
            inside = self._clamp(self.intrinsic("rint", a, lanes, x), a, lanes, low, 2**31 - 128)
            big = self.put(f"fcmp oge {self.type(a, lanes)} {x}, {self.const(a, 2**31, lanes)}")
            converted = self.convert("fptosi", inside, a, b, lanes)
            return self.choose(big, b, lanes, self.const(b, high, lanes), converted)
        if self.rounds_words(a, lanes):
            return self.narrowed(self.rounded_word(self._bounded(x, a, b, lanes, bounds)), b, lanes)
        bits = self.bits_of_rounded(self.saturated(x, a, b, lanes, bounds), a, lanes)
        if a is F32 and self._narrows(b, lanes):
            word = self.operation("sub", S32, lanes, bits, self.const(S32, _ROUNDED_ZERO, lanes))
            return self._narrowed_bytes(word, b, lanes)
        return self.put(f"trunc {self.vector(f'i{a.bits}', lanes)} {bits} to {self.type(b, lanes)}")

    def _whole_word(self, x: str, lanes: int) -> str:
        """Return f32 as s32, rounded and saturated, by the target's intrinsics; empty if it has none for the lanes."""
        forms = {} if self.scalable else {form.lanes: form for form in self.word_conversions}
        if lanes in forms:
            return self._converted_word(x, forms[lanes])
        if not lanes or {*forms} != {0}:
            return ""
        words = "poison"
        for lane in range(lanes):
            one = self._whole_word(self.put(f"extractelement {self.type(F32, lanes)} {x}, i64 {lane}"), 0)
            words = self.put(f"insertelement {self.type(S32, lanes)} {words}, i32 {one}, i64 {lane}")
        return words

    def _converted_word(self, x: str, form: WordConversion) -> str:
        """Return f32 as s32, by an intrinsic."""
        given = (*form.given, (self.type(F32, form.lanes), x), *form.after)
        types, numbers = (", ".join(texts) for texts in zip(*((kind, f"{kind} {number}") for kind, number in given)))
        self.declared[f"declare {form.result} @{form.intrinsic}({types})"] = None
        bits, word = self.put(f"call {form.result} @{form.intrinsic}({numbers})"), self.type(S32, form.lanes)
        return bits if form.result == word else self.put(f"bitcast {form.result} {bits} to {word}")

    def _clamped_word(self, word: str, b: DType, lanes: int) -> str:
        """Return s32 saturated to the integers ``b``, which have fewer bits."""
        return self._narrowed_bytes(word, b, lanes) or self._truncated_word(word, b, lanes)

    def _truncated_word(self, word: str, b: DType, lanes: int) -> str:
        """Return s32 saturated to the integers ``b`` by two limits."""
        for name, limit in zip(("smax", "smin"), b.limits):
            word = self.intrinsic(name, S32, lanes, word, self.const(S32, limit, lanes))
        return self.convert("trunc", word, S32, b, lanes)

    def _narrows(self, b: DType, lanes: int, joined: bool = False) -> bool:
        """Return whether the target's intrinsics saturate ``lanes`` of s32 to the bytes ``b``, which may be ``joined``
        to those of other registers.
        """
        form = self.narrowing
        if form is None or lanes != form.lanes or self.scalable or b.name not in dict(form.bytes):
            return False
        return joined or not form.joins

    def _narrowed_bytes(self, word: str, b: DType, lanes: int, joined: bool = False) -> str:
        """Return s32 saturated to the bytes ``b``, by the target's intrinsics; empty if it has none for the lanes.

        LLVM narrows one register whose parts the intrinsics would keep apart.
        """
        if not self._narrows(b, lanes, joined):
            return ""
        is_whole = self.narrowing is not None and self.narrowing.parts == 1
        found = self.joined_bytes([word], b) if is_whole else self._truncated_word(word, b, lanes)
        self.narrowed_words[found] = word
        return found

    def joined_bytes(self, words: list[str], b: DType) -> str:
        """Return the bytes ``b`` of one, two or four registers of s32, saturated by the target's intrinsics."""
        form = self.narrowing
        assert form is not None
        lanes = form.lanes * len(words)
        for name, bits in ((form.words, 16), (dict(form.bytes)[b.name], 8)):
            given, made = (f"<{form.lanes * 32 // n} x i{n}>" for n in (2 * bits, bits))
            self.declared[f"declare {made} @{name}({given}, {given})"] = None
            pairs = zip(words[::2], words[1::2]) if len(words) > 1 else [(words[0], words[0])]
            words = [self.put(f"call {made} @{name}({given} {x}, {given} {y})") for x, y in pairs]
        # In each part of the result, a quarter of it has the numbers of one register.
        size, parts = form.lanes // form.parts, range(form.parts)
        quarters = [(part * 4 + n) * size for n in range(lanes // form.lanes) for part in parts]
        order = [first + k for first in quarters for k in range(size)]
        if order == [*range(form.lanes * 4)]:
            return words[0]
        places = ", ".join(f"i32 {n}" for n in order)
        return self.put(f"shufflevector {made} {words[0]}, {made} poison, <{lanes} x i32> <{places}>")

    def rounds_words(self, t: DType, lanes: int) -> bool:
        """Return whether an instruction rounds vectors of ``t`` to s32."""
        return self.word_rounding is not None and t is F32 and lanes == self.word_rounding.lanes and not self.scalable

    def _bounded(self, x: str, t: DType, b: DType, lanes: int, bounds: Bounds | None) -> str:
        """Return a float within one limit of the integers ``b``, beyond which s32 would be saturated to another number.

        Floats beyond s32 are rounded to the least word, and so is NaN, which becomes 0 here for signed types. Within
        the upper limit, that word stands for the numbers beyond the lower limit; words that count as large ones stand
        for those beyond the upper limit.
        """
        low, high = b.limits
        if bounds is None and low:
            x = self._numbers(x, t, lanes)
        if self.wraps_words(b, lanes):
            return self._clamp(x, t, lanes, low, inf, bounds)
        return x if bounds is not None and bounds[1] <= high else self.below(x, self.const(t, high, lanes), lanes)

    def below(self, x: str, limit: str, lanes: int) -> str:
        """Return vectors of f32 within an upper limit; NaN stays NaN."""
        ty = self.type(F32, lanes)
        return self.choose(self.put(f"fcmp ogt {ty} {x}, {limit}"), F32, lanes, limit, x)

    def wraps_words(self, b: DType, lanes: int, joined: bool = False) -> bool:
        """Return whether `narrowed` takes negative words for large ones."""
        return not b.limits[0] and not self._narrows(b, lanes, joined)

    def rounded_word(self, x: str) -> str:
        """Return a vector of f32 rounded to nearest even as s32; NaN and numbers beyond become the least s32."""
        assert self.word_rounding is not None
        return self._converted_word(x, self.word_rounding)

    def narrowed(self, word: str, b: DType, lanes: int, joined: bool = False) -> str:
        """Return rounded words saturated to the integers ``b``; for unsigned ones, negative words count as large unless
        the target has intrinsics for that.
        """
        if bytes_ := self._narrowed_bytes(word, b, lanes, joined):
            return bytes_
        low, high = b.limits
        for name, limit in (("smax", low), ("smin", high)) if low else (("umin", high),):
            word = self.intrinsic(name, S32, lanes, word, self.const(S32, limit, lanes))
        return self.convert("trunc", word, S32, b, lanes)

    def saturated(self, x: str, a: DType, b: DType, lanes: int, bounds: Bounds | None = None) -> str:
        """Return a float within the limits of the integers ``b``; NaN becomes 0, for unsigned types by the lower limit.
        """
        if bounds is None and b.limits[0] != 0:
            x = self._numbers(x, a, lanes)
        return self._clamp(x, a, lanes, *b.limits, bounds)

    def _numbers(self, x: str, t: DType, lanes: int) -> str:
        """Return a float with 0 in place of NaN."""
        number = self.put(f"fcmp ord {self.type(t, lanes)} {x}, {x}")
        return self.choose(number, t, lanes, x, self.const(t, 0, lanes))

    def bits_of_rounded(self, x: str, t: DType, lanes: int) -> str:
        """Return a float within the limits of an integer of half its size as integers of its size, whose lower half is
        the float rounded to nearest even.
        """
        # In this sum the last place has the value 1: rounding the sum rounds x.
        magic = 1.5 * 2.0 ** (23 if t is F32 else 52)
        rounded = self.put(f"fadd {self.type(t, lanes)} {x}, {self.const(t, magic, lanes)}")
        return self.put(f"bitcast {self.type(t, lanes)} {rounded} to {self.vector(f'i{t.bits}', lanes)}")

    def _clamp(self, x: str, t: DType, lanes: int, low: float, high: float, bounds: Bounds | None = None) -> str:
        """Return ``x`` within limits; a limit that its ``bounds`` respect needs no comparison, and a NaN becomes
        ``low``.
        """
        ty = self.type(t, lanes)
        least, greatest = (-inf, inf) if bounds is None else bounds
        for op, bound in [("ogt", low)] * (least < low) + [("olt", high)] * (greatest > high):
            limit = self.const(t, bound, lanes)
            inside = self.put(f"fcmp {op} {ty} {x}, {limit}")
            x = self.choose(inside, t, lanes, x, limit)
        return x

    # -- floats
    def _float_to_float(self, x: str, a: DType, b: DType, lanes: int) -> str:
        if is_word(a):
            return self.cast(self._extend(x, a, lanes), F32, b, lanes)
        if b is F64:
            return self.convert("fpext", x, a, b, lanes)
        if b is F32:
            return self.convert("fptrunc", x, a, b, lanes)
        if a is F64:
            x = self._to_odd(x, lanes)
        if b is BF16:
            return self._truncate_bfloat(x, lanes)
        return self._truncate_half(x, lanes) if b is F16 and self.half else self._truncate_small(x, b, lanes)

    def _extend(self, x: str, t: DType, lanes: int) -> str:
        """Return a small float as f32."""
        if t is BF16:
            return self._extend_bfloat(x, lanes)
        if self.half and t is F8_E5M2:  # the upper byte of the f16
            wide, eight = self.convert("zext", x, t, F16, lanes), f"splat ({F16.llvm} 8)" if lanes else "8"
            return self._extend_half(self.put(f"shl {self.type(F16, lanes)} {wide}, {eight}"), lanes)
        return self._extend_half(x, lanes) if t is F16 and self.half else self._extend_small(x, t, lanes)

    def _word(self, op: str, x: str, lanes: int, y: str | int) -> str:
        """Emit integer arithmetic on 32-bit words."""
        other = y if isinstance(y, str) else self.const(S32, y, lanes)
        return self.put(f"{op} {self.type(S32, lanes)} {x}, {other}")

    def _to_odd(self, x: str, lanes: int) -> str:
        """Return an f64 as f32, rounded to odd, so that a second rounding gives the correctly rounded f64."""
        nearest = self.convert("fptrunc", x, F64, F32, lanes)
        back = self.convert("fpext", nearest, F32, F64, lanes)
        wide, word = self.type(F64, lanes), self.type(S32, lanes)
        inexact = self.put(f"fcmp one {wide} {back}, {x}")
        sizes = [self.intrinsic("fabs", F64, lanes, v) for v in (back, x)]
        above = self.put(f"fcmp ogt {wide} {sizes[0]}, {sizes[1]}")
        bits = self.convert("bitcast", nearest, F32, S32, lanes)
        below = self._word("add", bits, lanes, self.put(f"sext {self.type_i1(lanes)} {above} to {word}"))
        odd = self._word("or", below, lanes, self.put(f"zext {self.type_i1(lanes)} {inexact} to {word}"))
        return self.convert("bitcast", odd, S32, F32, lanes)

    def _truncate_bfloat(self, x: str, lanes: int) -> str:
        """Round to nearest even by adding just less than half of the last kept place, or half if that place is odd;
        then truncate.
        """
        bits = self.convert("bitcast", x, F32, S32, lanes)
        upper = self._word("lshr", bits, lanes, 16)
        odd = self._word("and", upper, lanes, 1)
        rounded = self._word("lshr", self._word("add", self._word("add", bits, lanes, 0x7FFF), lanes, odd), lanes, 16)
        quiet = self._word("or", upper, lanes, 0x40)
        odd_one = self.put(f"fcmp uno {self.type(F32, lanes)} {x}, {x}")
        result = self.choose(odd_one, S32, lanes, quiet, rounded)
        return self.convert("trunc", result, S32, BF16, lanes)

    def truncate_normal(self, x: str, lanes: int) -> str:
        """Return an f32 that is not denormal as bf16; the target has an instruction for that."""
        narrow = f"<{lanes} x bfloat>" if lanes else "bfloat"
        rounded = self.put(f"fptrunc {self.type(F32, lanes)} {x} to {narrow}")
        return self.put(f"bitcast {narrow} {rounded} to {self.type(BF16, lanes)}")

    def _extend_bfloat(self, x: str, lanes: int) -> str:
        """Return an f32 whose upper half is the bf16."""
        upper = self._word("shl", self.convert("zext", x, BF16, S32, lanes), lanes, 16)
        return self.convert("bitcast", upper, S32, F32, lanes)

    def _extend_half(self, x: str, lanes: int) -> str:
        """Return an f16 as f32; the target has an instruction for that."""
        number = self.put(f"bitcast {self.type(F16, lanes)} {x} to {self._half_type(lanes)}")
        return self.put(f"fpext {self._half_type(lanes)} {number} to {self.type(F32, lanes)}")

    def _truncate_half(self, x: str, lanes: int) -> str:
        """Return an f32 as f16; the target has an instruction for that."""
        number = self.put(f"fptrunc {self.type(F32, lanes)} {x} to {self._half_type(lanes)}")
        return self.put(f"bitcast {self._half_type(lanes)} {number} to {self.type(F16, lanes)}")

    def _extend_small(self, x: str, t: DType, lanes: int) -> str:
        """Shift the fields into place, then multiply by the difference of the biases, which is exact for denormals too.
        """
        form, sign_bit = _FORMS[t], 1 << t.bits - 1
        word = self.convert("zext", x, t, S32, lanes)
        sign = self._word("shl", self._word("and", word, lanes, sign_bit), lanes, 32 - t.bits)
        fields = self._word("shl", self._word("and", word, lanes, sign_bit - 1), lanes, 23 - form.fraction)
        small = self.convert("bitcast", fields, S32, F32, lanes)
        ty = self.type(F32, lanes)
        size = self.put(f"fmul {ty} {small}, {self.const(F32, 2.0 ** (127 - form.bias), lanes)}")
        bits = self.convert("bitcast", size, F32, S32, lanes)
        special = self.put(f"fcmp oge {ty} {size}, {self.const(F32, form.limit, lanes)}")
        full = self.choose(special, S32, lanes, self._word("or", bits, lanes, 0x7F800000), bits)
        return self.convert("bitcast", self._word("or", full, lanes, sign), S32, F32, lanes)

    def _truncate_small(self, x: str, t: DType, lanes: int) -> str:
        """Convert in three ranges: denormal (the power of two that is added has the denormals' unit as its last place),
        normal, and too large or NaN.
        """
        form, word, ty = _FORMS[t], self.type(S32, lanes), self.type(F32, lanes)
        lost, shift = 23 - form.fraction, 127 - form.bias
        bits = self.convert("bitcast", x, F32, S32, lanes)
        size = self._word("and", bits, lanes, 0x7FFFFFFF)
        plain = self.convert("bitcast", size, S32, F32, lanes)
        unit = 2.0 ** (1 - form.bias + lost)
        raised = self.put(f"fadd {ty} {plain}, {self.const(F32, unit, lanes)}")
        denormal = self._word("sub", self.convert("bitcast", raised, F32, S32, lanes), lanes, _word_of(unit))
        odd = self._word("and", self._word("lshr", size, lanes, lost), lanes, 1)
        biased = self._word("add", size, lanes, (1 << lost - 1) - 1 - (shift << 23))
        normal = self._word("lshr", self._word("add", biased, lanes, odd), lanes, lost)
        number = self.put(f"fcmp ord {ty} {x}, {x}")
        special = self.choose(
            number, S32, lanes, self.const(S32, form.infinity, lanes), self.const(S32, form.nan, lanes)
        )
        least = self.const(S32, shift + 1 << 23, lanes)
        small = self.put(f"icmp slt {word} {size}, {least}")
        big = self.put(f"icmp sge {word} {size}, {self.const(S32, _word_of(form.limit), lanes)}")
        magnitude = self.choose(small, S32, lanes, denormal, self.choose(big, S32, lanes, special, normal))
        sign = self._word("and", self._word("lshr", bits, lanes, 32 - t.bits), lanes, 1 << t.bits - 1)
        return self.convert("trunc", self._word("or", magnitude, lanes, sign), S32, t, lanes)

    def _half_type(self, lanes: int) -> str:
        return self.vector("half", lanes)


def _word_of(value: float) -> int:
    """Return the bits of an f32."""
    return int.from_bytes(const(F32, value).bits, "little")
