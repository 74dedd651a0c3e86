"""Kernels in the emulated machine: for levels that this machine lacks, and where memory must be strict."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from guarded import Array, Arrays, check_result, expected, memories, memory_of

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.compiler.arguments import argument_of
from convsmith.diag.errors import UnsupportedError
from convsmith.problem import Problem
from convsmith.problem.types import is_integer
from convsmith.runtime.arrays import ArraySpec
from convsmith.runtime.emulator import bochs
from convsmith.runtime.emulator.kernel import EmulatedKernel
from convsmith.target.base import Target
from convsmith.target.registry import host_features
from convsmith.target.x86.levels import LEVELS, TRIPLE

LACKING = tuple(t for t in LEVELS if not set(t.needs) <= host_features())
"""Levels that can only be emulated here."""

TILE_FORMS = {"ssd": ("s8", "s8"), "sud": ("s8", "u8"), "usd": ("u8", "s8"), "uud": ("u8", "u8")}
"""Products of tiles of bytes, by the end of the instruction's name, and the types of their factors."""


def skip_without_emulator() -> None:
    """Skip the test where there is no Bochs."""
    try:
        bochs.emulator()
    except UnsupportedError as missing:
        pytest.skip(str(missing))


def check_emulated(problem: Problem, artifact: Artifact, arrays: Arrays) -> None:
    """The artifact's results are exact in memory that starts as canaries and poison."""
    memory = memories(problem, arrays)
    for name in artifact.needs_finite:  # the poison would be refused
        memory[name] = memory_of(arrays[name], problem.tensor(name).layout, 0)
    kernel = EmulatedKernel(artifact)
    specs = [ArraySpec(argument_of(t)) for t in problem.tensors]
    kernel.run({s.argument.name: np.ndarray(s.shape, s.dtype, memory[s.argument.name], 0, s.strides) for s in specs})
    check_result(problem, memory, expected(problem, arrays))


def without_signs(problem: Problem, target: Target, arrays: Arrays) -> Arrays:
    """The arrays, without negative factors where the target's tiles need them to be right and the emulator has faults.

    Bochs up to version 3.0 at least takes all bytes in tiles as unsigned.
    """
    if "amx-int8" not in target.needs or problem.acc != "s32" or tiles_have_signs():
        return arrays
    bytes_ = {t.name for t in problem.inputs if t.name in ("src", "wei", "diff_dst") and is_integer(t.dtype)}
    return {n: np.where(x < 0, ~x, x).astype(x.dtype) if n in bytes_ else x for n, x in arrays.items()}


@cache
def tiles_have_signs() -> bool:
    """Whether the emulator's products of tiles are right for negative bytes."""
    found, truth, _ = tile_products("ssd")
    return bool((found == truth).all())


def tile_products(form: str) -> tuple[Array, Array, Array]:
    """A product of tiles of any bytes: as emulated, as it is right, and as it is when all bytes are unsigned."""
    a, b = TILE_FORMS[form]
    arguments = (
        Argument("config", "in", "u8", (64,), "a", 64),
        Argument("a", "in", a, (16, 64), "ab", 1024),
        Argument("b", "in", b, (16, 64), "ab", 1024),
        Argument("c", "inout", "s32", (16, 16), "ab", 256),
    )
    loads = "".join(
        f"%at{n} = getelementptr ptr, ptr %block, i64 {n}\n%p{n} = load ptr, ptr %at{n}\n" for n in range(4)
    )
    text = f"""
    declare void @llvm.x86.ldtilecfg(ptr)
    declare void @llvm.x86.tilerelease()
    declare void @llvm.x86.tileloadd64(i8, ptr, i64)
    declare void @llvm.x86.tilestored64(i8, ptr, i64)
    declare void @llvm.x86.tdpb{form}(i8, i8, i8)
    define void @k_chunk(ptr %block, i64 %tid, i64 %n) nounwind {{
      {loads}
      call void @llvm.x86.ldtilecfg(ptr %p0)
      call void @llvm.x86.tileloadd64(i8 0, ptr %p3, i64 64)
      call void @llvm.x86.tileloadd64(i8 1, ptr %p1, i64 64)
      call void @llvm.x86.tileloadd64(i8 2, ptr %p2, i64 64)
      call void @llvm.x86.tdpb{form}(i8 0, i8 1, i8 2)
      call void @llvm.x86.tilestored64(i8 0, ptr %p3, i64 64)
      call void @llvm.x86.tilerelease()
      ret void
    }}
    """
    needs = ("amx-tile", "amx-int8")
    code = llvm_bind.object_code(text, TRIPLE, "x86-64-v4", ",".join(f"+{name}" for name in needs))
    artifact = Artifact(code, "by hand", {"main": Entry("k", arguments)}, "tiles", "by hand", needs=needs)
    config = np.zeros(64, np.uint8)
    config[0] = 1
    config[16:22:2] = 64  # bytes of a row of each tile
    config[48:51] = 16  # rows
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 256, (16, 64)).astype(np.uint8) for _ in "ab")
    signed = [factor.view(np.int8) if t == "s8" else factor for factor, t in zip((x, y), (a, b))]
    c = rng.integers(-1000, 1000, (16, 16)).astype(np.int32)
    found = EmulatedKernel(artifact).run({"config": config, "a": signed[0], "b": signed[1], "c": c.copy()})["c"]
    return found, c + _product(*signed), c + _product(x, y)


def _product(x: Array, y: Array) -> Array:
    """Of a matrix and one whose rows come four at a time, element by element."""
    rows = y.astype(np.int32).reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16)
    return np.asarray(x.astype(np.int32) @ rows)
