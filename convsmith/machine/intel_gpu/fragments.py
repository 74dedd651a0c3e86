"""Products of fragments: matrices spread over the registers of the lanes of a sub-group.

A register holds a row of sums or of the left factor, a column in each lane; if there are fewer lanes than terms, a lane
holds adjacent terms. A register of the right factor packs adjacent rows of a column into 32 bits.

The products by dpas have the names and the layouts of the extension cl_intel_subgroup_matrix_multiply_accumulate. The
other products multiply and add in each lane: one lane's element of the left factor is broadcast to all lanes, which is
free because an instruction may read a single lane of a register.
"""

from __future__ import annotations

from convsmith.ir.instruction import LANES, FragmentLayout, Instruction, Operand
from convsmith.ir.types import dtype

MATRICES = "cl_intel_subgroup_matrix_multiply_accumulate"
"""The extension of OpenCL that devices with these products have."""
PACKED_DOT = "cl_khr_integer_dot_product"
"""The extension of OpenCL that devices with products of packed bytes have."""
_ROWS = 8
_NAMES = {"s8": "i8"}
"""Names of factor types in function names, where they differ from the IR's names."""
_LETTERS = {(16, True): "t", (16, False): "s", (32, True): "j", (32, False): "i"}
"""Letters of types in mangled names, by the bits of a register and by whether its elements are unsigned."""


def _function(factors: tuple[str, str], terms: int, bits: int) -> str:
    """Return the mangled name of a product whose left factor has registers of `bits`."""
    name = f"intel_sub_group_{'_'.join(_NAMES.get(t, t) for t in factors)}_matrix_mad_k{terms}"
    types = [_LETTERS[bits, factors[0] == "u8"], _LETTERS[32, factors[1] == "u8"], "i" if terms == 32 else "f"]
    # A vector type that was named before is its number: S_ for the first, S0_ for the second.
    known: list[str] = []
    words = []
    for t in types:
        words.append("S_" if known[:1] == [t] else "S0_" if known[1:2] == [t] else f"Dv{_ROWS}_{t}")
        known += [t] * (t not in known)
    return f"_Z{len(name)}{name}{''.join(words)}"


def _vector(lines: list[str], name: str, type_: str, from_type: str) -> str:
    """Append the lines that make a vector of the registers of an operand; return its number in braces."""
    whole = "poison"
    for n in range(_ROWS):
        word = f"{{{name}{n}}}"
        if from_type != type_:
            lines.append(f"bitcast {from_type} {word} to {type_}")
            word = f"{{{len(lines) - 1}}}"
        lines.append(f"insertelement <{_ROWS} x {type_}> {whole}, {type_} {word}, i32 {n}")
        whole = f"{{{len(lines) - 1}}}"
    return whole


def _operands(
    sums: str, factors: tuple[str, str], terms: int, left: FragmentLayout, right: FragmentLayout
) -> tuple[Operand, ...]:
    """Return the operands of a product: sums, and factors of the layouts ``left`` and ``right``."""
    lanes = left.lanes
    shapes = (
        ("c", sums, (_ROWS, lanes), FragmentLayout(("r", "l"), lanes, registers=_ROWS)),
        ("a", factors[0], (_ROWS, terms), left), ("b", factors[1], (terms, lanes), right),
    )  # fmt: skip
    return tuple(Operand(*x, LANES, "fragment") for x in shapes)


def _product(lanes: int, terms: int, factors: tuple[str, str]) -> Instruction:
    """Return the row of dpas for sub-groups of ``lanes``."""
    a, b = map(dtype, factors)
    sums, llvm_sums = ("s32", "i32") if terms == 32 else ("f32", "float")
    together, group = terms // lanes, 32 // b.bits
    bits = together * a.bits
    left = FragmentLayout(("r", f"l * {together} + e"), lanes, elements=together, registers=_ROWS)
    right = FragmentLayout((f"r * {group} + e", "l"), lanes, elements=group, registers=_ROWS)
    held = {"a": (f"i{bits}", a.llvm if together == 1 else f"i{bits}"), "b": ("i32", "i32"),
            "c": (llvm_sums, llvm_sums)}  # fmt: skip
    lines: list[str] = []
    vectors = [f"<{_ROWS} x {t}> {_vector(lines, x, t, own)}" for x, (t, own) in held.items()]
    function, result = _function(factors, terms, bits), f"<{_ROWS} x {llvm_sums}>"
    lines.append(f"call spir_func {result} @{function}({', '.join(vectors)})")
    call = len(lines) - 1
    lines += [f"extractelement {result} {{{call}}}, i32 {n}" for n in range(_ROWS)]
    types = ", ".join(f"<{_ROWS} x {t}>" for t, _ in held.values())
    body = (
        f"  for m in 0 .. {_ROWS}:\n"
        f"    for l in 0 .. {lanes}:\n"
        f"      for k in 0 .. {terms}:\n"
        f"        c[m, l] = c[m, l] + cast({sums}, a[m, k]) * cast({sums}, b[k, l])\n"
    )
    operands, label = _operands(sums, factors, terms, left, right), "_".join(dict.fromkeys(factors))
    declare = f"declare spir_func {result} @{function}({types}) convergent nounwind willreturn memory(none)"
    return Instruction(
        f"dpas_m{_ROWS}n{lanes}k{terms}_{label}", operands, body, "\n".join(lines), declare, (MATRICES,), "dpas",
    )  # fmt: skip


def _multiply_adds(lanes: int, factors: tuple[str, str]) -> Instruction:
    """Return the row of products that broadcast each lane's elements of the left factor to all lanes: dp4a for bytes,
    mad for other types.

    A sum beyond the limits of s32 saturates. Products of unsigned bytes are added by a separate instruction: in an
    unsigned sum, a negative value would saturate.
    """
    a, b = map(dtype, factors)
    group = 32 // a.bits
    terms = lanes * group
    left = FragmentLayout(("r", f"l * {group} + e" if group > 1 else "l"), lanes, elements=group, registers=_ROWS)
    right = FragmentLayout((f"r * {group} + e" if group > 1 else "r", "l"), lanes, elements=group, registers=lanes)
    if group > 1:
        sums, number, letter, name = "s32", "i32", "j", "dp4a"
        is_apart = factors == ("u8", "u8")
        dot = "dot_4x8packed_uu_uint" if is_apart else f"dot_acc_sat_4x8packed_{a.name[0]}{b.name[0]}_int"
        function = f"@_Z{len(dot)}{dot}jj{'i' * (not is_apart)}"
        add = [f"call spir_func i32 {function}(i32 {{given}}, i32 {{b}}{', i32 {c}' * (not is_apart)})"]
        add += ["add i32 {c}, {done}"] * is_apart
        declare = [f"declare spir_func i32 {function}(i32, i32{', i32' * (not is_apart)}) nounwind memory(none)"]
        term = f"c[m, l] + cast({sums}, a[m, k]) * cast({sums}, b[k, l])"
    else:
        sums, number, letter, name = a.name, a.llvm, "f", "mad"
        function = f"{a.llvm} @llvm.fma.{a.name}"
        add = [f"call {function}({a.llvm} {{given}}, {a.llvm} {{b}}, {a.llvm} {{c}})"]
        declare = [f"declare {function}({a.llvm}, {a.llvm}, {a.llvm})"]
        term = "fma(a[m, k], b[k, l], c[m, l])"
    broadcast = f"spir_func {number} @_Z19sub_group_broadcast{letter}j"
    declare.append(f"declare {broadcast}({number}, i32) convergent nounwind")
    lines: list[str] = []
    held = [f"{{c{m}}}" for m in range(_ROWS)]
    for k in range(lanes):
        first = len(lines)
        lines += [f"call {broadcast}({number} {{a{m}}}, i32 {k})" for m in range(_ROWS)]
        for step in add:
            last = len(lines) - _ROWS
            lines += [
                step.format(given=f"{{{first + m}}}", b=f"{{b{k}}}", c=held[m], done=f"{{{last + m}}}")
                for m in range(_ROWS)
            ]
        held = [f"{{{len(lines) - _ROWS + m}}}" for m in range(_ROWS)]
    body = (
        f"  for m in 0 .. {_ROWS}:\n    for l in 0 .. {lanes}:\n      for k in 0 .. {terms}:\n"
        f"        c[m, l] = {term}\n"
    )
    operands, label = _operands(sums, factors, terms, left, right), "_".join(dict.fromkeys(factors))
    return Instruction(
        f"{name}_m{_ROWS}n{lanes}k{terms}_{label}", operands, body, "\n".join(lines), "\n".join(declare),
        (PACKED_DOT,) * (group > 1), name,
    )  # fmt: skip


_BYTES = tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8"))
_FACTORS = (
    *((32, types) for types in _BYTES), (16, ("f16", "f16")), (16, ("bf16", "bf16")),
)  # fmt: skip
PRODUCTS = {lanes: tuple(_product(lanes, terms, factors) for terms, factors in _FACTORS) for lanes in (8, 16)}
"""Products by dpas of devices that have it, by the lanes of a sub-group."""
MULTIPLY_ADDS = {lanes: (_multiply_adds(lanes, ("f32", "f32")),) for lanes in (8, 16)}
"""Products of f32 by mad, by the lanes of a sub-group."""
DOTS = tuple(_multiply_adds(8, types) for types in _BYTES)
"""Products of bytes by dp4a."""
