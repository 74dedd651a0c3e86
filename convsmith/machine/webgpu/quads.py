"""Products of fragments: matrices spread over the threads of a quad, four neighbours in a sub-group of WebGPU.

A register holds a row of sums or of the left factor, a column in each thread. One thread's elements of the left factor
are broadcast to the others. Every adapter that has sub-groups has quads, whatever the size of its sub-groups. The steps
of a row are expressions of WGSL.
"""

from __future__ import annotations

from convsmith.ir.instruction import LANES, FragmentLayout, Instruction, Operand

__all__ = ["LANES_OF_QUAD", "PACKED_DOTS", "QUAD_DOTS", "QUAD_MULTIPLY_ADDS", "SUBGROUPS"]

SUBGROUPS = "subgroups"
"""The feature of devices, and the extension of WGSL, with operations of sub-groups."""
PACKED_DOTS = "packed_4x8_integer_dot_product"
"""The language feature of WGSL with dot products of four bytes."""
LANES_OF_QUAD = 4
_ROWS = 8
_SIGNS, _ONES = "0x80808080u", "0x01010101u"
"""Words of four bytes: sign bits, and ones."""


def _products(factors: tuple[str, str], sums: str) -> Instruction:
    """Return the row of a quad: multiply-adds of f32, or dot products of the bytes of a word.

    A dot product has two signed factors, or two unsigned ones. For an unsigned and a signed one, the former is taken as
    a signed number that is less by 128, and 128 times the sum of the latter is added.
    """
    lanes, group = LANES_OF_QUAD, 4 if sums == "s32" else 1
    terms = lanes * group
    left = FragmentLayout(("r", f"l * {group} + e" if group > 1 else "l"), lanes, elements=group, registers=_ROWS)
    right = FragmentLayout((f"r * {group} + e" if group > 1 else "r", "l"), lanes, elements=group, registers=lanes)
    shapes = (
        ("c", sums, (_ROWS, lanes), FragmentLayout(("r", "l"), lanes, registers=_ROWS)),
        ("a", factors[0], (_ROWS, terms), left), ("b", factors[1], (terms, lanes), right),
    )  # fmt: skip
    lines: list[str] = []

    def put(text: str) -> str:
        lines.append(text)
        return f"{{{len(lines) - 1}}}"

    done = [f"{{c{m}}}" for m in range(_ROWS)]
    for k in range(lanes):
        given = [put(f"quadBroadcast({{a{m}}}, {k}u)") for m in range(_ROWS)]
        if group == 1:
            done = [put(f"fma({a}, {{b{k}}}, {c})") for a, c in zip(given, done)]
        elif factors == ("u8", "u8"):
            done = [put(f"{c} + i32(dot4U8Packed({a}, {{b{k}}}))") for a, c in zip(given, done)]
        elif factors == ("s8", "s8"):
            done = [put(f"{c} + dot4I8Packed({a}, {{b{k}}})") for a, c in zip(given, done)]
        elif factors == ("u8", "s8"):
            rest = put(f"dot4I8Packed({_ONES}, {{b{k}}}) << 7u")
            done = [put(f"{c} + dot4I8Packed({a} ^ {_SIGNS}, {{b{k}}}) + {rest}") for a, c in zip(given, done)]
        else:
            less = put(f"{{b{k}}} ^ {_SIGNS}")
            sums_of = [put(f"dot4I8Packed({a}, {_ONES}) << 7u") for a in given]
            done = [put(f"{c} + dot4I8Packed({a}, {less}) + {x}") for a, c, x in zip(given, done, sums_of)]
    term = "fma(a[m, k], b[k, l], c[m, l])"
    if group > 1:
        term = f"c[m, l] + cast({sums}, a[m, k]) * cast({sums}, b[k, l])"
    body = (
        f"  for m in 0 .. {_ROWS}:\n    for l in 0 .. {lanes}:\n      for k in 0 .. {terms}:\n"
        f"        c[m, l] = {term}\n"
    )
    name = "dot" if group > 1 else "fma"
    return Instruction(
        f"{name}_m{_ROWS}n{lanes}k{terms}_{'_'.join(dict.fromkeys(factors))}",
        tuple(Operand(*x, LANES, "fragment") for x in shapes), body, "\n".join(lines), "",
        (SUBGROUPS, PACKED_DOTS) if group > 1 else (SUBGROUPS,), "quadBroadcast",
    )  # fmt: skip


QUAD_MULTIPLY_ADDS = (_products(("f32", "f32"), "f32"),)
"""Products of f32."""
QUAD_DOTS = tuple(_products((a, b), "s32") for a in ("s8", "u8") for b in ("s8", "u8"))
"""Products of bytes."""
