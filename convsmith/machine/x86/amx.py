"""AMX: products of matrices in tile registers of at most 16 rows of 64 bytes."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.instruction import FragmentFile, Instruction
from convsmith.machine.base import fragment_dot

_ROWS, _LANES = 16, 16
_GROUPS = (16, 12, 8, 4)
"""Rows of B per instruction: if the channels do not fill 64 bytes, 48, 32 or 16 bytes may suffice."""

_KINDS = (
    ("tdpbusd", ("u8", "s8", "s32"), 4, "amx-int8"),
    ("tdpbssd", ("s8", "s8", "s32"), 4, "amx-int8"),
    ("tdpbuud", ("u8", "u8", "s32"), 4, "amx-int8"),
    ("tdpbsud", ("s8", "u8", "s32"), 4, "amx-int8"),
    ("tdpbf16ps", ("bf16", "bf16", "f32"), 2, "amx-bf16"),
    ("tdpfp16ps", ("f16", "f16", "f32"), 2, "amx-fp16"),
)


def _product(mnemonic: str, types: tuple[str, str, str], group: int, groups: int, needs: str) -> Instruction:
    return fragment_dot(
        f"{mnemonic}_{groups}", (_ROWS, groups, _LANES, group), types,
        f"call void @llvm.x86.{mnemonic}(i8 {{c}}, i8 {{a}}, i8 {{b}})",
        f"declare void @llvm.x86.{mnemonic}(i8 immarg, i8 immarg, i8 immarg)", ("amx-tile", needs), mnemonic,
        flushes=types == ("bf16", "bf16", "f32"),
    )  # fmt: skip


INSTRUCTIONS = tuple(
    _product(mnemonic, types, group, groups, needs) for mnemonic, types, group, needs in _KINDS for groups in _GROUPS
)


def _configuration(shapes: Sequence[tuple[int, int]]) -> bytes:
    """Return the 64 bytes of palette 1: the bytes per row of each tile from byte 16 on (16 bits each), and its rows
    from byte 48 on.
    """
    out = bytearray(64)
    out[0] = 1
    for n, (rows, row_bytes) in enumerate(shapes):
        out[16 + 2 * n : 18 + 2 * n] = row_bytes.to_bytes(2, "little")
        out[48 + n] = rows
    return bytes(out)


TILES = FragmentFile(
    name="tile",
    count=8,
    bits=16 * 64 * 8,
    zero=tuple(f"call void @llvm.x86.tilezero(i8 {r})" for r in range(8)),
    load="call void @llvm.x86.tileloadd64(i8 {r}, ptr {p}, i64 {distance})",
    stream="call void @llvm.x86.tileloaddt164(i8 {r}, ptr {p}, i64 {distance})",
    store="call void @llvm.x86.tilestored64(i8 {r}, ptr {p}, i64 {distance})",
    begin="call void @llvm.x86.ldtilecfg(ptr {p})",
    end="call void @llvm.x86.tilerelease()",
    declare=(
        "declare void @llvm.x86.tilezero(i8 immarg)",
        "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.tileloaddt164(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.ldtilecfg(ptr)",
        "declare void @llvm.x86.tilerelease()",
        "declare float @llvm.experimental.constrained.fadd.f32(float, float, metadata, metadata)",
    ),
    configuration=_configuration,
    is_apart=True,
    awake=(
        "call float @llvm.experimental.constrained.fadd.f32(float 0.0, float 0.0, "
        'metadata !"round.dynamic", metadata !"fpexcept.strict")'
    ),
)
"""The tiles. After 0.65 us without a floating-point operation on vectors, tilestored waits 0.25 us (Sapphire Rapids);
an addition in each iteration of a loop over products avoids that. LLVM keeps the addition because it might raise an
exception; 0 + 0 raises none.
"""
