"""Functions that LLVM's code generators call where a machine lacks an instruction, as LLVM text.

Exported code includes its own copies, so that it needs no C library. Each is exact: `fma` and `fmaf` round once, as
long as no intermediate product overflows or underflows.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["PROVIDED", "library_text"]

_BYTES = """
define ptr @{name}(ptr %to, {given}, {word} %size) nounwind {{
entry:
  br label %next
next:
  %n = phi {word} [ 0, %entry ], [ %more, %write ]
  %end = icmp eq {word} %n, %size
  br i1 %end, label %done, label %write
write:
  {value}
  %place = getelementptr i8, ptr %to, {word} %n
  store volatile i8 %value, ptr %place
  %more = add {word} %n, 1
  br label %next
done:
  ret ptr %to
}}
"""
_COPY = _BYTES.replace("{given}", "ptr %from").replace(
    "{value}", "%source = getelementptr i8, ptr %from, {word} %n\n  %value = load volatile i8, ptr %source"
)
_FILL = _BYTES.replace("{given}", "i32 %byte").replace("{value}", "%value = trunc i32 %byte to i8")
_ROUNDED = """
define {type} @{name}({type} %x) nounwind {{
  %size = call {type} @llvm.fabs.{kind}({type} %x)
  %up = fadd {type} %size, {whole}
  %near = fsub {type} %up, {whole}
  %signed = call {type} @llvm.copysign.{kind}({type} %near, {type} %x){moved}
  %small = fcmp olt {type} %size, {whole}
  %result = select i1 %small, {type} %{value}, {type} %x
  ret {type} %result
}}
declare {type} @llvm.fabs.{kind}({type})
declare {type} @llvm.copysign.{kind}({type}, {type})
"""
"""Rounds to the nearest integer, ties to even, and then moves it. Numbers of at least ``whole`` are integers."""
_NEAREST = _ROUNDED.replace("{moved}", "").replace("{value}", "signed")
_FLOOR = _ROUNDED.replace("{value}", "lower").replace(
    "{moved}",
    """
  %above = fcmp ogt {type} %signed, %x
  %less = fsub {type} %signed, 1.0
  %lower = select i1 %above, {type} %less, {type} %signed""",
)

_ODD = """
define internal double @{name}.to_odd(double %sum, double %lost) nounwind {{
  %inexact = fcmp one double %lost, 0.0
  %bits = bitcast double %sum to i64
  %last = and i64 %bits, 1
  %even = icmp eq i64 %last, 0
  %moves = and i1 %inexact, %even
  %lost.bits = bitcast double %lost to i64
  %differ = xor i64 %bits, %lost.bits
  %opposite = icmp slt i64 %differ, 0
  %step = select i1 %opposite, i64 -1, i64 1
  %moved = add i64 %bits, %step
  %chosen = select i1 %moves, i64 %moved, i64 %bits
  %result = bitcast i64 %chosen to double
  ret double %result
}}
define internal {{ double, double }} @{name}.sum(double %a, double %b) nounwind {{
  %sum = fadd double %a, %b
  %back = fsub double %sum, %a
  %own = fsub double %sum, %back
  %of.a = fsub double %a, %own
  %of.b = fsub double %b, %back
  %lost = fadd double %of.a, %of.b
  %one = insertvalue {{ double, double }} poison, double %sum, 0
  %both = insertvalue {{ double, double }} %one, double %lost, 1
  ret {{ double, double }} %both
}}
"""
"""A sum rounded to odd, from the rounded sum and its rounding error; and the rounded sum with its error."""

_SINGLE = """
define float @fmaf(float %a, float %b, float %c) nounwind {{
  %a.wide = fpext float %a to double
  %b.wide = fpext float %b to double
  %c.wide = fpext float %c to double
  %product = fmul double %a.wide, %b.wide
  %both = call {{ double, double }} @fmaf.sum(double %product, double %c.wide)
  %sum = extractvalue {{ double, double }} %both, 0
  %lost = extractvalue {{ double, double }} %both, 1
  %odd = call double @fmaf.to_odd(double %sum, double %lost)
  %result = fptrunc double %odd to float
  ret float %result
}}
"""
_DOUBLE = """
define internal double @fma.upper(double %x) nounwind {{
  %large = fmul double %x, 0x41A0000002000000
  %rest = fsub double %large, %x
  %half = fsub double %large, %rest
  ret double %half
}}
define double @fma(double %a, double %b, double %c) nounwind {{
  %product = fmul double %a, %b
  %a.high = call double @fma.upper(double %a)
  %a.low = fsub double %a, %a.high
  %b.high = call double @fma.upper(double %b)
  %b.low = fsub double %b, %b.high
  %hh = fmul double %a.high, %b.high
  %hl = fmul double %a.high, %b.low
  %lh = fmul double %a.low, %b.high
  %ll = fmul double %a.low, %b.low
  %e.1 = fsub double %hh, %product
  %e.2 = fadd double %e.1, %hl
  %e.3 = fadd double %e.2, %lh
  %lost = fadd double %e.3, %ll
  %lower = call {{ double, double }} @fma.sum(double %c, double %lost)
  %t.high = extractvalue {{ double, double }} %lower, 0
  %t.low = extractvalue {{ double, double }} %lower, 1
  %upper = call {{ double, double }} @fma.sum(double %product, double %t.high)
  %v.high = extractvalue {{ double, double }} %upper, 0
  %v.low = extractvalue {{ double, double }} %upper, 1
  %last = call {{ double, double }} @fma.sum(double %t.low, double %v.low)
  %z.sum = extractvalue {{ double, double }} %last, 0
  %z.lost = extractvalue {{ double, double }} %last, 1
  %z = call double @fma.to_odd(double %z.sum, double %z.lost)
  %exact = fadd double %v.high, %z
  %plain = fadd double %product, %c
  %finite = fcmp ord double %exact, 0.0
  %result = select i1 %finite, double %exact, double %plain
  ret double %result
}}
"""
"""The method of Boldo and Melquiond: the low parts are added to odd, so the last sum rounds once."""

_WHOLE = {"float": "0x4160000000000000", "double": "0x4330000000000000"}
_TEXTS: dict[str, tuple[str, ...]] = {
    "memcpy": (_COPY,),
    "memset": (_FILL,),
    "fmaf": (_ODD, _SINGLE),
    "fma": (_ODD, _DOUBLE),
    "rintf": (_NEAREST,),
    "rint": (_NEAREST,),
    "floorf": (_FLOOR,),
    "floor": (_FLOOR,),
}
"""Texts by the name of the function. Names of functions on `float` end with f."""

PROVIDED = tuple(_TEXTS)
"""Names of the functions that can be included in exported code."""


def library_text(name: str, triple: str, word: str) -> str:
    """Return a module with the function ``name``, marked as used, because only LLVM's code generator calls it."""
    type_ = "float" if name.endswith("f") else "double"
    kind = "f32" if type_ == "float" else "f64"
    fields = {"name": name, "word": word, "type": type_, "kind": kind, "whole": _WHOLE[type_]}
    return "\n".join((*_head(name, triple), *(text.format(**fields) for text in _TEXTS[name])))


def _head(name: str, triple: str) -> Iterator[str]:
    yield f'target triple = "{triple}"'
    yield f'@llvm.compiler.used = appending global [1 x ptr] [ptr @{name}], section "llvm.metadata"'
