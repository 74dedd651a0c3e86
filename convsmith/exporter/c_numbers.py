"""Numbers of convsmith's types in C: functions that programs call to convert, round and compare them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from convsmith.exporter.header import C_TYPES
from convsmith.ir.types import DTYPES, DType
from convsmith.ir.value import Const

__all__ = ["C_NUMBERS", "function_texts", "number_text", "numbers_in", "rounded_text", "storage"]

C_NUMBERS = {
    "f16": (10, 5, "0x1p112f", "65504.0", "0x7c00u"),
    "bf16": (7, 8, "1.0f", "0x1.fep127", "0x7f80u"),
    "f8_e4m3": (3, 4, "0x1p120f", "448.0", "0x7fu"),
    "f8_e5m2": (2, 5, "0x1p112f", "57344.0", "0x7cu"),
}
"""Floats that C lacks: bits of the fraction and of the exponent, the ratio to the float with the same bits in front,
the largest number, and the bits of numbers beyond it.
"""

_TEXTS = {
    "quotient": """\
static int64_t quotient(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
""",
    "modulo": """\
static int64_t modulo(int64_t a, int64_t b)
{
    return a % b < 0 ? a % b + b : a % b;
}
""",
    "largest": """\
static int64_t largest(int64_t a, int64_t b)
{
    return b > a ? b : a;
}
""",
    "least": """\
static int64_t least(int64_t a, int64_t b)
{
    return b < a ? b : a;
}
""",
    "high_product": """\
static int32_t high_product(int64_t a, int64_t b)
{
    return a == INT32_MIN && b == INT32_MIN ? INT32_MAX : (int32_t)((a * b + (1 << 30)) >> 31);
}
""",
    "whole": """\
/* The nearest whole number, ties to even, within limits. */
static double whole(double x, double low, double high)
{
    return x != x ? 0 : x < low ? low : x > high ? high : rint(x);
}
""",
    "within": """\
static int64_t within(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}
""",
    "decoded": """\
/* A finite number of few bits: sign, exponent, fraction. */
static float decoded(uint32_t bits, int fraction, int exponent, float ratio)
{
    uint32_t wide = (bits & ((1u << (fraction + exponent)) - 1)) << (23 - fraction);
    float x;
    memcpy(&x, &wide, sizeof x);
    return bits >> (fraction + exponent) ? -x * ratio : x * ratio;
}
""",
    "encoded": """\
/* The bits of the nearest number of few bits, ties to even, or those of what is beyond the largest one. */
static uint32_t encoded(double x, int fraction, int exponent, double most, uint32_t beyond)
{
    int lowest = 2 - (1 << (exponent - 1)), power;
    uint32_t sign = signbit(x) ? 1u << (fraction + exponent) : 0;
    double size = fabs(x), unit;
    if (size == 0)
        return sign;
    if (!(size < 2 * most))
        return sign | (x != x ? (1u << (fraction + exponent)) - 1 : beyond);
    (void)frexp(size, &power);
    power = power - 1 < lowest ? lowest : power - 1;
    unit = ldexp(1, power - fraction);
    size = rint(size / unit) * unit;
    if (size > most)
        return sign | beyond;
    /* A fraction that is rounded up to 2 makes the next exponent. */
    return sign | (((uint32_t)(power - lowest) << fraction) + (uint32_t)(size / unit));
}
""",
}  # fmt: skip
_NAN_AWARE = """\
static {type} {name}({type} a, {type} b)
{{
    return b {sign} a || b != b ? b : a;
}}
"""
_BITS = """\
static {to} {name}({of} x)
{{
    {to} bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}}
"""


def storage(t: DType) -> str:
    """Return the type of C that holds an element."""
    return C_TYPES[t.name]


def number_text(v: Const) -> str:
    """Return a constant; a float that C lacks as its bits."""
    t, x = v.dtype, v.value
    if t.name in C_NUMBERS:
        return f"{int.from_bytes(v.bits, 'little'):#x}"
    if t.kind != "float":
        return "INT32_MIN" if x == -(2**31) else f"({x})" if x < 0 else str(x)
    text = "INFINITY" if x == float("inf") else "-INFINITY" if x == -float("inf") else "NAN" if x != x else ""
    text = text or (f"{x:.1f}" if x == int(x) and abs(x) < 1e6 else float(x).hex())
    text += "f" if t.name == "f32" and text[-1].isdigit() else ""
    return f"({text})" if text.startswith("-") else text


def rounded_text(wanted: DType, given: DType, text: str) -> tuple[str, str]:
    """Return a number of type ``given`` as an element of ``wanted``, after the name of the function that it calls."""
    if wanted.name in C_NUMBERS:
        return f"to_{wanted}", f"to_{wanted}({text})"
    if wanted.kind == "float":
        return "", text if given.name in C_NUMBERS else f"(({storage(wanted)}){text})"
    low, high = wanted.limits
    if given.kind == "float":
        return "whole", f"(({storage(wanted)})whole({text}, {low}.0, {high}.0))"
    if given.limits[0] >= low and given.limits[1] <= high:
        return "", f"(({storage(wanted)}){text})"
    return "within", f"(({storage(wanted)})within({text}, {low}, {high}))"


def numbers_in(function: str) -> Iterator[str]:
    """Yield the name of a function of this module, after those that it calls."""
    if function.startswith("to_"):
        yield "encoded"
    elif function.startswith("of_"):
        yield "decoded"
    if function:
        yield function


def function_texts(names: Collection[str]) -> Iterator[str]:
    """Yield the functions ``names``."""
    order = [*_TEXTS, *sorted({name for name in names if name not in _TEXTS})]
    yield from (_text(name) for name in order if name in names)


def _text(name: str) -> str:
    if name in _TEXTS:
        return _TEXTS[name]
    kind, _, rest = name.partition("_")
    if kind in ("largest", "least"):
        return _NAN_AWARE.format(type=C_TYPES[rest], name=name, sign=">" if kind == "largest" else "<")
    if kind == "bits":
        to, of = _two_types(rest)
        return _BITS.format(to=C_TYPES[to], of=C_TYPES[of], name=name)
    fraction, exponent, ratio, most, beyond = C_NUMBERS[rest]
    if kind == "of":
        body = f"decoded(x, {fraction}, {exponent}, {ratio})"
        return f"static float {name}({C_TYPES[rest]} x)\n{{\n    return {body};\n}}\n"
    body = f"({C_TYPES[rest]})encoded(x, {fraction}, {exponent}, {most}, {beyond})"
    return f"static {C_TYPES[rest]} {name}(double x)\n{{\n    return {body};\n}}\n"


def _two_types(text: str) -> tuple[str, str]:
    """Return the types of ``TO_OF``; the names of some types have an underscore."""
    names = "|".join(sorted(DTYPES, key=len, reverse=True))
    found = re.fullmatch(f"({names})_({names})", text)
    assert found is not None, text
    return found[1], found[2]
