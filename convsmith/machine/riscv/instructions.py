"""Instructions of the vector extension V, one row each, on groups of registers.

A register has ``vscale`` units of 64 bits, and an instruction works on a group of 1, 2, 4 or 8 registers. A row is
planned for one unit of the group; its scalable row applies it to every unit. The multiply-adds that widen their factors
have a form that takes a factor from a scalar register if all lanes share it (``vwmacc.vx``); LLVM finds that form of
the others (``vfmacc.vf``) by itself.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction, vector
from convsmith.machine.rows import LLVM_TYPES, fused_multiply_add, product_body

UNIT = 64
"""Bits of a unit of a register."""
_FUSED = (("f32", 32, ("v",)), ("f64", 64, ("v",)), ("f16", 16, ("v", "zvfh")))
"""Types of the multiply-adds of one type, with their bits and the features."""
_FLOATS = (("f16", ("v", "zvfh"), "vfwmacc"), ("bf16", ("v", "zvfbfwma"), "vfwmaccbf16"))
"""Types of 16 bits whose products are added to sums of f32, with the features and the mnemonic."""
_BYTES = (("u8", "s8"), ("s8", "s8"), ("u8", "u8"), ("s8", "u8"))
"""Types of bytes whose products are added to sums of s32."""


def separate(type_: str, lanes: int) -> Instruction:
    """Return the row of a product and a sum of one type, each of which is rounded."""
    numbers = f"<{lanes} x {LLVM_TYPES[type_]}>"
    body = f"  for l in 0 .. {lanes}:\n    c[l] = c[l] + a[l] * b[l]\n"
    steps = f"fmul {numbers} {{a}}, {{b}}\nfadd {numbers} {{c}}, {{0}}"
    return Instruction("multiply_add", tuple(vector(x, type_, lanes) for x in "cab"), body, steps, "", (), "")


def rows(registers: int, needs: tuple[str, ...]) -> tuple[Instruction, ...]:
    """Return the rows that ``needs`` suffices for, on groups of ``registers`` registers."""
    lanes = UNIT * registers // 32
    every = (
        *(_fused(t, UNIT * registers // bits, features) for t, bits, features in _FUSED),
        *(_of_floats(lanes, *row) for row in _FLOATS), *(_of_bytes(lanes, *row) for row in _BYTES),
    )  # fmt: skip
    return tuple(row for row in every if set(row.needs) <= set(needs))


def _fused(type_: str, lanes: int, needs: tuple[str, ...]) -> Instruction:
    """Return the row of ``fma`` on lanes of one type; f16 numbers are stored as 16-bit words."""
    row = fused_multiply_add(f"vfmacc_{type_}", type_, lanes, needs, "vfma")
    return replace(row, scaled=_scalable(row))


def _of_floats(lanes: int, type_: str, needs: tuple[str, ...], mnemonic: str) -> Instruction:
    """Return the row that adds products of two numbers of 16 bits, which f32 holds exactly, to sums of f32.

    With a factor that all lanes share, LLVM converts that number alone and both factors before they are multiplied; the
    scalable form is the target's own intrinsic, in the rounding mode of the machine, on all lanes of a vector.
    """
    number = LLVM_TYPES[type_]
    small, sums, fma = f"<{lanes} x {number}>", f"<{lanes} x float>", f"@llvm.fma.v{lanes}f32"
    many = [f"bitcast <{lanes} x i16> {{a}} to {small}"]
    one = [f"bitcast <1 x i16> {{a}} to {number}", *_repeated(number, lanes, 0)]

    def steps(first: list[str]) -> list[str]:
        n = len(first)
        wide = [f"fpext {small} {{{n - 1}}} to {sums}", f"bitcast <{lanes} x i16> {{b}} to {small}"]
        wide.append(f"fpext {small} {{{n + 1}}} to {sums}")
        return [*first, *wide, f"call {sums} {fma}({sums} {{{n}}}, {sums} {{{n + 2}}}, {sums} {{c}})"]

    row = Instruction(
        mnemonic, tuple(vector(x, t, lanes) for x, t in zip("cab", ("f32", type_, type_))), product_body(lanes, "f32"),
        "\n".join(steps(many)), f"declare {sums} {fma}({sums}, {sums}, {sums})", needs, mnemonic,
    )  # fmt: skip
    row = _with_forms(row, steps(one))
    assert row.scaled is not None and row.scaled.repeated is not None
    wide, factors = f"<vscale x {lanes} x float>", f"<vscale x {lanes} x {number}>"
    name = f"@llvm.riscv.{mnemonic}.nxv{lanes}f32.{type_}"
    one = [one[0], f"bitcast <vscale x {lanes} x i16> {{b}} to {factors}"]
    one.append(f"call {wide} {name}({wide} {{c}}, {number} {{0}}, {factors} {{1}}, i64 7, i64 -1, i64 3)")
    form = replace(
        row.scaled.repeated, llvm="\n".join(one),
        declare=f"declare {wide} {name}({wide}, {number}, {factors}, i64 immarg, i64, i64 immarg)",
    )  # fmt: skip
    return replace(row, scaled=replace(row.scaled, repeated=form))


def _of_bytes(lanes: int, a: str, b: str) -> Instruction:
    """Return the row that adds products of bytes to sums of s32; packing widens the second factor to words."""
    sums, extend = f"<{lanes} x i32>", "zext" if a == "u8" else "sext"
    many = [f"{extend} <{lanes} x i8> {{a}} to {sums}"]
    one = ["bitcast <1 x i8> {a} to i8", f"{extend} i8 {{0}} to i32", *_repeated("i32", lanes, 1)]

    def steps(first: list[str]) -> list[str]:
        n = len(first)
        products = [f"sext <{lanes} x i16> {{b}} to {sums}", f"mul {sums} {{{n - 1}}}, {{{n}}}"]
        return [*first, *products, f"add {sums} {{c}}, {{{n + 1}}}"]

    row = Instruction(
        f"vwmacc_{a}_{b}", tuple(vector(x, t, lanes) for x, t in zip("cab", ("s32", a, "s16"))),
        product_body(lanes, "s32"), "\n".join(steps(many)), "", ("v",), "vwmacc", widens=b,
    )  # fmt: skip
    return _with_forms(row, steps(one))


def _repeated(element: str, lanes: int, number: int) -> list[str]:
    """Return the text that repeats the result of that ``number`` in all lanes, where it is the last one."""
    every = f"<{lanes} x {element}>"
    return [
        f"insertelement {every} poison, {element} {{{number}}}, i64 0",
        f"shufflevector {every} {{{number + 1}}}, {every} poison, <{lanes} x i32> zeroinitializer",
    ]


def _with_forms(row: Instruction, steps: list[str]) -> Instruction:
    """Return a row with its scalable row, each with the form of ``steps``, whose first factor is one number."""
    c, a, b = row.operands
    form = replace(
        row, name=f"{row.name}_one", operands=(c, vector("a", a.dtype, 1), b), body=row.body.replace("a[l]", "a[0]"),
        llvm="\n".join(steps),
    )  # fmt: skip
    return replace(row, repeated=form, scaled=replace(_scalable(row), repeated=_scalable(form)))


def _scalable(row: Instruction) -> Instruction:
    """Return the row whose vectors have the lanes of ``row`` in every unit; an operand of one number keeps it."""
    lanes = row.lanes

    def wide(text: str) -> str:
        return text.replace(f"<{lanes} x ", f"<vscale x {lanes} x ").replace(f".v{lanes}", f".nxv{lanes}")

    operands = tuple(replace(x, layout=replace(x.layout, scalable=x.size == lanes)) for x in row.operands)
    return replace(
        row, name=f"{row.name}_z", operands=operands, body=row.body.replace(f".. {lanes}:", f".. vscale * {lanes}:"),
        llvm=wide(row.llvm), declare=wide(row.declare),
    )  # fmt: skip
