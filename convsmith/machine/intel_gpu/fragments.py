"""Products of fragments: matrices spread over the registers of the lanes of a sub-group.

A register holds a row of sums or of the left factor, a column in each lane; if there are fewer lanes than terms, a lane
holds adjacent terms, and if there are more, a register holds several rows. A register of the right factor packs
adjacent rows of a column into 32 bits.

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
TENSOR_FLOATS = f"{MATRICES}_tf32"
"""The extension of OpenCL for these products of f32 that is rounded to 11 significant bits."""
HALVES = "cl_khr_fp16"
"""The extension of OpenCL that devices with f16 arithmetic have."""
_ROWS = 8
_ROUNDED = "tf32"
_NAMES = {"s8": "i8", "f32": _ROUNDED}
"""Names of factor types in function names, where they differ from the IR's names."""
_LETTERS = {(16, "u8"): "t", (16, ""): "s", (32, "u8"): "j", (32, ""): "i", (32, "f32"): "f"}
"""Letters of types in mangled names, by the bits of a register and by the type of its elements."""


def _function(factors: tuple[str, str], terms: int, counts: tuple[int, int], bits: int) -> str:
    """Return the mangled name of a product whose factors have so many registers of a lane, those of the left one of
    `bits`.
    """
    name = f"intel_sub_group_{'_'.join(_NAMES.get(t, t) for t in factors)}_matrix_mad_k{terms}"
    left, right = (
        _LETTERS.get((n, t), _LETTERS.get((n, ""), "")) for n, t in zip((bits, 32), factors)
    )  # fmt: skip
    types = [(counts[0], left), (counts[1], right), (_ROWS, "i" if terms == 32 else "f")]
    # A vector type that was named before is its number: S_ for the first, S0_ for the second.
    known: list[tuple[int, str]] = []
    words = []
    for t in types:
        words.append("S_" if known[:1] == [t] else "S0_" if known[1:2] == [t] else "Dv{}_{}".format(*t))
        known += [t] * (t not in known)
    return f"_Z{len(name)}{name}{''.join(words)}"


def _vector(lines: list[str], words: list[str], type_: str, from_type: str) -> str:
    """Append the lines that make a vector of the registers `words` of an operand; return its number in braces."""
    whole = "poison"
    for n, word in enumerate(words):
        if from_type != type_:
            lines.append(f"bitcast {from_type} {word} to {type_}")
            word = f"{{{len(lines) - 1}}}"
        lines.append(f"insertelement <{len(words)} x {type_}> {whole}, {type_} {word}, i32 {n}")
        whole = f"{{{len(lines) - 1}}}"
    return whole


def _rounded(lines: list[str], word: str) -> str:
    """Append the lines that round an f32 to 11 significant bits, halves away from zero; return its number in braces."""
    first = len(lines)
    lines += [
        f"bitcast float {word} to i32", f"add i32 {{{first}}}, {1 << 12}", f"and i32 {{{first + 1}}}, {-1 << 13}",
        f"bitcast i32 {{{first + 2}}} to float",
    ]  # fmt: skip
    return f"{{{first + 3}}}"


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
    """Return the row of dpas for sub-groups of ``lanes``. With fewer terms than lanes, a register has several rows of
    the left factor.
    """
    a, b = map(dtype, factors)
    sums, llvm_sums = ("s32", "i32") if terms == 32 else ("f32", "float")
    together, across, group = max(terms // lanes, 1), max(lanes // terms, 1), 32 // b.bits
    bits, rounds = together * a.bits, a.name == "f32"
    term = "l" if terms == lanes else f"l * {together} + e" if across == 1 else f"l % {terms}"
    row = "r" if across == 1 else f"r * {across} + l // {terms}"
    left = FragmentLayout((row, term), lanes, elements=together, registers=_ROWS // across)
    right = FragmentLayout((f"r * {group} + e" if group > 1 else "r", "l"), lanes, elements=group,
                           registers=terms // group)  # fmt: skip
    held = {"a": (f"i{bits}", a.llvm if together == 1 else f"i{bits}"), "b": ("i32", "i32"),
            "c": (llvm_sums, llvm_sums)}  # fmt: skip
    if rounds:
        held |= dict.fromkeys("ab", ("float", "float"))
    operands = _operands(sums, factors, terms, left, right)
    lines: list[str] = []
    vectors, types = [], []
    for x, (t, own) in held.items():
        count = next(o.layout.registers for o in operands if o.name == x)
        words = [f"{{{x}{n}}}" for n in range(count)]
        if rounds and x != "c":
            words = [_rounded(lines, word) for word in words]
        types.append(f"<{count} x {t}>")
        vectors.append(f"{types[-1]} {_vector(lines, words, t, own)}")
    function = _function(factors, terms, (left.registers, right.registers), bits)
    result = f"<{_ROWS} x {llvm_sums}>"
    lines.append(f"call spir_func {result} @{function}({', '.join(vectors)})")
    call = len(lines) - 1
    lines += [f"extractelement {result} {{{call}}}, i32 {n}" for n in range(_ROWS)]
    x, y = ("a[m, k]", "b[k, l]") if rounds else (f"cast({sums}, a[m, k])", f"cast({sums}, b[k, l])")
    body = (
        f"  for m in 0 .. {_ROWS}:\n"
        f"    for l in 0 .. {lanes}:\n"
        f"      for k in 0 .. {terms}:\n"
        f"        c[m, l] = c[m, l] + {x} * {y}\n"
    )
    label = _ROUNDED if rounds else "_".join(dict.fromkeys(factors))
    declare = f"declare spir_func {result} @{function}({', '.join(types)}) convergent nounwind willreturn memory(none)"
    return Instruction(
        f"dpas_m{_ROWS}n{lanes}k{terms}_{label}", operands, body, "\n".join(lines), declare,
        (MATRICES, TENSOR_FLOATS) if rounds else (MATRICES,), "dpas", rounds="factors" if rounds else "",
    )  # fmt: skip


def _multiply_adds(lanes: int, factors: tuple[str, str], sums: str) -> Instruction:
    """Return the row of products that broadcast each lane's elements of the left factor to all lanes: dp4a for bytes,
    mad for other types, whose registers hold one element of a lane. Factors are converted to the type of the sums.

    A sum beyond the limits of s32 saturates. Products of unsigned bytes are added by a separate instruction: in an
    unsigned sum, a negative value would saturate.
    """
    a = dtype(factors[0])
    group = 4 if sums == "s32" else 1
    terms = lanes * group
    left = FragmentLayout(("r", f"l * {group} + e" if group > 1 else "l"), lanes, elements=group, registers=_ROWS)
    right = FragmentLayout((f"r * {group} + e" if group > 1 else "r", "l"), lanes, elements=group, registers=lanes)
    lines: list[str] = []
    held = {x: [f"{{{x}{n}}}" for n in range(count)] for x, count in (("a", _ROWS), ("b", lanes), ("c", _ROWS))}
    if group > 1:
        number, letter, name = "i32", "j", "dp4a"
        is_apart = factors == ("u8", "u8")
        dot = "dot_4x8packed_uu_uint" if is_apart else f"dot_acc_sat_4x8packed_{a.name[0]}{factors[1][0]}_int"
        function = f"@_Z{len(dot)}{dot}jj{'i' * (not is_apart)}"
        add = [f"call spir_func i32 {function}(i32 {{given}}, i32 {{b}}{', i32 {c}' * (not is_apart)})"]
        add += ["add i32 {c}, {done}"] * is_apart
        declare = [f"declare spir_func i32 {function}(i32, i32{', i32' * (not is_apart)}) nounwind memory(none)"]
        term = f"c[m, l] + cast({sums}, a[m, k]) * cast({sums}, b[k, l])"
    else:
        number, letter = {"f32": ("float", "f"), "f16": ("half", "Dh")}[sums]
        name, function = "mad", f"{number} @llvm.fma.{sums}"
        add = [f"call {function}({number} {{given}}, {number} {{b}}, {number} {{c}})"]
        declare = [f"declare {function}({number}, {number}, {number})"]
        x, y = ("a[m, k]", "b[k, l]") if a.name == sums else (f"cast({sums}, a[m, k])", f"cast({sums}, b[k, l])")
        term = f"fma({x}, {y}, c[m, l])"
        held |= {x: [_number(lines, word, factors[0], sums) for word in held[x]] for x in "ab"}
        held["c"] = [_number(lines, word, sums, sums) for word in held["c"]]
    broadcast = f"spir_func {number} @_Z19sub_group_broadcast{letter}j"
    declare.append(f"declare {broadcast}({number}, i32) convergent nounwind")
    done = held["c"]
    for k in range(lanes):
        first = len(lines)
        lines += [f"call {broadcast}({number} {word}, i32 {k})" for word in held["a"]]
        for step in add:
            last = len(lines) - _ROWS
            lines += [
                step.format(given=f"{{{first + m}}}", b=held["b"][k], c=done[m], done=f"{{{last + m}}}")
                for m in range(_ROWS)
            ]
        done = [f"{{{len(lines) - _ROWS + m}}}" for m in range(_ROWS)]
    if sums == "f16":
        lines += [f"bitcast half {word} to i16" for word in done]
    body = (
        f"  for m in 0 .. {_ROWS}:\n    for l in 0 .. {lanes}:\n      for k in 0 .. {terms}:\n"
        f"        c[m, l] = {term}\n"
    )
    operands = _operands(sums, factors, terms, left, right)
    label = "_".join(dict.fromkeys((*factors, sums) if group == 1 else factors))
    return Instruction(
        f"{name}_m{_ROWS}n{lanes}k{terms}_{label}", operands, body, "\n".join(lines), "\n".join(declare),
        (PACKED_DOT,) * (group > 1) + (HALVES,) * (a.name == "f16"), name,
    )  # fmt: skip


def _number(lines: list[str], word: str, type_: str, to: str) -> str:
    """Append the lines that make a float of the type ``to`` of the element in a register; return its number in braces.
    """
    if type_ == "f16":
        lines.append(f"bitcast i16 {word} to half")
        if to == "f32":
            lines.append(f"fpext half {{{len(lines) - 1}}} to float")
        return f"{{{len(lines) - 1}}}"
    return word


_BYTES = tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8"))
_FACTORS = (
    *((32, types) for types in _BYTES), (16, ("f16", "f16")), (16, ("bf16", "bf16")),
)  # fmt: skip
PRODUCTS = {lanes: tuple(_product(lanes, terms, factors) for terms, factors in _FACTORS) for lanes in (8, 16)}
PRODUCTS[16] += (_product(16, 8, ("f32", "f32")),)
"""Products by dpas of devices that have it, by the lanes of a sub-group."""
MULTIPLY_ADDS = {lanes: (_multiply_adds(lanes, ("f32", "f32"), "f32"),) for lanes in (8, 16)}
"""Products of f32 by mad, by the lanes of a sub-group."""
HALF_MULTIPLY_ADDS = tuple(_multiply_adds(8, ("f16", "f16"), sums) for sums in ("f16", "f32"))
"""Products of f16 by mad, with sums in f16 or in f32."""
DOTS = tuple(_multiply_adds(8, types, "s32") for types in _BYTES)
"""Products of bytes by dp4a."""
