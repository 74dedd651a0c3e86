"""Functions of a compiler's library on floating-point numbers, for code that has no instructions for these.

The emulated processor has the instructions all the same: a function is one of them, on the bits of its numbers, which
that code passes as integers.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["FLOAT_FUNCTIONS", "float_text"]

_TYPES = {"sf": ("float", "i32"), "df": ("double", "i64")}
"""Types of numbers and of their bits, by the word for them in names of functions."""
_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_COMPARISONS = {
    "eq": ("oeq", 0, 1), "ne": ("une", 1, 0), "lt": ("olt", -1, 1), "le": ("ole", -1, 1), "gt": ("ogt", 1, -1),
    "ge": ("oge", 1, -1), "unord": ("uno", 1, 0),
}  # fmt: skip
"""Predicates by names of comparisons, with the results where they hold and where they do not."""


def _function(name: str, result: str, operands: str, *steps: str) -> tuple[str, str]:
    """Return the name and the text of a function of the numbers a and b, or of a alone; ``steps`` make the result r."""
    bits_of = dict(_TYPES.values())
    given, made = bits_of.get(operands, operands), bits_of.get(result, result)
    numbers = ("a", "b") if "%b" in steps[0] else ("a",)
    before = (f"%{x} = bitcast {given} %{x}.bits to {operands}" for x in numbers)
    body = "\n  ".join((*before, *steps, f"%r.bits = bitcast {result} %r to {made}", f"ret {made} %r.bits"))
    parameters = ", ".join(f"{given} %{x}.bits" for x in numbers)
    return name, f"define {made} @{name}({parameters}) nounwind #0 {{\n  {body}\n}}\n"


def _functions() -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of all functions."""
    for word, (type_, _) in _TYPES.items():
        for name, step in _ARITHMETIC.items():
            yield _function(f"__{name}{word}3", type_, type_, f"%r = {step} {type_} %a, %b")
        for name, (predicate, yes, no) in _COMPARISONS.items():
            steps = (f"%is = fcmp {predicate} {type_} %a, %b", f"%r = select i1 %is, i32 {yes}, i32 {no}")
            yield _function(f"__{name}{word}2", "i32", type_, *steps)
        for to, of, kind in (("", "", "si"), ("uns", "un", "ui")):
            yield _function(f"__fix{to}{word}si", "i32", type_, f"%r = fpto{kind} {type_} %a to i32")
            yield _function(f"__float{of}si{word}", type_, "i32", f"%r = {kind}tofp i32 %a to {type_}")
    yield _function("__extendsfdf2", "double", "float", "%r = fpext float %a to double")
    yield _function("__truncdfsf2", "float", "double", "%r = fptrunc double %a to float")


_TEXTS = dict(_functions())
FLOAT_FUNCTIONS = tuple(_TEXTS)
"""Names of the functions."""


def float_text(triple: str, features: str) -> str:
    """Return a module with the functions, which are compiled for a processor with ``features``."""
    attributes = f'attributes #0 = {{ "target-features"="{features}" }}\n'
    return "".join((f'target triple = "{triple}"\n', *_TEXTS.values(), attributes))
