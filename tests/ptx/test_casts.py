"""Casts of every level of NVIDIA's GPUs: the PTX computes what the interpreter of the IR does, without arithmetic on
the parts of a float where the level has an instruction.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen.test_casts import samples
from natives import assert_same_bits, interpreted

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import DTYPES
from convsmith.machine.base import Machine
from convsmith.machine.nvidia.levels import LEVELS
from convsmith.machine.registry import target
from ptx.kernels import kernel_ptx, run_kernel

THREADS = 32
FLOATS = [name for name, row in DTYPES.items() if row.kind == "float"]
PAIRS = [(of, to) for of in DTYPES for to in DTYPES if of != to and DTYPES[of].per_byte == DTYPES[to].per_byte == 1
         and ({of, to} & {*FLOATS} or DTYPES[to].bits == 8)]  # fmt: skip


def cast_kernel(of: str, to: str, size: int, lanes: int) -> Kernel:
    """Return a kernel whose threads cast ``lanes`` elements each, or one for 0."""
    each = max(lanes, 1)
    place = f"[g * {THREADS * each} + t * {each}]" + (f"{{{lanes}}}" if lanes else "")
    return parse_kernel(
        f"kernel k(a: {of}[{size}], out: {to}[{size}])\n"
        f"  for g in 0 .. {size // THREADS // each} #grid:\n"
        f"    for t in 0 .. {THREADS} #group:\n"
        f"      out{place} = cast({to}, a{place})\n"
    )


def numbers(name: str) -> np.ndarray:
    """Return every number of a small float, and samples of other types, as often as all threads have lanes for."""
    row = DTYPES[name]
    found = samples(name)
    if row.kind == "float" and row.bits <= 16:
        found = np.arange(1 << row.bits, dtype=f"u{row.bits // 8}").view(row.numpy)
    elif row.kind == "float":
        ends = np.array([448, 464, 480, 57344, 61440, 65504, 65520], row.numpy)  # of 8-bit floats and f16
        infinity = np.array(np.inf, row.numpy)
        around = np.concatenate([ends, np.nextafter(ends, -infinity), np.nextafter(ends, infinity)])
        found = np.concatenate([found, around, -around])
    return np.resize(found, -(-len(found) // (24 * THREADS)) * 24 * THREADS)


@pytest.mark.sampled(80, "of", "to", "lanes", "level")
@pytest.mark.parametrize("level", [x.name for x in LEVELS])
@pytest.mark.parametrize("lanes", [0, 2, 8])
@pytest.mark.parametrize(("of", "to"), PAIRS)
def test_every_pair(of: str, to: str, lanes: int, level: str) -> None:
    check(of, to, lanes, level)


HARDWARE = [
    ("f32", "f16"), ("f16", "f32"), ("f32", "f8_e4m3"), ("f32", "f8_e5m2"), ("f8_e4m3", "f32"), ("f8_e5m2", "f32"),
    ("f64", "f8_e5m2"), ("f32", "u8"), ("f32", "s8"), ("f32", "s32"), ("s32", "s8"), ("s32", "u8"),
]  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("of", "to"), HARDWARE)
@pytest.mark.parametrize("lanes", [0, 1, 4])
def test_hardware_conversions(of: str, to: str, lanes: int) -> None:
    check(of, to, lanes, "sm_90a")


def check(of: str, to: str, lanes: int, level: str) -> None:
    given = numbers(of)
    kernel, out = cast_kernel(of, to, len(given), lanes), np.zeros(len(given), DTYPES[to].numpy)
    found = run_kernel(kernel, target(level), {"a": given, "out": out}, seed=0)["out"]
    assert_same_bits(found, interpreted(f"cast({to}, a@)", {"a": given}, to, 16))


WORDS = {
    "sm_70": (("f32", "f16", "cvt.rn.f16.f32"), ("f16", "f32", "cvt.f32.f16"), ("f32", "s32", "cvt.rni.s32.f32")),
    "sm_80": (
        ("f32", "f16", "cvt.rn.f16x2.f32"), ("f16", "f32", "cvt.f32.f16"), ("f32", "bf16", "cvt.rn.bf16x2.f32"),
        ("s32", "s8", "cvt.pack.sat.s8.s32.b32"), ("s32", "u8", "cvt.pack.sat.u8.s32.b32"),
        ("f32", "s32", "cvt.rni.s32.f32"),
    ),
    "sm_90a": (
        ("f32", "f16", "cvt.rn.f16x2.f32"), ("f16", "f32", "cvt.f32.f16"), ("f32", "bf16", "cvt.rn.bf16x2.f32"),
        ("f32", "f8_e4m3", "cvt.rn.satfinite.e4m3x2.f32"), ("f32", "f8_e5m2", "cvt.rn.satfinite.e5m2x2.f32"),
        ("f32", "s8", "cvt.pack.sat.s8.s32.b32"), ("f32", "u8", "cvt.rni.s32.f32"), ("f32", "s32", "cvt.rni.s32.f32"),
        ("s32", "s8", "cvt.pack.sat.s8.s32.b32"), ("s32", "u8", "cvt.pack.sat.u8.s32.b32"),
        ("f8_e4m3", "f32", "cvt.rn.f16x2.e4m3x2"), ("f8_e5m2", "f32", "cvt.rn.f16x2.e5m2x2"),
    ),
}
WORDS |= {"sm_86": WORDS["sm_80"], "sm_89": WORDS["sm_80"]}  # fmt: skip
"""The instruction of each level that converts pairs, or single numbers."""


@pytest.mark.parametrize("machine", LEVELS, ids=lambda t: t.name)
def test_a_conversion_is_the_instruction_of_the_level(machine: Machine) -> None:
    for of, to, word in WORDS[machine.name]:
        text = kernel_ptx(cast_kernel(of, to, 128, 4), machine)
        body = text[text.index("{\n") :]
        assert re.search(rf"\b{re.escape(word)}\b", body), (of, to)
        assert not re.search(r"\b(lop3|fma|sub|min|max|setp\.\w+\.s32|shr)\b", body), (of, to, body)
