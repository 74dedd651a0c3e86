"""The functions on floating-point numbers that code for RV32 calls: results are those of numpy, for any numbers."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import emulated_kernel, skip_without_emulator

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.machine.riscv.levels import SMALL
from convsmith.runtime.object_code import ObjectCode

SPECIAL = [0.0, -0.0, 1.0, -1.5, 3.0, 0.1, 2.5e-39, -3e38, 1e30, np.inf, -np.inf, np.nan]
TYPES = {"f32": ("float", np.float32), "f64": ("double", np.float64)}
ARITHMETIC = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide}
COMPARISONS = {
    "oeq": lambda a, b: a == b, "une": lambda a, b: a != b, "olt": lambda a, b: a < b, "ole": lambda a, b: a <= b,
    "ogt": lambda a, b: a > b, "oge": lambda a, b: a >= b, "uno": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


def applied(steps: str, given: list[np.ndarray], result: str, calls: str) -> np.ndarray:
    """What `steps` make of every element, from %a and %b, as %r; the code calls the function `calls`."""
    names = {"float32": ("f32", "float"), "float64": ("f64", "double"), "int32": ("s32", "i32")}
    size, (dtype, made) = given[0].size, names[result]
    loads = ""
    for n, (name, x) in enumerate(zip("ab", given)):
        of = names[x.dtype.name][1]
        loads += f"%at.{n} = getelementptr ptr, ptr %block, i32 {n}\n%p.{n} = load ptr, ptr %at.{n}\n"
        loads += f"%e.{n} = getelementptr {of}, ptr %p.{n}, i32 %i\n%{name} = load {of}, ptr %e.{n}\n"
    text = f"""
    define void @k_chunk(ptr %block, i32 %tid, i32 %n) nounwind {{
    entry:
      br label %loop
    loop:
      %i = phi i32 [ 0, %entry ], [ %next, %loop ]
      {loads}
      {steps}
      %at.r = getelementptr ptr, ptr %block, i32 {len(given)}
      %p.r = load ptr, ptr %at.r
      %e.r = getelementptr {made}, ptr %p.r, i32 %i
      store {made} %r, ptr %e.r
      %next = add i32 %i, 1
      %more = icmp ult i32 %next, {size}
      br i1 %more, label %loop, label %end
    end:
      ret void
    }}
    """
    code = llvm_bind.object_code(text, SMALL.triple, SMALL.cpu, SMALL.features)
    assert calls in ObjectCode(code).calls
    arguments = tuple(Argument(n, "in", names[x.dtype.name][0], (size,), "a", size) for n, x in zip("ab", given))
    arguments += (Argument("r", "out", dtype, (size,), "a", size),)
    artifact = Artifact(code, "by hand", {"main": Entry("k", arguments)}, calls, "", needs=SMALL.needs, address_bits=32)
    return emulated_kernel(artifact).run(dict(zip("ab", given)))["r"]


@pytest.fixture(autouse=True)
def emulator() -> None:
    skip_without_emulator(SMALL)


def pairs(kind: str) -> list[np.ndarray]:
    x = np.array(SPECIAL, TYPES[kind][1])
    return [np.repeat(x, x.size), np.tile(x, x.size)]


def word(kind: str) -> str:
    return {"f32": "sf", "f64": "df"}[kind]


@pytest.mark.sampled(2, "kind", "step")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("step", ARITHMETIC)
def test_arithmetic(step: str, kind: str) -> None:
    a, b = pairs(kind)
    found = applied(f"%r = {step} {TYPES[kind][0]} %a, %b", [a, b], a.dtype.name, f"__{step[1:]}{word(kind)}3")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, ARITHMETIC[step](a, b))
        right = ~np.isnan(found)
        np.testing.assert_array_equal(np.signbit(found)[right], np.signbit(ARITHMETIC[step](a, b))[right])


@pytest.mark.sampled(2, "kind", "predicate")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("predicate", COMPARISONS)
def test_comparisons(predicate: str, kind: str) -> None:
    a, b = pairs(kind)
    steps = f"%is = fcmp {predicate} {TYPES[kind][0]} %a, %b\n%r = zext i1 %is to i32"
    name = f"__{'unord' if predicate == 'uno' else predicate[1:]}{word(kind)}2"
    np.testing.assert_array_equal(applied(steps, [a, b], "int32", name), COMPARISONS[predicate](a, b))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("sign", ["", "uns"])
def test_conversions(sign: str, kind: str) -> None:
    """Whole numbers are rounded to nearest, and back towards zero."""
    of, as_ = ("ui", np.uint32) if sign else ("si", np.int32)
    type_, number = TYPES[kind]
    whole = np.array([0, 1, 7, 1 << 24, (1 << 24) + 1, (1 << 24) + 3, (1 << 31) - 1, (1 << 32) - 1]).astype(as_)
    found = applied(f"%r = {of}tofp i32 %a to {type_}", [whole.view(np.int32)], number.__name__,
                    f"__float{'un' if sign else ''}si{word(kind)}")  # fmt: skip
    np.testing.assert_array_equal(found, whole.astype(number))
    x = np.array([0.0, 0.9, 1.5, 2.5, 1e6, 123456.7, 2147480000.0], number)
    x = x if sign else np.concatenate([x, -x])
    found = applied(f"%r = fpto{of} {type_} %a to i32", [x], "int32", f"__fix{sign}{word(kind)}si")
    np.testing.assert_array_equal(found.view(as_), x.astype(as_))


def test_numbers_of_other_sizes() -> None:
    x = np.array([*SPECIAL, 1e300, 1.0 + 2.0**-24, 1.0 + 3 * 2.0**-24], np.float64)
    with np.errstate(all="ignore"):
        small = x.astype(np.float32)
    np.testing.assert_array_equal(applied("%r = fptrunc double %a to float", [x], "float32", "__truncdfsf2"), small)
    wide = applied("%r = fpext float %a to double", [small], "float64", "__extendsfdf2")
    np.testing.assert_array_equal(wide, small.astype(np.float64))
