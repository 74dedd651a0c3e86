"""Every row of every target's table: its specification, its LLVM text, its assembly and, where it runs, its result."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from emulated import architecture_of, emulated_kernel, skip_without_emulator, tiles_are_whole
from natives import llvm_text

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact, Entry
from convsmith.compiler.arguments import buffer_argument
from convsmith.diag.errors import ToolchainError
from convsmith.interp import run
from convsmith.ir.instruction import SCALARS, Instruction, Operand
from convsmith.ir.parse import parse_kernel
from convsmith.ir.types import DTYPES
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, known_targets
from convsmith.machine.transpositions import is_joined, tile_shape
from convsmith.runtime.host_kernel import HostKernel

TARGETS = known_targets()
ROWS = [
    pytest.param(t, row, id=f"{t.name}-{row.name}")
    for t in TARGETS for x in t.instructions for row in (x, x.repeated) if row is not None
]  # fmt: skip


def alternatives(target: Machine | None) -> list[Machine]:
    """The machines that run the kernels of a target with fewer features."""
    other = target.alternative if target is not None else None
    return [] if other is None else [other, *alternatives(other)]


ALTERNATIVES = [
    pytest.param(x, row, id=f"{t.name}-{x.needs[-1]}-{row.name}")
    for t in TARGETS for x in alternatives(t) for row in x.instructions if row.terms > 1
]  # fmt: skip


SHUFFLING = {
    "x86_64": ("v?p(insr|extr)|movzb|movb", "unpck|v(perm|p?shuf|insert|broadcast|p?blend)"),
    "aarch64": ("[us]mov|ins|dup", "zip|uzp|trn|ext|tbl|rev|st2"),
    "wasm32": (r"(i8x16|i16x8|f32x4|f64x2)\.(extract|replace)_lane", r"i8x16\.shuffle"),
}
"""By machine: instructions that move an element alone, and those that move elements of whole vectors."""
CONTRACTED = {"vpmaddwd": "vpdpwssd"}
"""By mnemonic: the instruction that also adds, which LLVM uses instead on the levels that have it."""
_MNEMONICS = {"hexagon": r"^\t\t.*?\b([a-z]\w*)\(", "wasm32": r"^\t([a-z][\w.]*)"}
"""By machine: how a mnemonic is found in assembly, where no line begins with it or it has dots."""


def mnemonics_in(text: str, target: Machine) -> list[str]:
    """The mnemonics in assembly of a target."""
    return re.findall(_MNEMONICS.get(architecture_of(target), r"^\t(?:{vex}\t)?([a-z]\w*)"), text, re.MULTILINE)


SHUFFLES = [pytest.param(t, row, id=f"{t.name}-{row.name}") for t in TARGETS for row in t.transpositions]


def fragments(row: Instruction, seed: int = 0, whole: bool = False) -> dict[str, np.ndarray]:
    """Small integers for every operand, or bytes over the whole of their range."""
    rng = np.random.default_rng(seed)
    limits = {b.name: (0 if b.dtype.kind == "uint" else -9, 9) for b in row.kernel.params}
    if whole:
        limits |= {b.name: b.dtype.limits for b in row.kernel.params if b.dtype.bits == 8}
    if row.limit:
        last = row.kernel.params[-1].name
        limits[last] = max(-row.limit, limits[last][0]), min(row.limit, limits[last][1])
    return {
        b.name: rng.integers(*limits[b.name], b.size, endpoint=True).astype(b.dtype.numpy) for b in row.kernel.params
    }


def specified(row: Instruction, data: dict[str, np.ndarray]) -> np.ndarray:
    """The accumulator that the specification computes; it is interpreted once for all levels that have the row."""
    key = (str(row.kernel), *(x.tobytes() for x in data.values()))
    if key not in SPECIFIED:
        arrays = {name: x.copy() for name, x in data.items()}
        run(row.kernel, arrays)
        for name in arrays.keys() - {"c"}:
            np.testing.assert_array_equal(arrays[name], data[name])
        SPECIFIED[key] = arrays["c"]
    return SPECIFIED[key]


SPECIFIED: dict[tuple[object, ...], np.ndarray] = {}


def seeds(row: Instruction) -> range:
    """Seeds of the operands that a row is tried on: one run of a row on fragments computes some hundred sums."""
    return range(3 if row.rows == 1 else 2)


def on_fragments(target: Machine, row: Instruction) -> str:
    """The same for a row on fragments, which then starts from zero."""
    c, a, b = row.kernel.params
    parameters = ", ".join(f"{x.name}: {x.dtype.name}[{x.size}]" for x in (c, a, b))
    return llvm_text(
        parse_kernel(
            f"kernel row({parameters})\n"
            f"  alloc acc: {c.dtype.name}[{c.shape[0]}, {c.shape[1]}] @fragment:\n"
            f"    acc[0, 0]{{{c.size}}} = {'0.0' if c.dtype.kind == 'float' else f'{c.dtype.name}(0)'}\n"
            f"    {row.name}(acc[0, 0]{{{c.size}}}, a[0]{{{a.size}}}, b[0]{{{b.size}}})\n"
            f"    c[0]{{{c.size}}} = acc[0, 0]{{{c.size}}}\n"
        ),
        target,
        "row",
    )


def module(target: Machine, row: Instruction) -> str:
    """An entry ``row(c, a, b)`` that applies the row once, under the calling convention of artifacts. Terms that are
    the same for all sums are read as kernels read them, as one number if the row says so.
    """
    if row.result.scope == "fragment":
        return on_fragments(target, row)
    lines, operands = [], {}
    word = f"i{target.address_bits}"
    for n, b in enumerate(row.kernel.params):
        vector = f"<{b.size} x {b.dtype.llvm}>"
        number = row.loaded if b.name != "c" and b.size < row.lanes * row.terms else ""
        lines += [
            f"%at.{b.name} = getelementptr {word}, ptr %args, i64 {n}",
            f"%p.{b.name} = load ptr, ptr %at.{b.name}, align {target.address_bits // 8}",
            f"%v.{b.name} = load {vector}, ptr %p.{b.name}, align {b.dtype.bytes}",
        ]
        if number:
            read = f"load {number}, ptr %p.{b.name}, align {b.dtype.bytes}"
            lines[-1:] = [f"%n.{b.name} = {read}", f"%v.{b.name} = bitcast {number} %n.{b.name} to {vector}"]
        operands[b.name] = [f"%v.{b.name}"]
    c = row.kernel.params[0]

    def put(expression: str) -> str:
        lines.append(f"%x{len(lines)} = {expression}")
        return f"%x{len(lines) - 1}"

    (result,) = row.emit(put, operands)
    lines += [
        f"store <{c.size} x {c.dtype.llvm}> {result}, ptr %p.c, align {c.dtype.bytes}",
        "ret void",
    ]
    body = "\n  ".join(lines)
    attributes = " ".join(f'"{k}"="{v}"' if v else k for k, v in target.attributes)
    own = "".join(f' "{name}"' for name in target.part_attributes)
    return (
        f'target triple = "{target.triple}"\n{row.declare}\n'
        f"define void @row_chunk(ptr %args, {word} %tid, {word} %n) #0{own} {{\n  {body}\n}}\n"
        f"define void @row(ptr %args) #0 {{\n  call void @row_chunk(ptr %args, {word} 0, {word} 1)\n  ret void\n}}\n"
        f"attributes #0 = {{ nounwind {attributes} }}\n"
    )


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_the_table_of_a_level(target: Machine) -> None:
    """The first row fills a vector, or a unit of one, unless it is for scalars; no name comes twice, and a level
    has what its rows need.
    """
    assert target.instructions[0].lanes * 32 in (target.vector_bits, 32)
    assert (target.instructions[0].lanes == 1) == ("f32" in target.scalar_types)
    assert target.instructions[0].types == ("f32", "f32", "f32")
    assert len({row.name for row in target.instructions}) == len(target.instructions)
    for row in target.instructions:
        assert set(row.needs) <= set(target.needs)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("target, row", ROWS)
def test_specification(target: Machine, row: Instruction) -> None:
    """``c + a * b``, where several elements of ``a`` and ``b`` may belong to one of ``c``."""
    assert [b.name for b in row.kernel.params] == ["c", "a", "b"] and row.kernel.name == row.name
    assert row.kernel.params[0].size == row.rows * row.lanes
    for seed in seeds(row):
        data = fragments(row, seed)
        a, b = (data[name].astype(np.int64) for name in "ab")
        if row.rows > 1:
            right = b.reshape(-1, row.lanes, row.group).swapaxes(1, 2).reshape(-1, row.lanes)
            sums = (a.reshape(row.rows, -1) @ right).ravel()
        else:
            sums = (a.reshape(-1, row.terms) * b.reshape(-1, row.terms)).sum(1)
        np.testing.assert_array_equal(specified(row, data), data["c"] + sums)


@pytest.mark.parametrize("target, row", [pytest.param(*x.values, id=x.id) for x in ROWS if x.values[1].scaled])
def test_a_scalable_row_does_the_same_in_every_unit(target: Machine, row: Instruction) -> None:
    """Units follow each other along the last coordinate; an operand that is not scalable is the same in all."""
    assert target.vectors.scalable and row.scaled is not None and row.scaled.is_scalable
    assert set(row.scaled.needs) <= set(target.needs)
    for units in (1, 2, 3):
        of_units = [fragments(row, seed) for seed in range(units)]
        shared = {x.name: of_units[0][x.name] for x in row.scaled.operands if not x.layout.scalable}
        of_units = [x | shared for x in of_units]
        data = {x.name: joined(x, [data[x.name] for data in of_units]) for x in row.operands} | shared
        wanted = joined(row.result, [specified(row, x) for x in of_units])
        np.testing.assert_array_equal(specified(row.scaled.at(units), data), wanted)


def joined(operand: Operand, of_units: list[np.ndarray]) -> np.ndarray:
    """The operand of a scalable row, whose units hold the operands of a row."""
    return np.concatenate([x.reshape(operand.shape) for x in of_units], axis=-1).ravel()


@pytest.mark.parametrize("target, row", [pytest.param(*x.values, id=x.id) for x in ROWS if x.values[1].scaled])
def test_the_layouts_of_a_scalable_row_hold_each_element_once(target: Machine, row: Instruction) -> None:
    assert row.scaled is not None
    for operand in row.scaled.at(3).operands:
        layout = operand.layout
        assert sorted(layout.places()) == [*np.ndindex(operand.shape)]
        assert len(set(layout.places().values())) == operand.size == layout.count


@pytest.mark.sampled(4)
@pytest.mark.parametrize("row", [pytest.param(x.values[1], id=x.id) for x in ROWS if x.values[1].repeated])
def test_a_form_for_repeated_terms_does_the_same(row: Instruction) -> None:
    assert row.repeated is not None
    data = fragments(row.repeated)
    wanted = specified(row.repeated, data)
    whole = {x.name: np.tile(data[x.name], x.size // data[x.name].size) for x in row.operands}
    np.testing.assert_array_equal(specified(row, whole), wanted)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target, row", ROWS)
def test_text_parses_back(target: Machine, row: Instruction) -> None:
    assert str(parse_kernel(str(row.kernel))) == str(row.kernel)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("target, row", ROWS)
def test_assembly_has_the_mnemonic(target: Machine, row: Instruction) -> None:
    text = llvm_bind.assembly(module(target, row), target.triple, target.cpu, target.features)
    mnemonics = mnemonics_in(text, target)
    assert mnemonics
    if row.mnemonic:
        contracted = CONTRACTED.get(row.mnemonic)
        has_contracted = any(x.mnemonic == contracted for x in target.instructions)
        hits = [m for m in mnemonics if m.startswith(contracted if contracted and has_contracted else row.mnemonic)]
        if row.result.file == SCALARS:
            assert hits and len(hits) % row.lanes == 0, f"{row.mnemonic} for each sum, not {hits}, in\n{text}"
            return
        registers = row.result.size * DTYPES[row.result.dtype].bits // target.vector_bits
        wanted = registers if row.rows > 1 and row.result.file == "vector" else 1
        assert len(hits) == wanted, f"{row.mnemonic} {wanted} times, not {hits}, in\n{text}"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("target, row", [*ROWS, *ALTERNATIVES])
def test_machine_computes_the_specification(target: Machine, row: Instruction) -> None:
    arguments = tuple(
        buffer_argument(b, "inout" if b.name == "c" else "in")
        for b in row.kernel.params
    )
    code = llvm_bind.object_code(module(target, row), target.triple, target.cpu, target.features)
    artifact = Artifact(code, target.name, {"main": Entry("row", arguments)}, row.name, "", needs=target.needs,
                        permissions=target.permissions, address_bits=target.address_bits)  # fmt: skip
    # Of an emulator, bytes of AMX may have other signs.
    whole = target in host_targets() or not target.fragments
    every = [fragments(row, seed, whole and seed > 0) for seed in seeds(row)]
    for data in every:
        data["c"] *= row.rows == 1  # fragments start from zero
    for found, data in zip(computed(target, artifact, every), every, strict=True):
        right = specified(row, data)
        if "mopa" in row.mnemonic and row.types[2] == "s32" and not tiles_are_whole():
            found, right = (x.reshape(row.rows, row.lanes)[::2, ::2] for x in (found, right))
        np.testing.assert_array_equal(found, right)


SIGNED = """define internal <4 x i32> @own(<16 x i8> %a, <16 x i8> %b, <4 x i32> %c) {
  %x = sext <16 x i8> %a to <16 x i32>
  %y = sext <16 x i8> %b to <16 x i32>
  %p = mul <16 x i32> %x, %y
  %n0 = shufflevector <16 x i32> %p, <16 x i32> poison, <4 x i32> <i32 0, i32 4, i32 8, i32 12>
  %n1 = shufflevector <16 x i32> %p, <16 x i32> poison, <4 x i32> <i32 1, i32 5, i32 9, i32 13>
  %n2 = shufflevector <16 x i32> %p, <16 x i32> poison, <4 x i32> <i32 2, i32 6, i32 10, i32 14>
  %n3 = shufflevector <16 x i32> %p, <16 x i32> poison, <4 x i32> <i32 3, i32 7, i32 11, i32 15>
  %n4 = add <4 x i32> %n0, %n1
  %n5 = add <4 x i32> %n2, %n3
  %n6 = add <4 x i32> %n4, %n5
  %n7 = add <4 x i32> %n6, %c
  ret <4 x i32> %n7
}"""
"""The relaxed product of an engine of WebAssembly that takes both factors as s8."""


def test_products_of_signed_factors() -> None:
    plain = next(x for x in TARGETS if x.name == "wasm32")
    level = next(x for t in TARGETS for x in alternatives(t) if "dot-s8" in x.needs)
    row, *_ = level.vector_rows("u8", "s8", "s32")
    name = row.declare.partition("@")[2].partition("(")[0]
    own = replace(row, llvm=row.llvm.replace(f"@{name}(", "@own("), declare=SIGNED)
    test_machine_computes_the_specification(plain, own)


def computed(target: Machine, artifact: Artifact, every: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """The accumulators that an artifact leaves, run by an emulator where this machine lacks the level."""
    if target not in host_targets():
        skip_without_emulator(target)
    try:
        kernel = HostKernel(artifact) if target in host_targets() else emulated_kernel(artifact)
    except ToolchainError as missing:
        assert missing.code == "symbol" and "__" in str(missing)
        pytest.skip(f"a compiler's library computes it: {missing}")
    return [kernel.run({**data, "c": data["c"].copy()})["c"] for data in every]


def transposing(target: Machine, row: Instruction) -> str:
    """An entry ``row(c, a)`` that applies a row that transposes."""
    c, a = row.kernel.params
    name, size = row.result.dtype, a.shape[1]
    text = (
        f"kernel row(c: {name}[{c.size}], a: {name}[{a.size}])\n"
        f"  alloc a_v: {name}[{a.shape[0]}, {size}] @register:\n"
        f"    alloc c_v: {name}[{c.shape[0]}, {c.shape[1]}] @register:\n"
        + "".join(f"      a_v[{n}, 0]{{{size}}} = a[{n * size}]{{{size}}}\n" for n in range(a.shape[0]))
        + f"      {row.name}(c_v[0, 0]{{{c.size}}}, a_v[0, 0]{{{a.size}}})\n"
        + "".join(
            f"      c[{n * c.shape[1]}]{{{c.shape[1]}}} = c_v[{n}, 0]{{{c.shape[1]}}}\n" for n in range(c.shape[0])
        )
    )
    return llvm_text(parse_kernel(text), target, "row")


@pytest.mark.sampled(71)
@pytest.mark.parametrize("target, row", SHUFFLES)
def test_a_transposition(target: Machine, row: Instruction) -> None:
    """The specification is numpy's transposition of groups; the machine moves every element as it says."""
    height, width, group = tile_shape(row)
    data = fragments(row)
    found = specified(row, data)
    groups = data["a"].reshape(height, width, group).swapaxes(0, 1)
    np.testing.assert_array_equal(found, groups.ravel())
    arguments = tuple(
        buffer_argument(b, "inout" if b.name == "c" else "in")
        for b in row.kernel.params
    )
    code = llvm_bind.object_code(transposing(target, row), target.triple, target.cpu, target.features)
    artifact = Artifact(code, target.name, {"main": Entry("row", arguments)}, row.name, "", needs=target.needs,
                        permissions=target.permissions, address_bits=target.address_bits)  # fmt: skip
    (moved,) = computed(target, artifact, [data])
    np.testing.assert_array_equal(moved, found)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("target, row", SHUFFLES)
def test_a_transposition_is_shuffles_of_vectors(target: Machine, row: Instruction) -> None:
    """No element goes alone, and there are no more shuffles than its two stages take."""
    text = llvm_bind.assembly(transposing(target, row), target.triple, target.cpu, target.features)
    mnemonics = mnemonics_in(text, target)
    alone, moving = SHUFFLING[target.triple.partition("-")[0]]
    assert not [m for m in mnemonics if re.match(alone, m)], text
    assert set(row.needs) <= set(target.needs)
    shuffles = re.compile(f"{row.mnemonic}|{moving}" if row.mnemonic else moving)
    vectors = [m for m in mnemonics if shuffles.search(m)]
    assert any(row.mnemonic in m for m in vectors), f"{row.mnemonic} not in\n{text}"
    height, width, group = tile_shape(row)
    sizes = {n * group * DTYPES[row.result.dtype].bits for n in (height, width)}
    whole = sizes == {target.vector_bits}
    most = height * (width.bit_length() - 1) if whole else width * height.bit_length()
    if target.needs:
        assert len(vectors) <= (height + 2 if is_joined(row) else most), text
