"""Block messages: the lanes of a sub-group load or store contiguous elements of memory, or rows of a matrix.

The names are those of the extensions cl_intel_subgroups, cl_intel_subgroup_local_block_io and
cl_intel_subgroup_2d_block_io. A message has one address, a multiple of 16 bytes. Lane l of register r accesses the
place ``r * lanes + l``, or the place l of row r, which holds one element, or several adjacent elements that fill the
bits of the place.
"""

from __future__ import annotations

from convsmith.ir.instruction import BLOCK, PITCH, FragmentLayout, Instruction, Operand
from convsmith.ir.types import dtype

BLOCKS, SHARED = "cl_intel_subgroups", "cl_intel_subgroup_local_block_io"
"""The extensions of OpenCL for block messages to global memory and to shared memory."""
ROWS = "cl_intel_subgroup_2d_block_io"
"""The extension of OpenCL for messages that load rows of a matrix."""
EXTENSIONS = "+SPV_INTEL_subgroups,+SPV_KHR_integer_dot_product,+SPV_INTEL_split_barrier"
"""The extensions of SPIR-V that code with block messages, products of packed bytes and split barriers uses."""
_PLACES = {8: ("_uc", "h", f"{BLOCKS}_char"), 16: ("_us", "t", f"{BLOCKS}_short"), 32: ("", "j", BLOCKS)}
"""Suffixes of functions, letters in mangled names, and extensions, by the bits of a place."""
_SPACES = {"global": 1, "shared": 3}
_UNITS = {"global": "ugm", "shared": "slm"}
"""Names of memories in mnemonics."""
_ROW_BYTES, _MATRIX_BYTES = 32, 64
"""Bytes of a row of a message for matrices, and bytes that divide the address of a matrix."""
_REGISTERS = (8, 4, 2, 1)
"""Numbers of registers that a message loads."""
HELD = ("element", "fragment")
"""The register file and the scope of the operands in registers."""


def _load(memory: str, type_: str, elements: int, registers: int) -> Instruction:
    """Return the row of a message that loads ``registers`` of each lane, with ``elements`` each."""
    bits = dtype(type_).bits * elements
    suffix, letter, extension = _PLACES[bits]
    held = f"i{bits}" if registers == 1 else f"<{registers} x i{bits}>"
    name = f"intel_sub_group_block_read{suffix}{registers if registers > 1 else ''}"
    pointer, mangled = _pointer(memory), f"_Z{len(name)}{name}PU3AS{_SPACES[memory]}K{letter}"
    lines = [f"getelementptr i{bits}, {pointer} {{a}}, i64 0", f"call spir_func {held} @{mangled}({pointer} {{0}})"]
    lines += [f"extractelement {held} {{1}}, i32 {n}" for n in range(registers) if registers > 1]
    label = f"block_read_{memory}_{type_}{f'_{elements}' * (elements > 1)}_x{registers}"
    declare = f"declare spir_func {held} @{mangled}({pointer}) convergent nounwind"
    return _row(label, registers * elements, _layout(elements, registers), type_, (HELD, (BLOCK, memory)),
                lines, declare, (extension, *[SHARED] * (memory == "shared")), f"load.{_UNITS[memory]}")  # fmt: skip


def _load_rows(type_: str, elements: int, registers: int) -> Instruction:
    """Return the row of a message that loads ``registers`` of each lane, with ``elements`` each, from as many rows of a
    matrix in global memory. Rows before the ``first`` and from the ``end`` on are zeros, and are not read.

    The hardware takes the address of a matrix that is a multiple of 64 bytes, its height, and the coordinates of a
    block of 32 bytes in each of some rows, of which those outside of the matrix are zeros. So the matrix begins at such
    an address before the elements of its first row, at which the block begins, or some rows before it. If no row is
    present, the block begins behind a matrix of one row.
    """
    bits = dtype(type_).bits
    name = f"intel_sub_group_2d_block_read_{bits}b_{registers}r{_ROW_BYTES * 8 // bits}x1c"
    mangled, pointer = f"_Z{len(name)}{name}PU3AS1viiiDv2_iPt", _pointer("global")
    held, ours = f"<{registers} x i16>", f"convsmith_block_rows_{bits}b_{registers}"
    head = f"{pointer} %a, i32 %pitch, i32 %first, i32 %end"
    steps = (
        f"%to = alloca {held}", "%some = icmp slt i32 %first, %end", "%absent = select i1 %some, i32 %first, i32 0",
        "%rows = sub i32 %end, %first", "%height = select i1 %some, i32 %rows, i32 1",
        "%above = sub i32 0, %first", f"%row = select i1 %some, i32 %above, i32 {registers}",
        f"%base = ptrtoint {pointer} %a to i64", "%skipped = mul i32 %absent, %pitch",
        "%beside = sext i32 %skipped to i64", "%at = add i64 %base, %beside",
        f"%beyond = and i64 %at, {_MATRIX_BYTES - 1}", "%start = sub i64 %at, %beyond",
        f"%matrix = inttoptr i64 %start to {pointer}", "%bytes = trunc i64 %beyond to i32",
        f"%column = udiv i32 %bytes, {bits // 8}",
        "%across = insertelement <2 x i32> poison, i32 %column, i32 0",
        "%place = insertelement <2 x i32> %across, i32 %row, i32 1",
        f"call spir_func void @{mangled}({pointer} %matrix, i32 %pitch, i32 %height, i32 %pitch, <2 x i32> %place, "
        "ptr %to)", f"%loaded = load {held}, ptr %to", f"ret {held} %loaded",
    )  # fmt: skip
    declare = (
        f"declare spir_func void @{mangled}({pointer}, i32, i32, i32, <2 x i32>, ptr) convergent nounwind\n"
        f"define internal spir_func {held} @{ours}({head}) convergent nounwind {{ {' '.join(steps)} }}"
    )
    lines = [f"call spir_func {held} @{ours}({pointer} {{a}}, i32 {{pitch}}, i32 {{first}}, i32 {{end}})"]
    lines += [f"extractelement {held} {{0}}, i32 {n}" for n in range(registers)]
    label = f"block_rows_global_{type_}{f'_{elements}' * (elements > 1)}_x{registers}"
    return _row(label, registers * elements, _layout(elements, registers), type_, (HELD, (PITCH, "global")), lines,
                declare, (ROWS,), "load_block2d.ugm")  # fmt: skip


def _store(memory: str, type_: str) -> Instruction:
    """Return the row of a message that stores a register of each lane, with one element."""
    bits = dtype(type_).bits
    suffix, letter, extension = _PLACES[bits]
    name, pointer = f"intel_sub_group_block_write{suffix}", _pointer(memory)
    mangled = f"_Z{len(name)}{name}PU3AS{_SPACES[memory]}{letter}{letter}"
    lines = [
        f"bitcast {dtype(type_).llvm} {{a}} to i{bits}", f"getelementptr i{bits}, {pointer} {{c}}, i64 0",
        f"call spir_func void @{mangled}({pointer} {{1}}, i{bits} {{0}})",
    ]  # fmt: skip
    declare = f"declare spir_func void @{mangled}({pointer}, i{bits}) convergent nounwind"
    return _row(f"block_write_{memory}_{type_}", 1, _layout(1, 1), type_, ((BLOCK, memory), HELD), lines, declare,
                (extension,), f"store.{_UNITS[memory]}")  # fmt: skip


def _row(name: str, size: int, layout: FragmentLayout, type_: str, files: tuple[tuple[str, str], ...],
         lines: list[str], declare: str, needs: tuple[str, ...], mnemonic: str) -> Instruction:  # fmt: skip
    """Return the row of a message, which copies ``size`` elements of each lane."""
    operands = tuple(Operand(x, type_, (size,), layout, *where) for x, where in zip("ca", files))
    body = f"  for j in 0 .. {size}:\n    c[j] = a[j]\n"
    return Instruction(name, operands, body, "\n".join(lines), declare, needs, mnemonic)


def _layout(elements: int, registers: int) -> FragmentLayout:
    """Return the layout of the elements of one lane."""
    return FragmentLayout((f"r * {elements} + e",), 1, elements=elements, registers=registers)


def _pointer(memory: str) -> str:
    return f"ptr addrspace({_SPACES[memory]})"


_LOADED = (*((t, e) for t in ("f16", "bf16") for e in (1, 2)), *((t, e) for t in ("s8", "u8") for e in (2, 4)),
           ("f32", 1), ("s32", 1))  # fmt: skip
_STORED = ("f32", "s32", "f16", "bf16", "s8", "u8")
MESSAGES = (
    *(_load(memory, t, e, n) for memory in _SPACES for t, e in _LOADED for n in _REGISTERS),
    *(_store("global", t) for t in _STORED),
)
"""The messages of a device with sub-groups; rows with more registers precede rows of the same type with fewer."""
ROW_MESSAGES = tuple(
    _load_rows(t, 16 // dtype(t).bits, n) for t in ("f16", "bf16", "s8", "u8") for n in _REGISTERS[:-1]
)  # fmt: skip
"""The messages for rows of matrices, of devices whose sub-groups have 16 lanes."""
