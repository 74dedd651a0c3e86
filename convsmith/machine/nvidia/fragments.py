"""Products of fragments (mma.sync): matrices spread over the registers of the 32 lanes of a warp.

A register of a lane holds 32 bits: an ``f32`` or ``s32`` as itself, two halves or four bytes as an ``i32``. The layouts
are those of the PTX manual.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import FragmentLayout, Instruction, Operand
from convsmith.ir.types import dtype

_WARP = 32
_ROW, _QUAD = "l // 4", "l % 4"

SUMS = FragmentLayout((f"{_ROW} + r // 2 * 8", f"{_QUAD} * 2 + r % 2"), _WARP, registers=4)
"""Layout of sums of 16 rows and 8 columns: the lanes of a register hold pairs of columns of a row."""
_PAIR_ROW, _PAIR_COLUMN = "l % 2 + r // 2 % 2 * 2 + l // 16 * 4", "r % 2 + l // 2 % 2 * 2 + r // 4 * 4"
_PAIR_SUMS = FragmentLayout((f"{_PAIR_ROW} + l // 4 % 4 * 8", _PAIR_COLUMN), _WARP, registers=8)
"""Sums of the four products of m8n8k4, stacked along the rows: 8 rows for each pair of quads of lanes."""


def _left(group: int, registers: int) -> FragmentLayout:
    """Return the layout of the 16 rows of the left factor, `group` terms a register."""
    column = f"{_QUAD} * {group} + e + r // 2 * {4 * group}"
    return FragmentLayout((f"{_ROW} + r % 2 * 8", column), _WARP, elements=group, registers=registers)


def _right(group: int, registers: int) -> FragmentLayout:
    """Return the layout of the 8 columns of the right factor, `group` terms a register."""
    row = f"{_QUAD} * {group} + e + r * {4 * group}"
    return FragmentLayout((row, _ROW), _WARP, elements=group, registers=registers)


def _call(intrinsic: str, registers: dict[str, tuple[str, int]]) -> tuple[str, str]:
    """Return LLVM's text of a product and its declaration; `registers` has the type and count for a, b and c."""
    lines: list[str] = []
    arguments: list[str] = []
    for name, (type_, count) in registers.items():
        for n in range(count):
            word = f"{{{name}{n}}}" if count > 1 else f"{{{name}}}"
            if type_ == ROUNDED:
                arguments.append(f"i32 {{{len(lines)}}}")
                lines.append(f"call i32 @{_ROUND}(float {word})")
            elif type_.startswith("<"):
                arguments.append(f"{type_} {{{len(lines)}}}")
                lines.append(f"bitcast i32 {word} to {type_}")
            else:
                arguments.append(f"{type_} {word}")
    sums, count = registers["c"]
    result = f"{{{{{', '.join([sums] * count)}}}}}"
    call = len(lines)
    lines.append(f"call {result} @{intrinsic}({', '.join(arguments)})")
    lines += [f"extractvalue {result} {{{call}}}, {n}" for n in range(count)]
    types = ["i32" if t == ROUNDED else t for t, n in registers.values() for _ in range(n)]
    declared = [f"declare {result.format()} @{intrinsic}({', '.join(types)})"]
    declared += [f"declare i32 @{_ROUND}(float)"] * any(t == ROUNDED for t, _ in registers.values())
    return "\n".join(lines), "\n".join(declared)


ROUNDED, _ROUND = "tf32", "llvm.nvvm.f2tf32.rna"
"""A register of a factor in f32 that is rounded to the nearest number of 11 significant bits, and the intrinsic."""
SMALL = ("f8_e4m3", "f8_e5m2")
"""Floats of 8 bits, which a product converts to f16."""
_REGISTERS = {"f16": "<2 x half>", "bf16": "i32", "s8": "i32", "u8": "i32", "f32": ROUNDED}
_REGISTERS |= dict.fromkeys(SMALL, "i32")
"""LLVM's types of a register of factors."""
_TYPES = {"f16": "f32.f32", "bf16": "bf16", "s8": "s8", "u8": "u8", "f32": ROUNDED}
"""The types in the name of the intrinsic whose factors have the same type."""


def _product(terms: int, factors: tuple[str, str], needs: str, mnemonic: str) -> Instruction:
    """Return the row of ``mma.m16n8k<terms>``."""
    a, b = factors
    group, sums = 4 // dtype(a).bytes, "f32" if dtype(a).kind == "float" else "s32"
    left, right = _left(group, 16 * terms // _WARP // group), _right(group, 8 * terms // _WARP // group)
    name = f"m16n8k{terms}"
    registers = {
        "a": (_REGISTERS[a], left.registers), "b": (_REGISTERS[b], right.registers),
        "c": ("i32" if sums == "s32" else "float", 4),
    }  # fmt: skip
    types = _TYPES[a] if a == b and a not in SMALL else f"{a}.{b}"
    if a in SMALL:
        types = f"f32.{types.replace('f8_', '')}.f32"
    llvm, declare = _call(f"llvm.nvvm.mma.{name}.row.col.{types}", registers)
    x, y = ("a[m, k]", "b[k, l]") if a == sums else (f"cast({sums}, a[m, k])", f"cast({sums}, b[k, l])")
    body = (
        "  for m in 0 .. 16:\n"
        "    for l in 0 .. 8:\n"
        f"      for k in 0 .. {terms}:\n"
        f"        c[m, l] = c[m, l] + {x} * {y}\n"
    )
    operands = (
        Operand("c", sums, (16, 8), SUMS, "lane", "fragment"),
        Operand("a", a, (16, terms), left, "lane", "fragment"),
        Operand("b", b, (terms, 8), right, "lane", "fragment"),
    )
    label = f"mma_{name}_{a}" if a == b else f"mma_{name}_{a}_{b}"
    if a == sums:
        label = f"mma_{name}_{ROUNDED}"
    return Instruction(label, operands, body, llvm, declare, (needs,), mnemonic, rounds="factors" if a == sums else "")


def _four_products() -> Instruction:
    """Return the row of ``mma.m8n8k4``: two quads of lanes, 16 lanes apart, compute 8 x 8 sums of 4 terms.

    The rows of the four products are stacked. Each pair of quads has its own 8 columns.
    """
    quads = "l // 4 % 4"
    pair = f"l % 4 + l // 16 * 4 + {quads} * 8"
    left = FragmentLayout((pair, "e + r * 2"), _WARP, elements=2, registers=2)
    llvm, declare = _call(
        "llvm.nvvm.mma.m8n8k4.row.col.f32.f32", {"a": ("<2 x half>", 2), "b": ("<2 x half>", 2), "c": ("float", 8)}
    )
    body = (
        "  for q in 0 .. 4:\n"
        "    for m in 0 .. 8:\n"
        "      for l in 0 .. 8:\n"
        "        for k in 0 .. 4:\n"
        "          c[q * 8 + m, l] = c[q * 8 + m, l] + cast(f32, a[q * 8 + m, k]) * cast(f32, b[q * 8 + l, k])\n"
    )
    operands = (
        Operand("c", "f32", (32, 8), _PAIR_SUMS, "lane", "fragment"),
        Operand("a", "f16", (32, 4), left, "lane", "fragment"),
        Operand("b", "f16", (32, 4), left, "lane", "fragment"),
    )
    return Instruction("mma_m8n8k4_f16", operands, body, llvm, declare, ("sm_70",), "HMMA.884")


HELD, SHARED = ("lane", "fragment"), ("address", "shared")
"""The file and the scope of the operands of loads of matrices."""


def _matrix_load(type_: str, matrices: int, is_transposed: bool = False) -> Instruction:
    """Return the row of ldmatrix for elements of a type: ``matrices`` of eight rows of 16 bytes."""
    width = 16 // dtype(type_).bytes
    elements = width // 4
    coords = (f"r * 8 + {_ROW}", f"{_QUAD} * {elements} + e")
    if is_transposed:
        coords = (f"r * 8 + {_QUAD} * {elements} + e", _ROW)
    result = "i32" if matrices == 1 else f"{{{', '.join(['i32'] * matrices)}}}"
    intrinsic = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{matrices}{'.trans' * is_transposed}.b16.p3"
    spread = result.replace("{", "{{").replace("}", "}}")
    lines = [f"call {spread} @{intrinsic}(ptr addrspace(3) {{a}})"]
    if matrices > 1:
        lines += [f"extractvalue {spread} {{0}}, {n}" for n in range(matrices)]
    layout = FragmentLayout(coords, _WARP, elements=elements, registers=matrices)
    held = FragmentLayout(("e",), 1, elements=width)
    return Instruction(
        f"ldmatrix_x{matrices}{'_trans' * is_transposed}_{type_}",
        tuple(Operand(x, type_, (width,), held, *where) for x, where in (("c", HELD), ("a", SHARED))),
        f"  for j in 0 .. {width}:\n    c[j] = a[j]\n", "\n".join(lines),
        f"declare {result} @{intrinsic}(ptr addrspace(3))", ("sm_75",),
        f"LDSM.16.M{'T' * is_transposed}88{f'.{matrices}' * (matrices > 1)}", exchange=layout,
    )  # fmt: skip


_BYTES = tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8"))
PRODUCTS = (
    *(_product(32, types, "sm_80", "IMMA.16832." + ".".join(types).upper()) for types in _BYTES),
    *(_product(16, types, "sm_80", "IMMA.16816." + ".".join(types).upper()) for types in _BYTES),
    _product(16, ("f16", "f16"), "sm_80", "HMMA.16816.F32"),
    _product(8, ("f16", "f16"), "sm_80", "HMMA.1688.F32"),
    _product(16, ("bf16", "bf16"), "sm_80", "HMMA.16816.F32.BF16"),
    _product(8, ("bf16", "bf16"), "sm_80", "HMMA.1688.F32.BF16"),
    _product(8, ("f32", "f32"), "sm_80", "HMMA.1688.F32.TF32"),
    _product(4, ("f32", "f32"), "sm_80", "HMMA.1684.F32.TF32"),
)
"""Products of sm_80 and later; rows with more terms precede rows of the same types with fewer."""
SMALL_PRODUCTS = tuple(
    _product(32, (f"f8_{a}", f"f8_{b}"), "sm_89", f"QMMA.16832.F32.{a}.{b}".upper())
    for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")
)  # fmt: skip
"""Products of 8-bit floats of sm_89."""
SMALL_AS_HALVES = tuple(replace(x, mnemonic="HMMA.16816.F32") for x in SMALL_PRODUCTS)
"""Products of 8-bit floats of sm_90a, which computes each as two products of f16 with f32 sums."""
MATRIX_LOADS = tuple(
    _matrix_load(type_, matrices, is_transposed)
    for type_ in ("f16", "bf16", "s8", "u8", *SMALL, "f32") for is_transposed in (False, True) for matrices in (4, 2, 1)
    if not (is_transposed and type_ not in ("f16", "bf16"))
)  # fmt: skip
"""Loads of fragments of sm_75 and later; rows with more matrices precede rows of the same type with fewer."""
PAIRED = (_four_products(),)
"""Products of sm_70, which later chips emulate."""
